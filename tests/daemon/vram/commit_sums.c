/* Blocks that are put on a GPU get their checksums at the commit: what is written there later is found when the block leaves the GPU, the first
 * time already, and it is a miss. Each loop runs with threads for sums (_i 1) and without. With --measure: what a commit
 * takes without sums and with them.
 */
#include "daemon/block/counters.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/faults.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/vram/stats.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 16, MANY = 12 };

/* Nothing leaves the GPU by itself. */
static void open_with(struct vram_rig *v, uint32_t gpus, const struct rig_disks *d, int threads)
{
	vr_open(v, &(struct vram_rig_options){ .gpus = gpus, .gpu_slots = SLOTS, .host_slots = SLOTS, .disks = d, .spill_milli = 1,
					       .write_back = true, .sum_threads = 2 * (uint32_t)threads });
	if (d)
		rig_restored(&v->r);
}

static double made(struct vram_rig *v, const char *result)
{
	return rig_stat(&v->r, "terrace_gpu_commit_sums_total", result);
}

/* Put on the GPU, its sum made, and one bit of it written after that. */
static void put_and_write(struct vram_rig *v, uint64_t n, uint32_t at)
{
	ck_assert_uint_eq(vr_put(v, 0, n, 1), 1);
	rig_quiet(&v->r);
	ck_assert_str_eq(vr_tier(v, n), "gpu");
	vr_flip(v, 0, n, at);
}

static void expect_found(struct vram_rig *v, uint64_t n)
{
	ck_assert_double_eq(vr_corrupt(v, "to=host"), 1);
	ck_assert_double_eq(rig_stat(&v->r, "terrace_corrupt_blocks_total", ""), 1);
	ck_assert_str_eq(vr_tier(v, n), "");
	ck_assert_uint_eq(vr_read_all(v, 0, n, 1), 0);
}

START_TEST(written_before_the_first_way_down)
{
	static const uint32_t places[] = { 0, VR_BLOCK_BYTES / VR_LAYERS, VR_BLOCK_BYTES / 2 + 12345, VR_BLOCK_BYTES - 1 };
	struct vram_rig v;

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		open_with(&v, 1, NULL, _i);
		put_and_write(&v, 0, places[i]);
		ck_assert_uint_eq(vr_put(&v, 0, 1, 1), 1);
		ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 0);
		expect_found(&v, 0);
		ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 1, 1), 1); /* which was let alone */
		ck_assert_double_eq(made(&v, "result=made"), 2);
		ck_assert_double_eq(made(&v, "result=none"), 0);
		rig_check_accounting(v.r.c);
		vr_close(&v);
	}
}
END_TEST

/* A Flush brings it down, and tells that it is no more; what is on the disk then is sound. */
START_TEST(written_before_a_flush)
{
	struct rig_disks d;
	enum status st[2];
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, 1, &d, _i);
	ck_assert_uint_eq(vr_put(&v, 0, 1, 1), 1);
	put_and_write(&v, 0, 4242);
	ck_assert_int_eq(rig_flush(&v.r, 0, 2, st), STATUS_OK);
	ck_assert_int_eq(st[0], STATUS_MISS);
	ck_assert_int_eq(st[1], STATUS_OK);
	expect_found(&v, 0);
	vr_close(&v);
	open_with(&v, 1, &d, _i);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 2), 1);
	vr_end(&v, &d);
}
END_TEST

/* For room on the GPU, of a session that writes back, it goes down and to the disk. */
START_TEST(written_before_a_spill)
{
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	open_with(&v, 1, &d, _i);
	put_and_write(&v, 0, 99999);
	for (uint64_t n = 1; n < 3 * SLOTS; n++) {
		vr_put(&v, 0, n, 1);
		rig_quiet(&v.r);
	}
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 0);
	vr_end(&v, &d);
}
END_TEST

/* ---- while the sum is due ---- */

/* The commit waits for no sum, and the block is leased where it is; but it does not leave the GPU. */
START_TEST(nothing_leaves_before_its_sum)
{
	struct cache_leased l;
	struct cache_place p;
	struct vram_rig v;

	open_with(&v, 2, NULL, _i);
	vr_sums_hold(&v, 0);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 2), 2);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 1, true, false, &p, &l), STATUS_OK);
	ck_assert(vr_matches(&v, &p, 0, 0));
	vr_release(&v, &l);
	vr_warm_begin(&v, CACHE_HOST, 0, 1);
	for (int i = 0; i < 100; i++)
		rig_tick(v.r.c, v.r.now);
	ck_assert_str_eq(vr_tier(&v, 0), "gpu");
	ck_assert_double_eq(made(&v, "result=made"), 0);
	rig_check_accounting(v.r.c);
	vr_sums_go(&v, 0);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 2), 2);
	ck_assert_double_eq(made(&v, "result=made"), 2);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 0);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* ---- to another GPU ---- */

