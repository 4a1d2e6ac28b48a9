/* Attention over packed blocks against the naive thing: kv_decode to floats, softmax in float64. Blocks
 * begin full of 0xff (NaN scales, NaN halves), and only the tokens, layer and heads under test are
 * encoded, so that a read of anything else shows in the result.
 */
#include "kernels/attend.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { RANDOM_CASES = 60, LONG_TOKENS = 16384 };
#else
enum { RANDOM_CASES = 1500, LONG_TOKENS = 131072 };
#endif

static const uint32_t head_dims[] = {64, 96, 128, 192, 256};
static const enum kv_format formats[] = {KV_F16, KV_BF16, KV_FP8, KV_INT4_PTH, KV_TQ4, KV_TQ3, KV_TQ2};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Zero means: 1 head, 1 head a group, blocks of 16 tokens, 1 layer, 1 query, V of K's dims, unfilled
 * blocks of 0xff. */
struct spec {
	enum kv_format k, v;
	uint32_t dk, dv, heads, group, block_tokens, tokens, queries;
	bool causal;
	int64_t first_pos;
	uint32_t window;
	enum kv_dtype q_type, out_type;
	uint32_t layers, layer;
	float q_size, v_mean;
	uint8_t fill;
	uint64_t seed;
};

struct bed {
	struct spec spec;
	struct kv_layout layout;
	struct kv_geometry geometry;
	uint32_t blocks;
	void **block;
	void *q, *out, *scratch;
	float *lse;
	size_t rows, out_bytes;
	struct kv_attend a;
};

static uint64_t random_state;

static uint64_t random_bits(void)
{
	uint64_t x = random_state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint32_t random_below(uint32_t n)
{
	return (uint32_t)(random_bits() % n);
}

/* Near enough to a Gaussian of variance 1: the sum of four uniform numbers. */
static float random_gaussian(void)
{
	uint64_t x = random_bits(), sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);

	return ((float)sum - 2 * 65535) / 37837.0f;
}

/* (A passing assertion of Check writes to a file, so that none stands in a busy place.) */
static void *allocate(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);

	if (!p)
		ck_abort_msg("out of memory");
	return p;
}

static float element(const void *src, enum kv_dtype type, size_t i)
{
	const uint16_t *half = src;

	if (type == KV_DTYPE_F32)
		return ((const float *)src)[i];
	return type == KV_DTYPE_F16 ? kv_half_to(half[i]) : kv_bf16_to(half[i]);
}

static void element_set(void *dst, enum kv_dtype type, size_t i, float x)
{
	if (type == KV_DTYPE_F32)
		((float *)dst)[i] = x;
	else
		((uint16_t *)dst)[i] = type == KV_DTYPE_F16 ? kv_half_from(x) : kv_bf16_from(x);
}

static void encode_side(struct bed *b, uint32_t head, enum kv_side side)
{
	const struct kv_layout *l = &b->layout;
	uint32_t d = side == KV_SIDE_K ? l->head_dim_k : l->head_dim_v;
	float mean = side == KV_SIDE_V ? b->spec.v_mean : 0;
	float *x = allocate(sizeof(float) * l->block_tokens * d);

	for (uint32_t at = 0; at < b->spec.tokens; at += l->block_tokens) {
		uint32_t n = b->spec.tokens - at < l->block_tokens ? b->spec.tokens - at : l->block_tokens;

		for (uint32_t i = 0; i < n * d; i++)
			x[i] = mean + random_gaussian();
		kv_encode(l, &b->geometry, b->block[at / l->block_tokens], b->spec.layer, head, side, 0, n, x,
			  KV_DTYPE_F32, d);
	}
	free(x);
}

static void poison(struct bed *b)
{
	memset(b->out, 0xff, b->out_bytes + 64);
	memset(b->lse, 0xff, (b->rows + 1) * sizeof(float));
}

