/* A layout as bytes: fixed fields in a fixed order, so that a restart recognises it. Behind them, an opaque layout has
 * its block size and name, and a layout with a rope part has that part. */
#include "daemon/block/layout_bytes.h"

#include "kernels/format.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYOUT_FORM = 1, LAYOUT_FORM_OPAQUE = 2, LAYOUT_FORM_ROPE = 3 };
enum { LAYOUT_BYTES_ROPE = LAYOUT_BYTES + 8 };

_Static_assert((int)LAYOUT_BYTES_MAX == (int)LAYOUT_BYTES + 4 + KV_OPAQUE_NAME_BYTES, "an opaque layout's end");

static uint8_t *put32(uint8_t *at, uint32_t n)
{
	memcpy(at, &n, sizeof(n));
	return at + sizeof(n);
}

static const uint8_t *get32(const uint8_t *at, uint32_t *n)
{
	memcpy(n, at, sizeof(*n));
	return at + sizeof(*n);
}

uint32_t layout_pack(const struct kv_layout *l, uint8_t out[LAYOUT_BYTES_MAX])
{
	const uint32_t fields[] = { l->first_layer, l->layers, l->first_head, l->heads, l->total_heads, l->head_dim_k,
				    l->head_dim_v, l->block_tokens, l->k_format, l->v_format, l->window, l->rotation_version,
				    l->codebook_version, l->layout_version, l->int4_rounding };
	uint8_t *at = put32(out, kv_is_opaque(l) ? LAYOUT_FORM_OPAQUE : l->rope_dim ? LAYOUT_FORM_ROPE : LAYOUT_FORM);

	memset(at, 0, LAYOUT_BYTES - 4);
	memcpy(at, l->fingerprint, KV_FINGERPRINT_BYTES);
	at += KV_FINGERPRINT_BYTES;
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		at = put32(at, fields[i]);
	if (l->rope_dim) {
		put32(put32(out + LAYOUT_BYTES, l->rope_dim), l->rope_format);
		return LAYOUT_BYTES_ROPE;
	}
	if (!kv_is_opaque(l))
		return LAYOUT_BYTES;
	at = put32(out + LAYOUT_BYTES, l->opaque_bytes);
	memset(at, 0, KV_OPAQUE_NAME_BYTES);
	memcpy(at, l->opaque_name, strnlen(l->opaque_name, KV_OPAQUE_NAME_BYTES));
	return LAYOUT_BYTES_MAX;
}

/* The form whose length is n; 0: none. */
static uint32_t form_of(size_t n)
{
	switch (n) {
	case LAYOUT_BYTES:
		return LAYOUT_FORM;
	case LAYOUT_BYTES_ROPE:
		return LAYOUT_FORM_ROPE;
	case LAYOUT_BYTES_MAX:
		return LAYOUT_FORM_OPAQUE;
	default:
		return 0;
	}
}

bool layout_unpack(const uint8_t *bytes, size_t n, struct kv_layout *out)
{
	uint32_t form, k_format, v_format, rounding, rope_format = KV_NONE;
	const uint8_t *at;

	if (!form_of(n))
		return false;
	at = get32(bytes, &form);
	if (form != form_of(n))
		return false;
	memset(out, 0, sizeof(*out));
	memcpy(out->fingerprint, at, KV_FINGERPRINT_BYTES);
	at += KV_FINGERPRINT_BYTES;
	uint32_t *const fields[] = { &out->first_layer, &out->layers, &out->first_head, &out->heads, &out->total_heads,
				     &out->head_dim_k, &out->head_dim_v, &out->block_tokens, &k_format, &v_format,
				     &out->window, &out->rotation_version, &out->codebook_version, &out->layout_version, &rounding };

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		at = get32(at, fields[i]);
	out->k_format = (enum kv_format)k_format;
	out->v_format = (enum kv_format)v_format;
	out->int4_rounding = (enum kv_rounding)rounding; /* 0 in records of the first version */
	if (form == LAYOUT_FORM_ROPE)
		get32(get32(bytes + LAYOUT_BYTES, &out->rope_dim), &rope_format);
	out->rope_format = (enum kv_format)rope_format;
	if (kv_is_opaque(out) != (form == LAYOUT_FORM_OPAQUE) || (out->rope_dim != 0) != (form == LAYOUT_FORM_ROPE))
		return false;
	if (form == LAYOUT_FORM_OPAQUE)
		memcpy(out->opaque_name, get32(bytes + LAYOUT_BYTES, &out->opaque_bytes), KV_OPAQUE_NAME_BYTES);
	return !kv_layout_problem(out);
}
