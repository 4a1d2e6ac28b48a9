/* One format more in the table (TERRACE_TEST_FORMAT): a row, of 4 bits with a scale as tq4 has, but floats of
 * vectors that are not rotated, and a codec (toy_codec.c). With these alone it is encoded and decoded, packed and
 * attended, on every kind of machine and of every head dim; and nothing of the CPU's code takes it for one of the
 * others: neither for rotated integer codes, nor for a codebook's, whatever its number is. What the GPU's code makes
 * of it is tests/cuda_cpu/format_added.cpp's.
 */
#include "kernels/codebook.h"
#include "kernels/codec_lanes.h"
#include "kernels/lane_order.h"
#include "tests/kernels/attend_rig.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 128, TOKENS = KV_ATOM_TOKENS };

static const enum kv_format added = KV_TEST_FORMAT;

static void vectors_make(float x[TOKENS * D])
{
	for (int i = 0; i < TOKENS * D; i++)
		x[i] = (float)(i * 37 % 101 - 50) * (i % 7 ? .03f : 900);
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
	ck_assert_str_eq(KV_FORMAT_NAMES, "fp16, bf16, fp8, int4_pth, tq4, tq3, tq2, test");
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
	for (int i = 0; i < 2 * KV_HEAD_DIM_COUNT; i++) {
		ck_assert_ptr_null(kv_lane_order(added, (enum kv_side)(i % 2), head_dims[i / 2]));
		ck_assert_ptr_null(kv_lane_order(KV_NONE, (enum kv_side)(i % 2), head_dims[i / 2]));
	}
	ck_assert_ptr_nonnull(kv_lane_order(KV_TQ4, KV_SIDE_K, D));
}
END_TEST

/* Code for other formats leaves it alone. */
START_TEST(is_not_coded_as_another)
{
	const struct kv_codec_lanes *lanes = kv_codec_lanes();
	float x[TOKENS * D], y[TOKENS * D];
	uint8_t rows[TOKENS * D];
	uint32_t scales[TOKENS];

	if (!lanes)
		return;
	vectors_make(x);
	memset(rows, 0x5a, sizeof(rows));
	memset(scales, 0x5a, sizeof(scales));
	memset(y, 0x5a, sizeof(y));
	ck_assert(!lanes->quantise(added, KV_ROUND_F16, D, TOKENS, x, KV_DTYPE_F32, D, rows, scales));
	ck_assert(!lanes->dequantise(added, D, TOKENS, rows, scales, false, D, y, KV_DTYPE_F32, D));
	for (int i = 0; i < TOKENS * D; i++)
		ck_assert(rows[i] == 0x5a && ((uint8_t *)&y[i])[3] == 0x5a);
	for (int i = 0; i < TOKENS; i++)
		ck_assert_uint_eq(scales[i], 0x5a5a5a5a);
}
END_TEST

/* Its linear bytes, and the same vectors in blocks beside another format's and out of them again, are what its codec
 * makes. */
START_TEST(is_coded_by_its_codec)
{
	float x[TOKENS * D], want[D], got[TOKENS * D], linear[D], step;
	uint16_t codes[D], unpacked[D];
	uint8_t bytes[D / 2 + 2];
	uint32_t scale, again;

	vectors_make(x);
	for (size_t i = 0; i < COUNT(head_dims); i++) {
		uint32_t d = head_dims[i] < D ? head_dims[i] : D;
		struct kv_layout l = {.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = d, .head_dim_v = d,
				      .block_tokens = 16, .k_format = KV_TQ3, .v_format = added,
				      	.rotation_version = kv_rotation_version(d, d),
				      .codebook_version = 1, .layout_version = 1};
		struct kv_geometry g;
		uint8_t *block;

		ck_assert_ptr_null(kv_layout_problem(&l));
		kv_geometry_of(&l, &g);
		block = allocate(g.block_bytes);
		memset(block, 0xa5, g.block_bytes);
		kv_encode(&l, &g, block, 0, 0, KV_SIDE_V, 3, TOKENS - 3, x, KV_DTYPE_F32, d);
		for (uint32_t b = 0; b < g.v_codes_at; b++)
			ck_assert_uint_eq(block[b], 0xa5);
		kv_decode(&l, &g, block, 0, 0, KV_SIDE_V, 3, TOKENS - 3, false, got, KV_DTYPE_F32, d);
		for (uint32_t t = 0; t < TOKENS - 3; t++) {
			kv_quantise(added, KV_ROUND_F16, d, x + t * d, codes, &scale);
			kv_dequantise(added, d, codes, scale, want);
			ck_assert_mem_eq(got + t * d, want, d * sizeof(*want));
			step = kv_half_to((uint16_t)scale);
			for (uint32_t k = 0; k < d; k++)
				ck_assert_float_le(fabsf(want[k] - x[t * d + k]), step * .51f);
			kv_linear_encode(added, KV_ROUND_F16, d, false, x + t * d, bytes);
			kv_linear_unpack(added, d, bytes, unpacked, &again);
			ck_assert_mem_eq(unpacked, codes, d * sizeof(*codes));
			ck_assert_uint_eq(again, scale);
			kv_linear_decode(added, d, false, bytes, linear);
			ck_assert_mem_eq(linear, want, d * sizeof(*want));
		}
		free(block);
	}
}
END_TEST

/* As K, as V, beside other formats, of every head dim, with masks and features, and whatever other bytes there are. */
START_TEST(is_attended)
{
	for (size_t i = 0; i < COUNT(head_dims); i++)
		for (int pair = 0; pair < 4; pair++) {
			struct spec s = {.k = pair == 1 ? KV_TQ4 : added, .v = pair == 2 ? KV_FP8 : pair == 3
				? KV_NONE : added,
					 .dk = head_dims[i], .heads = 2, .group = 3, .block_tokens = 32, .tokens = 77,
					 .queries = 1, .seed = 40 + i * 4 + (size_t)pair};

			check_spec(&s);
			s.queries = 9;
			s.causal = true;
			s.first_pos = 68;
			check_spec(&s);
			s.own_window = 30;
			s.with = WITH_SINKS | WITH_ALIBI;
			check_spec(&s);
			check_other_bytes(&s);
		}
}
END_TEST

static void tests_add(TCase *t)
{
	tcase_add_test(t, the_table);
	tcase_add_test(t, is_not_rotated);
	tcase_add_test(t, has_no_codebook);
	tcase_add_test(t, has_no_lanes);
	tcase_add_test(t, is_not_coded_as_another);
	tcase_add_test(t, is_coded_by_its_codec);
	tcase_add_test(t, is_attended);
}

int main(void)
{
	return on_every_machine("format_added", tests_add);
}