static void bed_queries(struct bed *b)
{
	const struct spec *s = &b->spec;
	size_t elements = b->rows * s->dk;

	b->q = allocate(elements * sizeof(float));
	for (size_t i = 0; i < elements; i++)
		element_set(b->q, s->q_type, i, s->q_size * random_gaussian());
	b->out_bytes = b->rows * s->dv * kv_dtype_bytes(s->out_type);
	b->out = allocate(b->out_bytes + 64);
	b->lse = allocate((b->rows + 1) * sizeof(float));
	b->a = (struct kv_attend){
		.layout = &b->layout, .geometry = &b->geometry, .layer = s->layer, .queries = s->queries,
		.q_heads = s->heads * s->group, .q = b->q, .q_dtype = s->q_type,
		.scale = 1 / sqrtf((float)s->dk),
		.blocks = (const void *const *)b->block, .kv_tokens = s->tokens, .causal = s->causal,
		.first_pos = s->first_pos, .out = b->out, .out_dtype = s->out_type, .lse = b->lse,
	};
	b->scratch = allocate(kv_attend_scratch(&b->a));
}

static void bed_init(struct bed *b, const struct spec *given)
{
	struct spec *s = &b->spec;

	memset(b, 0, sizeof(*b));
	*s = *given;
	s->dv = s->dv ? s->dv : s->dk;
	s->heads = s->heads ? s->heads : 1;
	s->group = s->group ? s->group : 1;
	s->block_tokens = s->block_tokens ? s->block_tokens : 16;
	s->queries = s->queries ? s->queries : 1;
	s->layers = s->layers ? s->layers : 1;
	s->q_size = s->q_size > 0 ? s->q_size : 1;
	s->fill = s->fill ? s->fill : 0xff;
	b->layout = (struct kv_layout){
		.layers = s->layers, .heads = s->heads, .total_heads = s->heads, .head_dim_k = s->dk,
		.head_dim_v = s->dv, .block_tokens = s->block_tokens, .k_format = s->k, .v_format = s->v,
		.window = s->window, .rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};
	ck_assert_ptr_null(kv_layout_problem(&b->layout));
	kv_geometry_of(&b->layout, &b->geometry);
	b->blocks = (s->tokens + s->block_tokens - 1) / s->block_tokens;
	b->block = calloc(b->blocks + 1, sizeof(*b->block));
	ck_assert_ptr_nonnull(b->block);
	for (uint32_t i = 0; i < b->blocks; i++) {
		b->block[i] = allocate(b->geometry.block_bytes);
		memset(b->block[i], s->fill, b->geometry.block_bytes);
	}
	random_state = s->seed;
	for (uint32_t h = 0; h < s->heads; h++) {
		encode_side(b, h, KV_SIDE_K);
		encode_side(b, h, KV_SIDE_V);
	}
	b->rows = (size_t)s->queries * s->heads * s->group;
	bed_queries(b);
	poison(b);
}

static void bed_fini(struct bed *b)
{
	for (uint32_t i = 0; i < b->blocks; i++)
		free(b->block[i]);
	free(b->block);
	free(b->q);
	free(b->out);
	free(b->lse);
	free(b->scratch);
}

static float *decoded(const struct bed *b, uint32_t head, enum kv_side side)
{
	uint32_t d = side == KV_SIDE_K ? b->spec.dk : b->spec.dv, size = b->spec.block_tokens;
	float *x = allocate(sizeof(float) * b->spec.tokens * d);

	for (uint32_t at = 0; at < b->spec.tokens; at += size)
		kv_decode(&b->layout, &b->geometry, b->block[at / size], b->spec.layer, head, side, 0,
			  b->spec.tokens - at < size ? b->spec.tokens - at : size, false, x + (size_t)at * d,
			  KV_DTYPE_F32, d);
	return x;
}

/* The definition, word for word: does query i see token j? */
static bool sees(const struct spec *s, uint32_t i, uint32_t j)
{
	int64_t p = s->first_pos + i;

	return (!s->causal || (int64_t)j <= p) && (!s->window || (int64_t)j > p - (int64_t)s->window);
}

