/* Zeroing what is behind a block's tokens: what is left is what encoding those tokens into zeroes gives, whatever the
 * rest was. */
#include "kernels/behind.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec.h"

enum { TOKENS = 48, LAYERS = 2, HEADS = 2 };

static const uint32_t dims[] = {64, 96, 128, 192, 256};
enum { DIMS = sizeof(dims) / sizeof(dims[0]) };

static struct kv_layout layout_of(enum kv_format k, enum kv_format v, uint32_t d)
{
	return (struct kv_layout){
		.fingerprint = {1}, .layers = LAYERS, .heads = HEADS, .total_heads = HEADS, .head_dim_k = d,
		.head_dim_v = v == KV_NONE ? d : 64, .block_tokens = TOKENS, .k_format = k, .v_format = v,
		.rotation_version = KV_ROTATION_VERSION, .codebook_version = KV_CODEBOOK_VERSION,
		.layout_version = KV_LAYOUT_VERSION,
	};
}

static void encode(const struct kv_layout *l, const struct kv_geometry *g, uint8_t *block, uint32_t tokens)
{
	static float x[TOKENS * KV_HEAD_DIM_MAX];

	for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
		x[i] = (float)(i * 7919 % 1000) / 500 - 1;
	for (uint32_t layer = 0; layer < LAYERS && tokens; layer++)
		for (uint32_t head = 0; head < l->heads; head++) {
			kv_encode(l, g, block, layer, head, KV_SIDE_ROPE, 0, tokens, x, KV_DTYPE_F32, KV_HEAD_DIM_MAX);
			kv_encode(l, g, block, layer, head, KV_SIDE_K, 0, tokens, x, KV_DTYPE_F32, KV_HEAD_DIM_MAX);
			kv_encode(l, g, block, layer, head, KV_SIDE_V, 0, tokens, x, KV_DTYPE_F32, KV_HEAD_DIM_MAX);
		}
}

static void check(const struct kv_layout *l, uint32_t tokens)
{
	struct kv_geometry g;
	uint8_t *clean, *dirty;

	kv_geometry_of(l, &g);
	clean = calloc(1, g.block_bytes);
	dirty = malloc(g.block_bytes);
	memset(dirty, 0xff, g.block_bytes);
	encode(l, &g, clean, tokens);
	encode(l, &g, dirty, tokens);
	/* What is between the parts of atoms of valid tokens alone is nothing's. */
	for (uint64_t i = 0; i < LAYERS * l->heads; i++)
		memcpy(dirty + i * g.chunk_bytes, clean + i * g.chunk_bytes, tokens / KV_ATOM_TOKENS * g.atom_bytes);
	kv_zero_behind(l, &g, dirty, tokens);
	ck_assert_mem_eq(dirty, clean, g.block_bytes);
	free(clean);
	free(dirty);
}

START_TEST(nothing_is_left_behind)
{
	const enum kv_format k = (enum kv_format)(_i / KV_FORMAT_COUNT), v = (enum kv_format)(_i % KV_FORMAT_COUNT);

	for (int d = 0; d < DIMS && k != KV_NONE; d++) {
		const struct kv_layout l = layout_of(k, v, dims[d]);

		ck_assert_ptr_null(kv_layout_problem(&l));
		for (uint32_t tokens = 0; tokens < TOKENS; tokens += 1 + tokens % 3)
			check(&l, tokens);
	}
}
END_TEST

START_TEST(nothing_is_left_behind_a_rope_part)
{
	static const enum kv_format rope[] = {KV_F16, KV_BF16, KV_FP8};

	for (size_t i = 0; i < sizeof(rope) / sizeof(rope[0]); i++) {
		struct kv_layout l = layout_of((enum kv_format)_i, KV_NONE, KV_LATENT_DIM);

		l.rotation_version = KV_ROTATION_VERSION_2;
		l.heads = l.total_heads = 1;
		l.rope_dim = KV_ROPE_DIM;
		l.rope_format = rope[i];
		ck_assert_ptr_null(kv_layout_problem(&l));
		for (uint32_t tokens = 0; tokens < TOKENS; tokens++)
			check(&l, tokens);
	}
}
END_TEST

START_TEST(a_full_block_is_left_alone)
{
	const struct kv_layout l = layout_of(KV_FP8, KV_TQ3, 128);
	struct kv_geometry g;
	uint8_t *block, *was;

	kv_geometry_of(&l, &g);
	block = malloc(g.block_bytes);
	was = malloc(g.block_bytes);
	memset(block, 0xff, g.block_bytes);
	memset(was, 0xff, g.block_bytes);
	kv_zero_behind(&l, &g, block, TOKENS);
	ck_assert_mem_eq(block, was, g.block_bytes);
	free(block);
	free(was);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kernels_behind");
	TCase *t = tcase_create("behind");
	SRunner *runner = srunner_create(s);
	int failed;

	tcase_add_loop_test(t, nothing_is_left_behind, 0, KV_FORMAT_COUNT * KV_FORMAT_COUNT);
	tcase_add_loop_test(t, nothing_is_left_behind_a_rope_part, KV_F16, KV_FORMAT_COUNT);
	tcase_add_test(t, a_full_block_is_left_alone);
	suite_add_tcase(s, t);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
