/* See kernels/attend_rig.h. */
#include "tests/kernels/attend_rig.h"

#include "kernels/simd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIM(d) d,
const uint32_t head_dims[KV_HEAD_DIM_COUNT] = {KV_HEAD_DIMS(DIM)};
#undef DIM
const enum kv_format formats[7] = {KV_F16, KV_BF16, KV_FP8, KV_INT4_PTH, KV_TQ4, KV_TQ3, KV_TQ2};
uint64_t random_state;

#define RANDOM_STEP 0x9e3779b97f4a7c15u
#define INTEGER_ERROR 5e-4 /* what attend.h allows with VNNI */

KV_INLINE uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t random_bits(void)
{
	return mixed(random_state += RANDOM_STEP);
}

uint32_t random_below(uint32_t n)
{
	return (uint32_t)(random_bits() % n);
}

/* n numbers near enough to a Gaussian of variance 1: each the sum of four uniform ones. */
KV_CLONES static void fill_gaussian(size_t n, float *x, float mean, float size)
{
	uint64_t state = random_state;

	for (size_t i = 0; i < n; i++) {
		uint64_t bits = mixed(state + (i + 1) * RANDOM_STEP);
		uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);

		x[i] = mean + size * (((float)(int32_t)sum - 2 * 65535) / 37837.0f);
	}
	random_state = state + n * RANDOM_STEP;
}

float random_gaussian(void)
{
	float x;

	fill_gaussian(1, &x, 0, 1);
	return x;
}

/* (A passing assertion of Check writes to a file, so that none stands in a busy place.) */
void *allocate(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);

	if (!p)
		ck_abort_msg("out of memory");
	return p;
}

static void machine_plain(void)
{
	kv_machine_limit(KV_MACHINE_PLAIN);
}

static void machine_avx2(void)
{
	kv_machine_limit(KV_MACHINE_AVX2);
}

static void machine_avx512(void)
{
	kv_machine_limit(KV_MACHINE_AVX512);
}

static void machine_vnni(void)
{
	kv_machine_limit(KV_MACHINE_VNNI);
}

static float element(const void *src, enum kv_dtype type, size_t i)
{
	const uint16_t *half = src;

	if (type == KV_DTYPE_F32)
		return ((const float *)src)[i];
	if (type == KV_DTYPE_E4M3)
		return kv_e4m3_to(((const uint8_t *)src)[i]);
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
	uint32_t d = kv_part_of(l, &b->geometry, side).d;
	float mean = side == KV_SIDE_V ? b->spec.v_mean : 0;
	float *x = allocate(sizeof(float) * l->block_tokens * d);

	for (uint32_t at = 0; at < b->spec.tokens; at += l->block_tokens) {
		uint32_t n = b->spec.tokens - at < l->block_tokens ? b->spec.tokens - at : l->block_tokens;

		fill_gaussian((size_t)n * d, x, mean, 1);
		kv_encode(l, &b->geometry, b->block[at / l->block_tokens], b->spec.layer, head, side, 0, n, x,
			  KV_DTYPE_F32, d);
	}
	free(x);
}

void poison(struct bed *b)
{
	memset(b->out, 0xff, b->out_bytes + 64);
	memset(b->lse, 0xff, (b->rows + 1) * sizeof(float));
}

static float *gaussians(size_t n, float size)
{
	float *x = allocate(n * sizeof(*x));

	fill_gaussian(n, x, 0, size);
	return x;
}

/* A tree in which a query is seen by about half of those after it. */
static float *random_tree(uint32_t queries)
{
	float *bias = gaussians((size_t)queries * queries, 1);

	for (uint32_t i = 0; i < queries; i++)
		for (uint32_t c = 0; c < queries; c++)
			if (i != c && random_below(2))
				bias[(size_t)i * queries + c] = -INFINITY;
	return bias;
}

static int32_t *random_ranges(uint32_t n, uint32_t tokens)
{
	int32_t *ranges = allocate(n * 2 * sizeof(*ranges));

	for (uint32_t r = 0; r < n; r++) {
		ranges[2 * r] = (int32_t)random_below(tokens + 8) - 4;
		ranges[2 * r + 1] = ranges[2 * r] + (int32_t)random_below(60) - 5;
	}
	return ranges;
}