/* One row in float64: out[dv], and returns the lse. weight: [tokens], for work. */
static double naive_row(const struct bed *b, const float *k, const float *v, size_t row, double *weight,
			double *out)
{
	const struct spec *s = &b->spec;
	uint32_t i = (uint32_t)(row / (s->heads * s->group));
	double max = -INFINITY, sum = 0, q[KV_HEAD_DIM_MAX];

	for (uint32_t c = 0; c < s->dk; c++)
		q[c] = (double)element(b->q, s->q_type, row * s->dk + c);
	for (uint32_t j = 0; j < s->tokens; j++) {
		double dot = 0;

		if (sees(s, i, j))
			for (uint32_t c = 0; c < s->dk; c++)
				dot += q[c] * (double)k[(size_t)j * s->dk + c];
		weight[j] = sees(s, i, j) ? dot * (double)b->a.scale : (double)-INFINITY;
		max = fmax(max, weight[j]);
	}
	memset(out, 0, s->dv * sizeof(*out));
	for (uint32_t j = 0; j < s->tokens; j++) {
		double w = sees(s, i, j) ? exp(weight[j] - max) : 0;

		sum += w;
		for (uint32_t c = 0; w > 0 && c < s->dv; c++)
			out[c] += w * (double)v[(size_t)j * s->dv + c];
	}
	for (uint32_t c = 0; sum > 0 && c < s->dv; c++)
		out[c] /= sum;
	return sum > 0 ? max + log(sum) : (double)-INFINITY;
}

static double worst_error;

static void check_row(const struct bed *b, size_t row, const double *want, double lse)
{
	static const double limits[] = {[KV_DTYPE_F32] = 2e-5, [KV_DTYPE_F16] = 6e-4, [KV_DTYPE_BF16] = 5e-3};
	const struct spec *s = &b->spec;
	double error = 0, norm = 0, lse_error;

	for (uint32_t c = 0; c < s->dv; c++) {
		double got = (double)element(b->out, s->out_type, row * s->dv + c);

		error += (got - want[c]) * (got - want[c]); /* NaN stays NaN and fails below */
		norm += want[c] * want[c];
	}
	if (isinf(lse)) {
		ck_assert(error == 0 && b->lse[row] == -INFINITY);
		return;
	}
	error = sqrt(error / norm);
	if (s->out_type == KV_DTYPE_F32)
		worst_error = fmax(worst_error, error);
	lse_error = fabs((double)b->lse[row] - lse) / fmax(1, fabs(lse));
	if (!(error <= limits[s->out_type] && lse_error <= 1e-5))
		ck_abort_msg("K %s V %s d %u/%u tokens %u row %zu: relative error %g, of lse %g",
			     kv_format_info(s->k)->name, kv_format_info(s->v)->name, s->dk, s->dv, s->tokens,
			     row, error, lse_error);
}

static void check_guards(const struct bed *b)
{
	static const uint8_t ones[64] = {[0 ... 63] = 0xff};

	ck_assert_mem_eq((uint8_t *)b->out + b->out_bytes, ones, sizeof(ones));
	ck_assert_mem_eq(b->lse + b->rows, ones, sizeof(float));
}

static void check_spec(const struct spec *spec)
{
	struct bed b;
	double *weight, *want;

	bed_init(&b, spec);
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	check_guards(&b);
	weight = allocate((b.spec.tokens + 1) * sizeof(*weight));
	want = allocate(b.spec.dv * sizeof(*want));
	for (uint32_t h = 0; h < b.spec.heads; h++) {
		float *k = decoded(&b, h, KV_SIDE_K), *v = decoded(&b, h, KV_SIDE_V);

		for (size_t row = 0; row < b.rows; row++)
			if (row % (b.spec.heads * b.spec.group) / b.spec.group == h) {
				double lse = naive_row(&b, k, v, row, weight, want);

				check_row(&b, row, want, lse);
			}
		free(k);
		free(v);
	}
	free(weight);
	free(want);
	bed_fini(&b);
}

