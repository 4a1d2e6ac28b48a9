/* The packed calls' argument checks, and that right arguments reach the right bytes. The codecs have tests of their own. */
#include "client/include/terrace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, TOKENS = 16 };

static struct terrace_layout layout_of(enum terrace_format k, enum terrace_format v)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	l.first_layer = 3;
	l.layers = 2;
	l.first_head = 1;
	l.heads = 2;
	l.total_heads = 4;
	l.head_dim_k = l.head_dim_v = DIM;
	l.block_tokens = 2 * TOKENS;
	l.k_format = k;
	l.v_format = v;
	return l;
}

static void *block_of(const struct terrace_layout *l)
{
	uint64_t bytes = terrace_block_bytes(l);
	void *block = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	memset(block, 0xff, bytes);
	return block;
}

START_TEST(status_texts)
{
	for (int i = TERRACE_OK; i <= TERRACE_INTERNAL; i++)
		ck_assert_str_ne(terrace_status_text((enum terrace_status)i), "unknown status");
	ck_assert_str_eq(terrace_status_text((enum terrace_status)99), "unknown status");
	ck_assert_str_eq(terrace_version(), "0.1.0");
	ck_assert_str_eq(terrace_error(), "");
}
END_TEST

START_TEST(formats_and_layouts)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ4, TERRACE_FORMAT_TQ4);
	enum terrace_format f = TERRACE_FORMAT_TQ2;
	int count = 0;

	for (int i = 0; terrace_format_name((enum terrace_format)i); i++, count++) {
		ck_assert_int_eq(terrace_format_parse(terrace_format_name((enum terrace_format)i), &f), TERRACE_OK);
		ck_assert_int_eq((int)f, i);
	}
	ck_assert_int_eq(count, 8);
	ck_assert_ptr_null(terrace_format_name((enum terrace_format)77));
	ck_assert_int_eq(terrace_format_parse("zip", &f), TERRACE_INVALID);
	ck_assert_int_eq((int)f, count - 1);

	ck_assert_ptr_null(terrace_layout_problem(&l));
	ck_assert_uint_eq(terrace_block_bytes(&l), 2 * 2 * 2 * TOKENS * 2 * (DIM / 2 + 2));
	l.size = 0;
	ck_assert_ptr_nonnull(terrace_layout_problem(&l));
	ck_assert_ptr_nonnull(terrace_layout_problem(NULL));
	l = layout_of(TERRACE_FORMAT_TQ4, TERRACE_FORMAT_TQ4);
	l.head_dim_k = 65;
	ck_assert_ptr_nonnull(terrace_layout_problem(&l));
	ck_assert_uint_eq(terrace_block_bytes(&l), 0);
	l = layout_of((enum terrace_format)44, TERRACE_FORMAT_TQ4);
	ck_assert_ptr_nonnull(terrace_layout_problem(&l));
}
END_TEST

static struct terrace_layout opaque_layout(void)
{
	struct terrace_layout l = TERRACE_LAYOUT_INIT;

	l.block_tokens = 784;
	l.k_format = TERRACE_FORMAT_OPAQUE;
	l.opaque_bytes = 4672;
	strcpy(l.opaque_name, "vllm/mamba2_state/1");
	return l;
}

static void opaque_says(const char *says, struct terrace_layout l)
{
	ck_assert_ptr_nonnull(terrace_layout_problem(&l));
	ck_assert_msg(strstr(terrace_layout_problem(&l), says) != NULL, "%s", terrace_layout_problem(&l));
	ck_assert_uint_eq(terrace_block_bytes(&l), 0);
}

START_TEST(opaque_layouts)
{
	struct terrace_layout l = opaque_layout(), old = layout_of(TERRACE_FORMAT_TQ4, TERRACE_FORMAT_TQ4);
	enum terrace_format f;

	ck_assert_ptr_null(terrace_layout_problem(&l));
	ck_assert_uint_eq(terrace_block_bytes(&l), 4672);
	ck_assert_str_eq(terrace_format_name(TERRACE_FORMAT_OPAQUE), "opaque");
	ck_assert_int_eq(terrace_format_parse("opaque", &f), TERRACE_OK);
	ck_assert_int_eq(f, TERRACE_FORMAT_OPAQUE);
	l.opaque_bytes = (1ull << 32) + 16; /* no 16 */
	opaque_says("more than", l);
	l.opaque_bytes = UINT64_MAX;
	opaque_says("more than", l);
	l.opaque_bytes = 4673;
	opaque_says("multiple of 16", l);
	l = opaque_layout();
	memset(l.opaque_name, 'a', sizeof(l.opaque_name));
	opaque_says("longer than 63", l);
	/* A struct of the first version ends before these members, whatever stands behind it. */
	old.size = 88;
	old.opaque_bytes = 77;
	ck_assert_ptr_null(terrace_layout_problem(&old));
	old.size = 80;
	ck_assert_ptr_nonnull(terrace_layout_problem(&old));
	l = opaque_layout();
	l.size = 88;
	opaque_says("opaque_bytes is 0", l);
}
END_TEST

