/* Lists of copies up to a GPU: in which order leases and Warms have them, and what they took. */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/lease.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The lists up that the device was given, in their order: blocks, and whether a lease watches. */
static struct {
	uint32_t blocks;
	bool watched;
} lists[64];
static _Atomic uint32_t list_count;

static enum status listed_copy(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way == DEVICE_UP && list_count < 64) {
		lists[list_count].blocks = c->count;
		lists[list_count].watched = c->progress;
		list_count++;
	}
	return terrace_device_ops()->copy(d, c, why);
}

/* Of a Warm of 190 blocks, whose lists have 32 at most, four have begun, and end when the device goes on. Returns how many blocks the
 * others have. */
static uint32_t open_with_a_warm(struct vram_rig *v, struct device_ops *ops)
{
	enum status st[200];
	uint32_t rest = 190;

	*ops = *terrace_device_ops();
	ops->copy = listed_copy;
	vr_open_filled(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 256, .host_slots = 256, .sum_threads = 2, .write_back = true,
						      .ops = ops }, 200);
	ck_assert_uint_eq(vr_put(v, 0, 2000, 200), 200); /* the extents are there */
	ck_assert_int_eq(rig_delete(&v->r, 2000, 200, st), STATUS_OK);
	rig_quiet(&v->r);
	list_count = 0;
	vr_hold(v, 0, 0);
	vr_warm_begin(v, 0, 0, 190);
	RIG_AWAIT(list_count >= 4);
	for (int i = 0; i < 4; i++)
		rest -= lists[i].blocks;
	return rest;
}

static void came(struct vram_rig *v, const struct cache_place *p, const struct cache_leased *l, uint64_t first, uint32_t count)
{
	vr_wait_layers(v, l);
	for (uint32_t i = 0; i < count; i++)
		ck_assert(vr_matches(v, &p[i], first + i, 0));
	vr_release(v, l);
}

/* When a list of the Warm last began: so long after that a lease overtakes what is left of it (vram/copy_queue.c). */
enum { OVERTAKE_US = 100 * 1000 };

static uint64_t tail_us(const struct vram_rig *v)
{
	struct gpu *g = vram_gpu(v->r.c, 0);
	uint64_t us;

	pthread_mutex_lock(&g->queue_lock);
	us = g->queue[DEVICE_UP].tail_us;
	pthread_mutex_unlock(&g->queue_lock);
	return us;
}

/* What is leased comes before what is left of a Warm; not if that has waited for long (_i). Again, if a busy machine let it wait for that long. */
START_TEST(a_lease_overtakes_a_warm)
{
	struct cache_place p[4], q[4];
	struct cache_leased l, second;
	struct device_ops ops;
	bool in_time = false;
	struct vram_rig v;
	uint64_t since_us;
	uint32_t rest;

	for (int tries = 0; !in_time; tries++) {
		ck_assert_int_lt(tries, 50);
		rest = open_with_a_warm(&v, &ops);
		since_us = tail_us(&v);
		if (_i) /* it is never to wait for ever */
			nanosleep(&(struct timespec){ .tv_nsec = 150000000 }, NULL);
		ck_assert_int_eq(vr_lease(&v, 0, 190, 4, true, false, p, &l), STATUS_OK);
		ck_assert_int_eq(vr_lease(&v, 0, 194, 4, true, false, q, &second), STATUS_OK);
		in_time = _i || vram_clock_us() - since_us < OVERTAKE_US;
		vr_go(&v, 0);
		came(&v, p, &l, 190, 4);
		came(&v, q, &second, 194, 4);
		rig_quiet(&v.r);
		vr_close(&v);
	}
	ck_assert(_i ? list_count == 6 : list_count > 6);
	ck_assert_uint_eq(lists[4].blocks, _i ? rest + 4 : 4); /* of one shape, they come layer by layer for the lease */
	ck_assert(lists[4].watched && lists[5].watched);
	ck_assert_uint_eq(lists[5].blocks, 4);
}
END_TEST

/* A lease that wants some of the Warm's stands behind it, and so does the next one of that engine: a progress page's
 * words go one way. */
