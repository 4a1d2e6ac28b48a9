/* The end of the VRAM tier under a driver that does not answer: it has a bound, and disks and catalog are closed in order. */
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/session/attachment.h"
#include "store/arena/arena.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CLOSE_MS = 500, SLOW_CLOSE_MS = 1500 };

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static struct {
	_Atomic bool on, inside, goes_on, back;
} hang;

static void hang_here(void)
{
	if (!hang.on)
		return;
	hang.inside = true;
	for (int i = 0; !hang.goes_on && i < 60 * 1000; i++)
		sleep_ms(1);
	hang.back = true;
}

/* What there is of a driver, and hangs. */
static struct device_copy *_Atomic endless;
static _Atomic long unregister_ms;

static enum status copy_endless(struct device *d, struct device_copy *c, const char **why)
{
	if (c->way != DEVICE_UP)
		return terrace_device_ops()->copy(d, c, why);
	endless = c; /* and nobody hears of it again */
	return STATUS_OK;
}

static bool lost_hangs(struct device *d)
{
	hang_here();
	return terrace_device_ops()->lost(d);
}

static void close_hangs(struct device *d)
{
	hang_here();
	terrace_device_ops()->close(d);
}

static enum status make_hangs(struct device *d, uint64_t at, uint64_t bytes, struct device_extent *out, int *fd, const char **why)
{
	hang_here();
	return terrace_device_ops()->extent_make(d, at, bytes, out, fd, why);
}

static void drop_hangs(struct device *d, const struct device_extent *e)
{
	hang_here();
	terrace_device_ops()->extent_drop(d, e);
}

static enum status register_hangs(struct device *d, void *memory, uint64_t bytes, bool write, uint64_t *address, const char **why)
{
	hang_here();
	return terrace_device_ops()->host_register(d, memory, bytes, write, address, why);
}

static void unregister_hangs(struct device *d, void *memory)
{
	hang_here();
	sleep_ms(unregister_ms);
	terrace_device_ops()->host_unregister(d, memory);
}

/* slots of a GPU whose extents are not all made at once */
enum { MORE_THAN_PREFETCH = 2 * (int)(ARENA_PREALLOCATED_BYTES / VR_BLOCK_BYTES) };

enum { LOST_HANGS, COPIES_HANG, LOST_AND_COPIES_HANG, MAKE_HANGS, CLOSE_HANGS, DROP_HANGS, UNREGISTER_HANGS, HANGS };

struct stopped {
	struct device_ops ops;
	struct rig_disks disks;
	struct vram_rig v;
};

static struct timespec began; /* the stop */

static int64_t ms_since(const struct timespec *then)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - then->tv_sec) * 1000 + (now.tv_nsec - then->tv_nsec) / 1000000;
}

static void ops_make(struct device_ops *ops, int hangs)
{
	*ops = *terrace_device_ops();
	ops->copy = hangs == COPIES_HANG || hangs == LOST_AND_COPIES_HANG ? copy_endless : ops->copy;
	ops->lost = hangs == LOST_HANGS || hangs == LOST_AND_COPIES_HANG ? lost_hangs : ops->lost;
	ops->extent_make = hangs == MAKE_HANGS ? make_hangs : ops->extent_make;
	ops->close = hangs == CLOSE_HANGS ? close_hangs : ops->close;
	ops->extent_drop = hangs == DROP_HANGS ? drop_hangs : ops->extent_drop;
	ops->host_register = register_hangs;
	ops->host_unregister = unregister_hangs;
}

/* Blocks in memory and on a disk, and one that is on the GPU alone. */
enum { HOST_LARGE = 400 };

static uint32_t host_slots = 32;

static void begin(struct stopped *t, int hangs, bool no_progress_page, uint32_t close_ms)
{
	const uint32_t gpu_slots = hangs == MAKE_HANGS ? MORE_THAN_PREFETCH : 16;

	ops_make(&t->ops, hangs);
	vr_disks_make(&t->disks, 1, 96);
	vr_open_filled(&t->v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = gpu_slots, .host_slots = host_slots, .write_back = true, .ops = &t->ops,
							  .disks = &t->disks, .spill_milli = 1000, .gpu_close_ms = close_ms,
							  .no_progress_page = no_progress_page }, 4);
	alarm(100); /* else it would wait to the end of the test's time */
}

static void hang_begins(struct vram_rig *v, int hangs)
{
	struct cache_place p;
	enum status st;
	uint64_t id;

	if (hangs == COPIES_HANG || hangs == LOST_AND_COPIES_HANG) {
		vr_warm_begin(v, 0, 0, 4);
		RIG_AWAIT(endless);
	}
	hang.on = hangs != COPIES_HANG;
	for (uint64_t n = 100; hangs == MAKE_HANGS && n < 100 + VR_EXTENT_SLOTS; n++)
		/* a new span, behind which the completion thread makes an extent */
		vr_reserve(v, 0, n, 1, &st, &id, &p);
	if (hangs == LOST_HANGS || hangs == LOST_AND_COPIES_HANG || hangs == MAKE_HANGS)
		RIG_AWAIT(hang.inside);
	clock_gettime(CLOCK_MONOTONIC, &began);
}

