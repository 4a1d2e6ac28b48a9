/* The id of a layout (see format.h). Apart from the format table so that only this file needs xxhash. */
#include "kernels/format.h"

#include <string.h>

#include <xxhash.h>

/* Begins the fields of a rope part, so that a serialisation with one is none of a layout with other later fields. */
#define ROPE_TAG 0x65706f72u /* "rope" */

uint64_t kv_layout_id(const struct kv_layout *l)
{
	const uint32_t fields[] = {
		l->first_layer, l->layers, l->first_head, l->heads, l->total_heads, l->head_dim_k,
		l->head_dim_v, l->block_tokens, l->k_format, l->v_format, l->window, l->rotation_version,
		l->codebook_version, l->layout_version, kv_is_opaque(l) ? l->opaque_bytes : l->int4_rounding,
		ROPE_TAG, l->rope_dim, l->rope_format,
	};
	enum { FIELDS = sizeof(fields) / sizeof(fields[0]), ROPE_FIELDS = 3, LAST = FIELDS - ROPE_FIELDS - 1 };
	/* ids of layouts older than the rope part and int4_rounding stay what they are */
	const bool rope = l->rope_dim || l->rope_format;
	const unsigned fields_there = rope ? FIELDS : LAST + (fields[LAST] != 0);
	const size_t name_bytes = strnlen(l->opaque_name, sizeof(l->opaque_name)); /* 0 of others than opaque ones */
	uint8_t bytes[KV_FINGERPRINT_BYTES + 4 * FIELDS + sizeof(l->opaque_name)], *end = bytes + KV_FINGERPRINT_BYTES;
	uint64_t id;

	memcpy(bytes, l->fingerprint, KV_FINGERPRINT_BYTES);
	for (unsigned i = 0; i < 4 * fields_there; i++)
		*end++ = (uint8_t)(fields[i / 4] >> (i % 4 * 8));
	memcpy(end, l->opaque_name, name_bytes);
	id = XXH3_64bits(bytes, (size_t)(end - bytes) + name_bytes);
	return id ? id : 1;
}