START_TEST(every_format_and_head_dim)
{
	for (size_t f = 0; f < COUNT(formats); f++)
		for (size_t d = 0; d < COUNT(head_dims); d++) {
			struct spec s = {.k = formats[f], .v = formats[f], .dk = head_dims[d], .heads = 2,
					 .group = 2, .block_tokens = 32, .tokens = 77, .seed = f * 16 + d};

			check_spec(&s);
			s.queries = 9;
			s.causal = true;
			s.first_pos = 68;
			check_spec(&s);
			s.v = KV_NONE;
			check_spec(&s);
		}
}
END_TEST

START_TEST(every_pair_of_formats)
{
	for (size_t k = 0; k < COUNT(formats); k++)
		for (size_t v = 0; v <= COUNT(formats); v++) {
			struct spec s = {.k = formats[k], .v = v < COUNT(formats) ? formats[v] : KV_NONE,
					 .dk = 192, .dv = 128, .tokens = 40, .group = 5,
					 .seed = 100 + k * 16 + v};

			check_spec(&s);
		}
}
END_TEST

START_TEST(lengths_and_groups)
{
	static const uint32_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 4095}, groups[] = {1, 2, 3, 4, 8};

	for (size_t n = 0; n < COUNT(lengths); n++)
		for (size_t g = 0; g < COUNT(groups); g++) {
			struct spec s = {.k = KV_FP8, .v = KV_TQ4, .dk = 64, .group = groups[g],
					 .block_tokens = 64, .tokens = lengths[n], .seed = 200 + n * 16 + g};

			check_spec(&s);
		}
}
END_TEST

/* More rows than a pass, and each query sees its own prefix; once within a window. */
START_TEST(prefill)
{
	struct spec s = {.k = KV_F16, .v = KV_TQ3, .dk = 64, .group = 3, .block_tokens = 128, .tokens = 400,
			 .queries = 380, .causal = true, .first_pos = 20, .seed = 300};

	check_spec(&s);
	s.window = 100;
	check_spec(&s);
	s.causal = false;
	check_spec(&s);
	s.first_pos = 300; /* the last queries' windows begin after the last token */
	check_spec(&s);
}
END_TEST

START_TEST(long_sequences)
{
	struct spec s = {.k = KV_TQ4, .v = KV_TQ4, .dk = 64, .block_tokens = 128, .tokens = LONG_TOKENS,
			 .seed = 400};

	check_spec(&s);
	s.k = s.v = KV_FP8;
	s.v_mean = 1; /* sums that only grow */
	s.q_size = 6; /* and a maximum that does */
	check_spec(&s);
}
END_TEST

static struct spec random_spec(uint64_t seed)
{
	static const uint32_t groups[] = {1, 2, 3, 4, 8};
	struct spec s;

	random_state = seed;
	s = (struct spec){
		.k = formats[random_below(COUNT(formats))],
		.dk = head_dims[random_below(COUNT(head_dims))],
		.dv = head_dims[random_below(COUNT(head_dims))],
		.heads = 1 + random_below(3),
		.group = groups[random_below(COUNT(groups))],
		.block_tokens = 16u << random_below(4),
		.tokens = 1 + random_below(200),
		.queries = random_below(2) ? 1 : 1 + random_below(40),
		.causal = random_below(3) > 0,
		.window = random_below(2) ? 0 : 1 + random_below(120),
		.q_type = (enum kv_dtype)random_below(3),
		.out_type = (enum kv_dtype)random_below(3),
		.layers = 1 + random_below(3),
		.q_size = random_below(2) ? 1 : 5,
		.seed = seed,
	};
	s.layer = random_below(s.layers);
	s.first_pos = (int64_t)random_below(s.tokens + 60) - 30;
	s.v = random_below(5) ? formats[random_below(COUNT(formats))] : KV_NONE;
	if (s.v == KV_NONE && s.dv > s.dk)
		s.dv = s.dk;
	return s;
}

