/* The codecs: conversions, rotation, error of every format, odd input, and vectors in and out of
 * packed blocks. */
#include "kernels/codec.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codebook.h"
#include "kernels/machine.h"
#include "kernels/order.h"

#define DIM(d) d,
static const uint32_t dims[] = {KV_HEAD_DIMS(DIM)};
#undef DIM

#ifdef TERRACE_SANITIZED
enum { VECTORS = 256 };
#else
enum { VECTORS = 2048 };
#endif

enum { DIMS = KV_HEAD_DIM_COUNT, DIM_MAX = KV_HEAD_DIM_MAX, TOKENS = 32, BLOCK_MAX = 2 * 2 * TOKENS * DIM_MAX * 2 * 2 };

static uint64_t state = 1;

static uint64_t random_bits(void)
{
	uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static double uniform(void)
{
	return (double)(random_bits() >> 11) * 0x1p-53;
}

static float gaussian(void)
{
	return (float)(sqrt(-2 * log(1 - uniform())) * cos(2 * 3.14159265358979 * uniform()));
}

static void gaussians(uint32_t n, float *x)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] = gaussian();
}

static double squares(uint32_t d, const float *x)
{
	double sum = 0;

	for (uint32_t i = 0; i < d; i++)
		sum += (double)x[i] * x[i];
	return sum;
}

static double squared_error(uint32_t d, const float *x, const float *y)
{
	double sum = 0;

	for (uint32_t i = 0; i < d; i++)
		sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
	return sum;
}

/* Encodes and decodes one vector in the original domain. */
static void through(enum kv_format f, uint32_t d, const float *x, float *y)
{
	uint8_t bytes[2 * KV_HEAD_DIM_MAX];

	kv_linear_encode(f, KV_ROUND_F16, d, false, x, bytes);
	kv_linear_decode(f, d, false, bytes, y);
}

/* Two layers of two heads, K and V of one format. */
static void layout_of(enum kv_format f, uint32_t d, struct kv_layout *l, struct kv_geometry *g)
{
	*l = (struct kv_layout){
		.layers = 2,
		.heads = 2,
		.total_heads = 2,
		.head_dim_k = d,
		.head_dim_v = d,
		.block_tokens = TOKENS,
		.k_format = f,
		.v_format = f,
		.rotation_version = kv_rotation_version(d, d),
		.codebook_version = 1,
		.layout_version = 1,
	};
	ck_assert_ptr_null(kv_layout_problem(l));
	kv_geometry_of(l, g);
	ck_assert_uint_le(g->block_bytes, BLOCK_MAX);
}

/* Whether `chosen` is the nearest, ties to the even code, of three neighbouring values of a narrow
 * float type. */
static bool nearest(double f, double below, double chosen, double above, bool even)
{
	double error = fabs(f - chosen), other = fmin(fabs(f - below), fabs(f - above));

	return error < other || (error == other && even);
}

START_TEST(half_conversions)
{
	uint32_t wrong = 0;

	for (uint32_t h = 0; h < 0x10000; h++) {
		float f = kv_half_to((uint16_t)h);

		if ((h & 0x7fff) > 0x7c00)
			wrong += !isnan(f) || !isnan(kv_half_to(kv_half_from(f)));
		else
			wrong += kv_half_from(f) != h;
	}
	ck_assert(kv_half_to(0x3c00) == 1.0f && kv_half_to(0x7bff) == KV_FINITE_MAX &&
		  kv_half_to(1) == 0x1p-24f);
	ck_assert(kv_half_to(0xfc00) == -INFINITY && kv_half_from(65519.996f) == 0x7bff &&
		  kv_half_from(65520) == 0x7c00);
	ck_assert(kv_half_from(3e38f) == 0x7c00 && kv_half_from(-INFINITY) == 0xfc00 &&
		  kv_half_from(0x1p-25f) == 0);
	for (uint32_t h = 1; h < 0x7bff; h++) {
		double a = kv_half_to((uint16_t)h), b = kv_half_to((uint16_t)(h + 1));
		float between[] = {(float)((a + b) / 2), (float)(a + (b - a) * uniform())};

		for (int i = 0; i < 2; i++) {
			uint16_t c = kv_half_from(-between[i]) & 0x7fff;

			wrong += !nearest(between[i], kv_half_to(c - 1), kv_half_to(c),
					  kv_half_to(c + 1), c % 2 == 0);
		}
	}
	ck_assert_uint_eq(wrong, 0);
}
END_TEST

