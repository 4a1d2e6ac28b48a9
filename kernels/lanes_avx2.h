/* The names of lanes_avx512.h for AVX2, FMA and F16C: sixteen lanes are two registers. */
#ifndef TERRACE_KERNELS_LANES_AVX2_H
#define TERRACE_KERNELS_LANES_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LANES_FN static inline __attribute__((always_inline))
#ifdef TERRACE_SANITIZED
#define UNROLL /* checks in unrolled code take minutes to compile */
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define LANES_WIDE 0

typedef struct {
	__m256 a, b;
} floats;

typedef struct {
	__m256i a, b;
} words;

typedef words chosen; /* all ones or all zeroes a lane */

#define LANES_FLOATS_2(name, op) \
	LANES_FN floats name(floats x, floats y) { return (floats){op(x.a, y.a), op(x.b, y.b)}; }
#define LANES_WORDS_2(name, op) \
	LANES_FN words name(words x, words y) { return (words){op(x.a, y.a), op(x.b, y.b)}; }
#define LANES_SHIFT(name, op) \
	LANES_FN words name(words x, int n) { return (words){op(x.a, n), op(x.b, n)}; }

LANES_FN floats floats_zero(void) { return (floats){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LANES_FN floats floats_all(float x) { return (floats){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANES_FN floats floats_load(const float *p) { return (floats){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANES_FN void floats_store(float *p, floats x)
{
	_mm256_storeu_ps(p, x.a);
	_mm256_storeu_ps(p + 8, x.b);
}
LANES_FLOATS_2(floats_add, _mm256_add_ps)
LANES_FLOATS_2(floats_sub, _mm256_sub_ps)
LANES_FLOATS_2(floats_mul, _mm256_mul_ps)
LANES_FLOATS_2(floats_min, _mm256_min_ps)
LANES_FLOATS_2(floats_max, _mm256_max_ps)
LANES_FN floats floats_fma(floats x, floats y, floats z)
{
	return (floats){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
LANES_FN floats floats_of(words x) { return (floats){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LANES_FN words words_of(floats x) { return (words){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LANES_FN floats floats_converted(words x)
{
	return (floats){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}

LANES_FN words words_load(const void *p)
{
	return (words){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
LANES_FN void words_store(void *p, words x)
{
	_mm256_storeu_si256((__m256i *)p, x.a);
	_mm256_storeu_si256((__m256i *)p + 1, x.b);
}
LANES_FN words words_all(uint32_t x) { return (words){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
LANES_WORDS_2(words_and, _mm256_and_si256)
LANES_WORDS_2(words_or, _mm256_or_si256)
LANES_WORDS_2(words_xor, _mm256_xor_si256)
LANES_WORDS_2(words_add, _mm256_add_epi32)
LANES_WORDS_2(words_shr_each, _mm256_srlv_epi32)
LANES_SHIFT(words_shl, _mm256_slli_epi32)
LANES_SHIFT(words_shr, _mm256_srli_epi32)
LANES_SHIFT(words_shl16, _mm256_slli_epi16)
LANES_SHIFT(words_sra16, _mm256_srai_epi16)

LANES_FN floats floats_keep(chosen c, floats x)
{
	return (floats){_mm256_and_ps(_mm256_castsi256_ps(c.a), x.a), _mm256_and_ps(_mm256_castsi256_ps(c.b), x.b)};
}
LANES_FN chosen words_chosen(words x)
{
	const __m256i zero = _mm256_setzero_si256(), ones = _mm256_set1_epi32(-1);

	return (chosen){_mm256_xor_si256(_mm256_cmpeq_epi32(x.a, zero), ones),
			_mm256_xor_si256(_mm256_cmpeq_epi32(x.b, zero), ones)};
}
LANES_FN chosen floats_same(floats x, floats y)
{
	return (chosen){_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ)),
			_mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ))};
}

LANES_FN __m256 permuted_8(floats x, __m256i at)
{
	__m256 low = _mm256_permutevar8x32_ps(x.a, at), high = _mm256_permutevar8x32_ps(x.b, at);

	return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}

LANES_FN floats floats_permuted(floats x, words at)
{
	return (floats){permuted_8(x, at.a), permuted_8(x, at.b)};
}

LANES_FN floats floats_half(const void *p)
{
	return (floats){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
			_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}

LANES_FN floats halves_8(__m256i x)
{
	return (floats){_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}
LANES_FN floats floats_half_low(words x) { return halves_8(x.a); }
LANES_FN floats floats_half_high(words x) { return halves_8(x.b); }

/* The first 8 values: all of a table of 8 or 4, the magnitudes of one of 16. */
struct lookup {
	__m256 values;
};

LANES_FN struct lookup lookup_make(const float *values, unsigned n)
{
	float all[8];

	for (unsigned i = 0; i < 8; i++)
		all[i] = values[i % n];
	return (struct lookup){_mm256_loadu_ps(all)};
}

LANES_FN __m256 signed4_8(__m256 values, __m256i w, int f)
{
	__m256 x = _mm256_permutevar8x32_ps(values, _mm256_srli_epi32(w, 4 * f));
	__m256i sign = _mm256_and_si256(_mm256_slli_epi32(w, 28 - 4 * f), _mm256_set1_epi32(INT32_MIN));

	return _mm256_xor_ps(x, _mm256_castsi256_ps(sign));
}
LANES_FN floats lookup_signed4(struct lookup t, words w, int f)
{
	return (floats){signed4_8(t.values, w.a, f), signed4_8(t.values, w.b, f)};
}
LANES_FN floats lookup_3(struct lookup t, words w, int f)
{
	return (floats){_mm256_permutevar8x32_ps(t.values, _mm256_srli_epi32(w.a, 4 * f)),
			_mm256_permutevar8x32_ps(t.values, _mm256_srli_epi32(w.b, 4 * f))};
}
LANES_FN __m256 int4_8(__m256i w, int f)
{
	__m256i top = _mm256_slli_epi32(_mm256_xor_si256(w, _mm256_set1_epi32((int)0x88888888)), 28 - 4 * f);

	return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 28));
}
LANES_FN floats lookup_int4(struct lookup t, words w, int f)
{
	(void)t;
	return (floats){int4_8(w.a, f), int4_8(w.b, f)};
}

/* at: of the first 8 lanes within the first half of what there is, of the others within the second. */
LANES_FN words words_spread(const void *p, bool wide, words at)
{
	const __m256i *x = p;
	__m256i low = _mm256_loadu_si256(x), high = wide ? _mm256_loadu_si256(x + 1) : low;

	return (words){_mm256_permutevar8x32_epi32(low, at.a), _mm256_permutevar8x32_epi32(high, at.b)};
}

LANES_FN __m256 sums_4(const floats x[4], bool pairs)
{
	__m256 half[4], quarter[2];

	for (int i = 0; i < 4; i++)
		half[i] = _mm256_add_ps(x[i].a, x[i].b);
	for (int i = 0; i < 2; i++)
		quarter[i] = _mm256_add_ps(_mm256_permute2f128_ps(half[i], half[i + 2], 0x20),
					   _mm256_permute2f128_ps(half[i], half[i + 2], 0x31));
	if (pairs)
		return _mm256_add_ps(_mm256_shuffle_ps(quarter[0], quarter[1], 0x44),
				     _mm256_shuffle_ps(quarter[0], quarter[1], 0xee));
	return _mm256_add_ps(_mm256_shuffle_ps(quarter[0], quarter[1], 0x88),
			     _mm256_shuffle_ps(quarter[0], quarter[1], 0xdd));
}
LANES_FN floats floats_sums(const floats x[8], bool pairs)
{
	return (floats){sums_4(x, pairs), sums_4(x + 4, pairs)};
}

/* ---- for the codecs and softmax ---- */

LANES_FLOATS_2(floats_div, _mm256_div_ps)
LANES_WORDS_2(words_sub, _mm256_sub_epi32)
LANES_FN floats floats_sqrt(floats x) { return (floats){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
LANES_FN chosen floats_below(floats x, floats y)
{
	return (chosen){_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
			_mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
LANES_FN chosen words_below(words x, words y)
{
	return (chosen){_mm256_cmpgt_epi32(y.a, x.a), _mm256_cmpgt_epi32(y.b, x.b)};
}
LANES_FN words words_keep(chosen c, words x) { return words_and(c, x); }
LANES_FN words words_choose(chosen c, words x, words y)
{
	return (words){_mm256_blendv_epi8(x.a, y.a, c.a), _mm256_blendv_epi8(x.b, y.b, c.b)};
}
LANES_FN words floats_cut(floats x) { return (words){_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }

LANES_FN chosen floats_not_below(floats x, floats y)
{
	return (chosen){_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_NLT_UQ)),
			_mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_NLT_UQ))};
}
LANES_FN float floats_sum(floats x)
{
	__m256 y = _mm256_add_ps(x.a, x.b);
	__m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));

	z = _mm_add_ps(z, _mm_movehl_ps(z, z));
	return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
LANES_FN float floats_least(floats x)
{
	__m256 y = _mm256_min_ps(x.a, x.b);
	__m128 z = _mm_min_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));

	z = _mm_min_ps(z, _mm_movehl_ps(z, z));
	return _mm_cvtss_f32(_mm_min_ss(z, _mm_movehdup_ps(z)));
}
LANES_FN float floats_greatest(floats x)
{
	__m256 y = _mm256_max_ps(x.a, x.b);
	__m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));

	z = _mm_max_ps(z, _mm_movehl_ps(z, z));
	return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
LANES_FN uint32_t words_sum(words x)
{
	__m256i y = _mm256_add_epi32(x.a, x.b);
	__m128i z = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));

	z = _mm_add_epi32(z, _mm_shuffle_epi32(z, 0x4e));
	return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(z, _mm_shuffle_epi32(z, 0xb1)));
}

LANES_FN __m256 fma_wide_8(__m256 x, __m256d by, __m256d plus)
{
	__m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));

	a = _mm256_fmadd_pd(a, by, plus);
	b = _mm256_fmadd_pd(b, by, plus);
	return _mm256_set_m128(_mm256_cvtpd_ps(b), _mm256_cvtpd_ps(a));
}
LANES_FN floats floats_fma_wide(floats x, double y, double z)
{
	__m256d by = _mm256_set1_pd(y), plus = _mm256_set1_pd(z);

	return (floats){fma_wide_8(x.a, by, plus), fma_wide_8(x.b, by, plus)};
}

LANES_FN __m256 butterfly_8(__m256 x, int h)
{
	__m256 y = h == 1   ? _mm256_permute_ps(x, 0xb1)
		   : h == 2 ? _mm256_permute_ps(x, 0x4e)
			    : _mm256_permute2f128_ps(x, x, 1);

	return h == 1   ? _mm256_blend_ps(_mm256_add_ps(x, y), _mm256_sub_ps(y, x), 0xaa)
	       : h == 2 ? _mm256_blend_ps(_mm256_add_ps(x, y), _mm256_sub_ps(y, x), 0xcc)
			: _mm256_blend_ps(_mm256_add_ps(x, y), _mm256_sub_ps(y, x), 0xf0);
}
LANES_FN floats floats_butterfly(floats x, int h)
{
	if (h == 8)
		return (floats){_mm256_add_ps(x.a, x.b), _mm256_sub_ps(x.a, x.b)};
	return (floats){butterfly_8(x.a, h), butterfly_8(x.b, h)};
}

LANES_FN floats floats_add_halves(floats x, floats y, bool low, bool high)
{
	return (floats){low ? _mm256_sub_ps(x.a, y.a) : _mm256_add_ps(x.a, y.a),
			high ? _mm256_sub_ps(x.b, y.b) : _mm256_add_ps(x.b, y.b)};
}
LANES_FN floats floats_load_twice(const float *p) { return (floats){_mm256_loadu_ps(p), _mm256_loadu_ps(p)}; }

struct ranks {
	unsigned n;
	__m256 limit[8];
};

LANES_FN struct ranks ranks_make(floats limits, unsigned n)
{
	struct ranks r = {.n = n};

	for (unsigned j = 1; j < n; j++)
		r.limit[j] = _mm256_permutevar8x32_ps(limits.a, _mm256_set1_epi32((int)j));
	return r;
}

LANES_FN words ranks_of(const struct ranks *r, floats x)
{
	__m256i a = _mm256_setzero_si256(), b = a;

	for (unsigned j = 1; j < r->n; j++) {
		a = _mm256_sub_epi32(a, _mm256_castps_si256(_mm256_cmp_ps(r->limit[j], x.a, _CMP_LT_OQ)));
		b = _mm256_sub_epi32(b, _mm256_castps_si256(_mm256_cmp_ps(r->limit[j], x.b, _CMP_LT_OQ)));
	}
	return (words){a, b};
}

LANES_FN words words_lookup(const uint32_t table[8], words at)
{
	__m256i t = _mm256_loadu_si256((const __m256i *)table);

	return (words){_mm256_permutevar8x32_epi32(t, at.a), _mm256_permutevar8x32_epi32(t, at.b)};
}
LANES_FN floats floats_lookup(const float table[16], words at)
{
	return floats_permuted(floats_load(table), at);
}

LANES_FN void words_store_halves(uint16_t *p, words x)
{
	__m256i mask = _mm256_set1_epi32(0xffff);
	__m256i y = _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));

	_mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(y, 0xd8));
}
LANES_FN words words_load_halves(const uint16_t *p)
{
	return (words){_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
		       _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1))};
}
LANES_FN void words_store_bytes(uint8_t *p, words x)
{
	__m256i mask = _mm256_set1_epi32(0xff);
	__m256i y = _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));

	y = _mm256_permute4x64_epi64(y, 0xd8);
	_mm_storeu_si128((__m128i *)p,
			 _mm_packus_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)));
}
LANES_FN words words_load_bytes(const uint8_t *p)
{
	return (words){_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
		       _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))};
}
LANES_FN void floats_store_half(uint16_t *p, floats x)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
	_mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
LANES_FN floats floats_of_half_words(words x)
{
	uint16_t halves[16];

	words_store_halves(halves, x);
	return floats_half(halves);
}

#endif