START_TEST(random_cases)
{
	for (uint64_t i = 0; i < RANDOM_CASES; i++) {
		struct spec s = random_spec(1000 + i);

		check_spec(&s);
	}
	ck_assert_msg(worst_error <= 1e-5, "worst relative error %g", worst_error);
}
END_TEST

/* The same tokens in blocks whose other bytes differ give the same bits. */
START_TEST(masked_tail_is_never_read)
{
	static const uint8_t fills[] = {0x01, 0x7e, 0xaa};

	for (size_t i = 0; i < COUNT(formats) * COUNT(head_dims) * 2; i++) {
		struct spec s = {.k = formats[i % COUNT(formats)], .v = formats[(i + i / 7) % COUNT(formats)],
				 .dk = head_dims[i % COUNT(head_dims)], .heads = 2, .group = i % 2 ? 1 : 8,
				 .block_tokens = 64, .tokens = 1 + (uint32_t)(i * 13) % 80, .seed = 500 + i};
		struct bed b;

		s.v = i % 11 == 0 ? KV_NONE : s.v;
		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		for (size_t f = 0; f < COUNT(fills); f++) {
			struct bed other;

			s.fill = fills[f];
			bed_init(&other, &s);
			memset(other.scratch, fills[f], kv_attend_scratch(&other.a));
			ck_assert_ptr_null(kv_attend_run(&other.a, other.scratch));
			ck_assert_mem_eq(b.out, other.out, b.out_bytes);
			ck_assert_mem_eq(b.lse, other.lse, b.rows * sizeof(float));
			bed_fini(&other);
		}
		bed_fini(&b);
	}
}
END_TEST

/* Sets every byte that holds something of the token to 0xff. */
static void ruin_side(struct bed *b, uint32_t token, enum kv_side side)
{
	const struct kv_geometry *g = &b->geometry;
	enum kv_format f = side == KV_SIDE_K ? b->spec.k : b->spec.v;
	uint32_t d = side == KV_SIDE_K ? b->spec.dk : b->spec.dv, size = b->spec.block_tokens;
	uint8_t *atom = (uint8_t *)b->block[token / size] + kv_atom_at(g, b->spec.layer, 0, token % size);

	if (f == KV_NONE)
		return;
	for (uint32_t i = 0; i < d; i++) {
		struct kv_place place[2];
		unsigned n = kv_code_places(f, side, d, token % KV_ATOM_TOKENS, i, place);

		while (n-- > 0)
			atom[(side == KV_SIDE_K ? g->k_codes_at : g->v_codes_at) + place[n].byte] = 0xff;
	}
	memset(atom + (side == KV_SIDE_K ? g->k_scales_at : g->v_scales_at) +
		       kv_scale_at(f, token % KV_ATOM_TOKENS), 0xff, kv_format_info(f)->scale_bytes);
}

/* Queries 168 .. 170 see tokens 101 .. 170. Others do not matter, NaN or not, and blocks of nothing else
 * may be missing. */
START_TEST(unseen_tokens_are_never_read)
{
	for (size_t i = 0; i < COUNT(formats) * 4; i++) {
		struct spec s = {.k = formats[i / 4], .v = i % 2 ? KV_NONE : formats[i / 4], .dk = 128,
				 .group = i % 4 < 2 ? 8 : 1, .block_tokens = 32, .tokens = 300, .queries = 3,
				 .causal = true, .first_pos = 168, .window = 68, .seed = 600 + i};
		struct bed b;
		float *before;

		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		before = allocate(b.out_bytes);
		memcpy(before, b.out, b.out_bytes);
		for (uint32_t t = 0; t < s.tokens; t++)
			if (t < 101 || t > 170) {
				ruin_side(&b, t, KV_SIDE_K);
				ruin_side(&b, t, KV_SIDE_V);
			}
		for (uint32_t k = 0; k < b.blocks; k++)
			if (k < 101 / 32 || k > 170 / 32) {
				free(b.block[k]);
				b.block[k] = NULL;
			}
		poison(&b);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		ck_assert_mem_eq(b.out, before, b.out_bytes);
		free(before);
		bed_fini(&b);
	}
}
END_TEST