START_TEST(a_lease_of_what_is_warmed)
{
	struct cache_place p[4], q[4];
	struct cache_leased l, second;
	struct device_ops ops;
	struct vram_rig v;
	uint32_t rest;

	rest = open_with_a_warm(&v, &ops);
	ck_assert_int_eq(vr_lease(&v, 0, 188, 4, true, false, p, &l), STATUS_OK); /* two of these were in the Warm */
	ck_assert_int_eq(vr_lease(&v, 0, 192, 4, true, false, q, &second), STATUS_OK);
	vr_go(&v, 0);
	came(&v, q, &second, 192, 4);
	came(&v, p, &l, 188, 4);
	rig_quiet(&v.r);
	ck_assert_uint_eq(list_count, 6);
	ck_assert_uint_eq(lists[4].blocks, rest + 2);
	ck_assert(lists[5].watched && lists[5].blocks == 4);
	vr_close(&v);
}
END_TEST

/* Both wait for room on a GPU that is full of what must go down first. */
START_TEST(a_lease_waits_before_a_warm)
{
	struct cache_on on = { .gpu = 0 };
	struct cache_keys k = rig_keys(190, 1);
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct device_ops ops = *terrace_device_ops();
	struct cache_leased l;
	struct cache_place p;
	struct vram_rig v;

	ops.copy = listed_copy;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 64, .sum_threads = 2, .write_back = true, .ops = &ops });
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 180, 11), 11);
	rig_quiet(&v.r);
	vr_hold(&v, 0, 0);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 16), 16);
	vr_warm_begin(&v, 0, 180, 10);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	list_count = 0;
	vr_go(&v, 0);
	RIG_AWAIT(called);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_OK);
	cache_wait_end(v.r.c, &w);
	came(&v, &p, &l, 190, 1);
	rig_quiet(&v.r);
	ck_assert_uint_eq(lists[0].blocks, 1);
	ck_assert(lists[0].watched);
	free((void *)k.bytes);
	vr_close(&v);
}
END_TEST

/* All of a GPU is taken by copies that a Warm has begun: a lease waits until they have come, and may go. Another Warm does not, or it would undo the first. */
START_TEST(a_lease_waits_for_what_may_go)
{
	struct cache_on on = { .gpu = 0 };
	struct cache_keys k = rig_keys(16, 1);
	_Atomic int called = 0;
	struct cache_wait w = { .ready = vr_count, .arg = &called };
	struct cache_leased l, all;
	struct cache_place p, q[8];
	struct vram_rig v;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 8, .host_slots = 64 });
	on.attachment = v.r.attachment;
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 17), 17);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 8), 8);
	rig_quiet(&v.r);
	vr_hold(&v, 0, 0);
	vr_warm_begin(&v, 0, 8, 8);
	ck_assert_uint_eq(vr_warm(&v, 0, 16, 1), 0);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	vr_go(&v, 0);
	RIG_AWAIT(called);
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_OK);
	cache_wait_end(v.r.c, &w);
	ck_assert(vr_on_gpu(&p, 0));
	came(&v, &p, &l, 16, 1);
	/* What a lease holds does not go: it is waited for while it comes, and no longer. */
	rig_quiet(&v.r);
	vr_hold(&v, 0, 0);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 8, true, false, q, &all), STATUS_OK);
	called = 0;
	w = (struct cache_wait){ .ready = vr_count, .arg = &called };
	ck_assert_int_eq(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_BUSY);
	vr_go(&v, 0);
	RIG_AWAIT(called);
	ck_assert_int_ne(cache_lease(v.r.c, &(struct cache_lease_call){ .session = v.r.s.id, .keys = &k,
			.all = true, .on = &on, .now_us = v.r.now, .places = &p, .places_max = 1 }, &l, &w,
				     &v.r.why), STATUS_OK);
	cache_wait_end(v.r.c, &w);
	came(&v, q, &all, 0, 8);
	rig_quiet(&v.r);
	rig_check_accounting(v.r.c);
	free((void *)k.bytes);
	vr_close(&v);
}
END_TEST

static double lists_of(struct vram_rig *v, const char *name, const char *labels)
{
	char whole[64];

	snprintf(whole, sizeof(whole), "gpu=0,list=%s", labels);
	return rig_stat(&v->r, name, whole);
}

