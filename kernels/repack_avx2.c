/* Moves an atom of int4_pth between its own order and that of pages (repack.h), 64 dims at a time. A page's byte holds
 * dims 2i and 2i + 1; kernels/places.h says what the atom's bytes hold. Only the source is read and the target written;
 * no other memory is used. Built with -mavx2.
 */
#include "kernels/repack_atoms.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { TOKENS = 16, LINE = 64, CHUNK = 32 /* bytes of 64 dims */, VECTOR = 512 /* bytes of the atom for them */ };

INLINE __m128i load16(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

INLINE void store16(uint8_t *p, __m128i x)
{
	_mm_storeu_si128((__m128i *)p, x);
}

INLINE __m256i load32(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

INLINE void store32(uint8_t *p, __m256i x)
{
	_mm256_storeu_si256((__m256i *)p, x);
}

/* The same 16 bytes in each half. */
INLINE __m256i each(unsigned a, unsigned b, unsigned c, unsigned d)
{
	return _mm256_broadcastsi128_si256(_mm_setr_epi32((int)a, (int)b, (int)c, (int)d));
}

/* The low nibbles of a, and above them those of b. */
INLINE __m256i low_nibbles(__m256i a, __m256i b)
{
	__m256i low = _mm256_set1_epi8(15);

	return _mm256_or_si256(_mm256_and_si256(a, low), _mm256_slli_epi16(_mm256_and_si256(b, low), 4));
}

/* The high nibbles of a, and above them those of b. */
INLINE __m256i high_nibbles(__m256i a, __m256i b)
{
	__m256i low = _mm256_set1_epi8(15);

	return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), _mm256_andnot_si256(low, b));
}

/* Words 0 and 2, or 1 and 3, of a and then of b, in each half. */
#define WORDS_OF(a, b, first)                                                                              \
	_mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), (first) ? 0xdd : 0x88))

/* ---- K: byte i of a word group holds dims i and i + 32; lane t of group g has words of tokens g and g + 8 ---- */

/* A token's bytes of 128 dims, 64 in each half, or, not `whole`, of 64 in the lower one: of dims 0 .. 15 and 32 ..
 * 47, and of 16 .. 31 and 48 .. 63. */
INLINE void k_bytes(bool whole, const uint8_t *token, __m256i *first, __m256i *second)
{
	__m256i x = load32(token), y = whole ? load32(token + CHUNK) : x;
	__m256i a = _mm256_permute2x128_si256(x, y, 0x20), b = _mm256_permute2x128_si256(x, y, 0x31);
	__m256i even = low_nibbles(a, b), odd = high_nibbles(a, b);

	*first = _mm256_unpacklo_epi8(even, odd);
	*second = _mm256_unpackhi_epi8(even, odd);
}

INLINE void k_token(uint8_t *token, bool whole, __m256i first, __m256i second)
{
	const __m256i apart = each(0x06040200, 0x0e0c0a08, 0x07050301, 0x0f0d0b09);
	__m256i x = _mm256_shuffle_epi8(first, apart), y = _mm256_shuffle_epi8(second, apart);
	__m256i even = _mm256_unpacklo_epi64(x, y), odd = _mm256_unpackhi_epi64(x, y);
	__m256i a = low_nibbles(even, odd), b = high_nibbles(even, odd);

	store32(token, _mm256_permute2x128_si256(a, b, 0x20));
	if (whole)
		store32(token + CHUNK, _mm256_permute2x128_si256(a, b, 0x31));
}

/* A half each to vectors m and m + 1. */
INLINE void k_store(uint8_t *to, bool whole, __m256i x)
{
	store16(to, _mm256_castsi256_si128(x));
	if (whole)
		store16(to + VECTOR, _mm256_extracti128_si256(x, 1));
}

INLINE __m256i k_load(const uint8_t *from, bool whole)
{
	__m256i x = _mm256_castsi128_si256(load16(from));

	return whole ? _mm256_inserti128_si256(x, load16(from + VECTOR), 1) : x;
}