START_TEST(other_conversions)
{
	for (uint32_t b = 0; b < 0x100; b++)
		ck_assert_uint_eq(kv_e4m3_from(kv_e4m3_to((uint8_t)b)), (b & 0x7f) == 0x7f ? 0x7f : b);
	ck_assert(kv_e4m3_to(0x7e) == 448 && kv_e4m3_to(1) == 0x1p-9f && kv_e4m3_to(0xb8) == -1);
	ck_assert(kv_e4m3_from(1e9f) == 0x7e && kv_e4m3_from(-INFINITY) == 0xfe &&
		  kv_e4m3_from(NAN) == 0x7f);
	for (uint32_t b = 1; b < 0x7e; b++) {
		double low = kv_e4m3_to((uint8_t)b), high = kv_e4m3_to((uint8_t)(b + 1));
		uint8_t c = kv_e4m3_from((float)((low + high) / 2));

		ck_assert_uint_eq(c, b + b % 2);
		ck_assert_uint_eq(kv_e4m3_from((float)(low + (high - low) * .49)), b);
		ck_assert_uint_eq(kv_e4m3_from((float)(low + (high - low) * .51)), b + 1);
	}
	uint32_t wrong = 0;

	for (uint32_t h = 0; h < 0x10000; h++)
		wrong += (h & 0x7fff) <= 0x7f80 && kv_bf16_from(kv_bf16_to((uint16_t)h)) != h;
	ck_assert_uint_eq(wrong, 0);
	ck_assert(kv_bf16_from(1.00390625f) == 0x3f80 && kv_bf16_from(1.01171875f) == 0x3f82);
	ck_assert(isnan(kv_bf16_to(kv_bf16_from(NAN))));
	ck_assert(kv_dtype_bytes(KV_DTYPE_F32) == 4 && kv_dtype_bytes(KV_DTYPE_F16) == 2 &&
		  kv_dtype_bytes(KV_DTYPE_BF16) == 2 && kv_dtype_bytes(KV_DTYPE_E4M3) == 1);
}
END_TEST

/* Columns are +-1 and orthogonal; powers of two are Sylvester's matrix times the signs. */
START_TEST(rotation_matrix)
{
	uint32_t d = dims[_i];
	static float column[DIM_MAX][DIM_MAX];

	for (uint32_t i = 0; i < d; i++) {
		memset(column[i], 0, sizeof(column[i]));
		column[i][i] = 1;
		kv_rotate(column[i], d);
		bool sound = true;

		for (uint32_t k = 0; k < d; k++) {
			sound &= fabsf(column[i][k]) == 1;
			if ((d & (d - 1)) == 0)
				sound &= column[i][k] == (__builtin_parity(i & k) ? -1 : 1) *
								 kv_rotation_sign(d, i);
		}
		for (uint32_t j = 0; j < i; j++) {
			float dot = 0;

			for (uint32_t k = 0; k < d; k++)
				dot += column[i][k] * column[j][k];
			sound &= dot == 0;
		}
		ck_assert_msg(sound, "column %u", i);
	}
}
END_TEST

START_TEST(rotation_inverts)
{
	uint32_t d = dims[_i];

	for (int n = 0; n < 100; n++) {
		float x[DIM_MAX], y[DIM_MAX];

		gaussians(d, x);
		memcpy(y, x, d * sizeof(*y));
		kv_rotate(y, d);
		ck_assert_double_eq_tol(squares(d, y) / squares(d, x) / d, 1, 1e-5);
		kv_unrotate(y, d);
		ck_assert_double_le(squared_error(d, x, y), 1e-11 * squares(d, x));
	}
}
END_TEST

/* Relative error on Gaussian vectors: the bounds of d = 128, with 3 % for the other dims; int4_pth's step is a 15th of
 * the range, which grows with the dims. */