/* What lists took is told by what they were for: one of a lease that is held up while it is copied, one of a Warm, and those down of a put. */
START_TEST(what_lists_take_is_told)
{
	const char *seconds = "terrace_gpu_list_seconds_total";
	const uint64_t began = vram_clock_us();
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v;
	uint64_t until;
	double took;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32 });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 7), 7);
	ck_assert_uint_eq(vr_put(&v, 0, 100, 1), 1);
	rig_quiet(&v.r);
	ck_assert_double_eq(lists_of(&v, "terrace_gpu_lists_total", "lease"), 0);
	vr_hold(&v, 0, 1);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	RIG_AWAIT(vr_layer_there(&v, &l, 0));
	for (until = vram_clock_us() + 20000; vram_clock_us() < until;)
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	vr_go(&v, 0);
	vr_wait_layers(&v, &l);
	ck_assert_uint_eq(vr_warm(&v, 0, 4, 3), 3);
	vr_release(&v, &l);
	rig_quiet(&v.r);
	ck_assert_double_eq(lists_of(&v, "terrace_gpu_lists_total", "lease"), 1);
	ck_assert_double_eq(lists_of(&v, "terrace_gpu_list_bytes_total", "lease"), 4 * VR_BLOCK_BYTES);
	ck_assert_double_eq(lists_of(&v, "terrace_gpu_list_bytes_total", "up"), 3 * VR_BLOCK_BYTES);
	ck_assert_double_eq(lists_of(&v, "terrace_gpu_list_bytes_total", "down"), VR_BLOCK_BYTES);
	ck_assert_double_eq(lists_of(&v, "terrace_gpu_list_bytes_total", "across"), 0);
	ck_assert_double_ge(lists_of(&v, seconds, "lease,stage=copied"), 0.02);
	took = (double)(vram_clock_us() - began) / 1e6;
	ck_assert_double_lt(lists_of(&v, seconds, "lease,stage=queued"), took);
	ck_assert_double_lt(lists_of(&v, seconds, "lease,stage=checked"), took);
	ck_assert_double_gt(lists_of(&v, seconds, "down,stage=copied"), 0);
	vr_close(&v);
}
END_TEST

static struct {
	_Atomic bool shut, down;       /* lists down wait at the driver; one does */
} driver;

static enum status shut_copy(struct device *d, struct device_copy *c, const char **why)
{
	while (c->way == DEVICE_DOWN && driver.shut) {
		driver.down = true;
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	}
	return terrace_device_ops()->copy(d, c, why);
}

/* A lease's list, which its call has made, waits for the submission thread, which is in the driver with another: that
 * is not its copying. */
START_TEST(a_list_that_is_made_waits)
{
	const char *seconds = "terrace_gpu_list_seconds_total";
	struct device_ops ops = *terrace_device_ops();
	struct cache_place p[4];
	struct cache_leased l;
	struct vram_rig v;
	uint64_t until;

	ops.copy = shut_copy;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .ops = &ops });
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 0, 4), 4);
	ck_assert_uint_eq(vr_put(&v, 0, 100, 1), 1);
	rig_quiet(&v.r);
	driver.shut = true;
	ck_assert_uint_eq(vr_put(&v, 0, 101, 1), 1);
	RIG_AWAIT(driver.down);
	ck_assert_int_eq(vr_lease(&v, 0, 0, 4, true, false, p, &l), STATUS_OK);
	for (until = vram_clock_us() + 20000; vram_clock_us() < until;)
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	driver.shut = false;
	came(&v, p, &l, 0, 4);
	rig_quiet(&v.r);
	ck_assert_double_ge(lists_of(&v, seconds, "lease,stage=queued"), 0.02);
	vr_close(&v);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_lists");
	TCase *t = tcase_create("cache_vram_lists");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, a_lease_overtakes_a_warm, 0, 2);
	tcase_add_test(t, a_lease_of_what_is_warmed);
	tcase_add_test(t, a_lease_waits_before_a_warm);
	tcase_add_test(t, a_lease_waits_for_what_may_go);
	tcase_add_test(t, what_lists_take_is_told);
	tcase_add_test(t, a_list_that_is_made_waits);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