/* 128 dims, or, not `whole`, 64. */
INLINE void k_from(bool whole, uint8_t *const tokens[TOKENS], ptrdiff_t offset, uint8_t *to)
{
	for (unsigned g = 0; g < 8; g++, to += 64) {
		__m256i a, b, a8, b8, p, q;

		k_bytes(whole, tokens[g] + offset, &a, &b);
		k_bytes(whole, tokens[g + 8] + offset, &a8, &b8);
		p = _mm256_unpacklo_epi32(a, a8);
		q = _mm256_unpacklo_epi32(b, b8);
		k_store(to, whole, _mm256_unpacklo_epi64(p, q));
		k_store(to + 16, whole, _mm256_unpackhi_epi64(p, q));
		p = _mm256_unpackhi_epi32(a, a8);
		q = _mm256_unpackhi_epi32(b, b8);
		k_store(to + 32, whole, _mm256_unpacklo_epi64(p, q));
		k_store(to + 48, whole, _mm256_unpackhi_epi64(p, q));
	}
}

INLINE void k_to(bool whole, uint8_t *const tokens[TOKENS], ptrdiff_t offset, const uint8_t *from)
{
	for (unsigned g = 0; g < 8; g++, from += 64) {
		__m256i l0 = k_load(from, whole), l1 = k_load(from + 16, whole);
		__m256i l2 = k_load(from + 32, whole), l3 = k_load(from + 48, whole);
		__m256i p0 = _mm256_unpacklo_epi64(l0, l1), q0 = _mm256_unpackhi_epi64(l0, l1);
		__m256i p1 = _mm256_unpacklo_epi64(l2, l3), q1 = _mm256_unpackhi_epi64(l2, l3);

		k_token(tokens[g] + offset, whole, WORDS_OF(p0, p1, 0), WORDS_OF(q0, q1, 0));
		k_token(tokens[g + 8] + offset, whole, WORDS_OF(p0, p1, 1), WORDS_OF(q0, q1, 1));
	}
}

/* ---- V: byte e of word w of lane (g, t) holds dims 16w + g and 16w + g + 8 of token 2t + {0, 8, 1, 9}[e] ---- */

/* Nibbles 1 and 2 of each four change places. */
INLINE __m256i middle_swapped(__m256i x)
{
	__m256i differ = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi16(x, 4)), _mm256_set1_epi16(0xf0));

	return _mm256_xor_si256(x, _mm256_xor_si256(differ, _mm256_slli_epi16(differ, 4)));
}

/* A token's bytes of 64 dims: those of words 0 and 1, g = 0 .. 7 each, in the lower half, of words 2 and 3 in the
 * upper. */
INLINE __m256i v_bytes(const uint8_t *token)
{
	return middle_swapped(_mm256_shuffle_epi8(load32(token), each(0x05010400, 0x07030602, 0x0d090c08, 0x0f0b0e0a)));
}

INLINE void v_token(uint8_t *token, __m256i bytes)
{
	store32(token, _mm256_shuffle_epi8(middle_swapped(bytes), each(0x06040200, 0x07050301, 0x0e0c0a08, 0x0f0d0b09)));
}

/* What lanes 4g + t have, g and g + 1 in the halves: their words. */
INLINE void v_store(uint8_t *to, unsigned g, unsigned t, __m256i two)
{
	__m256i x = _mm256_permute4x64_epi64(two, 0xd8);

	store16(to + (4 * g + t) * 16, _mm256_castsi256_si128(x));
	store16(to + (4 * g + 4 + t) * 16, _mm256_extracti128_si256(x, 1));
}

INLINE __m256i v_load(const uint8_t *from, unsigned g, unsigned t)
{
	__m256i x = _mm256_castsi128_si256(load16(from + (4 * g + t) * 16));

	return _mm256_permute4x64_epi64(_mm256_inserti128_si256(x, load16(from + (4 * g + 4 + t) * 16), 1), 0xd8);
}

static void v_from(uint8_t *const tokens[TOKENS], ptrdiff_t offset, uint8_t *to)
{
	for (unsigned t = 0; t < 4; t++) {
		__m256i x0 = v_bytes(tokens[2 * t] + offset), x1 = v_bytes(tokens[2 * t + 8] + offset);
		__m256i x2 = v_bytes(tokens[2 * t + 1] + offset), x3 = v_bytes(tokens[2 * t + 9] + offset);
		/* words 0 and 2, then words 1 and 3; g = 0 .. 3, then 4 .. 7 */
		__m256i a = _mm256_unpacklo_epi8(x0, x1), b = _mm256_unpacklo_epi8(x2, x3);
		__m256i c = _mm256_unpackhi_epi8(x0, x1), d = _mm256_unpackhi_epi8(x2, x3);
		__m256i even = _mm256_unpacklo_epi16(a, b), even4 = _mm256_unpackhi_epi16(a, b);
		__m256i odd = _mm256_unpacklo_epi16(c, d), odd4 = _mm256_unpackhi_epi16(c, d);

		v_store(to, 0, t, _mm256_unpacklo_epi32(even, odd));
		v_store(to, 2, t, _mm256_unpackhi_epi32(even, odd));
		v_store(to, 4, t, _mm256_unpacklo_epi32(even4, odd4));
		v_store(to, 6, t, _mm256_unpackhi_epi32(even4, odd4));
	}
}