static void merge_at(struct bed *b, uint32_t split, const float *whole, const float *whole_lse)
{
	struct kv_attend part = b->a;
	float *out = allocate(b->out_bytes), *lse = allocate(b->rows * sizeof(float));
	size_t wrong = 0;

	part.kv_tokens = split * b->spec.block_tokens;
	poison(b);
	ck_assert_ptr_null(kv_attend_run(&part, b->scratch));
	part.blocks = b->a.blocks + split;
	part.kv_tokens = b->spec.tokens - split * b->spec.block_tokens;
	part.first_pos = b->a.first_pos - split * b->spec.block_tokens;
	part.out = out;
	part.lse = lse;
	ck_assert_ptr_null(kv_attend_run(&part, b->scratch));
	kv_merge((uint32_t)b->rows, b->spec.dv, b->out, b->lse, out, lse);
	for (size_t i = 0; i < b->rows * b->spec.dv; i++)
		wrong += !(fabsf(((float *)b->out)[i] - whole[i]) <= 1e-5f);
	for (size_t i = 0; i < b->rows; i++)
		wrong += b->lse[i] != whole_lse[i] && !(fabsf(b->lse[i] - whole_lse[i]) <= 1e-5f);
	ck_assert_uint_eq(wrong, 0);
	free(out);
	free(lse);
}

START_TEST(merged_parts_equal_the_whole)
{
	for (size_t f = 0; f < COUNT(formats) * 2; f++) {
		struct spec s = {.k = formats[f / 2], .v = formats[f / 2], .dk = 64, .heads = 2, .group = 2,
				 .tokens = 150, .block_tokens = 16, .queries = 20, .causal = true,
				 .first_pos = -4, .window = f % 2 ? 30 : 0, .seed = 700 + f};
		struct bed b;
		float *whole, *lse;

		bed_init(&b, &s);
		ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
		whole = allocate(b.out_bytes);
		lse = allocate(b.rows * sizeof(float));
		memcpy(whole, b.out, b.out_bytes);
		memcpy(lse, b.lse, b.rows * sizeof(float));
		for (uint32_t split = 0; split <= s.tokens / 16; split++)
			merge_at(&b, split, whole, lse);
		free(whole);
		free(lse);
		bed_fini(&b);
	}
}
END_TEST

START_TEST(merge_of_empty_rows)
{
	float a[] = {NAN, NAN, 1, 2, NAN, NAN, 3, 5}, lse_a[] = {-INFINITY, 0.5f, -INFINITY, 1000};
	const float b[] = {7, 8, NAN, NAN, NAN, NAN, 5, 9}, lse_b[] = {-3, -INFINITY, -INFINITY, 1000};
	const float want[] = {7, 8, 1, 2, 0, 0, 4, 7};

	kv_merge(4, 2, a, lse_a, b, lse_b);
	ck_assert_mem_eq(a, want, sizeof(want));
	ck_assert(lse_a[0] == -3 && lse_a[1] == 0.5f && lse_a[2] == -INFINITY);
	ck_assert_float_eq_tol(lse_a[3], 1000.6931f, 1e-3f);
}
END_TEST

