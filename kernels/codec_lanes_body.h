/* The code of codec_lanes.h, for one kind of machine. codec_avx512.c and codec_avx2.c include it after their own lanes.
 * It is built without contraction: each sum and product is rounded as in the code for one vector, and in the same
 * order. Each stage goes over all tokens, so that the waits of one token (sums in a fixed order, roots, quotients)
 * overlap with work for the others.
 */
#include "kernels/codebook.h"
#include "kernels/codec_lanes.h"
#include "kernels/half.h"
#include "kernels/int4.h"

#include <math.h>
#include <string.h>

enum { L = 16, TOKENS = KV_ATOM_TOKENS, D_MAX = KV_HEAD_DIM_MAX };

/* Vectors of d floats, one after the other. */
struct rows {
	float x[TOKENS * D_MAX] __attribute__((aligned(64)));
};

/* ---- in and out ---- */

LANES_FN floats element_load(enum kv_dtype dtype, const void *p, size_t i)
{
	switch (dtype) {
	case KV_DTYPE_F16:
		return floats_half((const uint16_t *)p + i);
	case KV_DTYPE_BF16:
		return floats_of(words_shl(words_load_halves((const uint16_t *)p + i), 16));
	default:
		return floats_load((const float *)p + i);
	}
}

LANES_FN floats magnitude_of(floats x)
{
	return floats_of(words_and(words_of(x), words_all(0x7fffffff)));
}

LANES_FN words sign_of(floats x)
{
	return words_and(words_of(x), words_all(0x80000000));
}

/* What is beyond the limit becomes it, infinities too. A NaN, which the second operand of a minimum and a maximum
 * passes on, stays one. */
LANES_FN floats within(floats x, float limit)
{
	return floats_min(floats_all(limit), floats_max(floats_all(-limit), x));
}

/* As within(), but NaN becomes 0. */
LANES_FN floats cleaned(floats x, float limit)
{
	return floats_keep(floats_same(x, x), within(x, limit));
}

LANES_FN words bf16_of(floats x)
{
	words u = words_of(x), odd = words_and(words_shr(u, 16), words_all(1));
	words rounded = words_shr(words_add(u, words_add(odd, words_all(0x7fff))), 16);
	words nan = words_or(words_shr(u, 16), words_all(0x40));

	return words_choose(floats_same(x, x), nan, rounded);
}

/* As float_narrow with E4M3's fields, of a number below 512; 448 and up give 0x7e. */
LANES_FN words e4m3_of(floats x)
{
	words magnitude = words_and(words_of(x), words_all(0x7fffffff)), magic = words_all((127 + 24 - 7 - 3) << 23);
	words odd = words_and(words_shr(magnitude, 20), words_all(1));
	words normal = words_sub(words_shr(words_add(words_add(magnitude, words_all((1u << 19) - 1)), odd), 20),
				 words_all((127 - 7) << 3));
	words tiny = words_sub(words_of(floats_add(floats_of(magnitude), floats_of(magic))), magic);
	words b = words_choose(words_below(magnitude, words_all((127 + 1 - 7) << 23)), normal, tiny);

	b = words_choose(words_below(magnitude, words_all(0x43e00000)), words_all(0x7e), b);
	b = words_choose(floats_same(x, x), words_all(0x7f), words_or(b, words_shr(sign_of(x), 24)));
	return b;
}

LANES_FN floats e4m3_to(words b)
{
	words half = words_or(words_shl(words_and(b, words_all(0x7f)), 7), words_shl(words_and(b, words_all(0x80)), 8));
	words nan = words_or(words_all(0x7fc00000), words_shl(words_and(b, words_all(0x80)), 24));
	chosen number = words_below(words_and(b, words_all(0x7f)), words_all(0x7f));
	floats x = floats_mul(floats_of_half_words(half), floats_all(256));

	return floats_of(words_choose(number, nan, words_of(x)));
}