START_TEST(gaussian_error)
{
	static const struct {
		enum kv_format f;
		double bound;
	} cases[] = {
		{KV_F16, 1e-7},	 {KV_BF16, 4e-6}, {KV_FP8, 8e-4},  {KV_INT4_PTH, .0125},
		{KV_TQ4, .0096}, {KV_TQ3, .0346}, {KV_TQ2, .1215},
	};

	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		uint32_t d = dims[_i];
		double error = 0, all = 0;

		for (int n = 0; n < VECTORS; n++) {
			float x[DIM_MAX], y[DIM_MAX];

			gaussians(d, x);
			through(cases[c].f, d, x, y);
			error += squared_error(d, x, y);
			all += squares(d, x);
		}
		ck_assert_msg(error / all <= cases[c].bound * (d == 128 ? 1 : d == 512 && cases[c].f == KV_INT4_PTH
			? 1.15 : 1.03), "%s d %u: %.5f",
			      kv_format_info(cases[c].f)->name, d, error / all);
	}
}
END_TEST

/* One channel a hundred times the others, all of them alike, a single one: no format loses the
 * vector. */
START_TEST(outliers)
{
	uint32_t d = dims[_i];

	for (unsigned f = KV_F16; f < KV_FORMAT_COUNT; f++) {
		double bound = f == KV_TQ2 ? .2 : f == KV_TQ3 ? .06 : .02;
		float x[DIM_MAX], y[DIM_MAX];

		gaussians(d, x);
		x[7] = 100;
		through((enum kv_format)f, d, x, y);
		ck_assert_double_le(squared_error(d, x, y), bound * squares(d, x));
		for (uint32_t i = 0; i < d; i++)
			x[i] = -3;
		through((enum kv_format)f, d, x, y);
		ck_assert_double_le(squared_error(d, x, y), 1.7 * bound * squares(d, x));
	}
}
END_TEST

START_TEST(magnitudes)
{
	static const float sizes[] = {1e-4f, 1e-3f, 1, 1000, 10000, 65504};
	uint32_t d = dims[_i];

	for (unsigned f = KV_F16; f < KV_FORMAT_COUNT; f++) {
		double bound = f == KV_TQ2 ? .25 : f == KV_TQ3 ? .08 : .03;

		for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
			float x[DIM_MAX], y[DIM_MAX];

			if (f == KV_INT4_PTH && sizes[s] > 1000)
				continue; /* the rotated vector passes fp16 */
			for (uint32_t i = 0; i < d; i++)
				x[i] = (float)(2 * uniform() - 1) * sizes[s];
			through((enum kv_format)f, d, x, y);
			ck_assert_msg(squared_error(d, x, y) <= bound * squares(d, x),
				      "%s d %u size %g: %g",
				      kv_format_info((enum kv_format)f)->name, d, (double)sizes[s],
				      squared_error(d, x, y) / squares(d, x));
		}
	}
}
END_TEST

/* The scale keeps the length of the vector to fp16's precision, and tq values are the codebook's. */
START_TEST(length_is_kept)
{
	uint32_t d = dims[_i];

	for (unsigned f = 0; f < KV_FORMAT_COUNT; f++) {
		if (kv_format_info((enum kv_format)f)->codes != KV_CODES_CODEBOOK)
			continue;
		const float *values = kv_codebook_values((enum kv_format)f);

		for (int n = 0; n < 50; n++) {
			float x[DIM_MAX], y[DIM_MAX];
			uint16_t codes[DIM_MAX];
			uint32_t scale;

			gaussians(d, x);
			kv_quantise((enum kv_format)f, KV_ROUND_F16, d, x, codes, &scale);
			kv_dequantise((enum kv_format)f, d, codes, scale, y);
			ck_assert_double_eq_tol(sqrt(squares(d, y) / squares(d, x)), 1, 6e-4);
			bool sound = true;

			for (uint32_t i = 0; i < d; i++) {
				sound &= y[i] == values[codes[i]] * kv_half_to((uint16_t)scale);
				sound &= x[i] < 0 ? y[i] < 0 : y[i] > 0;
			}
			ck_assert(sound);
		}
	}
}
END_TEST

