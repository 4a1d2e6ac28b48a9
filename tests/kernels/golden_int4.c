/* int4_pth against what vLLM's kernels wrote (data/golden_int4/README.md): same codes, same scale
 * bits, ties included. */
#include "kernels/codec.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/int4.h"

enum { VECTORS = 376 };

static const uint32_t dims[] = {64, 128, 256};

/* Reads exactly `bytes` bytes of data/golden_int4/<name>_<d>.bin; the caller frees them. */
static void *golden(const char *name, uint32_t d, size_t bytes)
{
	char path[1024];
	void *data = malloc(bytes + 1);

	snprintf(path, sizeof(path), "%s/golden_int4/%s_%u.bin", TEST_DATA, name, d);
	FILE *f = fopen(path, "rb");

	ck_assert_msg(f != NULL, "cannot open %s", path);
	ck_assert_ptr_nonnull(data);
	ck_assert_msg(fread(data, 1, bytes + 1, f) == bytes, "%s is not of %zu bytes", path, bytes);
	fclose(f);
	return data;
}

static void halves_to_floats(uint32_t d, const uint16_t *h, float *x)
{
	for (uint32_t i = 0; i < d; i++)
		x[i] = kv_half_to(h[i]);
}

START_TEST(signs_are_vllms)
{
	uint32_t d = dims[_i];
	int8_t *signs = golden("signs", d, d);

	for (uint32_t i = 0; i < d; i++)
		ck_assert_int_eq(kv_rotation_sign(d, i), signs[i]);
	free(signs);
}
END_TEST

/* fp16 of the same number summed in another order: one place apart at most, and nearly never. */
START_TEST(rotation_agrees)
{
	uint32_t d = dims[_i], differ = 0, wrong = 0;
	uint16_t *x16 = golden("x", d, 2 * (size_t)VECTORS * d),
		 *rot16 = golden("rot", d, 2 * (size_t)VECTORS * d);
	float x[256], prepared[256], rot[256];

	for (uint32_t n = 0; n < VECTORS; n++) {
		halves_to_floats(d, x16 + n * d, x);
		halves_to_floats(d, rot16 + n * d, rot);
		kv_prepare(KV_INT4_PTH, d, false, x, prepared);
		kv_rotate(x, d);
		for (uint32_t i = 0; i < d; i++) {
			float place = fmaxf(ldexpf(1, ilogbf(fmaxf(fabsf(rot[i]), 0x1p-14f)) - 10),
					    0x1p-14f);

			wrong += fabsf(x[i] - rot[i]) > 0.5f * place * 1.01f ||
				 fabsf(prepared[i] - rot[i]) > place;
			differ += prepared[i] != rot[i];
		}
	}
	ck_assert_uint_eq(wrong, 0);
	ck_assert_uint_le(differ, VECTORS * d / 1000);
	free(x16);
	free(rot16);
}
END_TEST

START_TEST(codes_and_scales_are_vllms)
{
	uint32_t d = dims[_i], wrong = 0, far = 0;
	size_t bytes = kv_linear_bytes(KV_INT4_PTH, d);
	uint16_t *rot16 = golden("rot", d, 2 * (size_t)VECTORS * d);
	uint8_t *packed = golden("packed", d, VECTORS * bytes), out[256];
	float rot[256], back[256];

	ck_assert_uint_eq(bytes, d / 2 + 4);
	for (uint32_t n = 0; n < VECTORS; n++) {
		halves_to_floats(d, rot16 + n * d, rot);
		kv_linear_encode(KV_INT4_PTH, d, true, rot, out);
		for (size_t k = 0; k < bytes; k++) {
			wrong += out[k] != packed[n * bytes + k];
			if (out[k] != packed[n * bytes + k])
				printf("d %u vector %u byte %zu: %02x, vLLM %02x\n", d, n, k, out[k],
				       packed[n * bytes + k]);
		}
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
	ck_assert_uint_eq(wrong, 0);
	ck_assert_uint_eq(far, 0);
	free(rot16);
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
	tcase_add_loop_test(t, rotation_agrees, 0, 3);
	tcase_add_loop_test(t, codes_and_scales_are_vllms, 0, 3);
	tcase_add_test(t, reciprocal_is_the_gpus);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);

	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