LANES_FN void element_store(enum kv_dtype dtype, void *p, size_t i, floats x)
{
	switch (dtype) {
	case KV_DTYPE_F16:
		floats_store_half((uint16_t *)p + i, within(x, KV_FINITE_MAX));
		break;
	case KV_DTYPE_BF16:
		words_store_halves((uint16_t *)p + i, bf16_of(within(x, KV_BF16_MAX)));
		break;
	case KV_DTYPE_E4M3:
		words_store_bytes((uint8_t *)p + i, e4m3_of(x));
		break;
	case KV_DTYPE_F32:
		floats_store((float *)p + i, x);
		break;
	}
}

LANES_FN void load_rows_of(enum kv_dtype dtype, uint32_t d, uint32_t n, const void *src, size_t stride, float limit,
			   struct rows *to)
{
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < d; i += L)
			floats_store(to->x + t * d + i, cleaned(element_load(dtype, src, t * stride + i), limit));
}

static void load_rows(enum kv_dtype dtype, uint32_t d, uint32_t n, const void *src, size_t stride, float limit,
		      struct rows *to)
{
	switch (dtype) {
	case KV_DTYPE_F16:
		load_rows_of(KV_DTYPE_F16, d, n, src, stride, limit, to);
		break;
	case KV_DTYPE_BF16:
		load_rows_of(KV_DTYPE_BF16, d, n, src, stride, limit, to);
		break;
	default:
		load_rows_of(KV_DTYPE_F32, d, n, src, stride, limit, to);
	}
}

LANES_FN void store_rows_of(enum kv_dtype dtype, uint32_t d, uint32_t wide, uint32_t n, const struct rows *from,
			    void *dst, size_t stride)
{
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < wide; i += L)
			element_store(dtype, dst, t * stride + i, floats_load(from->x + t * d + i));
}

/* The first `wide` dims. */
static void store_rows(enum kv_dtype dtype, uint32_t d, uint32_t wide, uint32_t n, const struct rows *from, void *dst,
		       size_t stride)
{
	switch (dtype) {
	case KV_DTYPE_F16:
		store_rows_of(KV_DTYPE_F16, d, wide, n, from, dst, stride);
		break;
	case KV_DTYPE_BF16:
		store_rows_of(KV_DTYPE_BF16, d, wide, n, from, dst, stride);
		break;
	case KV_DTYPE_E4M3:
		store_rows_of(KV_DTYPE_E4M3, d, wide, n, from, dst, stride);
		break;
	case KV_DTYPE_F32:
		store_rows_of(KV_DTYPE_F32, d, wide, n, from, dst, stride);
		break;
	}
}

/* ---- the rotation ---- */

LANES_FN void exchange(floats *a, floats *b)
{
	floats sum = floats_add(*a, *b);

	*b = floats_sub(*a, *b);
	*a = sum;
}

/* Sylvester's matrix on `vectors` (a power of two) vectors, in the order of hadamard.c's stages. */
LANES_FN void sylvester(unsigned vectors, floats x[L])
{
	UNROLL for (unsigned v = 0; v < vectors; v++) {
		x[v] = floats_butterfly(x[v], 1);
		x[v] = floats_butterfly(x[v], 2);
		x[v] = floats_butterfly(x[v], 4);
		x[v] = floats_butterfly(x[v], 8);
	}
	UNROLL for (unsigned h = 1; h < 16; h *= 2)
		UNROLL for (unsigned v = 0; v < vectors; v++)
			if (h < vectors && !(v & h))
				exchange(&x[v], &x[v | h]);
}

LANES_FN void rotate_row(unsigned vectors, const uint32_t *flips, float *row)
{
	floats x[L];

	UNROLL for (unsigned v = 0; v < vectors; v++)
		x[v] = floats_of(words_xor(words_of(floats_load(row + v * L)), words_load(flips + v * L)));
	sylvester(vectors, x);
	UNROLL for (unsigned v = 0; v < vectors; v++)
		floats_store(row + v * L, x[v]);
}

