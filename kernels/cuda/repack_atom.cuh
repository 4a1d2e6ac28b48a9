/* Moves an atom's codes of int4_pth from and to its tokens' codes in the order of pages (kernels/repack.h). The latter
 * are in shared memory, `pitch` bytes from token to token. The codes are moved 16 bytes of the atom at a time where its
 * planes are whole vectors (head dims that are multiples of 64). Else, and for single tokens, they are moved by
 * kernels/places.h.
 */
#ifndef TERRACE_KERNELS_CUDA_REPACK_ATOM_CUH
#define TERRACE_KERNELS_CUDA_REPACK_ATOM_CUH

#include "kernels/cuda/codec.cuh"

/* Nibbles 1 and 2 of each four change places: two bytes of one dim's code each below the other's, and two of pairs of
 * dims. */
DEVICE uint32_t middle_swapped(uint32_t x)
{
	const uint32_t differ = (x ^ x >> 4) & 0x00f000f0;

	return x ^ differ ^ differ << 4;
}

/* ---- K: a word of the atom is 4 dims of a token and the 4 that are 32 on, two bytes each of the page's ---- */

DEVICE uint32_t k_word(const uint8_t *codes)
{
	return middle_swapped(permute(*(const uint16_t *)codes, *(const uint16_t *)(codes + 16), 0x5140));
}

DEVICE void k_word_out(uint32_t word, uint8_t *codes)
{
	const uint32_t x = middle_swapped(word);

	*(uint16_t *)codes = (uint16_t)permute(x, 0, 0x4420);
	*(uint16_t *)(codes + 16) = (uint16_t)permute(x, 0, 0x4431);
}

/* Where vector v of the plane has its first token's first bytes; the second token is 8 on, the other words 8 bytes. */
DEVICE uint32_t k_vector_at(uint32_t v, uint32_t pitch)
{
	return v % 32 / 4 * pitch + v / 32 * 32 + v % 4 * 2;
}

DEVICE void k_from_pages(const uint8_t *codes, uint32_t pitch, uint32_t v, uint8_t *plane)
{
	const uint8_t *low = codes + k_vector_at(v, pitch), *high = low + 8 * pitch;

	*(uint4 *)(plane + v * 16) = make_uint4(k_word(low), k_word(high), k_word(low + 8), k_word(high + 8));
}

DEVICE void k_to_pages(const uint8_t *plane, uint32_t v, uint8_t *codes, uint32_t pitch)
{
	const uint4 words = *(const uint4 *)(plane + v * 16);
	uint8_t *low = codes + k_vector_at(v, pitch), *high = low + 8 * pitch;

	k_word_out(words.x, low);
	k_word_out(words.y, high);
	k_word_out(words.z, low + 8);
	k_word_out(words.w, high + 8);
}

/* ---- V: byte e of a word is token 2t + {0, 8, 1, 9}[e], dims 16w + g and 8 on. Two lanes of the atom, g even and g +
 * 1, share the bytes of the pages ---- */

struct v_pair {
	uint32_t tokens, byte; /* where its first token is, of 64 dims; of 4 bytes: its own */
	uint32_t even, odd;    /* vectors in the plane */
};

DEVICE v_pair v_pair_of(uint32_t i, uint32_t pitch)
{
	const uint32_t t = i % 4, byte = i % 16 / 4, even = i / 16 * 512 + (byte * 8 + t) * 16;

	return {2 * t * pitch + i / 16 * 32, byte, even, even + 64};
}

/* Token e of a word, from the first. */
DEVICE uint32_t v_token_at(uint32_t e, uint32_t pitch)
{
	return (e % 2 * 8 + e / 2) * pitch;
}

/* A word of both lanes; `codes`: of the first token, of 16 dims. */
DEVICE void v_words(const uint8_t *codes, uint32_t pitch, uint32_t byte, uint32_t *even, uint32_t *odd)
{
	uint32_t two[4];

#pragma unroll
	for (uint32_t e = 0; e < 4; e++) {
		const uint32_t *words = (const uint32_t *)(codes + v_token_at(e, pitch));

		two[e] = permute(words[0], words[1], byte | (byte + 4) << 4);
	}
	const uint32_t first = middle_swapped(permute(two[0], two[1], 0x5410)),
		       second = middle_swapped(permute(two[2], two[3], 0x5410));

	*even = permute(first, second, 0x6420);
	*odd = permute(first, second, 0x7531);
}