static void refused(enum terrace_status status, const char *call)
{
	ck_assert_int_eq(status, TERRACE_UNSUPPORTED);
	ck_assert_msg(strstr(terrace_error(), "opaque") && strstr(terrace_error(), call), "%s", terrace_error());
}

/* What knows formats does not touch bytes of which it knows none. */
START_TEST(no_codec_takes_an_opaque_layout)
{
	const struct terrace_layout l = opaque_layout();
	struct terrace_attend_options a = TERRACE_ATTEND_OPTIONS_INIT;
	struct terrace_repack_options r = TERRACE_REPACK_OPTIONS_INIT;
	uint8_t *block = block_of(&l);
	float x[DIM] = {0};

	refused(terrace_encode(&l, block, 0, 0, 0, 1, x, DIM, x, DIM, TERRACE_F32), "encode");
	refused(terrace_decode(&l, block, 0, 0, 0, 1, x, DIM, x, DIM, TERRACE_F32), "decode");
	refused(terrace_attend(&l, &a), "attend");
	refused(terrace_repack_from_pages(&l, &r), "repack");
	refused(terrace_repack_to_pages(&l, &r), "repack");
	for (uint64_t i = 0; i < terrace_block_bytes(&l); i++)
		ck_assert_uint_eq(block[i], 0xff);
	free(block);
}
END_TEST

START_TEST(encode_and_decode)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_FP8, TERRACE_FORMAT_FP16);
	uint8_t *block = block_of(&l);
	float k[TOKENS * DIM], v[TOKENS * DIM], k2[TOKENS * DIM], v2[TOKENS * DIM];

	for (int i = 0; i < TOKENS * DIM; i++) {
		k[i] = sinf((float)i);
		v[i] = (float)i / 16;
	}
	/* Two heads, across the two atoms of the block. */
	for (uint32_t head = 0; head < 2; head++)
		ck_assert_int_eq(terrace_encode(&l, block, 1, head, 8, TOKENS, k, DIM, v, DIM, TERRACE_F32), TERRACE_OK);
	ck_assert_int_eq(terrace_decode(&l, block, 1, 1, 8, TOKENS, k2, DIM, v2, DIM, TERRACE_F32), TERRACE_OK);
	for (int i = 0; i < TOKENS * DIM; i++) {
		ck_assert_float_eq_tol(k2[i], k[i], 0.07f);
		ck_assert_float_eq_tol(v2[i], v[i], 0.04f);
	}
	/* One side alone; layer 0 was never written. */
	ck_assert_int_eq(terrace_encode(&l, block, 1, 0, 0, 1, NULL, 0, v, 0, TERRACE_F32), TERRACE_OK);
	for (uint64_t i = 0; i < terrace_block_bytes(&l) / 2; i++)
		ck_assert_uint_eq(block[i], 0xff);
	free(block);
}
END_TEST

