/* What the formats lose of a latent (512 dims, kernels/format.h) beside what they lose of a head of 128. This is minutes
 * of arithmetic under sanitizers, so builds with them do without; mla.c runs the same code there. Codes are the same on
 * every machine, so one kind is enough.
 */
#include "tests/kernels/attend_rig.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ERROR_NUMBERS = 16 << 20 };

static double uniform(void)
{
	return (double)(random_bits() >> 11) * 0x1p-53;
}

/* A Gaussian with its tails, on which formats with a scale by the largest element depend. */
static float normal(void)
{
	return (float)(sqrt(-2 * log(1 - uniform())) * cos(2 * 3.14159265358979 * uniform()));
}

/* Relative mean square error of Gaussian vectors. */
static double error_of(enum kv_format f, uint32_t d)
{
	/* Where the difference is small, or near to what it may be, it wants many. */
	uint32_t numbers = kv_format_info(f)->codes == KV_CODES_CODEBOOK || f == KV_FP8 ? ERROR_NUMBERS
											: ERROR_NUMBERS / 16;
	double error = 0, squares = 0;
	float x[KV_HEAD_DIM_MAX], y[KV_HEAD_DIM_MAX];
	uint8_t bytes[2 * KV_HEAD_DIM_MAX];

	random_state = 12;
	for (uint32_t n = 0; n < numbers / d; n++) {
		for (uint32_t i = 0; i < d; i++)
			x[i] = normal();
		kv_linear_encode(f, KV_ROUND_F16, d, false, x, bytes);
		kv_linear_decode(f, d, false, bytes, y);
		for (uint32_t i = 0; i < d; i++) {
			squares += (double)x[i] * (double)x[i];
			error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
		}
	}
	return error / squares;
}

/* A latent loses what a head of 128 dims loses: to 3 % in the formats without a scale and in those whose scale is by
 * the norm, and fp8, whose scale is chosen for that (KV_FP8_TOP). A scale by the range of 512 elements is coarser than
 * one by that of 128: int4_pth pays for it with 37 %. */
START_TEST(error_of_a_latent)
{
	static const double ratios[] = {[KV_INT4_PTH] = 1.368};

	for (size_t f = 0; f < COUNT(formats); f++) {
		const double latent = error_of(formats[f], KV_LATENT_DIM), head = error_of(formats[f], 128);
		const double ratio = formats[f] < COUNT(ratios) && ratios[formats[f]] > 0 ? ratios[formats[f]] : 1;

		printf("%8s: relative mean square error %.3g of a latent, %.3g of a head of 128\n",
		       kv_format_info(formats[f])->name, latent, head);
		ck_assert_msg(fabs(latent / head - ratio) <= .03 * ratio, "%s: %g of a latent, %g of a head",
			      kv_format_info(formats[f])->name, latent, head);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("latent_error");
	TCase *tc = tcase_create("latent_error");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, error_of_a_latent);
	suite_add_tcase(suite, tc);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
