/* Operations on sixteen floats or words at a time, in one AVX-512 register. lanes_avx2.h has the same names for two
 * AVX2 registers. Code that is written with these names is compiled once for each.
 */
#ifndef TERRACE_KERNELS_LANES_AVX512_H
#define TERRACE_KERNELS_LANES_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LANES_FN static inline __attribute__((always_inline))
#ifdef TERRACE_SANITIZED
#define UNROLL /* checks in unrolled code take minutes to compile */
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define LANES_WIDE 1 /* 32 registers of 16 lanes */

typedef __m512 floats;
typedef __m512i words;
typedef __mmask16 chosen; /* a truth value a lane */

LANES_FN floats floats_zero(void) { return _mm512_setzero_ps(); }
LANES_FN floats floats_all(float x) { return _mm512_set1_ps(x); }
LANES_FN floats floats_load(const float *p) { return _mm512_loadu_ps(p); }
LANES_FN void floats_store(float *p, floats x) { _mm512_storeu_ps(p, x); }
LANES_FN floats floats_add(floats a, floats b) { return _mm512_add_ps(a, b); }
LANES_FN floats floats_sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
LANES_FN floats floats_mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
LANES_FN floats floats_min(floats a, floats b) { return _mm512_min_ps(a, b); }
LANES_FN floats floats_max(floats a, floats b) { return _mm512_max_ps(a, b); }
LANES_FN floats floats_fma(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
LANES_FN floats floats_of(words x) { return _mm512_castsi512_ps(x); }
LANES_FN words words_of(floats x) { return _mm512_castps_si512(x); }
LANES_FN floats floats_converted(words x) { return _mm512_cvtepi32_ps(x); }

LANES_FN words words_load(const void *p) { return _mm512_loadu_si512(p); }
LANES_FN void words_store(void *p, words x) { _mm512_storeu_si512(p, x); }
LANES_FN words words_all(uint32_t x) { return _mm512_set1_epi32((int)x); }
LANES_FN words words_and(words a, words b) { return _mm512_and_si512(a, b); }
LANES_FN words words_or(words a, words b) { return _mm512_or_si512(a, b); }
LANES_FN words words_xor(words a, words b) { return _mm512_xor_si512(a, b); }
LANES_FN words words_add(words a, words b) { return _mm512_add_epi32(a, b); }
LANES_FN words words_shl(words x, int n) { return _mm512_slli_epi32(x, (unsigned)n); }
LANES_FN words words_shr(words x, int n) { return _mm512_srli_epi32(x, (unsigned)n); }
LANES_FN words words_shr_each(words x, words n) { return _mm512_srlv_epi32(x, n); }
LANES_FN words words_shl16(words x, int n) { return _mm512_slli_epi16(x, (unsigned)n); }
LANES_FN words words_sra16(words x, int n) { return _mm512_srai_epi16(x, (unsigned)n); }

/* Zeroes the lanes that are not chosen. */
LANES_FN floats floats_keep(chosen c, floats x) { return _mm512_maskz_mov_ps(c, x); }
/* Where the word is not 0. */
LANES_FN chosen words_chosen(words x) { return _mm512_test_epi32_mask(x, x); }
LANES_FN chosen floats_same(floats a, floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

/* x[at], at 0 .. 15 in the low bits of each word. */
LANES_FN floats floats_permuted(floats x, words at) { return _mm512_permutexvar_ps(at, x); }

/* 16 halves. */
LANES_FN floats floats_half(const void *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
LANES_FN floats floats_half_low(words x) { return _mm512_cvtph_ps(_mm512_castsi512_si256(x)); }
LANES_FN floats floats_half_high(words x) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)); }

/* The values of codes: a table of 16, of 8 or of 4 floats. */
struct lookup {
	floats values;
};

LANES_FN struct lookup lookup_make(const float *values, unsigned n)
{
	float all[16];

	for (unsigned i = 0; i < 16; i++)
		all[i] = values[i % n];
	return (struct lookup){_mm512_loadu_ps(all)};
}

