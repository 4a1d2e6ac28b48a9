/* The element order of an atom: the one definition, which format.c gives the CPU code and kernels/cuda the device code.
 *
 * The order follows the operand fragments of the integer tensor-core instruction m16n8k32 with KV
 * as operand A: with g = lane / 4 and t = lane % 4, a lane wants tokens g and g + 8 of K, and dims
 * g and g + 8 of V. A format's codes are one *plane* of 1, 2, 4, 8 or 16 bits a code, or (tq3) a
 * 2-bit plane and then a 1-bit plane. A plane gives every lane L = d * bits / 16 bytes, kept in
 * 16-byte vectors so that a warp's loads are 512 consecutive bytes; what is left over when L is no
 * multiple of 16 follows, L % 16 bytes a lane.
 *
 * A latent and its rope part (MLA) have K's order, and V is read from the same bytes. So attention on a GPU reads a
 * latent's atoms twice, from shared memory, where one bulk copy has brought a whole chunk. (No kernel does yet.)
 *   Scores. A lane's words are operand A as they stand: rows are tokens, the contraction is over dims. The latent's
 *   scale is multiplied into the latent's sum; the rope part, of 16 bits or fp8, has a sum of its own (m16n8k16).
 *   Output. Operand A is the transpose: rows are dims, by the lane's g, and the contraction is over tokens, by t. A
 *   word of 4 bits has 8 dims of one token, 64 * vector + 16j + {4t' + e, 32 + 4t' + e}, and 8 words (t', j) are the 64
 *   dims of a vector. Lane (g, t) takes word g = 2t' + j of 8 of 32 tokens: t, t + 4, t + 8 and t + 12 of two atoms, by
 *   four loads of 8 bytes, in which two lanes meet in a bank. Three steps of shifts and selects transpose the square of
 *   8 x 8 nibbles; then each of the 8 words is one dim of 8 tokens, a row of one of 8 tiles. Weights stand in the same
 *   order of tokens, with the latent's scale in them. Of 2 bits a square has 16 dims (tq3's signs: 32), of 8 bits it is
 *   4 x 4 bytes, and 16 bits are 8 x 8 matrices (movmatrix).
 */
#ifndef TERRACE_KERNELS_PLACES_H
#define TERRACE_KERNELS_PLACES_H

#include "kernels/format.h"

#ifdef __CUDACC__
#define KV_PLACES_FN static __host__ __device__ __forceinline__
#else
#define KV_PLACES_FN static inline
#endif

/* Byte `k` of the `lane_bytes` bytes that a lane has in a plane, as an offset in the plane. */
KV_PLACES_FN uint32_t lane_byte_at(uint32_t lane_bytes, uint32_t lane, uint32_t k)
{
	uint32_t whole = lane_bytes / 16 * 16;

	if (k < whole)
		return k / 16 * 512 + lane * 16 + k % 16;
	return whole * 32 + lane * (lane_bytes - whole) + (k - whole);
}

/* K, 1 to 8 bits. A lane's words come in pairs, token g then token g + 8; a pair holds `fields`
 * groups of 16 dims, of which the lane has 4t .. 4t + 3. When two pairs fill a 16-byte vector, the
 * fields of one word are two groups apart for 4 bits, so that the low nibbles of both pairs are 32
 * consecutive dims, one k step of the instruction. Of 1 bit, where the lane's two tokens share an odd number of
 * bytes (d = 80, 112), the last group stands behind the lanes' bytes, token by token, in dim order. */
