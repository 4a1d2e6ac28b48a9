/* No public function depends on the mode of floating-point arithmetic in the caller's thread: under every mode it gives the same bytes as in
 * the default one, on every kind of machine that this one can be, and the caller's MXCSR is what it was. kernels/float_mode.h says why.
 *
 * A mode is set right before a call and taken back right after it, so that the test's own arithmetic is in the default mode. */
#include "client/include/terrace.h"
#include "kernels/machine.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__x86_64__)
int main(void)
{
	puts("skipped: MXCSR is x86's");
	return 77;
}
#else
#include <xmmintrin.h>

enum { USUAL = 0x1f80, DAZ = 0x40, FTZ = 0x8000, DOWN = 0x2000, UP = 0x4000, TO_ZERO = 0x6000, UNMASK = 0x1f80 };

/* What is changed of the usual MXCSR. Unmasked exceptions raise SIGFPE; a flag is what the caller's own arithmetic has left. */
static const struct {
	const char *name;
	unsigned change;
} modes[] = {
	{"FTZ and DAZ", FTZ | DAZ}, {"FTZ", FTZ}, {"DAZ", DAZ}, {"rounding down", DOWN}, {"rounding up", UP}, {"rounding to zero", TO_ZERO},
	{"exceptions unmasked", UNMASK}, {"a flag", 1}, {"all together", FTZ | DAZ | UP | UNMASK},
};

static const char *const formats[] = {"fp16", "bf16", "fp8", "int4_pth", "tq4", "tq3", "tq2"};
static const char *const machines[] = {"plain", "AVX2", "AVX-512", "VNNI"};
/* Of vectors: fp8's smallest steps, fp16 scales that are subnormal or none, subnormal floats, saturation. */
static const float sizes[] = {1, 1e-2f, 1e-3f, 1e-4f, 3e-6f, 1e-10f, 1e-38f, 1e-42f, 6e4f, 1e30f};
#ifdef TERRACE_TESTS_SMALL
static const uint32_t dims[] = {80, 96, 128};
#else
static const uint32_t dims[] = {64, 80, 96, 112, 128, 192, 256, 512};
#endif

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { TOKENS = 20, BLOCK_TOKENS = 32, DIM_MAX = 512, QUERIES = 3, HEADS = 2, ROWS = QUERIES * HEADS,
	BLOCK_MAX = 4 * BLOCK_TOKENS * DIM_MAX };

/* Everything that one run writes. */
struct results {
	uint8_t block[BLOCK_MAX] __attribute__((aligned(64)));
	float decoded[2][TOKENS * DIM_MAX];
	uint8_t decoded_as[2][TOKENS * DIM_MAX * sizeof(float)];
	float out[ROWS * DIM_MAX], lse[ROWS];
	uint8_t featured[ROWS * DIM_MAX * sizeof(float)];
	float featured_lse[ROWS];
	float merged[4][DIM_MAX], merged_lse[4];
};

/* What it begins with. */
struct world {
	struct terrace_layout layout;
	enum terrace_dtype dtype;
	float scale, out_scale;
	enum terrace_dtype out_dtype;
	uint8_t vectors[2][TOKENS * DIM_MAX * sizeof(float)];
	float q[ROWS * DIM_MAX];
};

static unsigned changed; /* the mode under test */

static void mode_set(void)
{
	_mm_setcsr(USUAL ^ changed);
}

/* The caller's mode came back, flags and all. */
static void mode_check(enum terrace_status status)
{
	unsigned after = _mm_getcsr();

	_mm_setcsr(USUAL);
	ck_assert_int_eq(status, TERRACE_OK);
	ck_assert_uint_eq(after, USUAL ^ changed);
}

static float random_float(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (float)((double)(int32_t)(*state >> 32) / 2147483648.0);
}

