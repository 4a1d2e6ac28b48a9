/* The id of a layout (see format.h). Apart from the format table so that only this file needs xxhash. */
#include "kernels/format.h"

#include <string.h>

#include <xxhash.h>

uint64_t kv_layout_id(const struct kv_layout *l)
{
	const uint32_t fields[] = {
		l->first_layer, l->layers, l->first_head, l->heads, l->total_heads, l->head_dim_k,
		l->head_dim_v, l->block_tokens, l->k_format, l->v_format, l->window, l->rotation_version,
		l->codebook_version, l->layout_version, l->int4_rounding,
	};
	enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };
	/* ids of layouts older than int4_rounding stay what they are */
	const unsigned fields_there = FIELDS - (l->int4_rounding == 0);
	uint8_t bytes[KV_FINGERPRINT_BYTES + 4 * FIELDS];
	uint64_t id;

	memcpy(bytes, l->fingerprint, KV_FINGERPRINT_BYTES);
	for (unsigned i = 0; i < 4 * fields_there; i++)
		bytes[KV_FINGERPRINT_BYTES + i] = (uint8_t)(fields[i / 4] >> (i % 4 * 8));
	id = XXH3_64bits(bytes, KV_FINGERPRINT_BYTES + 4 * fields_there);
	return id ? id : 1;
}