/* Within the time for it, and the next run finds all by the catalog. */
static void check_end(struct stopped *t)
{
	const struct vram_rig_options o = { .gpus = 1, .gpu_slots = 16, .host_slots = 32, .disks = &t->disks };
	struct vram_rig next;

	ck_assert_int_lt(ms_since(&began), 15000);
	if (t->v.progress_page)
		munmap((void *)t->v.progress_page, EXTENT_PAGE_BYTES);
	rmdir(t->v.folder);
	vr_open(&next, &o);
	rig_restored(&next.r);
	ck_assert_double_eq(rig_stat(&next.r, "terrace_restore_scanned_disks", ""), 0);
	ck_assert_uint_eq(vr_read_all(&next, CACHE_HOST, 0, 4), 4);
	vr_close(&next);
	rig_disks_remove(&t->disks);
}

static void goes_on(void)
{
	hang.on = false;
	hang.goes_on = true;
	RIG_AWAIT(hang.back == hang.inside);
	sleep_ms(300); /* what it does then would be seen */
}

/* With a thread in its driver, which is not back before the next run has found all. */
static void leave(struct stopped *t)
{
	clock_gettime(CLOCK_MONOTONIC, &began);
	cache_leave(t->v.r.c);
	cache_thread_leave();
	ck_assert(!hang.back);
	hang.on = false;
	check_end(t);
	goes_on();
}

/* Each in a driver that does not return: the GPU is left behind, and who comes back harms nobody. */
START_TEST(a_stop_while_the_driver_hangs)
{
	struct stopped t;

	begin(&t, _i, false, CLOSE_MS);
	hang_begins(&t.v, _i);
	ck_assert(!cache_destroy(t.v.r.c));
	ck_assert_str_eq(cache_left(t.v.r.c), "a GPU's driver does not answer");
	cache_thread_leave();
	ck_assert(hang.inside == (_i != COPIES_HANG) && !hang.back);
	check_end(&t);
	goes_on();
}
END_TEST

/* Many calls, each within its time, though the machine stalls for most of that. */
START_TEST(a_driver_that_is_slow)
{
	struct stopped t;

	begin(&t, UNREGISTER_HANGS, false, SLOW_CLOSE_MS);
	ck_assert_uint_eq(vr_put(&t.v, CACHE_HOST, 10, 20), 20); /* more extents */
	rig_quiet(&t.v.r);
	unregister_ms = SLOW_CLOSE_MS / 8;
	clock_gettime(CLOCK_MONOTONIC, &began);
	ck_assert(cache_destroy(t.v.r.c));
	cache_thread_leave();
	ck_assert_int_gt(ms_since(&began), SLOW_CLOSE_MS);
	unregister_ms = 0;
	check_end(&t);
}
END_TEST

static struct {
	struct cache *c;
	uint64_t attachment;
	_Atomic bool over;
} lent;

static void *lend_progress_page(void *unused)
{
	struct cache_lent l;

	cache_thread_enter();
	cache_attach_lend(lent.c, lent.attachment, CACHE_EXTENT_PROGRESS_PAGE, true, &l);
	lent.over = true;
	return unused;
}

static struct {
	struct vram_rig *v;
	_Atomic bool over;
} grows;

static void *put_some(void *unused)
{
	struct cache_place p;
	enum status st;
	uint64_t id;

	cache_thread_enter();
	for (uint64_t n = 100; n < 100 + HOST_LARGE; n++)
		vr_reserve(grows.v, CACHE_HOST, n, 1, &st, &id, &p);
	grows.over = true;
	return unused;
}

/* Memory cannot be registered with a GPU, for as long as its driver hangs: others that want more of it do without, and the stop has its bound. */
START_TEST(memory_that_is_not_registered)
{
	struct cache_place p;
	struct vram_rig other;
	struct stopped t;
	pthread_t worker;
	enum status st;
	uint64_t id;

	host_slots = HOST_LARGE; /* not all of which is made ahead */
	begin(&t, HANGS, true, CLOSE_MS);
	vr_join(&other, &t.v, 1, "other");
	grows.v = &t.v;
	hang.on = true;
	ck_assert_int_eq(pthread_create(&worker, NULL, put_some, NULL), 0);
	pthread_detach(worker);
	RIG_AWAIT(hang.inside);
	clock_gettime(CLOCK_MONOTONIC, &began);
	ck_assert_int_eq(vr_reserve(&other, CACHE_HOST, 500, 1, &st, &id, &p), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK); /* of a block that is stored, in memory that is registered */
	ck_assert_ptr_nonnull(memory_extent_find(t.v.r.c, p.extent));
	ck_assert_int_lt(ms_since(&began), 10000);
	leave(&t);
	ck_assert(!grows.over);
}
END_TEST

/* Of a cache that a worker hangs in, all is closed that can be; and the worker never sees what that has left. */
START_TEST(a_cache_is_left_with_a_worker)
{
	struct stopped t;
	pthread_t worker;

	begin(&t, HANGS, true, CLOSE_MS);
	lent.c = t.v.r.c;
	lent.attachment = t.v.r.attachment;
	hang.on = true;
	ck_assert_int_eq(pthread_create(&worker, NULL, lend_progress_page, NULL), 0);
	pthread_detach(worker);
	RIG_AWAIT(hang.inside);
	leave(&t);
	ck_assert(!lent.over);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_stop");
	TCase *t = tcase_create("cache_vram_stop");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, a_stop_while_the_driver_hangs, 0, HANGS);
	tcase_add_test(t, a_driver_that_is_slow);
	tcase_add_test(t, memory_that_is_not_registered);
	tcase_add_test(t, a_cache_is_left_with_a_worker);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
