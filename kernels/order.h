/* Tables of the element order: for every plane width, side and head dim, where the bytes of a token
 * stand and which dims share them. Built from kv_code_places the first time one is wanted, by any
 * thread; never freed, never changed.
 */
#ifndef TERRACE_KERNELS_ORDER_H
#define TERRACE_KERNELS_ORDER_H

#include "kernels/codec.h"

enum { KV_PLANE_BYTES_MAX = 2 * KV_HEAD_DIM_MAX };

/* One plane: `bytes` bytes a token, 8 / bits codes in each (16 bits: two bytes a code, low one
 * first). */
struct kv_plane_order {
	uint32_t bytes;
	/* offset of byte k of a token in the plane */
	uint16_t at[KV_ATOM_TOKENS][KV_PLANE_BYTES_MAX];
	/* dim of field q (bits q * width ..) of byte k, of any token */
	uint8_t dim[KV_PLANE_BYTES_MAX][8];
};

/* width is 1, 2, 4, 8 or 16; d a legal head dim. */
const struct kv_plane_order *kv_plane_order(unsigned width, enum kv_side side, uint32_t d);

/* Moves the codes of one token of an atom: codes[d] in dim order to and from the atom's codes part.
 * Packing writes the bytes of that token and no other. */
void kv_token_pack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token,
		   const uint16_t *codes, uint8_t *part);
void kv_token_unpack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token,
		     const uint8_t *part, uint16_t *codes);

#endif
