/* terrace_attend's features: that the public structs reach the kernel whole, of this version and of older ones. */
#include "client/include/terrace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, TOKENS = 40, QUERIES = 2, HEADS = 2, ROWS = QUERIES * HEADS };

/* Keys are zero, so that every token weighs the same before features; V of token t is t. */
struct bed {
	struct terrace_layout layout;
	void *blocks[3];
	float q[ROWS * DIM], out[ROWS * DIM], lse[ROWS];
	struct terrace_attend_options options;
	struct terrace_attend_features features;
};

static void set_up(struct bed *b)
{
	float k[DIM] = {0}, v[DIM];

	*b = (struct bed){.layout = TERRACE_LAYOUT_INIT, .options = TERRACE_ATTEND_OPTIONS_INIT,
			  .features = TERRACE_ATTEND_FEATURES_INIT};
	b->layout.layers = b->layout.heads = b->layout.total_heads = 1;
	b->layout.head_dim_k = b->layout.head_dim_v = DIM;
	b->layout.block_tokens = 16;
	b->layout.k_format = b->layout.v_format = TERRACE_FORMAT_FP16;
	for (int i = 0; i < 3; i++) {
		b->blocks[i] = aligned_alloc(64, (terrace_block_bytes(&b->layout) + 63) / 64 * 64);
		ck_assert_ptr_nonnull(b->blocks[i]);
	}
	for (uint32_t t = 0; t < TOKENS; t++) {
		for (int i = 0; i < DIM; i++)
			v[i] = (float)t;
		ck_assert_int_eq(terrace_encode(&b->layout, b->blocks[t / 16], 0, 0, t % 16, 1, k, DIM, v, DIM,
						TERRACE_F32),
				 TERRACE_OK);
	}
	b->options.queries = QUERIES;
	b->options.q_heads = HEADS;
	b->options.q = b->q;
	b->options.blocks = (const void *const *)b->blocks;
	b->options.block_count = 3;
	b->options.kv_tokens = TOKENS;
	b->options.causal = true;
	b->options.first_pos = TOKENS - QUERIES;
	b->options.out = b->out;
	b->options.lse = b->lse;
	b->options.features = &b->features;
}

static void tear_down(struct bed *b)
{
	for (int i = 0; i < 3; i++)
		free(b->blocks[i]);
}

static void run(struct bed *b)
{
	ck_assert_int_eq(terrace_attend(&b->layout, &b->options), TERRACE_OK);
}

static float row(const struct bed *b, int query, int head)
{
	return b->out[(query * HEADS + head) * DIM];
}

START_TEST(masks)
{
	static const int32_t ranges[2][2] = {{5, 2}, {36, 39}};
	struct bed b;

	set_up(&b);
	b.features.window = 4;
	run(&b);
	ck_assert_float_eq_tol(row(&b, 0, 0), 36.5f, .01f); /* tokens 35 .. 38 */
	ck_assert_float_eq_tol(row(&b, 1, 1), 37.5f, .01f);
	b.features.ranges = &ranges[0][0];
	b.features.range_count = 2;
	run(&b);
	ck_assert_float_eq_tol(row(&b, 0, 0), 37, .01f); /* and 39 */
	b.features.range_count = 1;
	run(&b);
	ck_assert_float_eq_tol(row(&b, 0, 0), 36.5f, .01f);
	free(b.blocks[0]);
	free(b.blocks[1]);
	b.blocks[0] = b.blocks[1] = NULL;
	b.features.window = 2;
	run(&b); /* 37 .. 39 are in the last block */
	b.features.window = 8;
	ck_assert_int_eq(terrace_attend(&b.layout, &b.options), TERRACE_INVALID);
	tear_down(&b);
}
END_TEST

START_TEST(weights)
{
	static const float sinks[HEADS] = {-INFINITY, 3}, slopes[HEADS] = {100, 0};
	static const float tree[QUERIES][QUERIES] = {{0, 0}, {-INFINITY, 200}};
	struct bed b;

	set_up(&b);
	b.features.sinks = sinks;
	run(&b);
	ck_assert_float_eq_tol(row(&b, 0, 0), 19, .01f);
	ck_assert_float_eq_tol(row(&b, 0, 1), 19 * 39 / (39 + expf(3)), .01f);
	ck_assert_float_eq_tol(b.lse[1], logf(39 + expf(3)), 1e-4f);
	b.features.alibi = slopes;
	run(&b);
	ck_assert_float_eq_tol(row(&b, 0, 0), 38, .01f); /* itself alone */
	b.features.alibi_sqrt = true;
	run(&b);
	ck_assert_float_eq_tol(row(&b, 1, 0), 39, .01f);
	b.features.alibi = NULL;
	b.features.tree_bias = &tree[0][0];
	run(&b);
	ck_assert_float_eq_tol(row(&b, 1, 1), 39, .01f);
	b.features.tree_bias = NULL;
	b.features.softcap = 5;
	run(&b);
	ck_assert_float_eq_tol(row(&b, 0, 0), 19, .01f);
	tear_down(&b);
}
END_TEST

START_TEST(bytes_out)
{
	uint8_t bytes[ROWS * DIM];
	struct bed b;

	set_up(&b);
	b.options.out = bytes;
	b.options.out_dtype = TERRACE_E4M3;
	b.features.out_scale = 19;
	run(&b);
	ck_assert_uint_eq(bytes[0], 0x38); /* 1 */
	b.features.out_scale = 0;
	run(&b);
	ck_assert_uint_eq(bytes[0], 0x5a); /* 20, the even neighbour of 19 */
	b.options.features = NULL;
	run(&b);
	ck_assert_uint_eq(bytes[0], 0x5a);
	tear_down(&b);
}
END_TEST

/* That no version has. */
START_TEST(sizes)
{
	struct bed b;

	set_up(&b);
	b.features.window = 4;
	b.options.size -= 1;
	ck_assert_int_eq(terrace_attend(&b.layout, &b.options), TERRACE_INVALID);
	b.options.size = sizeof(b.options);
	run(&b);
	ck_assert_float_eq_tol(row(&b, 0, 0), 36.5f, .01f);
	b.features.size = 0;
	ck_assert_int_eq(terrace_attend(&b.layout, &b.options), TERRACE_INVALID);
	b.features.size = sizeof(b.features);
	b.features.softcap = NAN;
	ck_assert_int_eq(terrace_attend(&b.layout, &b.options), TERRACE_INVALID);
	b.features.softcap = 0;
	b.options.q_dtype = TERRACE_E4M3;
	ck_assert_int_eq(terrace_attend(&b.layout, &b.options), TERRACE_INVALID);
	tear_down(&b);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("attend_public");
	TCase *tc = tcase_create("attend_public");
	SRunner *runner;
	int failed;

	tcase_add_test(tc, masks);
	tcase_add_test(tc, weights);
	tcase_add_test(tc, bytes_out);
	tcase_add_test(tc, sizes);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