LANES_FN void unrotate_row(unsigned vectors, const uint32_t *flips, float *row)
{
	floats x[L], scale = floats_all(1.0f / (float)(vectors * L));

	UNROLL for (unsigned v = 0; v < vectors; v++)
		x[v] = floats_load(row + v * L);
	sylvester(vectors, x);
	UNROLL for (unsigned v = 0; v < vectors; v++) {
		words y = words_xor(words_of(floats_mul(x[v], scale)), words_load(flips + v * L));

		floats_store(row + v * L, floats_of(y));
	}
}

/* 512 dims: Sylvester's matrix within each half, then between the halves. */
LANES_FN void sylvester_512(float *row)
{
	floats x[L];

	for (unsigned half = 0; half < 2; half++) {
		float *own = row + half * L * L;

		UNROLL for (unsigned v = 0; v < L; v++)
			x[v] = floats_load(own + v * L);
		sylvester(L, x);
		UNROLL for (unsigned v = 0; v < L; v++)
			floats_store(own + v * L, x[v]);
	}
	for (unsigned v = 0; v < L; v++) {
		floats a = floats_load(row + v * L), b = floats_load(row + (v + L) * L);

		exchange(&a, &b);
		floats_store(row + v * L, a);
		floats_store(row + (v + L) * L, b);
	}
}

LANES_FN void rotate_row_512(bool back, const uint32_t *flips, float *row)
{
	floats scale = floats_all(1.0f / 512);

	for (unsigned i = 0; i < 512 && !back; i += L)
		floats_store(row + i, floats_of(words_xor(words_of(floats_load(row + i)), words_load(flips + i))));
	sylvester_512(row);
	for (unsigned i = 0; i < 512 && back; i += L) {
		words x = words_of(floats_mul(floats_load(row + i), scale));

		floats_store(row + i, floats_of(words_xor(x, words_load(flips + i))));
	}
}

/* 12 rows of m (8 or 16) floats by H12, or its transpose with `back`, over the rows, then Sylvester within each. */
LANES_FN void twelve(unsigned m, bool back, const float *x, floats y[12])
{
	const unsigned vectors = 12 * m / L;

	UNROLL for (unsigned v = 0; v < vectors; v++) {
		const unsigned i = v * L / m, next = m == 8 ? i + 1 : i;

		y[v] = floats_zero();
		UNROLL for (unsigned j = 0; j < 12; j++) {
			bool low = (back ? kv_h12[j] >> i : kv_h12[i] >> j) & 1;
			bool high = (back ? kv_h12[j] >> next : kv_h12[next] >> j) & 1;

			y[v] = floats_add_halves(y[v], m == 8 ? floats_load_twice(x + j * m) : floats_load(x + j * m),
						 low, high);
		}
		y[v] = floats_butterfly(y[v], 1);
		y[v] = floats_butterfly(y[v], 2);
		y[v] = floats_butterfly(y[v], 4);
		if (m == 16)
			y[v] = floats_butterfly(y[v], 8);
	}
}

LANES_FN void rotate_twelve(unsigned m, bool back, const uint32_t *flips, float *row)
{
	const unsigned vectors = 12 * m / L;
	floats y[12], scale = floats_all(1.0f / (float)(12 * m));

	UNROLL for (unsigned v = 0; v < vectors && !back; v++)
		floats_store(row + v * L, floats_of(words_xor(words_of(floats_load(row + v * L)),
							      words_load(flips + v * L))));
	twelve(m, back, row, y);
	UNROLL for (unsigned v = 0; v < vectors; v++) {
		if (back)
			y[v] = floats_of(words_xor(words_of(floats_mul(y[v], scale)), words_load(flips + v * L)));
		floats_store(row + v * L, y[v]);
	}
}

/* Head dims without a function of their own in the loop below, which is the shorter for that. */
static __attribute__((noinline)) void rotate_rows_of_others(uint32_t d, uint32_t n, bool back, const uint32_t *flips,
							    struct rows *rows)
{
	for (uint32_t t = 0; t < n; t++) {
		float *x = rows->x + t * d;

		if (d == 512)
			rotate_row_512(back, flips, x);
		else
			back ? kv_unrotate(x, d) : kv_rotate(x, d);
	}
}