static void bed_features(struct bed *b)
{
	const struct spec *s = &b->spec;
	struct kv_attend_features *f = &b->a.features;
	uint32_t heads = b->a.q_heads;

	f->window = s->own_window;
	f->softcap = s->softcap;
	f->alibi_sqrt = s->with & WITH_ALIBI_SQRT;
	f->ranges_max = s->with & WITH_RANGES ? 7 : 0;
	b->sinks = s->with & WITH_SINKS ? gaussians(heads, 3) : NULL;
	b->alibi = s->with & (WITH_ALIBI | WITH_ALIBI_SQRT) ? gaussians(heads, .3f) : NULL;
	b->tree = s->with & WITH_TREE ? random_tree(s->queries) : NULL;
	b->ranges = s->with & WITH_RANGES ? random_ranges(f->ranges_max, s->tokens) : NULL;
	if (b->sinks && heads > 1)
		b->sinks[1] = -INFINITY;
	for (uint32_t h = 0; b->alibi && h < heads; h++)
		b->alibi[h] = fabsf(b->alibi[h]);
	f->sinks = b->sinks;
	f->alibi = b->alibi;
	f->tree_bias = b->tree;
	f->ranges = b->ranges;
	f->out_scale = s->out_scale > 0 ? &b->spec.out_scale : NULL;
}

static void bed_queries(struct bed *b)
{
	const struct spec *s = &b->spec;
	size_t elements = b->rows * b->key_dims;

	b->q = allocate(elements * sizeof(float));
	for (size_t i = 0; i < elements; i++)
		element_set(b->q, s->q_type, i, s->q_size * random_gaussian());
	b->out_bytes = b->rows * s->dv * kv_dtype_bytes(s->out_type);
	b->out = allocate(b->out_bytes + 64);
	b->lse = allocate((b->rows + 1) * sizeof(float));
	b->a = (struct kv_attend){
		.layout = &b->layout, .geometry = &b->geometry, .layer = s->layer, .queries = s->queries,
		.q_heads = s->heads * s->group, .q = b->q, .q_dtype = s->q_type,
		.scale = 1 / sqrtf((float)b->key_dims),
		.blocks = (const void *const *)b->block, .kv_tokens = s->tokens, .causal = s->causal,
		.first_pos = s->first_pos, .out = b->out, .out_dtype = s->out_type, .lse = b->lse,
	};
	bed_features(b);
	b->scratch = allocate(kv_attend_scratch(&b->a));
}

void bed_init(struct bed *b, const struct spec *given)
{
	struct spec *s = &b->spec;

	memset(b, 0, sizeof(*b));
	*s = *given;
	s->dv = s->dv ? s->dv : s->dk;
	b->key_dims = s->dk + (s->rope ? KV_ROPE_DIM : 0);
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
		.window = s->window, 
		.rotation_version = kv_rotation_version(s->dk, s->dv), .codebook_version = KV_CODEBOOK_VERSION,
			.layout_version = KV_LAYOUT_VERSION,
		.rope_dim = s->rope ? KV_ROPE_DIM : 0, .rope_format = s->rope,
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
		if (s->rope)
			encode_side(b, h, KV_SIDE_ROPE);
	}
	b->rows = (size_t)s->queries * s->heads * s->group;
	bed_queries(b);
	poison(b);
}

void bed_fini(struct bed *b)
{
	for (uint32_t i = 0; i < b->blocks; i++)
		free(b->block[i]);
	free(b->block);
	free(b->q);
	free(b->out);
	free(b->lse);
	free(b->scratch);
	free(b->sinks);
	free(b->alibi);
	free(b->tree);
	free(b->ranges);
}

static void decode_side(const struct bed *b, uint32_t head, enum kv_side side, float *x, uint32_t stride)
{
	uint32_t size = b->spec.block_tokens;

	for (uint32_t at = 0; at < b->spec.tokens; at += size)
		kv_decode(&b->layout, &b->geometry, b->block[at / size], b->spec.layer, head, side, 0,
			  b->spec.tokens - at < size ? b->spec.tokens - at : size, false, x + (size_t)at * stride,
			  KV_DTYPE_F32, stride);
}