/* Without another copy it is a miss there, too; with one (_i & 2: memory's) it comes from that. */
START_TEST(written_before_it_goes_across)
{
	struct vram_rig v;

	open_with(&v, 2, NULL, _i & 1);
	if (_i & 2) {
		ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 1), 1);
		ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), 1);
		vr_flip(&v, 0, 0, 31337);
	} else {
		put_and_write(&v, 0, 31337);
	}
	ck_assert_uint_eq(vr_put(&v, 0, 1, 1), 1);
	ck_assert_uint_eq(vr_warm(&v, 1, 0, 1), (uint32_t)(_i & 2) / 2);
	ck_assert_double_eq(vr_corrupt(&v, "to=gpu"), 1);
	ck_assert_str_eq(vr_tier(&v, 0), _i & 2 ? "gpu+host" : "");
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 1), (uint32_t)(_i & 2) / 2);
	ck_assert_uint_eq(vr_read_all(&v, 1, 1, 1), 1);
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}
END_TEST

/* Another GPU may have it meanwhile: its copy gets the sum, and is compared with it. */
START_TEST(across_before_its_sum)
{
	struct cache_leased l;
	struct cache_place p;
	struct vram_rig v;

	open_with(&v, 2, NULL, _i);
	vr_sums_hold(&v, 0);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 1), 1);
	ck_assert_int_eq(vr_lease(&v, 1, 0, 1, true, false, &p, &l), STATUS_OK);
	ck_assert(vr_matches(&v, &p, 0, 0));
	vr_sums_go(&v, 0);
	rig_quiet(&v.r);
	vr_bytes(&v, &p)[77] ^= 1;
	vr_release(&v, &l);
	vr_lose(&v, 0);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 1), 0);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	vr_close(&v);
}
END_TEST

/* Deleted, and the GPU's slots wanted by others: they come when the GPU has looked. */
START_TEST(deleted_before_its_sum)
{
	enum status st[MANY];
	struct vram_rig v;

	open_with(&v, 1, NULL, _i);
	vr_sums_hold(&v, 0);
	ck_assert_uint_eq(vr_put(&v, 0, 0, MANY), MANY);
	ck_assert_int_eq(rig_delete(&v.r, 0, MANY, st), STATUS_OK);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	vr_sums_go(&v, 0);
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	ck_assert_uint_eq(vr_put(&v, 0, 100, SLOTS), SLOTS);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 100, SLOTS), SLOTS);
	vr_close(&v);
}
END_TEST

/* The GPU is lost with sums under way, in its queue, and moves down that wait for them: what had come to memory by then
 * was compared with nothing, and is not served. */
START_TEST(lost_before_its_sum)
{
	struct vram_rig v;

	open_with(&v, 1, NULL, _i);
	vr_sums_hold(&v, 0);
	ck_assert_uint_eq(vr_put(&v, 0, 0, MANY), MANY);
	vr_warm_begin(&v, CACHE_HOST, 0, MANY);
	vr_lose(&v, 0);
	RIG_AWAIT((rig_tick(v.r.c, v.r.now), cache_degraded(v.r.c)));
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	ck_assert_str_eq(vr_tier(&v, 0), "");
	ck_assert_double_eq(made(&v, "result=none"), MANY);
	vr_close(&v);
}
END_TEST

/* ---- shapes ---- */

/* Layers of 33 KiB beside such of 64, in one commit; and a block of few tokens. */
START_TEST(of_several_shapes)
{
	struct cache_commit_item item = { .tokens = 17 };
	struct cache_place p[2];
	enum status st;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 2 * SLOTS, .host_slots = SLOTS, .layouts = 2, .mixed = true,
						.write_back = true, .spill_milli = 1, .sum_threads = 2 * (uint32_t)_i });
	ck_assert_uint_eq(vr_put(&v, 0, 0, 3), 3);
	ck_assert_int_eq(vr_reserve(&v, 0, 7, 1, &st, &item.reservation, p), STATUS_OK);
	for (uint32_t l = 0; l < 2; l++)
		rig_fill(vr_bytes(&v, &p[l]), v.r.s.block_bytes[l], 7, l);
	ck_assert_int_eq(cache_commit(v.r.c, &(struct cache_commit_call){ .session = v.r.s.id, .items = &item, .count = 1,
			.now_us = v.r.now, .unix_ms = 1, .statuses = &st }, NULL, &v.r.why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	rig_quiet(&v.r);
	ck_assert_double_eq(made(&v, "result=made"), 8);
	vr_bytes(&v, &p[1])[v.r.s.block_bytes[1] - 1] ^= 1; /* behind the tokens: a sum is of all bytes */
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 0, 3), 3);
	ck_assert_uint_eq(vr_read_all(&v, CACHE_HOST, 7, 1), 0);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 1);
	vr_close(&v);
}
END_TEST