static void rotate_rows(uint32_t d, uint32_t n, bool back, struct rows *rows)
{
	uint32_t flips[D_MAX];

	kv_rotation_flips(d, flips);
	if (d == 80 || d == 112 || d == 512) {
		rotate_rows_of_others(d, n, back, flips, rows);
		return;
	}
	for (uint32_t t = 0; t < n; t++) {
		float *x = rows->x + t * d;

		if (d == 64)
			back ? unrotate_row(4, flips, x) : rotate_row(4, flips, x);
		else if (d == 128)
			back ? unrotate_row(8, flips, x) : rotate_row(8, flips, x);
		else if (d == 256)
			back ? unrotate_row(16, flips, x) : rotate_row(16, flips, x);
		else if (d == 96)
			back ? rotate_twelve(8, true, flips, x) : rotate_twelve(8, false, flips, x);
		else
			back ? rotate_twelve(16, true, flips, x) : rotate_twelve(16, false, flips, x);
	}
}

/* ---- quantise ---- */

/* Lengths of n vectors: sums of squares in 16 parts each, added up from the first part to the last. */
static void lengths(uint32_t d, uint32_t n, const struct rows *rows, float length[TOKENS])
{
	float part[L][TOKENS] = {{0}}, one[L], sum[TOKENS] = {0};

	for (uint32_t t = 0; t < n; t++) {
		floats squares = floats_zero();

		for (uint32_t i = 0; i < d; i += L) {
			floats x = floats_load(rows->x + t * d + i);

			squares = floats_add(squares, floats_mul(x, x));
		}
		floats_store(one, squares);
		for (unsigned j = 0; j < L; j++)
			part[j][t] = one[j];
	}
	for (unsigned j = 0; j < L; j++)
		floats_store(sum, floats_add(floats_load(sum), floats_load(part[j])));
	floats_store(length, floats_sqrt(floats_load(sum)));
}

LANES_FN uint32_t pick(unsigned n, uint32_t d, const float *x, floats limits, const uint32_t *square, uint8_t *codes)
{
	struct ranks ranks = ranks_make(limits, n);
	words sum = words_all(0);

	for (uint32_t i = 0; i < d; i += L) {
		floats y = floats_load(x + i);
		words rank = ranks_of(&ranks, magnitude_of(y));

		sum = words_add(sum, words_lookup(square, rank));
		words_store_bytes(codes + i,
				  words_or(rank, words_keep(floats_below(y, floats_zero()), words_all(n))));
	}
	return words_sum(sum);
}

static void codebook_rows(enum kv_format f, uint32_t d, uint32_t n, const struct rows *rows, uint8_t *codes,
			  uint32_t *scales)
{
	const struct kv_codebook *c = kv_codebook(f);
	float length[TOKENS], step[TOKENS], sum[TOKENS] = {0}, scale[TOKENS], between[L] = {0};
	uint32_t square[KV_MAGNITUDES_MAX] = {0};

	lengths(d, n, rows, length);
	floats_store(step, floats_div(floats_div(floats_load(length), floats_all(sqrtf((float)d))),
				      floats_all(c->per_unit)));
	for (uint32_t j = 0; j < c->magnitudes; j++) {
		between[j] = j ? (c->magnitude[j - 1] + c->magnitude[j]) / 2 : 0;
		square[j] = (uint32_t)(4 * c->magnitude[j] * c->magnitude[j]);
	}
	for (uint32_t t = 0; t < n; t++) {
		const float *x = rows->x + t * d;
		floats limits = floats_mul(floats_load(between), floats_all(step[t]));
		uint8_t *to = codes + t * d;

		sum[t] = (float)(c->magnitudes == 8   ? pick(8, d, x, limits, square, to)
				 : c->magnitudes == 4 ? pick(4, d, x, limits, square, to)
						      : pick(2, d, x, limits, square, to));
	}
	floats_store(scale, floats_div(floats_load(length),
				       floats_div(floats_sqrt(floats_load(sum)), floats_all(2))));
	for (uint32_t t = 0; t < n; t++)
		scales[t] = half_from_float(scale[t] > KV_FINITE_MAX ? KV_FINITE_MAX : scale[t]);
}