START_TEST(codec_arguments)
{
	static const struct {
		uint32_t layer, head, first, n;
		size_t stride;
		int dtype;
		enum terrace_status want;
	} rows[] = {
		{0, 0, 0, 16, DIM, TERRACE_F32, TERRACE_OK},
		{1, 1, 31, 1, 0, TERRACE_F32, TERRACE_OK},
		{0, 0, 32, 0, DIM, TERRACE_F32, TERRACE_OK},
		{2, 0, 0, 1, DIM, TERRACE_F32, TERRACE_INVALID},
		{0, 2, 0, 1, DIM, TERRACE_F32, TERRACE_INVALID},
		{0, 0, 33, 0, DIM, TERRACE_F32, TERRACE_INVALID},
		{0, 0, 31, 2, DIM, TERRACE_F32, TERRACE_INVALID},
		{0, 0, 1, UINT32_MAX, DIM, TERRACE_F32, TERRACE_INVALID},
		{0, 0, 0, 2, DIM - 1, TERRACE_F32, TERRACE_INVALID},
		{0, 0, 0, 2, DIM, 3, TERRACE_INVALID},
		{0, 0, 0, 2, DIM, -1, TERRACE_INVALID},
	};
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ3, TERRACE_FORMAT_TQ2);
	uint8_t *block = block_of(&l);
	float x[TOKENS * DIM] = {1};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ck_assert_int_eq(terrace_encode(&l, block, rows[i].layer, rows[i].head, rows[i].first, rows[i].n, x,
						rows[i].stride, x, rows[i].stride, (enum terrace_dtype)rows[i].dtype),
				 rows[i].want);
		ck_assert_int_eq(terrace_decode(&l, block, rows[i].layer, rows[i].head, rows[i].first, rows[i].n, x,
						rows[i].stride, NULL, 0, (enum terrace_dtype)rows[i].dtype),
				 rows[i].want);
	}
	ck_assert_int_eq(terrace_encode(&l, NULL, 0, 0, 0, 1, x, DIM, x, DIM, TERRACE_F32), TERRACE_INVALID);
	ck_assert_int_eq(terrace_encode(&l, block + 8, 0, 0, 0, 1, x, DIM, x, DIM, TERRACE_F32), TERRACE_INVALID);
	ck_assert_int_eq(terrace_encode(NULL, block, 0, 0, 0, 1, x, DIM, x, DIM, TERRACE_F32), TERRACE_INVALID);
	ck_assert_int_eq(terrace_encode(&l, block, 0, 0, 0, 1, x, DIM, (uint8_t *)x + 2, DIM, TERRACE_F32), TERRACE_INVALID);
	ck_assert_int_eq(terrace_decode(&l, block, 0, 0, 0, 1, (uint8_t *)x + 1, DIM, NULL, 0, TERRACE_F16), TERRACE_INVALID);
	ck_assert_int_eq(terrace_encode(&l, block, 0, 0, 0, 1, (uint8_t *)x + 2, DIM, NULL, 0, TERRACE_BF16), TERRACE_OK);
	ck_assert_str_ne(terrace_error(), "");
	free(block);
}
END_TEST

/* Two blocks, of which each token's V is its number; keys are all zero, so every visible token weighs the same. */
static void counting_blocks(const struct terrace_layout *l, void *blocks[2])
{
	float k[DIM] = {0}, v[DIM];

	for (uint32_t t = 0; t < 2 * l->block_tokens; t++) {
		for (int i = 0; i < DIM; i++)
			v[i] = (float)t;
		for (uint32_t head = 0; head < l->heads; head++)
			ck_assert_int_eq(terrace_encode(l, blocks[t / l->block_tokens], 1, head, t % l->block_tokens, 1, k,
							DIM, v, DIM, TERRACE_F32),
					 TERRACE_OK);
	}
}

static struct terrace_attend_options attend_of(const void *const *blocks, const float *q, float *out, float *lse)
{
	struct terrace_attend_options o = TERRACE_ATTEND_OPTIONS_INIT;

	o.layer = 1;
	o.queries = 2;
	o.q_heads = 4;
	o.q = q;
	o.blocks = blocks;
	o.block_count = 2;
	o.kv_tokens = 40;
	o.causal = true;
	o.first_pos = 38;
	o.out = out;
	o.lse = lse;
	return o;
}

START_TEST(attend_means)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_FP16, TERRACE_FORMAT_FP16);
	void *blocks[2] = {block_of(&l), block_of(&l)};
	float q[2 * 4 * DIM], out[2 * 4 * DIM], lse[2 * 4];
	struct terrace_attend_options o = attend_of((const void *const *)blocks, q, out, lse);

	for (int i = 0; i < 2 * 4 * DIM; i++)
		q[i] = 1;
	counting_blocks(&l, blocks);
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_OK);
	ck_assert_float_eq_tol(out[0], 19.0f, 0.01f); /* tokens 0 .. 38 */
	ck_assert_float_eq_tol(out[4 * DIM], 19.5f, 0.01f);
	ck_assert_float_eq_tol(lse[0], logf(39), 0.001f);

	/* A window of 4: the first block is never looked at, and a lease has no address for it. */
	l.window = 4;
	free(blocks[0]);
	blocks[0] = NULL;
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_OK);
	ck_assert_float_eq_tol(out[0], 36.5f, 0.01f); /* tokens 35 .. 38 */
	ck_assert_float_eq_tol(out[4 * DIM], 37.5f, 0.01f);
	ck_assert_float_eq_tol(lse[4], logf(4), 0.001f);
	o.first_pos = 35; /* now query 0 sees token 32 at the least */
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_OK);
	o.first_pos = 34; /* now it sees token 31, which is in the block that is not there */
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_INVALID);
	o.first_pos = 1000; /* nothing in sight */
	blocks[1] = (free(blocks[1]), NULL);
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_OK);
	ck_assert_float_eq(out[0], 0);
	ck_assert(isinf(lse[0]) && lse[0] < 0);
}
END_TEST