KV_PLACES_FN void k_place(uint32_t bits, uint32_t d, uint32_t token, uint32_t dim, struct kv_place *out)
{
	uint32_t lane_bytes = d * bits / 16 & ~1u, fields = 8 / bits;
	uint32_t lane = token % 8 * 4 + dim / 4 % 4, half = token / 8;
	uint32_t group = dim / 16, e = dim % 4;
	uint32_t pair = group / fields, field = group % fields;

	if (pair < lane_bytes / 8) {
		if (bits == 4 && (pair | 1) < lane_bytes / 8) {
			pair = group / 4 * 2 + group % 2;
			field = group / 2 % 2;
		}
		out->byte = lane_byte_at(lane_bytes, lane, pair * 8 + half * 4 + e);
		out->shift = (uint8_t)(field * bits);
		return;
	}
	if (group >= lane_bytes * fields / 8) {
		out->byte = lane_bytes * 32 + token * 2 + dim % 16 / 8;
		out->shift = (uint8_t)(dim % 8);
		return;
	}
	/* What is left of the lane: as many bytes for token g, then for token g + 8, elements in
	 * dim order. */
	uint32_t pairs = lane_bytes / 8, part = lane_bytes % 8 / 2;
	uint32_t i = (group - pairs * fields) * 4 + e;

	out->byte = lane_byte_at(lane_bytes, lane, pairs * 8 + half * part + i / fields);
	out->shift = (uint8_t)(i % fields * bits);
}

/* V, 1 to 8 bits: bytes of a word are tokens 2t, 2t + 8, 2t + 1, 2t + 9; words and fields count up
 * the dims g, g + 8, g + 16, ... Dims that fill no word (1 bit: 64 .. of d = 80, 96 and 112; 2 bits: 64 .. of 80, 96
 * .. of 112) stand behind, token by token, in dim order. */
KV_PLACES_FN void v_place(uint32_t bits, uint32_t d, uint32_t token, uint32_t dim, struct kv_place *out)
{
	uint32_t fields = 8 / bits, words = d / 8 / fields, lane_bytes = words * 4;
	uint32_t lane = dim % 8 * 4 + token % 8 / 2, e = token % 2 * 2 + token / 8;
	uint32_t row = dim / 8, word = row / fields;

	if (word < words) {
		out->byte = lane_byte_at(lane_bytes, lane, word * 4 + e);
		out->shift = (uint8_t)(row % fields * bits);
		return;
	}
	uint32_t left = dim - words * fields * 8, per_token = (d - words * fields * 8) * bits / 8;

	out->byte = lane_bytes * 32 + token * per_token + left / fields;
	out->shift = (uint8_t)(left % fields * bits);
}

/* 16 bits, the fragment of m16n8k16: K has two dims a word, V two tokens a word. */
KV_PLACES_FN uint32_t raw_place(enum kv_side side, uint32_t d, uint32_t token, uint32_t dim)
{
	uint32_t lane_bytes = d, vector = dim / 16;

	if (side == KV_SIDE_K) {
		uint32_t lane = token % 8 * 4 + dim % 8 / 2, r = token / 8 + dim % 16 / 8 * 2;

		return lane_byte_at(lane_bytes, lane, vector * 16 + r * 4 + dim % 2 * 2);
	}
	uint32_t lane = dim % 8 * 4 + token % 8 / 2, r = dim % 16 / 8 + token / 8 * 2;

	return lane_byte_at(lane_bytes, lane, vector * 16 + r * 4 + token % 2 * 2);
}

/* kv_code_places for a format of `bits` bits a code; arguments in range. */
KV_PLACES_FN unsigned places_of(uint32_t bits, enum kv_side side, uint32_t d, uint32_t token, uint32_t dim,
				struct kv_place out[2])
{
	unsigned planes = 0, done = 0;

	if (bits == 16) {
		out[0].byte = raw_place(side, d, token, dim);
		out[1].byte = out[0].byte + 1;
		out[0].shift = out[1].shift = out[0].code_shift = 0;
		out[0].bits = out[1].bits = out[1].code_shift = 8;
		return 2;
	}
	while (done < bits) {
		unsigned width = bits == 3 ? 2 - done / 2 : bits;
		struct kv_place *p = &out[planes++];

		if (side == KV_SIDE_K)
			k_place(width, d, token, dim, p);
		else
			v_place(width, d, token, dim, p);
		p->byte += KV_ATOM_TOKENS * d * done / 8;
		p->bits = (uint8_t)width;
		p->code_shift = (uint8_t)done;
		done += width;
	}
	return planes;
}

#undef KV_PLACES_FN

#endif