static void fp8_rows(uint32_t d, uint32_t n, const struct rows *rows, uint8_t *codes, uint32_t *scales)
{
	for (uint32_t t = 0; t < n; t++) {
		const float *x = rows->x + t * d;
		floats largest = floats_zero(), step;
		float least;
		uint16_t h;

		for (uint32_t i = 0; i < d; i += L)
			largest = floats_max(largest, magnitude_of(floats_load(x + i)));
		least = floats_greatest(largest) / KV_FP8_TOP(d);
		h = half_from_float(least);
		h = (uint16_t)(float_from_half(h) < least ? h + 1 : h);
		step = floats_all(h ? float_from_half(h) : 1.0f);
		for (uint32_t i = 0; i < d; i += L)
			words_store_bytes(codes + t * d + i, e4m3_of(floats_div(floats_load(x + i), step)));
		scales[t] = h;
	}
}

/* As int4.c's, of one lane. */
static float int4_rounded(float x, float inverse, float zero)
{
	float t = (float)((double)x * (double)inverse + (double)zero) + 0.5f;

	return t < 0 ? 0 : t > 15 ? 15 : t;
}

static void int4_rows(uint32_t d, uint32_t n, const struct rows *rows, uint8_t *codes, uint32_t *scales)
{
	for (uint32_t t = 0; t < n; t++) {
		const float *x = rows->x + t * d;
		floats low = floats_load(x), high = low;
		float scale, inverse;
		uint32_t zero;

		for (uint32_t i = L; i < d; i += L) {
			low = floats_min(low, floats_load(x + i));
			high = floats_max(high, floats_load(x + i));
		}
		scale = (floats_greatest(high) - floats_least(low)) * (1.0f / 15.0f);
		scale = scale < 1e-6f ? 1e-6f : scale;
		inverse = kv_int4_reciprocal(scale);
		zero = (uint32_t)int4_rounded(-floats_least(low), inverse, 0);
		for (uint32_t i = 0; i < d; i += L) {
			floats y = floats_fma_wide(floats_load(x + i), (double)inverse, (double)zero);

			y = floats_min(floats_max(floats_add(y, floats_all(.5f)), floats_zero()), floats_all(15));
			words_store_bytes(codes + t * d + i, floats_cut(y));
		}
		scales[t] = (float_bits(scale) & ~15u) | zero;
	}
}

/* vLLM keeps the rotated vector in the model's dtype. bf16 holds it. */
static void bf16_rows(uint32_t d, uint32_t n, struct rows *rows)
{
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < d; i += L)
			floats_store(rows->x + t * d + i,
				floats_of(words_shl(bf16_of(floats_load(rows->x + t * d + i)), 16)));
}

/* What passes fp16 is taken as its largest number. */
static void half_rows(uint32_t d, uint32_t n, struct rows *rows)
{
	uint16_t halves[L];

	for (uint32_t t = 0; t < n; t++)
		for (uint32_t i = 0; i < d; i += L) {
			floats_store_half(halves, floats_load(rows->x + t * d + i));
			floats_store(rows->x + t * d + i, cleaned(floats_half(halves), KV_FINITE_MAX));
		}
}

static void raw_rows(enum kv_format f, uint32_t d, uint32_t n, const struct rows *rows, uint16_t *codes,
		     uint32_t *scales)
{
	for (uint32_t t = 0; t < n; t++) {
		for (uint32_t i = 0; i < d; i += L)
			if (f == KV_F16)
				floats_store_half(codes + t * d + i, floats_load(rows->x + t * d + i));
			else
				words_store_halves(codes + t * d + i, bf16_of(floats_load(rows->x + t * d + i)));
		scales[t] = 0;
	}
}