START_TEST(codebooks_are_half_integers)
{
	for (unsigned f = 0; f < KV_FORMAT_COUNT; f++) {
		if (kv_format_info((enum kv_format)f)->codes != KV_CODES_CODEBOOK)
			continue;
		const float *v = kv_codebook_values((enum kv_format)f);
		unsigned half = 1u << (kv_format_info((enum kv_format)f)->code_bits - 1);

		for (unsigned i = 0; i < half; i++) {
			ck_assert(v[i] - floorf(v[i]) == .5f && v[i] > 0 && v[i] <= 127.5f &&
				  v[half + i] == -v[i]);
			ck_assert(i == 0 || v[i] > v[i - 1]);
		}
	}
	ck_assert(kv_codebook_values(KV_TQ4)[7] == 114.5f && kv_codebook_values(KV_TQ4)[8] == -5.5f);
}
END_TEST

/* Whatever the input, what comes back is finite; zero comes back as zero, NaN as zero where nothing
 * mixes dims. */
START_TEST(odd_input)
{
	static const float odd[] = {
		NAN, -NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-45f, 1e-30f, 1e30f, 0, -0.0f,
	};
	uint32_t d = dims[_i];

	for (unsigned f = KV_F16; f < KV_FORMAT_COUNT; f++) {
		enum kv_format format = (enum kv_format)f;

		for (int n = 0; n < 400; n++) {
			float x[DIM_MAX], y[DIM_MAX], z[DIM_MAX];
			uint16_t codes[DIM_MAX];
			uint32_t scale;

			for (uint32_t i = 0; i < d; i++)
				if (n % 4 == 0)
					x[i] = odd[n / 4 % 11];
				else
					x[i] = random_bits() % 4 ? gaussian() : odd[random_bits() % 11];
			through(format, d, x, y);
			kv_quantise(format, KV_ROUND_F16, d, x, codes, &scale);
			kv_dequantise(format, d, codes, scale, z);
			bool sound = true;

			for (uint32_t i = 0; i < d; i++) {
				sound &= isfinite(y[i]) && isfinite(z[i]);
				sound &= codes[i] < 1u << kv_format_info(format)->code_bits;
				sound &= kv_format_info(format)->rotated || !isnan(x[i]) || y[i] == 0;
			}
			ck_assert_msg(sound, "%s d %u vector %d", kv_format_info(format)->name, d, n);
		}
		float zero[DIM_MAX] = {0}, y[DIM_MAX];

		through(format, d, zero, y);
		ck_assert(squares(d, y) == 0);
	}
	float x[DIM_MAX] = {INFINITY}, y[DIM_MAX];

	through(KV_F16, d, x, y);
	ck_assert(y[0] == KV_FINITE_MAX);
	through(KV_BF16, d, x, y);
	ck_assert(y[0] == KV_BF16_MAX);
	x[0] = 1e6f;
	through(KV_BF16, d, x, y);
	ck_assert(y[0] == 999424); /* its nearest bf16 */
}
END_TEST

/* The figures that terrace.h gives for int4_pth where the first of 128 dims dominates, and for what to use instead. */
START_TEST(int4_of_one_sided_vectors)
{
	static const struct {
		float first;
		double int4, tq4, fp8;
	} rows[] = {{40, .05, .09, .007}, {100, .43, .09, .003}, {500, .88, .02, .0006}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const enum kv_format formats[] = {KV_INT4_PTH, KV_TQ4, KV_FP8};
		const double want[] = {rows[i].int4, rows[i].tq4, rows[i].fp8};

		for (int f = 0; f < 3; f++) {
			double sum = 0;

			for (int n = 0; n < 200; n++) {
				float x[128], y[128];
				double error = 0;

				for (int j = 0; j < 128; j++)
					x[j] = j ? gaussian() : n % 2 ? rows[i].first : -rows[i].first;
				through(formats[f], 128, x, y);
				for (int j = 0; j < 128; j++)
					error += (double)(x[j] - y[j]) * (x[j] - y[j]);
				sum += sqrt(error / squares(128, x)) / 200;
			}
			ck_assert_msg(sum > .8 * want[f] && sum < 1.2 * want[f], "%s: %g", kv_format_info(formats[f])->name, sum);
		}
	}
}
END_TEST

/* fp8: the largest element never passes 448 and never falls short of it by more than the scale's
 * rounding. */
