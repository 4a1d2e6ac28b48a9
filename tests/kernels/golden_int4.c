/* int4_pth against what vLLM's kernels wrote (data/golden_int4/README.md): same codes, same scale
 * bits, ties included. */
#include "kernels/codec.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/int4.h"
#include "kernels/machine.h"

enum { DIMS = 3 };

static const uint32_t dims[] = {64, 128, 256};

/* What vLLM was run with: the dtype of the model, in which it keeps rotated vectors. */
struct run {
	const char *files; /* in the files' names */
	enum kv_rounding rounding;
	uint32_t vectors;
	uint32_t ties; /* so many of the first rotated vectors are no vector's, but made for ties */
	float (*element)(uint16_t bits);
};

static const struct run runs[] = {
	{"", KV_ROUND_F16, 376, 0, kv_half_to},
	{"_bf16", KV_ROUND_BF16, 368, 4, kv_bf16_to},
};

/* Reads exactly `bytes` bytes of data/golden_int4/<name><run>_<d>.bin; the caller frees them. */
static void *golden(const char *name, const struct run *run, uint32_t d, size_t bytes)
{
	char path[1024];
	void *data = malloc(bytes + 1);

	snprintf(path, sizeof(path), "%s/golden_int4/%s%s_%u.bin", TEST_DATA, name, run->files, d);
	FILE *f = fopen(path, "rb");

	ck_assert_msg(f != NULL, "cannot open %s", path);
	ck_assert_ptr_nonnull(data);
	ck_assert_msg(fread(data, 1, bytes + 1, f) == bytes, "%s is not of %zu bytes", path, bytes);
	fclose(f);
	return data;
}

static void to_floats(const struct run *run, uint32_t d, const uint16_t *from, float *x)
{
	for (uint32_t i = 0; i < d; i++)
		x[i] = run->element(from[i]);
}

START_TEST(signs_are_vllms)
{
	uint32_t d = dims[_i];
	int8_t *signs = golden("signs", &runs[0], d, d);

	for (uint32_t i = 0; i < d; i++)
		ck_assert_int_eq(kv_rotation_sign(d, i), signs[i]);
	free(signs);
}
END_TEST

/* The same number summed in another order, and rounded to fp16 or bf16: one place apart at most, and nearly never.
 * _i: run and dim. */
START_TEST(rotation_agrees)
{
	const struct run *run = &runs[_i / DIMS];
	uint32_t d = dims[_i % DIMS], differ = 0, wrong = 0;
	size_t bytes = 2 * (size_t)run->vectors * d;
	uint16_t *x16 = golden("x", run, d, bytes), *rot16 = golden("rot", run, d, bytes);
	int digits = run->rounding == KV_ROUND_BF16 ? 7 : 10;
	float x[256], prepared[256], rot[256];

	for (uint32_t n = run->ties; n < run->vectors; n++) {
		to_floats(run, d, x16 + n * d, x);
		to_floats(run, d, rot16 + n * d, rot);
		kv_prepare(KV_INT4_PTH, run->rounding, d, false, x, prepared);
		kv_rotate(x, d);
		for (uint32_t i = 0; i < d; i++) {
			float place = fmaxf(ldexpf(1, ilogbf(fmaxf(fabsf(rot[i]), 0x1p-14f)) - digits), 0x1p-14f);

			wrong += fabsf(x[i] - rot[i]) > 0.5f * place * 1.01f ||
				 fabsf(prepared[i] - rot[i]) > place;
			differ += prepared[i] != rot[i];
		}
	}
	ck_assert_uint_eq(wrong, 0);
	ck_assert_uint_le(differ, run->vectors * d / 1000);
	free(x16);
	free(rot16);
}
END_TEST

/* Codes and scale bits that are not vLLM's. The scale's four low bits are the zero point. */
struct difference {
	uint32_t codes, scales, far; /* far: codes more than a step apart */
};

static struct difference differences(uint32_t d, const uint8_t *mine, const uint8_t *theirs)
{
	struct difference n = {0};

	for (uint32_t i = 0; i < d; i++) {
		int a = mine[i / 2] >> (i % 2 * 4) & 15, b = theirs[i / 2] >> (i % 2 * 4) & 15;

		n.codes += a != b;
		n.far += abs(a - b) > 1;
	}
	n.scales = memcmp(mine + d / 2, theirs + d / 2, 4) != 0;
	return n;
}

static struct difference add(struct difference a, struct difference b)
{
	return (struct difference){a.codes + b.codes, a.scales + b.scales, a.far + b.far};
}

