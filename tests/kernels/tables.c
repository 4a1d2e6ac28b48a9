/* The kernels' tables are built at their first use: by several threads at once, on each kind of machine that this one can be. */
#include "kernels/codec.h"
#include "kernels/lane_order.h"
#include "kernels/machine.h"
#include "kernels/order.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>

static const uint32_t dims[] = { 64, 80, 96, 112, 128, 192, 256, 512 };
static const enum kv_format formats[] = { KV_F16, KV_BF16, KV_FP8, KV_INT4_PTH, KV_TQ4, KV_TQ3, KV_TQ2 };
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void *use_planes(void *arg)
{
	uint64_t *sum = arg;

	for (size_t i = 0; i < COUNT(dims); i++)
		for (unsigned width = 1; width <= 16; width *= 2) {
			const struct kv_plane_order *o = kv_plane_order(width, KV_SIDE_K, dims[i]);

			for (uint32_t k = 0; k < o->bytes; k++)
				*sum += kv_plane_at(o, 3)[k] * (k + 1) + o->dim[k][0];
		}
	return NULL;
}

static void *use_lanes(void *arg)
{
	uint64_t *sum = arg;

	for (size_t f = 0; f < COUNT(formats); f++) {
		const struct kv_lane_order *o = kv_lane_order(formats[f], KV_SIDE_K, 256);

		for (uint32_t i = 0; i < o->vectors * o->fields; i++)
			*sum = *sum * 31 + o->k_dim[i][3];
	}
	return NULL;
}

/* Check forks for each test, so the tables are not built yet here. */
static void share(void *(*use)(void *))
{
	pthread_t threads[4];
	uint64_t sums[4] = { 0 };

	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, use, &sums[i]), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_ne(sums[0], 0);
	for (int i = 1; i < 4; i++)
		ck_assert_uint_eq(sums[i], sums[0]);
}

START_TEST(threads_share_planes)
{
	kv_machine_limit((enum kv_machine)_i);
	share(use_planes);
}
END_TEST

START_TEST(threads_share_lanes)
{
	kv_machine_limit((enum kv_machine)_i);
	share(use_lanes);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("kernel_tables");
	TCase *tc = tcase_create("threads");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, threads_share_planes, KV_MACHINE_PLAIN, KV_MACHINE_VNNI + 1);
	tcase_add_loop_test(tc, threads_share_lanes, KV_MACHINE_PLAIN, KV_MACHINE_VNNI + 1);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