START_TEST(fp8_scale)
{
	uint32_t wrong = 0;

	for (int n = 0; n < 20000; n++) {
		float x[64] = {0};
		uint16_t codes[64];
		uint32_t scale;

		x[5] = (float)exp((uniform() - .5) * 20) * (n % 2 ? 1 : -1);
		kv_quantise(KV_FP8, KV_ROUND_F16, 64, x, codes, &scale);
		float step = kv_half_to((uint16_t)scale);

		wrong += fabsf(x[5]) / step > 448 * (1 + 1e-6f) || codes[0] != 0;
		wrong += step > 1e-3f && (codes[5] & 0x7f) != 0x7e;
	}
	ck_assert_uint_eq(wrong, 0);
}
END_TEST

/* The format that a loop test's number stands for. */
static enum kv_format format_number(int i)
{
	return (enum kv_format)(KV_F16 + i);
}

enum { FORMATS = KV_FORMAT_COUNT - KV_F16 };

/* Reads codes by kv_code_places alone. */
static void read_by_places(enum kv_format f, enum kv_side side, uint32_t d, uint32_t token,
			   const uint8_t *part, uint16_t *codes)
{
	for (uint32_t dim = 0; dim < d; dim++) {
		struct kv_place p[2];
		unsigned n = kv_code_places(f, side, d, token, dim, p);

		codes[dim] = 0;
		for (unsigned i = 0; i < n; i++) {
			unsigned bits = part[p[i].byte] >> p[i].shift & ((1u << p[i].bits) - 1);

			codes[dim] |= (uint16_t)(bits << p[i].code_shift);
		}
	}
}

START_TEST(packing_follows_places)
{
	enum kv_format f = format_number(_i);

	for (int c = 0; c < 2 * DIMS; c++) {
		enum kv_side side = (enum kv_side)(c % 2);
		uint32_t d = dims[c / 2], mask = (1u << kv_format_info(f)->code_bits) - 1;
		uint8_t part[16 * DIM_MAX * 2] = {0};
		uint16_t codes[16][DIM_MAX], back[DIM_MAX];

		for (uint32_t token = 0; token < 16; token++) {
			for (uint32_t i = 0; i < d; i++)
				codes[token][i] = (uint16_t)(random_bits() & mask);
			kv_token_pack(f, side, d, token, codes[token], part);
		}
		for (uint32_t token = 0; token < 16; token++) {
			read_by_places(f, side, d, token, part, back);
			ck_assert_mem_eq(back, codes[token], d * sizeof(*back));
			memset(back, 0xff, sizeof(back));
			kv_token_unpack(f, side, d, token, part, back);
			ck_assert_mem_eq(back, codes[token], d * sizeof(*back));
		}
	}
}
END_TEST

/* Encoding one token of a block full of noise changes the bytes of that token only. */
static void check_only_own_bytes(const struct kv_layout *l, const struct kv_geometry *g,
				 enum kv_side side, uint32_t token)
{
	static uint8_t before[BLOCK_MAX], after[BLOCK_MAX], own[BLOCK_MAX];
	enum kv_format f = l->k_format;
	uint32_t d = l->head_dim_k, layer = 1, head = (uint32_t)(random_bits() & 1);
	uint64_t atom = kv_atom_at(g, layer, head, token);
	float x[DIM_MAX];

	memset(own, 0, sizeof(own));
	for (uint32_t dim = 0; dim < d; dim++) {
		struct kv_place p[2];
		unsigned n = kv_code_places(f, side, d, token % 16, dim, p);

		for (unsigned i = 0; i < n; i++)
			own[atom + (side ? g->v_codes_at : g->k_codes_at) + p[i].byte] = 1;
	}
	for (uint32_t i = 0; i < kv_format_info(f)->scale_bytes; i++)
		own[atom + (side ? g->v_scales_at : g->k_scales_at) + kv_scale_at(f, token % 16) +
		    i] = 1;
	for (size_t i = 0; i < g->block_bytes; i++)
		before[i] = (uint8_t)random_bits();
	memcpy(after, before, g->block_bytes);
	gaussians(d, x);
	kv_encode(l, g, after, layer, head, side, token, 1, x, KV_DTYPE_F32, d);
	uint32_t strange = 0;