/* Formats that this code knows. */
static bool known(enum kv_format f)
{
	switch (f) {
	case KV_F16:
	case KV_BF16:
	case KV_FP8:
	case KV_INT4_PTH:
	case KV_TQ4:
	case KV_TQ3:
	case KV_TQ2:
		return true;
	default:
		return false;
	}
}

static bool quantise(enum kv_format f, enum kv_rounding rounding, uint32_t d, uint32_t n, const void *src,
	enum kv_dtype dtype,
		     size_t stride, void *codes, uint32_t *scales)
{
	struct rows rows;

	if (!known(f))
		return false;
	load_rows(dtype, d, n, src, stride, f == KV_BF16 ? KV_BF16_MAX : KV_FINITE_MAX, &rows);
	if (kv_format_info(f)->rotated)
		rotate_rows(d, n, false, &rows);
	switch (f) {
	case KV_F16:
	case KV_BF16:
		raw_rows(f, d, n, &rows, codes, scales);
		break;
	case KV_FP8:
		fp8_rows(d, n, &rows, codes, scales);
		break;
	case KV_INT4_PTH:
		(rounding == KV_ROUND_BF16 ? bf16_rows : half_rows)(d, n, &rows);
		int4_rows(d, n, &rows, codes, scales);
		break;
	case KV_TQ4:
	case KV_TQ3:
	case KV_TQ2:
		codebook_rows(f, d, n, &rows, codes, scales);
		break;
	default:
		break;
	}
	return true;
}

/* ---- dequantise ---- */

static void codebook_values(enum kv_format f, uint32_t d, const uint8_t *codes, uint32_t scale, float *x)
{
	uint32_t n = 1u << kv_format_info(f)->code_bits;
	const float *values = kv_codebook_values(f);
	float table[L], by = float_from_half((uint16_t)scale);

	for (uint32_t i = 0; i < L; i++)
		table[i] = values[i % n] * by;
	for (uint32_t i = 0; i < d; i += L)
		floats_store(x + i, floats_lookup(table, words_load_bytes(codes + i)));
}

static void row_values(enum kv_format f, uint32_t d, const void *codes, uint32_t scale, float *x)
{
	const uint8_t *bytes = codes;
	const uint16_t *halves = codes;
	floats by = floats_all(float_from_half((uint16_t)scale));
	words zero = words_all(scale & 15);

	switch (f) {
	case KV_F16:
		for (uint32_t i = 0; i < d; i += L)
			floats_store(x + i, floats_half(halves + i));
		break;
	case KV_BF16:
		for (uint32_t i = 0; i < d; i += L)
			floats_store(x + i, floats_of(words_shl(words_load_halves(halves + i), 16)));
		break;
	case KV_FP8:
		for (uint32_t i = 0; i < d; i += L)
			floats_store(x + i, floats_mul(e4m3_to(words_load_bytes(bytes + i)), by));
		break;
	case KV_INT4_PTH:
		by = floats_of(words_all(scale & ~15u));
		for (uint32_t i = 0; i < d; i += L)
			floats_store(x + i,
				     floats_mul(floats_converted(words_sub(words_load_bytes(bytes + i), zero)), by));
		break;
	case KV_TQ4:
	case KV_TQ3:
	case KV_TQ2:
		codebook_values(f, d, codes, scale, x);
		break;
	default:
		break;
	}
}

static bool dequantise(enum kv_format f, uint32_t d, uint32_t n, const void *rows, const uint32_t *scales,
		       bool unrotate, uint32_t wide, void *dst, enum kv_dtype dtype, size_t stride)
{
	size_t code_bytes = kv_format_info(f)->code_bits == 16 ? 2 : 1;
	struct rows x;

	if (!known(f))
		return false;
	for (uint32_t t = 0; t < n; t++)
		row_values(f, d, (const uint8_t *)rows + t * d * code_bytes, scales[t], x.x + t * d);
	if (unrotate)
		rotate_rows(d, n, true, &x);
	store_rows(dtype, d, wide, n, &x, dst, stride);
	return true;
}