static uint16_t upper_half(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static void world_make(struct world *w, uint64_t seed, enum terrace_format format, uint32_t d, float size)
{
	static const enum terrace_dtype dtypes[] = {TERRACE_F32, TERRACE_F16, TERRACE_BF16};
	static const enum terrace_dtype outs[] = {TERRACE_F32, TERRACE_F16, TERRACE_BF16, TERRACE_E4M3};

	*w = (struct world){.layout = TERRACE_LAYOUT_INIT, .dtype = dtypes[seed % 3], .out_dtype = outs[seed % 4]};
	w->layout.layers = w->layout.heads = w->layout.total_heads = 1;
	w->layout.head_dim_k = w->layout.head_dim_v = d;
	w->layout.block_tokens = BLOCK_TOKENS;
	w->layout.k_format = w->layout.v_format = format;
	w->scale = seed % 5 ? 0 : 1e-40f; /* 0 means another one; a subnormal scale is a scale */
	w->out_scale = seed % 7 ? size : 1e-40f;
	for (size_t i = 0; i < TOKENS * DIM_MAX; i++)
		for (int side = 0; side < 2; side++) {
			float x = size * random_float(&seed);

			if (w->dtype == TERRACE_F32)
				((float *)w->vectors[side])[i] = x;
			else if (w->dtype == TERRACE_BF16)
				((uint16_t *)w->vectors[side])[i] = upper_half(x);
			else
				((_Float16 *)w->vectors[side])[i] = (_Float16)x;
		}
	for (size_t i = 0; i < ROWS * DIM_MAX; i++)
		w->q[i] = random_float(&seed) * (size < 1e-30f ? 1e30f : 1 / size);
}

static void run_codec(const struct world *w, struct results *r)
{
	const uint32_t d = w->layout.head_dim_k;
	enum terrace_status status;

	mode_set();
	status = terrace_encode(&w->layout, r->block, 0, 0, 0, TOKENS, w->vectors[0], d, w->vectors[1], d, w->dtype);
	mode_check(status);
	mode_set();
	status = terrace_decode(&w->layout, r->block, 0, 0, 0, TOKENS, r->decoded[0], d, r->decoded[1], d, TERRACE_F32);
	mode_check(status);
	mode_set();
	status = terrace_decode(&w->layout, r->block, 0, 0, 0, TOKENS, r->decoded_as[0], d, r->decoded_as[1], d, w->dtype);
	mode_check(status);
}

static void run_attend(const struct world *w, struct results *r)
{
	static const float sinks[HEADS] = {.5f, 1e-40f}, alibi[HEADS] = {.01f, 1e-41f};
	const void *blocks[1] = {r->block};
	struct terrace_attend_features f = TERRACE_ATTEND_FEATURES_INIT;
	struct terrace_attend_options o = TERRACE_ATTEND_OPTIONS_INIT;
	enum terrace_status status;

	o.queries = QUERIES;
	o.q_heads = HEADS;
	o.q = w->q;
	o.blocks = blocks;
	o.block_count = 1;
	o.kv_tokens = TOKENS;
	o.causal = true;
	o.first_pos = TOKENS - QUERIES;
	o.scale = w->scale;
	o.out = r->out;
	o.lse = r->lse;
	mode_set();
	status = terrace_attend(&w->layout, &o);
	mode_check(status);
	f.softcap = w->scale != 0 ? 1e-41f : 20;
	f.sinks = sinks;
	f.alibi = alibi;
	f.out_scale = w->out_dtype == TERRACE_E4M3 ? w->out_scale : 0;
	o.features = &f;
	o.out = r->featured;
	o.out_dtype = w->out_dtype;
	o.lse = r->featured_lse;
	mode_set();
	status = terrace_attend(&w->layout, &o);
	mode_check(status);
}

static void run_merge(const struct world *w, struct results *r)
{
	static const float lse_a[4] = {1, -80, 1e-41f, -INFINITY}, lse_b[4] = {1.5f, 20, -1e-41f, 2};
	enum terrace_status status;

	memcpy(r->merged, r->decoded[0], sizeof(r->merged));
	memcpy(r->merged_lse, lse_a, sizeof(lse_a));
	mode_set();
	status = terrace_merge(4, w->layout.head_dim_k, r->merged[0], r->merged_lse, r->decoded[1], lse_b);
	mode_check(status);
}

static void run(const struct world *w, unsigned change, struct results *r)
{
	memset(r, 0, sizeof(*r));
	changed = change;
	run_codec(w, r);
	run_attend(w, r);
	run_merge(w, r);
}

static void compare(const struct results *got, const struct results *want, const char *text)
{
#define SAME(member) ck_assert_msg(!memcmp(&got->member, &want->member, sizeof(got->member)), "%s: other %s", text, #member)
	SAME(block);
	SAME(decoded);
	SAME(decoded_as);
	SAME(out);
	SAME(lse);
	SAME(featured);
	SAME(featured_lse);
	SAME(merged);
	SAME(merged_lse);
#undef SAME
}

/* _i: a format on a kind of machine. */
START_TEST(same_in_every_mode)
{
	static struct world w;
	static struct results usual, got;
	enum terrace_format format;
	char text[128];

	kv_machine_limit((enum kv_machine)(_i / (int)COUNT(formats)));
	ck_assert_int_eq(terrace_format_parse(formats[_i % COUNT(formats)], &format), TERRACE_OK);
	for (size_t d = 0; d < COUNT(dims); d++)
		for (size_t s = 0; s < COUNT(sizes); s++) {
			world_make(&w, 100 * (unsigned)_i + 10 * d + s, format, dims[d], sizes[s]);
			run(&w, 0, &usual);
			for (size_t m = 0; m < COUNT(modes); m++) {
				run(&w, modes[m].change, &got);
				snprintf(text, sizeof(text), "%s of %u dims of %g, %s, under %s", formats[_i % COUNT(formats)], dims[d],
					 (double)sizes[s], machines[kv_machine()], modes[m].name);
				compare(&got, &usual, text);
			}
		}
}
END_TEST

/* A call that fails leaves the mode alone, too. */
START_TEST(failed_calls)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;
	struct terrace_attend_options o = TERRACE_ATTEND_OPTIONS_INIT;
	const unsigned mode = USUAL ^ (FTZ | DAZ | UP);
	unsigned after;
	float x[4] = {0};

	_mm_setcsr(mode);
	terrace_encode(&l, x, 0, 0, 0, 1, x, 1, NULL, 0, TERRACE_F32);
	terrace_decode(&l, x, 0, 0, 0, 1, x, 1, NULL, 0, TERRACE_F32);
	terrace_attend(&l, &o);
	terrace_attend(NULL, NULL);
	terrace_merge(1, 1, NULL, x, x, x);
	terrace_merge(0, 1, NULL, x, x, x);
	after = _mm_getcsr();
	_mm_setcsr(USUAL);
	ck_assert_uint_eq(after, mode);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("float_mode");
	TCase *t = tcase_create("float_mode");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, same_in_every_mode, 0, (int)COUNT(formats) * (1 + (int)kv_machine()));
	tcase_add_test(t, failed_calls);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	printf("kinds of machine: up to %s\n", machines[kv_machine()]);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
#endif