/* Field `f`, 4 bits from bit 4 f on, of every word; a sign and 3 bits. */
LANES_FN floats lookup_signed4(struct lookup t, words w, int f)
{
	return _mm512_permutexvar_ps(_mm512_srli_epi32(w, (unsigned)(4 * f)), t.values);
}
/* 3 bits in a field of 4, whose highest bit is 0. */
LANES_FN floats lookup_3(struct lookup t, words w, int f) { return lookup_signed4(t, w, f); }
/* The code less 8. */
LANES_FN floats lookup_int4(struct lookup t, words w, int f) { return lookup_signed4(t, w, f); }

/* The 8 words at p, or 16 with `wide`, repeated: lane i gets that of at[i]. */
LANES_FN words words_spread(const void *p, bool wide, words at)
{
	words x = wide ? _mm512_loadu_si512(p) : _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));

	return _mm512_permutexvar_epi32(at, x);
}

/* Lanes i and i ^ 8, i ^ 4 summed, of eight vectors; then over lanes i ^ 2, where `pairs`, or i ^ 1:
 * the result's lanes 2g and 2g + 1 are vector g's. */
LANES_FN floats floats_sums(const floats x[8], bool pairs)
{
	floats half[4], quarter[2];

	for (int i = 0; i < 4; i++) {
		floats a = x[i / 2 + i % 2 * 4], b = x[i / 2 + i % 2 * 4 + 2];

		half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
	}
	for (int i = 0; i < 2; i++)
		quarter[i] = _mm512_add_ps(_mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0x88),
					   _mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0xdd));
	if (pairs)
		return _mm512_add_ps(_mm512_shuffle_ps(quarter[0], quarter[1], 0x44),
				     _mm512_shuffle_ps(quarter[0], quarter[1], 0xee));
	return _mm512_add_ps(_mm512_shuffle_ps(quarter[0], quarter[1], 0x88),
			     _mm512_shuffle_ps(quarter[0], quarter[1], 0xdd));
}

/* ---- for the codecs and softmax ---- */

LANES_FN floats floats_div(floats a, floats b) { return _mm512_div_ps(a, b); }
LANES_FN floats floats_sqrt(floats x) { return _mm512_sqrt_ps(x); }
LANES_FN chosen floats_below(floats a, floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
LANES_FN chosen words_below(words a, words b) { return _mm512_cmplt_epi32_mask(a, b); }
LANES_FN words words_keep(chosen c, words x) { return _mm512_maskz_mov_epi32(c, x); }
/* b where chosen, else a. */
LANES_FN words words_choose(chosen c, words a, words b) { return _mm512_mask_mov_epi32(a, c, b); }
LANES_FN words words_sub(words a, words b) { return _mm512_sub_epi32(a, b); }
LANES_FN words floats_cut(floats x) { return _mm512_cvttps_epi32(x); }
LANES_FN chosen floats_not_below(floats a, floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
LANES_FN float floats_sum(floats x) { return _mm512_reduce_add_ps(x); }
LANES_FN float floats_least(floats x) { return _mm512_reduce_min_ps(x); }
LANES_FN float floats_greatest(floats x) { return _mm512_reduce_max_ps(x); }
LANES_FN uint32_t words_sum(words x) { return (uint32_t)_mm512_reduce_add_epi32(x); }

/* x * y + z with the product and sum in double, rounded to float at the end. */
LANES_FN floats floats_fma_wide(floats x, double y, double z)
{
	__m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
	__m512d by = _mm512_set1_pd(y), plus = _mm512_set1_pd(z);

	a = _mm512_fmadd_pd(a, by, plus);
	b = _mm512_fmadd_pd(b, by, plus);
	return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a)), _mm512_cvtpd_ps(b), 1);
}

/* Lane i and lane i ^ h (h = 1, 2, 4 or 8): their sum in the lower one, the lower less the upper in the other.
 * (A product by 1 or -1 is exact.) */