static void v_to(uint8_t *const tokens[TOKENS], ptrdiff_t offset, const uint8_t *from)
{
	const __m256i by_token = each(0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703);

	for (unsigned t = 0; t < 4; t++) {
		__m256i u0 = v_load(from, 0, t), u1 = v_load(from, 2, t), u2 = v_load(from, 4, t), u3 = v_load(from,
			6, t);
		__m256i a = _mm256_shuffle_epi8(WORDS_OF(u0, u1, 0), by_token);
		__m256i a4 = _mm256_shuffle_epi8(WORDS_OF(u2, u3, 0), by_token);
		__m256i b = _mm256_shuffle_epi8(WORDS_OF(u0, u1, 1), by_token);
		__m256i b4 = _mm256_shuffle_epi8(WORDS_OF(u2, u3, 1), by_token);
		__m256i p = _mm256_unpacklo_epi32(a, a4), q = _mm256_unpacklo_epi32(b, b4);
		__m256i r = _mm256_unpackhi_epi32(a, a4), s = _mm256_unpackhi_epi32(b, b4);

		v_token(tokens[2 * t] + offset, _mm256_unpacklo_epi64(p, q));
		v_token(tokens[2 * t + 8] + offset, _mm256_unpackhi_epi64(p, q));
		v_token(tokens[2 * t + 1] + offset, _mm256_unpacklo_epi64(r, s));
		v_token(tokens[2 * t + 9] + offset, _mm256_unpackhi_epi64(r, s));
	}
}

static void all_k_from(uint32_t d, uint8_t *const tokens[TOKENS], ptrdiff_t offset, uint8_t *codes)
{
	uint32_t m = 0;

	for (; m + 1 < d / 64; m += 2)
		k_from(true, tokens, offset + m * CHUNK, codes + m * VECTOR);
	if (m < d / 64)
		k_from(false, tokens, offset + m * CHUNK, codes + m * VECTOR);
}

static void all_k_to(uint32_t d, uint8_t *const tokens[TOKENS], ptrdiff_t offset, const uint8_t *codes)
{
	uint32_t m = 0;

	for (; m + 1 < d / 64; m += 2)
		k_to(true, tokens, offset + m * CHUNK, codes + m * VECTOR);
	if (m < d / 64)
		k_to(false, tokens, offset + m * CHUNK, codes + m * VECTOR);
}

static void all_v_from(uint32_t d, uint8_t *const tokens[TOKENS], ptrdiff_t offset, uint8_t *codes)
{
	for (uint32_t m = 0; m < d / 64; m++)
		v_from(tokens, offset + m * CHUNK, codes + m * VECTOR);
}

static void all_v_to(uint32_t d, uint8_t *const tokens[TOKENS], ptrdiff_t offset, const uint8_t *codes)
{
	for (uint32_t m = 0; m < d / 64; m++)
		v_to(tokens, offset + m * CHUNK, codes + m * VECTOR);
}

static void stream(uint8_t *to, const uint8_t *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 16)
		_mm_stream_si128((__m128i *)(to + i), load16(from + i));
}

static void stream_lines(uint8_t *to, const uint8_t *from, size_t bytes)
{
	size_t i = -(uintptr_t)to % LINE;

	i = i < bytes ? i : bytes;
	memcpy(to, from, i);
	for (; i + LINE <= bytes; i += LINE) {
		_mm256_stream_si256((__m256i *)(to + i), load32(from + i));
		_mm256_stream_si256((__m256i *)(to + i + LINE / 2), load32(from + i + LINE / 2));
	}
	memcpy(to + i, from + i, bytes - i);
}

static void finish(void)
{
	_mm_sfence();
}

const struct kv_repack_atoms kv_repack_atoms_avx2 = {all_k_from, all_k_to, all_v_from, all_v_to,
							      stream, stream_lines, finish};

#else

typedef int nothing_here;

#endif