	for (size_t i = 0; i < g->block_bytes; i++)
		strange += !own[i] && before[i] != after[i];
	ck_assert_uint_eq(strange, 0);
	ck_assert_mem_ne(before, after, g->block_bytes);
}

START_TEST(tokens_are_independent)
{
	for (unsigned i = 0; i < DIMS; i++) {
		struct kv_layout l;
		struct kv_geometry g;

		layout_of(format_number(_i), dims[i], &l, &g);
		check_only_own_bytes(&l, &g, KV_SIDE_K, (uint32_t)(random_bits() % TOKENS));
		check_only_own_bytes(&l, &g, KV_SIDE_V, (uint32_t)(random_bits() % TOKENS));
	}
}
END_TEST

/* Token by token, in any order and with gaps between vectors, gives the bytes of all at once. */
START_TEST(growing_block)
{
	enum { GAPPED = DIM_MAX + 4 };
	static uint8_t whole[BLOCK_MAX], grown[BLOCK_MAX];
	static float x[TOKENS * GAPPED];

	for (int c = 0; c < 2 * DIMS; c++) {
		enum kv_side side = (enum kv_side)(c % 2);
		uint32_t d = dims[c / 2];
		struct kv_layout l;
		struct kv_geometry g;

		layout_of(format_number(_i), d, &l, &g);
		memset(whole, 0, sizeof(whole));
		memset(grown, 0, sizeof(grown));
		gaussians(TOKENS * GAPPED, x);
		kv_encode(&l, &g, whole, 1, 1, side, 0, TOKENS, x, KV_DTYPE_F32, GAPPED);
		for (uint32_t n = 0; n < TOKENS; n++) {
			uint32_t token = n * 7 % TOKENS;

			kv_encode(&l, &g, grown, 1, 1, side, token, 1, x + token * GAPPED, KV_DTYPE_F32, 1);
		}
		ck_assert_mem_eq(whole, grown, g.block_bytes);
	}
}
END_TEST

/* A block gives back what the linear codec gives: rotated or not, atom by atom or token by token. */
START_TEST(block_equals_linear)
{
	enum kv_format f = format_number(_i);
	static uint8_t block[BLOCK_MAX];
	static float x[TOKENS * DIM_MAX], y[TOKENS * DIM_MAX], rotated[TOKENS * DIM_MAX], atom[16 * DIM_MAX];

	for (int c = 0; c < 2 * DIMS; c++) {
		enum kv_side side = (enum kv_side)(c % 2);
		uint32_t d = dims[c / 2];
		struct kv_layout l;
		struct kv_geometry g;
		uint8_t bytes[2 * DIM_MAX];
		float expected[DIM_MAX];

		layout_of(f, d, &l, &g);
		memset(block, 0xff, sizeof(block));
		gaussians(TOKENS * d, x);
		kv_encode(&l, &g, block, 0, 1, side, 0, 21, x, KV_DTYPE_F32, d);
		kv_decode(&l, &g, block, 0, 1, side, 0, 21, false, y, KV_DTYPE_F32, d);
		kv_decode(&l, &g, block, 0, 1, side, 0, 21, true, rotated, KV_DTYPE_F32, d);
		for (uint32_t token = 0; token < 21; token++) {
			kv_linear_encode(f, KV_ROUND_F16, d, false, x + token * d, bytes);
			kv_linear_decode(f, d, false, bytes, expected);
			ck_assert_mem_eq(y + token * d, expected, d * sizeof(float));
			kv_linear_decode(f, d, true, bytes, expected);
			ck_assert_mem_eq(rotated + token * d, expected, d * sizeof(float));
		}
		const uint8_t *second = block + kv_atom_at(&g, 0, 1, 16);
		const struct kv_part part = kv_part_of(&l, &g, side);

		memset(atom, 0, sizeof(atom));
		kv_decode_atom(&part, second, 5, atom, d);
		ck_assert_mem_eq(atom, rotated + 16 * d, 5 * d * sizeof(float));
		ck_assert(squares(16 * DIM_MAX - 5 * d, atom + 5 * d) == 0);
	}
}
END_TEST