START_TEST(rows_that_see_nothing)
{
	struct spec s = {.k = KV_TQ4, .v = KV_TQ4, .dk = 128, .group = 3, .tokens = 20, .queries = 7,
			 .causal = true, .first_pos = -3, .seed = 800};
	struct bed b;
	size_t wrong = 0;

	check_spec(&s);
	bed_init(&b, &s);
	b.a.kv_tokens = 0;
	b.a.blocks = NULL;
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	check_guards(&b);
	for (size_t i = 0; i < b.rows * s.dk; i++)
		wrong += ((float *)b.out)[i] != 0;
	for (size_t i = 0; i < b.rows; i++)
		wrong += b.lse[i] != -INFINITY;
	ck_assert_uint_eq(wrong, 0);
	b.a.lse = NULL;
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	b.a.queries = 0;
	poison(&b);
	ck_assert_ptr_null(kv_attend_run(&b.a, b.scratch));
	ck_assert(isnan(((float *)b.out)[0]));
	bed_fini(&b);
}
END_TEST

/* What is refused, and that nothing was written. */
static void refused(const struct bed *b, const struct kv_attend *a, const void *scratch)
{
	const uint8_t *out = b->out, *lse = (const uint8_t *)b->lse;
	size_t written = 0;

	ck_assert_ptr_nonnull(kv_attend_run(a, (void *)(uintptr_t)scratch));
	for (size_t i = 0; i < b->out_bytes; i++)
		written += out[i] != 0xff;
	for (size_t i = 0; i < b->rows * sizeof(float); i++)
		written += lse[i] != 0xff;
	ck_assert_uint_eq(written, 0);
}

#define REFUSED(field, value)                          \
	do {                                           \
		struct kv_attend bad = b.a;            \
		bad.field = (value);                   \
		refused(&b, &bad, b.scratch);          \
	} while (0)

START_TEST(bad_parameters_are_refused)
{
	struct spec s = {.k = KV_FP8, .v = KV_TQ4, .dk = 64, .heads = 2, .group = 2, .tokens = 40,
			 .layers = 3, .queries = 3, .causal = true, .first_pos = 31, .seed = 900};
	struct bed b;
	struct kv_layout layout;
	const void *blocks[3];

	bed_init(&b, &s);
	layout = b.layout;
	layout.head_dim_k = 65;
	refused(&b, NULL, b.scratch);
	ck_assert_uint_eq(kv_attend_scratch(NULL), 0);
	REFUSED(layout, NULL);
	REFUSED(layout, &layout);
	REFUSED(geometry, NULL);
	REFUSED(layer, 3);
	REFUSED(q_heads, 0);
	REFUSED(q_heads, 3);
	REFUSED(q, NULL);
	REFUSED(q, (const uint8_t *)b.q + 1);
	REFUSED(q_dtype, (enum kv_dtype)3);
	REFUSED(out_dtype, (enum kv_dtype)7);
	REFUSED(out, NULL);
	REFUSED(out, (uint8_t *)b.out + 2);
	REFUSED(lse, (float *)((uintptr_t)b.lse + 1));
	REFUSED(blocks, NULL);
	REFUSED(first_pos, INT64_MAX);
	REFUSED(first_pos, INT64_MIN);
	REFUSED(scale, NAN);
	refused(&b, &b.a, NULL);
	refused(&b, &b.a, (uint8_t *)b.scratch + 32);
	for (uint32_t i = 0; i < 3; i++) {
		memcpy(blocks, b.block, sizeof(blocks));
		blocks[i] = NULL;
		REFUSED(blocks, blocks);
		blocks[i] = (const uint8_t *)b.block[i] + 8;
		REFUSED(blocks, blocks);
	}
	bed_fini(&b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("attend");
	TCase *tc = tcase_create("attend");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, every_format_and_head_dim);
	tcase_add_test(tc, every_pair_of_formats);
	tcase_add_test(tc, lengths_and_groups);
	tcase_add_test(tc, prefill);
	tcase_add_test(tc, long_sequences);
	tcase_add_test(tc, random_cases);
	tcase_add_test(tc, masked_tail_is_never_read);
	tcase_add_test(tc, unseen_tokens_are_never_read);
	tcase_add_test(tc, merged_parts_equal_the_whole);
	tcase_add_test(tc, merge_of_empty_rows);
	tcase_add_test(tc, rows_that_see_nothing);
	tcase_add_test(tc, bad_parameters_are_refused);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
