/* The end of the VRAM tier under a driver that does not answer. */
#include "tests/cache_vram_rig.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/cache_vram.h"

enum { CLOSE_MS = 500 };

static struct device_copy *_Atomic endless;
static _Atomic bool closed, asked_too_late;

static enum status copy_endless(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way != DEVICE_UP)
		return terrace_device_ops()->copy(d, c, why);
	endless = c;
	return STATUS_OK;
}

/* What is under way ends by it, as on a GPU that is lost. */
static void close_slowly(struct device *d)
{
	struct device_copy *c = atomic_exchange(&endless, NULL);

	closed = true;
	if (c)
		c->done(c, STATUS_UNAVAILABLE);
	nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
	terrace_device_ops()->close(d);
}

static bool lost_or_closed(struct device *d)
{
	asked_too_late = asked_too_late || closed;
	return !closed && terrace_device_ops()->lost(d);
}

static void warm_endlessly(struct vram_rig *v)
{
	ck_assert_uint_eq(vr_put(v, 0, 50, 1), 1);
	ck_assert_uint_eq(vr_put(v, CACHE_HOST, 0, 4), 4);
	vr_warm_begin(v, 0, 0, 4);
	for (int i = 0; !endless; i++) {
		ck_assert_int_lt(i, 10000);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

/* A device that does not end its copies is closed when the tier stops; nobody asks it anything after that. */
START_TEST(a_stop_while_copies_hang)
{
	struct device_ops ops = *terrace_device_ops();
	struct vram_rig v;

	ops.copy = copy_endless;
	ops.close = close_slowly;
	ops.lost = lost_or_closed;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true, .ops = &ops,
						.gpu_close_ms = CLOSE_MS });
	warm_endlessly(&v);
	ck_assert(cache_destroy(v.r.c));
	cache_thread_leave();
	ck_assert(closed && !asked_too_late);
	munmap((void *)v.board, EXTENT_PAGE_BYTES);
	rmdir(v.folder);
}
END_TEST

static struct {
	_Atomic bool on, inside, goes_on, back;
} hang;

static void hang_here(void)
{
	if (!hang.on)
		return;
	hang.inside = true;
	for (int i = 0; !hang.goes_on && i < 60 * 1000; i++)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	hang.back = true;
}

static bool lost_hangs(struct device *d)
{
	hang_here();
	return terrace_device_ops()->lost(d);
}

static void close_hangs(struct device *d)
{
	hang_here();
	close_slowly(d);
}

static enum status make_hangs(struct device *d, uint64_t at, uint64_t bytes, struct device_extent *out, int *fd, const char **why)
{
	hang_here();
	return terrace_device_ops()->extent_make(d, at, bytes, out, fd, why);
}

enum { LOST_HANGS, LOST_AND_COPIES_HANG, CLOSE_AND_COPIES_HANG, MAKE_HANGS, HANGS };

/* Each in a driver that does not return: the GPU is left behind, within the time for it, and the thread that comes back finds the cache. */
START_TEST(a_stop_while_the_driver_hangs)
{
	struct device_ops ops = *terrace_device_ops();
	struct timespec began, now;
	struct vram_rig v;
	enum status st;
	uint64_t id;
	struct cache_place p;

	ops.copy = _i == LOST_AND_COPIES_HANG || _i == CLOSE_AND_COPIES_HANG ? copy_endless : ops.copy;
	ops.lost = _i == LOST_HANGS || _i == LOST_AND_COPIES_HANG ? lost_hangs : ops.lost;
	ops.close = _i == CLOSE_AND_COPIES_HANG ? close_hangs : ops.close;
	ops.extent_make = _i == MAKE_HANGS ? make_hangs : ops.extent_make;
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 32, .write_back = true, .ops = &ops,
						.gpu_close_ms = CLOSE_MS });
	if (ops.copy == copy_endless)
		warm_endlessly(&v);
	hang.on = true;
	if (_i == MAKE_HANGS)
		ck_assert_int_eq(vr_reserve(&v, 0, 0, 1, &st, &id, &p), STATUS_OK); /* and no slot */
	for (int i = 0; !hang.inside && _i != CLOSE_AND_COPIES_HANG; i++) {
		ck_assert_int_lt(i, 10000);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	alarm(30); /* else it would wait to the end of the test's time */
	clock_gettime(CLOCK_MONOTONIC, &began);
	ck_assert(!cache_destroy(v.r.c));
	clock_gettime(CLOCK_MONOTONIC, &now);
	ck_assert_int_lt(now.tv_sec - began.tv_sec, 10);
	cache_thread_leave();
	ck_assert(hang.inside && !hang.back);
	hang.goes_on = true;
	for (int i = 0; !hang.back; i++) {
		ck_assert_int_lt(i, 10000);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL); /* what it does then would be seen */
	munmap((void *)v.board, EXTENT_PAGE_BYTES);
	rmdir(v.folder);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_stop");
	TCase *t = tcase_create("cache_vram_stop");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, a_stop_while_copies_hang);
	tcase_add_loop_test(t, a_stop_while_the_driver_hangs, 0, HANGS);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
