/* Tables of the element order: for every plane width, side and head dim, the places of a token's bytes and the dims
 * that share a byte. They are built from kv_code_places at their first use, by any thread. They are never freed and
 * never changed.
 */
#ifndef TERRACE_KERNELS_ORDER_H
#define TERRACE_KERNELS_ORDER_H

#include "kernels/codec.h"

enum { KV_PLANE_BYTES_MAX = 2 * KV_HEAD_DIM_MAX };

enum { KV_PLANE_PARTS_MAX = 4 };

/* Bytes of a token from `byte` on, in runs of `run` (8, 16 or 32): byte i of the run has in field q the
 * code of dim + q * run + i; the next run follows, with the dims after these. */
struct kv_plane_part {
	uint16_t byte, dim, run, runs;
};

/* One plane: `bytes` bytes a token, 8 / bits codes in each (16 bits: two bytes a code, low one
 * first). */
struct kv_plane_order {
	uint32_t bytes;
	/* [KV_ATOM_TOKENS][bytes] offset of byte k of a token in the plane (kv_plane_at): as close together as they
	 * can be, for rows as long as the longest would lie in the same lines of a cache */
	uint16_t at[KV_ATOM_TOKENS * KV_PLANE_BYTES_MAX];
	/* dim of field q (bits q * width ..) of byte k, of any token */
	uint16_t dim[KV_PLANE_BYTES_MAX][8];
	/* the same by parts; none if they cannot say it */
	unsigned parts;
	struct kv_plane_part part[KV_PLANE_PARTS_MAX];
	/* Words of four bytes. K: bytes 4j .. 4j + 3 of a token. V: byte k of tokens 2t, 2t + 8, 2t + 1 and 2t + 9,
	 * of 16 bits both bytes of tokens 2t and 2t + 1. Either way at the place of the first. */
	bool words;
};

/* Offsets of a token's bytes. */
static inline const uint16_t *kv_plane_at(const struct kv_plane_order *o, uint32_t token)
{
	return o->at + token * o->bytes;
}

/* width is 1, 2, 4, 8 or 16; d a legal head dim. */
const struct kv_plane_order *kv_plane_order(unsigned width, enum kv_side side, uint32_t d);

/* Moves the codes of one token of an atom: codes[d] in dim order to and from the atom's codes part.
 * Packing writes the bytes of that token and no other. */
void kv_token_pack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token,
		   const uint16_t *codes, uint8_t *part);
void kv_token_unpack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token,
		     const uint8_t *part, uint16_t *codes);

/* Moves the codes of tokens first .. first + n - 1 of an atom; of a whole atom (n = 16) a word at a time. rows[n][d]:
 * codes of a byte each, or of 16 bits for the formats that have 16. */
void kv_rows_pack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t first, uint32_t n,
		  const void *rows, uint8_t *part);
void kv_rows_unpack(enum kv_format f, enum kv_side side, uint32_t d, uint32_t first, uint32_t n,
		    const uint8_t *part, void *rows);

#endif