/* From vLLM's own rotated vectors: none. */
START_TEST(codes_and_scales_are_vllms)
{
	const struct run *run = &runs[_i / DIMS];
	uint32_t d = dims[_i % DIMS], far = 0;
	size_t bytes = kv_linear_bytes(KV_INT4_PTH, d);
	uint16_t *rot16 = golden("rot", run, d, 2 * (size_t)run->vectors * d);
	uint8_t *packed = golden("packed", run, d, run->vectors * bytes), out[256];
	struct difference all = {0};
	float rot[256], back[256];

	ck_assert_uint_eq(bytes, d / 2 + 4);
	for (uint32_t n = 0; n < run->vectors; n++) {
		to_floats(run, d, rot16 + n * d, rot);
		kv_linear_encode(KV_INT4_PTH, run->rounding, d, true, rot, out);
		all = add(all, differences(d, out, packed + n * bytes));
		kv_linear_decode(KV_INT4_PTH, d, true, packed + n * bytes, back);
		float low = rot[0], high = rot[0];

		for (uint32_t i = 0; i < d; i++) {
			low = fminf(low, rot[i]);
			high = fmaxf(high, rot[i]);
		}
		for (uint32_t i = 0; i < d;
		     i++) /* the ends may be one step off, for the zero point is rounded too */
			far += fabsf(back[i] - rot[i]) > 1.01f * (high - low) / 15 + 1e-6f;
	}
	ck_assert_msg(all.codes == 0 && all.scales == 0, "%u codes and %u scales are not vLLM's", all.codes,
		all.scales);
	ck_assert_uint_eq(far, 0);
	free(rot16);
	free(packed);
}
END_TEST

/* From the vectors that vLLM was given, into blocks and out of them, on every kind of machine: the rotation's last
 * bits differ from one way of computing it to another, and with them a code by a step. _i: run and dim, then kind of
 * machine. */
START_TEST(from_unrotated_vectors)
{
	const struct run *run = &runs[_i / DIMS % 2];
	uint32_t d = dims[_i % DIMS];
	struct kv_layout l = {.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = d, .head_dim_v = d,
		.block_tokens = 16,
			      .k_format = KV_INT4_PTH, .v_format = KV_INT4_PTH, .rotation_version = 1,
			      	.codebook_version = 1,
			      .layout_version = 1, .int4_rounding = run->rounding};
	enum kv_dtype dtype = run->rounding == KV_ROUND_BF16 ? KV_DTYPE_BF16 : KV_DTYPE_F16;
	size_t bytes = kv_linear_bytes(KV_INT4_PTH, d);
	uint16_t *x = golden("x", run, d, 2 * (size_t)run->vectors * d);
	uint8_t *packed = golden("packed", run, d, run->vectors * bytes), block[16 * 2 * 132], out[256];
	enum kv_machine machine = (enum kv_machine)(_i / DIMS / 2);
	struct difference all = {0};
	struct kv_geometry g;

	kv_machine_limit(machine);
	ck_assert_ptr_null(kv_layout_problem(&l));
	kv_geometry_of(&l, &g);
	ck_assert_uint_le(g.block_bytes, sizeof(block));
	for (uint32_t n = run->ties; n < run->vectors; n++) {
		enum kv_side side = n % 3 ? KV_SIDE_K : KV_SIDE_V;

		kv_encode(&l, &g, block, 0, 0, side, n % 16, 1, x + n * d, dtype, d);
		kv_repack_out(&l, &g, block, 0, 0, side, n % 16, 1, out);
		all = add(all, differences(d, out, packed + n * bytes));
	}
	printf("d %u, rounded to %s, machine %d: of %u codes and %u scales, %u and %u are not vLLM's\n", d,
	       run->rounding == KV_ROUND_BF16 ? "bf16" : "fp16", (int)machine, run->vectors * d, run->vectors,
	       	all.codes, all.scales);
	ck_assert_uint_eq(all.far, 0);
	ck_assert_uint_le(all.codes, run->vectors * d / 1000);
	free(x);
	free(packed);
}
END_TEST

/* All 2^23 mantissas at once: the digest is of the results of rcp.approx.ftz.f32 on the same H200.
 * Other exponents scale. */
START_TEST(reciprocal_is_the_gpus)
{
	uint64_t digest = 0;

	for (uint32_t m = 0; m < 1u << 23; m++) {
		uint32_t u = 0x3f800000 | m;
		float s;

		memcpy(&s, &u, 4);
		s = kv_int4_reciprocal(s);
		memcpy(&u, &s, 4);
		digest = digest * 31 + u;
	}
	ck_assert_uint_eq(digest, UINT64_C(0x8f5538a748371755));
	ck_assert(kv_int4_reciprocal(1) == 1 && kv_int4_reciprocal(0x1p-20f) == 0x1p20f &&
		  kv_int4_reciprocal(4096) == 0x1p-12f);
	ck_assert(kv_int4_reciprocal(3e-6f) == kv_int4_reciprocal(3e-6f * 1024) * 1024);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("golden_int4");
	TCase *t = tcase_create("vllm");

	tcase_add_loop_test(t, signs_are_vllms, 0, 3);
	tcase_add_loop_test(t, rotation_agrees, 0, 2 * DIMS);
	tcase_add_loop_test(t, codes_and_scales_are_vllms, 0, 2 * DIMS);
	tcase_add_loop_test(t, from_unrotated_vectors, 0, 2 * DIMS * (1 + (int)kv_machine()));
	tcase_add_test(t, reciprocal_is_the_gpus);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);

	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