/* Keys with their rope part, if they have one, or V. */
static float *decoded(const struct bed *b, uint32_t head, enum kv_side side)
{
	uint32_t d = side == KV_SIDE_K ? b->key_dims : b->spec.dv;
	float *x = allocate(sizeof(float) * b->spec.tokens * d);

	decode_side(b, head, side, x, d);
	if (side == KV_SIDE_K && b->spec.rope)
		decode_side(b, head, KV_SIDE_ROPE, x + b->spec.dk, d);
	return x;
}

/* The definition, word for word: does query i see token j? */
static bool sees(const struct bed *b, uint32_t i, uint32_t j)
{
	const struct spec *s = &b->spec;
	int64_t p = s->first_pos + i;
	bool seen = (!s->causal || (int64_t)j <= p) && (!s->window || p - (int64_t)j < s->window) &&
		    (!s->own_window || p - (int64_t)j < s->own_window);

	for (uint32_t r = 0; r < b->a.features.ranges_max; r++) {
		int64_t first = b->ranges[2 * r], last = b->ranges[2 * r + 1];

		seen = seen || (p >= first && p <= last && (int64_t)j >= first && (int64_t)j <= last);
	}
	return seen;
}

/* The score of what is seen, from scale * q . k on. */
static double featured(const struct bed *b, uint32_t i, uint32_t head, uint32_t j, double x)
{
	const struct spec *s = &b->spec;
	double distance = fabs((double)(s->first_pos + i) - j);
	int64_t column = (int64_t)j - ((int64_t)s->tokens - s->queries);

	if (s->softcap > 0)
		x = (double)s->softcap * tanh(x / (double)s->softcap);
	if (b->alibi)
		x -= (double)b->alibi[head] * (s->with & WITH_ALIBI_SQRT ? sqrt(distance) : distance);
	if (b->tree && column >= 0)
		x += (double)b->tree[(size_t)i * s->queries + (size_t)column];
	return x;
}