LANES_FN floats floats_butterfly(floats x, int h)
{
	const __mmask16 upper = h == 1 ? 0xaaaa : h == 2 ? 0xcccc : h == 4 ? 0xf0f0 : 0xff00;
	const __m512 sign = _mm512_mask_mov_ps(_mm512_set1_ps(1), upper, _mm512_set1_ps(-1));
	__m512 y = h == 1   ? _mm512_permute_ps(x, 0xb1)
		   : h == 2 ? _mm512_permute_ps(x, 0x4e)
		   : h == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
			    : _mm512_shuffle_f32x4(x, x, 0x4e);

	return _mm512_fmadd_ps(x, sign, y);
}

/* x + y; x - y in the first 8 lanes with `low`, in the others with `high`. */
LANES_FN floats floats_add_halves(floats x, floats y, bool low, bool high)
{
	if (low == high)
		return low ? _mm512_sub_ps(x, y) : _mm512_add_ps(x, y);
	return _mm512_mask_sub_ps(_mm512_add_ps(x, y), low ? 0x00ff : 0xff00, x, y);
}
/* The 8 floats at p, twice. */
LANES_FN floats floats_load_twice(const float *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }

/* How many of the n - 1 (n = 2, 4 or 8) ascending limits in lanes 1 .. n - 1 are below x. */
struct ranks {
	unsigned n;
	__m512 limits, middle, first, third;
};

LANES_FN struct ranks ranks_make(floats limits, unsigned n)
{
	return (struct ranks){n, limits, _mm512_permutexvar_ps(_mm512_set1_epi32((int)n / 2), limits),
			      _mm512_permutexvar_ps(_mm512_set1_epi32((int)n / 4), limits),
			      _mm512_permutexvar_ps(_mm512_set1_epi32((int)(n / 2 + n / 4)), limits)};
}

LANES_FN words ranks_of(const struct ranks *r, floats x)
{
	const __m512i none = _mm512_setzero_si512(), one = _mm512_set1_epi32(1), two = _mm512_set1_epi32(2),
		      four = _mm512_set1_epi32(4);
	__mmask16 high = _mm512_cmp_ps_mask(r->middle, x, _CMP_LT_OQ), next;
	__m512i rank;

	if (r->n == 2)
		return _mm512_maskz_mov_epi32(high, one);
	next = _mm512_cmp_ps_mask(_mm512_mask_mov_ps(r->first, high, r->third), x, _CMP_LT_OQ);
	if (r->n == 4)
		return _mm512_mask_or_epi32(_mm512_mask_mov_epi32(none, next, one), high,
					    _mm512_mask_mov_epi32(none, next, one), two);
	rank = _mm512_mask_mov_epi32(one, next, _mm512_set1_epi32(3));
	rank = _mm512_mask_or_epi32(rank, high, rank, four);
	next = _mm512_cmp_ps_mask(_mm512_permutexvar_ps(rank, r->limits), x, _CMP_LT_OQ);
	return _mm512_mask_add_epi32(_mm512_sub_epi32(rank, one), next, _mm512_sub_epi32(rank, one), one);
}

/* table[8][at]. */
LANES_FN words words_lookup(const uint32_t table[8], words at)
{
	return _mm512_permutexvar_epi32(at, _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)table)));
}
/* table[16][at]. */
LANES_FN floats floats_lookup(const float table[16], words at)
{
	return _mm512_permutexvar_ps(at, _mm512_loadu_ps(table));
}

/* The low byte or half of each word, to memory and back. */
LANES_FN void words_store_bytes(uint8_t *p, words x)
{
	_mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
}
LANES_FN words words_load_bytes(const uint8_t *p)
{
	return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
LANES_FN void words_store_halves(uint16_t *p, words x)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(x));
}
LANES_FN words words_load_halves(const uint16_t *p)
{
	return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
/* Rounded to fp16, to nearest even. */
LANES_FN void floats_store_half(uint16_t *p, floats x)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_FN floats floats_of_half_words(words x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

#endif
