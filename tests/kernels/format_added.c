/* One format more in the table (TERRACE_TEST_FORMAT): of 4 bits with a scale, as tq4 has, but floats of vectors that are not rotated. Nothing
 * of the CPU's code may take it for one of the others: neither for rotated integer codes, nor for a codebook's, whatever its number is. The
 * kernels are compiled for this test with that row; code that picks by format then has no case for it, and must leave things alone.
 * What the GPU's code makes of it is tests/cuda_cpu/format_added.cpp's.
 */
#include "kernels/codebook.h"
#include "kernels/codec_lanes.h"
#include "kernels/lane_order.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { D = 128, TOKENS = KV_ATOM_TOKENS };

static const enum kv_format added = KV_TEST_FORMAT;

static void vectors_make(float x[TOKENS * D])
{
	for (int i = 0; i < TOKENS * D; i++)
		x[i] = (float)(i * 37 % 101 - 50) * (i % 7 ? .03f : 9000);
}

/* Its row, and what is worked out of that; it has the last number. */
START_TEST(the_table)
{
	struct kv_layout l = {.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = D, .head_dim_v = D, .block_tokens = 16,
			      .k_format = added, .v_format = KV_TQ4, .rotation_version = 1, .codebook_version = 1, .layout_version = 1};
	const struct kv_format_info *info = kv_format_info(added);
	struct kv_geometry g;
	enum kv_format f;

	ck_assert_int_eq(added, KV_FORMAT_COUNT - 1);
	ck_assert(info && !info->rotated && info->codes == KV_CODES_FLOAT);
	ck_assert(kv_format_parse("test", &f) && f == added);
	ck_assert_ptr_null(kv_layout_problem(&l));
	kv_geometry_of(&l, &g);
	ck_assert_uint_eq(g.k_codes, g.v_codes);
	ck_assert_uint_eq(g.k_scales, 2 * TOKENS);
	for (unsigned i = 0; i + 1 < KV_FORMAT_COUNT; i++)
		ck_assert_str_ne(kv_format_info((enum kv_format)i)->name, "test");
}
END_TEST

START_TEST(is_not_rotated)
{
	float x[TOKENS * D], prepared[D];

	vectors_make(x);
	kv_prepare(added, KV_ROUND_F16, D, false, x, prepared);
	ck_assert_mem_eq(prepared, x, sizeof(prepared));
	kv_prepare(KV_TQ4, KV_ROUND_F16, D, false, x, prepared);
	ck_assert(memcmp(prepared, x, sizeof(prepared)) != 0);
}
END_TEST

START_TEST(has_no_codebook)
{
	ck_assert_ptr_null(kv_codebook(added));
	for (unsigned f = 0; f < KV_FORMAT_COUNT; f++)
		ck_assert((kv_codebook((enum kv_format)f) != NULL) == (kv_format_info((enum kv_format)f)->codes == KV_CODES_CODEBOOK));
}
END_TEST

/* So that attention decodes it. */
START_TEST(has_no_lanes)
{
	static const uint32_t dims[] = {64, 96, 128, 192, 256};

	for (int i = 0; i < 10; i++) {
		ck_assert_ptr_null(kv_lane_order(added, (enum kv_side)(i % 2), dims[i / 2]));
		ck_assert_ptr_null(kv_lane_order(KV_NONE, (enum kv_side)(i % 2), dims[i / 2]));
	}
	ck_assert_ptr_nonnull(kv_lane_order(KV_TQ4, KV_SIDE_K, D));
}
END_TEST

/* No other format's codes are made of it, nor values of its codes. _i: kind of machine. */
START_TEST(is_not_coded_as_another)
{
	float x[TOKENS * D], y[D];
	uint16_t codes[D];
	uint8_t rows[TOKENS * D];
	uint32_t scale = 7, scales[TOKENS];

	kv_machine_limit((enum kv_machine)_i);
	vectors_make(x);
	memset(codes, 0x5a, sizeof(codes));
	memset(rows, 0x5a, sizeof(rows));
	memset(scales, 0x5a, sizeof(scales));
	memset(y, 0x5a, sizeof(y));
	kv_quantise(added, KV_ROUND_F16, D, x, codes, &scale);
	kv_dequantise(added, D, codes, 0x3c00, y);
	if (kv_codec_lanes())
		kv_codec_lanes()->quantise(added, KV_ROUND_F16, D, TOKENS, x, KV_DTYPE_F32, D, rows, scales);
	for (int i = 0; i < D; i++)
		ck_assert(codes[i] == 0x5a5a && ((uint8_t *)&y[i])[3] == 0x5a);
	for (int i = 0; i < TOKENS * D; i++)
		ck_assert_uint_eq(rows[i], 0x5a);
	for (int i = 0; i < TOKENS; i++)
		ck_assert_uint_eq(scales[i], 0x5a5a5a5a);
	ck_assert_uint_eq(scale, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("format_added");
	TCase *t = tcase_create("format_added");
	SRunner *r;
	int failed;

	tcase_add_test(t, the_table);
	tcase_add_test(t, is_not_rotated);
	tcase_add_test(t, has_no_codebook);
	tcase_add_test(t, has_no_lanes);
	tcase_add_loop_test(t, is_not_coded_as_another, 0, 1 + (int)kv_machine());
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