START_TEST(attend_arguments)
{
	struct terrace_layout l = layout_of(TERRACE_FORMAT_FP16, TERRACE_FORMAT_TQ4);
	void *blocks[2] = {block_of(&l), block_of(&l)};
	float q[2 * 4 * DIM] = {0}, out[2 * 4 * DIM], lse[2 * 4];
	const struct terrace_attend_options good = attend_of((const void *const *)blocks, q, out, lse);
	struct terrace_attend_options o = good;

	counting_blocks(&l, blocks);
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_OK);
#define BAD(change)                                                                                                    \
	do {                                                                                                           \
		o = good;                                                                                              \
		change;                                                                                                \
		ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_INVALID);                                             \
	} while (0)
	BAD(o.size = 8);
	BAD(o.layer = 2);
	BAD(o.q_heads = 3);
	BAD(o.q_heads = 0);
	BAD(o.q = NULL);
	BAD(o.out = NULL);
	BAD(o.q_dtype = (enum terrace_dtype)9);
	BAD(o.out_dtype = (enum terrace_dtype)9);
	BAD(o.blocks = NULL);
	BAD(o.block_count = 1);
	BAD(o.kv_tokens = 65);
	BAD(o.kv_tokens = UINT32_MAX);
	BAD(o.scale = NAN);
	BAD(o.scale = INFINITY);
	BAD(o.first_pos = INT64_MAX);
	BAD(o.first_pos = INT64_MIN);
	BAD(o.queries = UINT32_MAX);
	ck_assert_int_eq(terrace_attend(&l, NULL), TERRACE_INVALID);
	ck_assert_int_eq(terrace_attend(NULL, &good), TERRACE_INVALID);
	o = good;
	o.kv_tokens = 0;
	o.blocks = NULL;
	o.block_count = 0;
	o.lse = NULL;
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_OK);
	ck_assert_float_eq(out[0], 0);
	free(blocks[0]);
	free(blocks[1]);
}
END_TEST

/* A key with a rope part goes in and out as one vector of 576 elements, of which V is the first 512. */
START_TEST(keys_with_a_rope_part)
{
	enum { LATENT = 512, KEY = 576, N = 3 };
	struct terrace_layout l = layout_of(TERRACE_FORMAT_TQ4, TERRACE_FORMAT_NONE);
	struct terrace_attend_options o = TERRACE_ATTEND_OPTIONS_INIT;
	struct terrace_repack_options r = TERRACE_REPACK_OPTIONS_INIT;
	float k[N * KEY], k2[N * KEY], v2[N * LATENT], q[KEY] = {0}, out[LATENT];
	const void *blocks[1];
	uint8_t *block;

	l.first_head = 0;
	l.heads = l.total_heads = 1;
	l.head_dim_k = l.head_dim_v = LATENT;
	l.rope_dim = KEY - LATENT;
	l.rope_format = TERRACE_FORMAT_FP16;
	ck_assert_ptr_null(terrace_layout_problem(&l));
	ck_assert_uint_eq(terrace_block_bytes(&l), 2 * 2 * TOKENS * 386);
	block = block_of(&l);
	for (int i = 0; i < N * KEY; i++)
		k[i] = i % KEY < LATENT ? sinf((float)i) : (float)(i % KEY);
	ck_assert_int_eq(terrace_encode(&l, block, 1, 0, 7, N, k, KEY, NULL, 0, TERRACE_F32), TERRACE_OK);
	ck_assert_int_eq(terrace_decode(&l, block, 1, 0, 7, N, k2, KEY, v2, LATENT, TERRACE_F32), TERRACE_OK);
	for (int i = 0; i < N * KEY; i++) {
		ck_assert_float_eq_tol(k2[i], k[i], i % KEY < LATENT ? 0.5f : 1e-6f);
		if (i % KEY < LATENT)
			ck_assert_float_eq(v2[i / KEY * LATENT + i % KEY], k2[i]);
	}
	ck_assert_int_eq(terrace_encode(&l, block, 1, 0, 7, N, k, KEY - 1, NULL, 0, TERRACE_F32), TERRACE_INVALID);
	ck_assert_int_eq(terrace_decode(&l, block, 1, 0, 7, N, k2, LATENT, v2, LATENT, TERRACE_F32), TERRACE_INVALID);

	/* A query that only the rope part of token 2 answers: its score is 192 * 0.5 above those of tokens 0 and 1. */
	ck_assert_int_eq(terrace_encode(&l, block, 1, 0, 0, N, k, KEY, NULL, 0, TERRACE_F32), TERRACE_OK);
	for (int i = 0; i < N * KEY; i++)
		k[i] = i % KEY == KEY - 1 ? (float)(i / KEY == 2) * 192 : (float)(i / KEY);
	ck_assert_int_eq(terrace_encode(&l, block, 1, 0, 0, N, k, KEY, NULL, 0, TERRACE_F32), TERRACE_OK);
	q[KEY - 1] = 1;
	blocks[0] = block;
	o.layer = 1;
	o.queries = o.q_heads = 1;
	o.q = q;
	o.blocks = blocks;
	o.block_count = 1;
	o.kv_tokens = N;
	o.out = out;
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_INVALID);
	ck_assert_msg(strstr(terrace_error(), "scale is 0, and the layout has a rope part"), "%s", terrace_error());
	o.scale = 0.5f;
	ck_assert_int_eq(terrace_attend(&l, &o), TERRACE_OK);
	ck_assert_int_eq(terrace_decode(&l, block, 1, 0, 2, 1, NULL, 0, v2, LATENT, TERRACE_F32), TERRACE_OK);
	for (int i = 0; i < LATENT; i++)
		ck_assert_float_eq_tol(out[i], v2[i], 1e-4f);

	l.k_format = TERRACE_FORMAT_INT4_PTH;
	r.k.codes = r.k.scales = block;
	ck_assert_int_eq(terrace_repack_to_pages(&l, &r), TERRACE_UNSUPPORTED);
	ck_assert_msg(strstr(terrace_error(), "rope part") != NULL, "%s", terrace_error());
	free(block);
}
END_TEST