DEVICE void v_words_out(uint32_t even, uint32_t odd, uint8_t *codes, uint32_t pitch, uint32_t byte)
{
	const uint32_t two[2] = {middle_swapped(permute(even, odd, 0x5140)),
				 middle_swapped(permute(even, odd, 0x7362))};

#pragma unroll
	for (uint32_t e = 0; e < 4; e++) {
		uint8_t *token = codes + v_token_at(e, pitch) + byte;

		token[0] = (uint8_t)(two[e / 2] >> e % 2 * 16);
		token[4] = (uint8_t)(two[e / 2] >> (e % 2 * 16 + 8));
	}
}

DEVICE void v_from_pages(const uint8_t *codes, uint32_t pitch, uint32_t i, uint8_t *plane)
{
	const v_pair p = v_pair_of(i, pitch);
	uint32_t even[4], odd[4];

#pragma unroll
	for (uint32_t w = 0; w < 4; w++)
		v_words(codes + p.tokens + 8 * w, pitch, p.byte, &even[w], &odd[w]);
	*(uint4 *)(plane + p.even) = make_uint4(even[0], even[1], even[2], even[3]);
	*(uint4 *)(plane + p.odd) = make_uint4(odd[0], odd[1], odd[2], odd[3]);
}

DEVICE void v_to_pages(const uint8_t *plane, uint32_t i, uint8_t *codes, uint32_t pitch)
{
	const v_pair p = v_pair_of(i, pitch);
	const uint4 even = *(const uint4 *)(plane + p.even), odd = *(const uint4 *)(plane + p.odd);

	codes += p.tokens;
	v_words_out(even.x, odd.x, codes, pitch, p.byte);
	v_words_out(even.y, odd.y, codes + 8, pitch, p.byte);
	v_words_out(even.z, odd.z, codes + 16, pitch, p.byte);
	v_words_out(even.w, odd.w, codes + 24, pitch, p.byte);
}

/* ---- a token by itself, any head dim ---- */

DEVICE uint32_t code_in_page(const uint8_t *codes, uint32_t dim)
{
	return codes[dim / 2] >> dim % 2 * 4 & 15;
}

/* The dim whose code is above that of `dim`, which is in the low half of its byte. */
DEVICE uint32_t dim_above(enum kv_side side, uint32_t d, uint32_t in_atom, uint32_t dim, uint32_t byte)
{
	struct kv_place p[2];

	for (uint32_t step = 32; step > 1; step /= 2)
		if (dim + step < d) {
			places_of(4, side, d, in_atom, dim + step, p);
			if (p[0].byte == byte)
				return dim + step;
		}
	return dim + 1;
}

/* The byte of the atom that has the code of `dim` in its low half, if that is where it is. */
DEVICE void dim_from_page(const uint8_t *codes, enum kv_side side, uint32_t d, uint32_t in_atom, uint32_t dim,
			  uint8_t *plane)
{
	struct kv_place p[2];

	places_of(4, side, d, in_atom, dim, p);
	if (p[0].shift)
		return;
	plane[p[0].byte] = (uint8_t)(code_in_page(codes, dim) |
				     code_in_page(codes, dim_above(side, d, in_atom, dim, p[0].byte)) << 4);
}

/* The page's byte that has the codes of `dim`, an even one, and the next. */
DEVICE void dims_to_page(const uint8_t *plane, enum kv_side side, uint32_t d, uint32_t in_atom, uint32_t dim,
			 uint8_t *codes)
{
	struct kv_place low[2], high[2];

	places_of(4, side, d, in_atom, dim, low);
	places_of(4, side, d, in_atom, dim + 1, high);
	codes[dim / 2] =
		(uint8_t)((plane[low[0].byte] >> low[0].shift & 15) | (plane[high[0].byte] >> high[0].shift & 15) << 4);
}

#endif