START_TEST(repack)
{
	enum kv_format f = format_number(_i);
	static uint8_t block[BLOCK_MAX], again[BLOCK_MAX], linear[TOKENS * 2 * DIM_MAX];
	static float x[TOKENS * DIM_MAX];

	for (int c = 0; c < 2 * DIMS; c++) {
		enum kv_side side = (enum kv_side)(c % 2);
		uint32_t d = dims[c / 2];
		size_t bytes = kv_linear_bytes(f, d);
		struct kv_layout l;
		struct kv_geometry g;
		uint8_t expected[2 * DIM_MAX];

		layout_of(f, d, &l, &g);
		memset(block, 0, sizeof(block));
		memset(again, 0, sizeof(again));
		gaussians(TOKENS * d, x);
		kv_encode(&l, &g, block, 1, 0, side, 3, 20, x, KV_DTYPE_F32, d);
		kv_repack_out(&l, &g, block, 1, 0, side, 3, 20, linear);
		for (uint32_t n = 0; n < 20; n++) {
			kv_linear_encode(f, KV_ROUND_F16, d, false, x + n * d, expected);
			ck_assert_mem_eq(linear + n * bytes, expected, bytes);
		}
		kv_repack_in(&l, &g, again, 1, 0, side, 3, 20, linear);
		ck_assert_mem_eq(block, again, g.block_bytes);
	}
}
END_TEST

START_TEST(linear_order)
{
	uint16_t codes[64], back[64];
	uint8_t out[200];
	uint32_t scale;

	for (uint32_t i = 0; i < 64; i++)
		codes[i] = (uint16_t)(i * 5 % 16);
	kv_linear_pack(KV_INT4_PTH, 64, codes, 0x12345678, out);
	ck_assert_uint_eq(kv_linear_bytes(KV_INT4_PTH, 64), 36);
	for (uint32_t i = 0; i < 32; i++)
		ck_assert_uint_eq(out[i], codes[2 * i] | codes[2 * i + 1] << 4);
	ck_assert(out[32] == 0x78 && out[33] == 0x56 && out[34] == 0x34 && out[35] == 0x12);
	for (uint32_t i = 0; i < 64; i++)
		codes[i] &= 7;
	kv_linear_pack(KV_TQ3, 64, codes, 0xabcd, out);
	ck_assert_uint_eq(kv_linear_bytes(KV_TQ3, 64), 26);
	for (uint32_t i = 0; i < 64; i++)
		for (uint32_t b = 0; b < 3; b++)
			ck_assert_uint_eq(out[(3 * i + b) / 8] >> (3 * i + b) % 8 & 1,
					  codes[i] >> b & 1);
	ck_assert(out[24] == 0xcd && out[25] == 0xab);
	kv_linear_unpack(KV_TQ3, 64, out, back, &scale);
	ck_assert_mem_eq(back, codes, sizeof(codes));
	ck_assert_uint_eq(scale, 0xabcd);
	for (uint32_t i = 0; i < 64; i++)
		codes[i] = (uint16_t)(i * 1031);
	kv_linear_pack(KV_BF16, 64, codes, 0, out);
	ck_assert(out[2] == 1031 % 256 && out[3] == 1031 / 256);
}
END_TEST

/* V of none is K's first dims; encoding it does nothing. */
START_TEST(v_is_a_view_of_k)
{
	static uint8_t block[BLOCK_MAX];
	float x[16 * 192], k[16 * 192], v[16 * 64];
	struct kv_layout l;
	struct kv_geometry g;

	layout_of(KV_TQ4, 192, &l, &g);
	l.v_format = KV_NONE;
	l.head_dim_v = 64;
	kv_geometry_of(&l, &g);
	memset(block, 0, sizeof(block));
	gaussians(16 * 192, x);
	kv_encode(&l, &g, block, 0, 0, KV_SIDE_V, 0, 16, x, KV_DTYPE_F32, 64);
	ck_assert(block[0] == 0 && memcmp(block, block + 1, g.block_bytes - 1) == 0);
	kv_encode(&l, &g, block, 0, 0, KV_SIDE_K, 0, 16, x, KV_DTYPE_F32, 192);
	kv_decode(&l, &g, block, 0, 0, KV_SIDE_K, 0, 16, false, k, KV_DTYPE_F32, 192);
	kv_decode(&l, &g, block, 0, 0, KV_SIDE_V, 0, 16, false, v, KV_DTYPE_F32, 64);
	for (uint32_t token = 0; token < 16; token++)
		ck_assert_mem_eq(v + token * 64, k + token * 192, 64 * sizeof(float));
}
END_TEST