/* ---- devices that make no sums ---- */

static enum status sums_fail(struct device *d, struct device_sums *s, const char **why)
{
	(void)d;
	(void)s;
	*why = "a device without the code";
	return STATUS_UNSUPPORTED;
}

/* The block has its first sum when it comes down, as it is then; that is counted. */
static void without_sums(const struct device_ops *ops)
{
	struct cache_gpu_view gpu;
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = SLOTS, .host_slots = SLOTS, .write_back = true, .ops = ops });
	put_and_write(&v, 0, 1);
	ck_assert_uint_eq(vr_warm(&v, CACHE_HOST, 0, 1), 1);
	ck_assert_double_eq(vr_corrupt(&v, "to=host"), 0);
	ck_assert_double_eq(made(&v, "result=made"), 0);
	ck_assert_double_eq(made(&v, "result=none"), 1);
	ck_assert_uint_eq(cache_gpus(v.r.c, &gpu, 1), 1);
	ck_assert_uint_eq(gpu.unsummed, 1);
	rig_check_accounting(v.r.c);
	vr_close(&v);
}

START_TEST(on_a_device_that_makes_none)
{
	struct device_ops ops = *terrace_device_ops();

	ops.sums = NULL;
	without_sums(&ops);
	ops.sums = sums_fail;
	without_sums(&ops);
}
END_TEST

/* ---- figures ---- */

enum { MEASURED = 64, ROUNDS = 200 };

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Microseconds of a commit of so many blocks, at best. */
static double commit_us(struct vram_rig *v, uint32_t count)
{
	struct cache_place places[MEASURED];
	enum status st[MEASURED];
	uint64_t ids[MEASURED];
	double best = 1e9;

	for (uint64_t round = 0; round < ROUNDS; round++) {
		double since;

		ck_assert_int_eq(vr_reserve(v, 0, round * MEASURED, count, st, ids, places), STATUS_OK);
		since = now_us();
		ck_assert_int_eq(vr_commit(v, ids, count, st), STATUS_OK);
		since = now_us() - since;
		best = since < best ? since : best;
		rig_quiet(&v->r);
		ck_assert_int_eq(rig_delete(&v->r, round * MEASURED, count, st), STATUS_OK);
		rig_quiet(&v->r);
	}
	return best;
}

START_TEST(measure)
{
	struct device_ops ops = *terrace_device_ops();
	double us[2][2];

	for (int sums = 0; sums < 2; sums++) {
		struct vram_rig v;

		ops.sums = sums ? terrace_device_ops()->sums : NULL;
		vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 2 * MEASURED, .host_slots = SLOTS, .write_back = true,
							.spill_milli = 1, .ops = &ops });
		us[sums][0] = commit_us(&v, 1);
		us[sums][1] = commit_us(&v, MEASURED);
		vr_close(&v);
	}
	printf("{\"blocks\": [1, %d], \"without_us\": [%.1f, %.1f], \"with_sums_us\": [%.1f, %.1f]}\n", MEASURED, us[0][0], us[0][1],
	       us[1][0], us[1][1]);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite = suite_create("cache_vram_commit_sums");
	TCase *t = tcase_create("cache_vram_commit_sums");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	if (argc > 1 && !strcmp(argv[1], "--measure")) {
		tcase_add_test(t, measure);
	} else {
		tcase_add_loop_test(t, written_before_the_first_way_down, 0, 2);
		tcase_add_loop_test(t, written_before_a_flush, 0, 2);
		tcase_add_loop_test(t, written_before_a_spill, 0, 2);
		tcase_add_loop_test(t, nothing_leaves_before_its_sum, 0, 2);
		tcase_add_loop_test(t, written_before_it_goes_across, 0, 4);
		tcase_add_loop_test(t, across_before_its_sum, 0, 2);
		tcase_add_loop_test(t, deleted_before_its_sum, 0, 2);
		tcase_add_loop_test(t, lost_before_its_sum, 0, 2);
		tcase_add_loop_test(t, of_several_shapes, 0, 2);
		tcase_add_test(t, on_a_device_that_makes_none);
	}
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