START_TEST(merge)
{
	float a[2] = {1, 1}, b[2] = {3, 3}, lse_a = 0, lse_b = 0;

	ck_assert_int_eq(terrace_merge(1, 2, a, &lse_a, b, &lse_b), TERRACE_OK);
	ck_assert_float_eq_tol(a[1], 2, 1e-6);
	ck_assert_float_eq_tol(lse_a, logf(2), 1e-6);
	ck_assert_int_eq(terrace_merge(1, 2, a, NULL, b, &lse_b), TERRACE_INVALID);
	ck_assert_int_eq(terrace_merge(0, 2, NULL, NULL, NULL, NULL), TERRACE_OK);
}
END_TEST

/* Parts that have seen nothing, marked in either way, and parts that are no numbers, in both places and twice in a row. */
START_TEST(merge_of_odd_parts)
{
	static const float odd[] = {1.5f, -INFINITY, INFINITY, NAN};

	for (int i = 0; i < 16; i++) {
		const float la = odd[i / 4], lb = odd[i % 4];
		const bool nan = isnan(la) || isnan(lb), no_a = isinf(la), no_b = isinf(lb);
		/* Numbers where nothing was seen must not be looked at, nor what is no number. */
		float a[2] = {no_a ? NAN : 2, no_a ? INFINITY : 4}, b[2] = {no_b ? 1e30f : 6, no_b ? NAN : 8}, lse_a = la, lse_b = lb;
		const float want = no_a && no_b ? 0 : no_a ? 6 : no_b ? 2 : 4, lse = no_a && no_b ? -INFINITY : no_a || no_b ? 1.5f : 1.5f + logf(2);

		for (int times = 0; times < 2; times++) {
			ck_assert_int_eq(terrace_merge(1, 2, a, &lse_a, b, &lse_b), TERRACE_OK);
			if (nan)
				ck_assert(isnan(a[0]) && isnan(a[1]) && isnan(lse_a));
			else
				ck_assert_msg(fabsf(a[0] - want) < 1e-6f && (lse_a == lse || fabsf(lse_a - lse) < 1e-6f),
					      "merge of %g and %g: %g, %g", (double)la, (double)lb, (double)a[0], (double)lse_a);
			b[0] = b[1] = NAN; /* another part that has seen nothing */
			lse_b = times ? -INFINITY : INFINITY;
		}
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client_packed");
	TCase *c = tcase_create("packed");
	SRunner *runner;
	int failed;

	tcase_add_test(c, status_texts);
	tcase_add_test(c, formats_and_layouts);
	tcase_add_test(c, encode_and_decode);
	tcase_add_test(c, opaque_layouts);
	tcase_add_test(c, no_codec_takes_an_opaque_layout);
	tcase_add_test(c, codec_arguments);
	tcase_add_test(c, attend_means);
	tcase_add_test(c, attend_arguments);
	tcase_add_test(c, keys_with_a_rope_part);
	tcase_add_test(c, merge);
	tcase_add_test(c, merge_of_odd_parts);
	suite_add_tcase(suite, c);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