/* fp16 and bf16 arrays go through as the floats they stand for; raw formats keep their bits. */
START_TEST(dtypes)
{
	static uint8_t block[BLOCK_MAX], other[BLOCK_MAX];
	uint16_t narrow[16 * 96], back[16 * 96];
	float x[16 * 96];

	for (int bf = 0; bf < 2; bf++) {
		enum kv_dtype type = bf ? KV_DTYPE_BF16 : KV_DTYPE_F16;
		struct kv_layout l;
		struct kv_geometry g;

		for (uint32_t i = 0; i < 16 * 96; i++) {
			narrow[i] = bf ? kv_bf16_from(gaussian()) : kv_half_from(gaussian());
			x[i] = bf ? kv_bf16_to(narrow[i]) : kv_half_to(narrow[i]);
		}
		layout_of(bf ? KV_BF16 : KV_F16, 96, &l, &g);
		kv_encode(&l, &g, block, 0, 0, KV_SIDE_V, 0, 16, narrow, type, 96);
		kv_decode(&l, &g, block, 0, 0, KV_SIDE_V, 0, 16, false, back, type, 96);
		ck_assert_mem_eq(narrow, back, sizeof(back));
		layout_of(KV_TQ3, 96, &l, &g);
		memset(block, 0, sizeof(block));
		memset(other, 0, sizeof(other));
		kv_encode(&l, &g, block, 0, 0, KV_SIDE_K, 0, 16, narrow, type, 96);
		kv_encode(&l, &g, other, 0, 0, KV_SIDE_K, 0, 16, x, KV_DTYPE_F32, 96);
		ck_assert_mem_eq(block, other, g.block_bytes);
	}
}
END_TEST

static TCase *vector_case(void)
{
	TCase *t = tcase_create("vector");

	tcase_set_timeout(t, 60);
	tcase_add_test(t, half_conversions);
	tcase_add_test(t, other_conversions);
	tcase_add_loop_test(t, rotation_matrix, 0, DIMS);
	tcase_add_loop_test(t, rotation_inverts, 0, DIMS);
	tcase_add_loop_test(t, gaussian_error, 0, DIMS);
	tcase_add_loop_test(t, outliers, 0, DIMS);
	tcase_add_loop_test(t, magnitudes, 0, DIMS);
	tcase_add_loop_test(t, length_is_kept, 0, DIMS);
	tcase_add_test(t, codebooks_are_half_integers);
	tcase_add_loop_test(t, odd_input, 0, DIMS);
	tcase_add_test(t, int4_of_one_sided_vectors);
	tcase_add_test(t, fp8_scale);
	tcase_add_test(t, linear_order);
	return t;
}

static void machine_plain(void)
{
	kv_machine_limit(KV_MACHINE_PLAIN);
}

static void machine_avx2(void)
{
	kv_machine_limit(KV_MACHINE_AVX2);
}

static TCase *block_case(const char *name, void (*limit)(void))
{
	TCase *t = tcase_create(name);

	tcase_set_timeout(t, 60);
	if (limit)
		tcase_add_checked_fixture(t, limit, NULL);
	tcase_add_loop_test(t, packing_follows_places, 0, FORMATS);
	tcase_add_loop_test(t, tokens_are_independent, 0, FORMATS);
	tcase_add_loop_test(t, growing_block, 0, FORMATS);
	tcase_add_loop_test(t, block_equals_linear, 0, FORMATS);
	tcase_add_loop_test(t, repack, 0, FORMATS);
	tcase_add_test(t, v_is_a_view_of_k);
	tcase_add_test(t, dtypes);
	return t;
}

int main(void)
{
	Suite *s = suite_create("codec");

	suite_add_tcase(s, vector_case());
	suite_add_tcase(s, block_case("block", NULL));
	suite_add_tcase(s, block_case("block_plain", machine_plain));
	suite_add_tcase(s, block_case("block_avx2", machine_avx2));
	SRunner *r = srunner_create(s);

	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