/* q . k and out += w v, of d numbers, a multiple of 16: eight sums at a time, so that the reference does not take the most of the test's time. */
KV_INLINE double dot(const double *restrict q, const float *restrict k, uint32_t d)
{
	double sum[8] = { 0 };

	for (uint32_t c = 0; c < d; c += 8)
		for (uint32_t l = 0; l < 8; l++)
			sum[l] += q[c + l] * (double)k[c + l];
	return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

KV_INLINE void add(double *restrict out, double w, const float *restrict v, uint32_t d)
{
	for (uint32_t c = 0; c < d; c++)
		out[c] += w * (double)v[c];
}

/* One row in float64: out[dv], and returns the lse. weight: [tokens], for work. */
KV_CLONES static double naive_row(const struct bed *b, const float *k, const float *v, size_t row, double *weight,
				  double *out)
{
	const struct spec *s = &b->spec;
	uint32_t i = (uint32_t)(row / (s->heads * s->group)), head = (uint32_t)(row % (s->heads * s->group));
	double max = b->sinks ? (double)b->sinks[head] : (double)-INFINITY, sum = 0, q[KV_KEY_DIM_MAX];
	uint32_t dims = b->key_dims;

	for (uint32_t c = 0; c < dims; c++)
		q[c] = (double)element(b->q, s->q_type, row * dims + c);
	for (uint32_t j = 0; j < s->tokens; j++) {
		weight[j] = (double)-INFINITY;
		if (!sees(b, i, j))
			continue;
		weight[j] = featured(b, i, head, j, dot(q, k + (size_t)j * dims, dims) * (double)b->a.scale);
		max = fmax(max, weight[j]);
	}
	memset(out, 0, s->dv * sizeof(*out));
	if (b->sinks && b->sinks[head] != -INFINITY)
		sum = exp((double)b->sinks[head] - max);
	for (uint32_t j = 0; j < s->tokens; j++) {
		double w = weight[j] > (double)-INFINITY ? exp(weight[j] - max) : 0;

		sum += w;
		if (w > 0)
			add(out, w, v + (size_t)j * s->dv, s->dv);
	}
	for (uint32_t c = 0; sum > 0 && c < s->dv; c++)
		out[c] /= sum;
	return sum > 0 ? max + log(sum) : (double)-INFINITY;
}

/* Of E4M3 numbers every one is to be within half a place: beyond that counts as error. */
static double near_e4m3(double *got, double wanted, double step)
{
	double place, low;

	*got *= step;
	wanted = fmax(fmin(wanted, 448 * step), -448 * step);
	place = fmax(fabs(wanted) / 16, step * 0x1p-10) * 1.001;
	low = fmax(fmin(*got, wanted + place), wanted - place);
	*got = isnan(*got) ? *got : wanted + (*got - low);
	return wanted;
}

static double worst_error; /* of fp32 outputs so far */

/* Queries and weights of few rows are rounded to 15 bits there. */
static double integer_error(void)
{
	return kv_machine() == KV_MACHINE_VNNI ? INTEGER_ERROR : 0;
}

static void check_row(const struct bed *b, size_t row, const double *want, double lse)
{
	static const double limits[] = {[KV_DTYPE_F32] = 2e-5, [KV_DTYPE_F16] = 6e-4, [KV_DTYPE_BF16] = 5e-3,
					[KV_DTYPE_E4M3] = 1e-4};
	const struct spec *s = &b->spec;
	double error = 0, norm = 0, lse_error, step = s->out_scale > 0 ? (double)s->out_scale : 1;

	for (uint32_t c = 0; c < s->dv; c++) {
		double got = (double)element(b->out, s->out_type, row * s->dv + c), wanted = want[c];

		if (s->out_type == KV_DTYPE_E4M3)
			wanted = near_e4m3(&got, wanted, step);
		error += (got - wanted) * (got - wanted); /* NaN stays NaN and fails below */
		norm += wanted * wanted;
	}
	if (norm == 0 && !isinf(lse)) {
		ck_assert(error == 0); /* a sink alone */
		norm = 1;
	}
	if (isinf(lse)) {
		ck_assert(error == 0 && b->lse[row] == -INFINITY);
		return;
	}
	if (s->out_type == KV_DTYPE_F16 && error <= s->dv * 0x1p-50)
		error = 0; /* half a place of the subnormal numbers */
	error = sqrt(error / norm);
	if (s->out_type == KV_DTYPE_F32)
		worst_error = fmax(worst_error, error);
	lse_error = fabs((double)b->lse[row] - lse) / fmax(1, fabs(lse));
	if (!(error <= limits[s->out_type] + integer_error() && lse_error <= 1e-5 + integer_error()))
		ck_abort_msg("K %s V %s d %u/%u tokens %u row %zu: relative error %g, of lse %g",
			     kv_format_info(s->k)->name, kv_format_info(s->v)->name, s->dk, s->dv, s->tokens,
			     row, error, lse_error);
}

void check_guards(const struct bed *b)
{
	static const uint8_t ones[64] = {[0 ... 63] = 0xff};

	ck_assert_mem_eq((uint8_t *)b->out + b->out_bytes, ones, sizeof(ones));
	ck_assert_mem_eq(b->lse + b->rows, ones, sizeof(float));
}

void check_spec(const struct spec *spec)
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

void check_other_bytes(const struct spec *spec)
{
	static const uint8_t fills[] = {0x01, 0x7e, 0xaa};
	struct spec s = *spec;
	struct bed b;

	bed_init(&b, spec);
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

void check_worst_error(void)
{
	ck_assert_msg(worst_error <= (kv_machine() == KV_MACHINE_VNNI ? INTEGER_ERROR : 1e-5),
		      "worst relative error %g", worst_error);
}

static TCase *machine_case(const char *name, void (*limit)(void), void (*tests_add)(TCase *tc))
{
	TCase *tc = tcase_create(name);

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, limit, NULL);
	tests_add(tc);
	return tc;
}

int on_every_machine(const char *name, void (*tests_add)(TCase *tc))
{
	Suite *suite = suite_create(name);
	SRunner *runner;
	int failed;

	suite_add_tcase(suite, machine_case("plain", machine_plain, tests_add));
	suite_add_tcase(suite, machine_case("avx2", machine_avx2, tests_add));
	suite_add_tcase(suite, machine_case("avx512", machine_avx512, tests_add));
	suite_add_tcase(suite, machine_case("vnni", machine_vnni, tests_add));
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
