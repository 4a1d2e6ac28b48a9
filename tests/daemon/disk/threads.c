/* Many threads over a small memory and small disks: everything moves all the time. A byte that is wrong, a deleted block that comes
 * back within its owner's sight, or accounting that do not balance at the end fail. Under ThreadSanitizer it is a
 * search for races. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/compact.h"
#include "daemon/disk/scrub.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 4, KEYS = 256, HOST = 48, DISK = 96 };

static atomic_bool over;

struct worker {
	struct rig rig;
	uint64_t seed, first;           /* its own keys: first .. first + KEYS - 1 */
	uint64_t reads, hits, deletes, flushes;
	uint32_t rounds;
	pthread_t thread;
};

static uint64_t draw(struct worker *w, uint64_t below)
{
	w->seed ^= w->seed << 13;
	w->seed ^= w->seed >> 7;
	w->seed ^= w->seed << 17;
	return w->seed % below;
}

static void one_step(struct worker *w)
{
	uint64_t own = w->first + draw(w, KEYS - 8), any = draw(w, THREADS * KEYS - 8);
	enum status st[8];

	switch (draw(w, 8)) {
	case 0:
	case 1:
	case 2:
		rig_put(&w->rig, own, 8);
		break;
	case 3:
		/* Only its owner puts a key, so nobody puts it between the delete and the look. */
		rig_delete(&w->rig, own, 4, st);
		ck_assert_uint_eq(rig_read_all(&w->rig, own, 4), 0);
		w->deletes += 4;
		break;
	case 4:
		rig_flush(&w->rig, own, 8, st);
		w->flushes++;
		break;
	case 5:
		rig_warm(&w->rig, any, 8);
		break;
	default:
		w->hits += rig_read_all(&w->rig, any, 8);
		w->reads += 8;
	}
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	cache_thread_enter();
	for (uint32_t i = 0; i < w->rounds; i++)
		one_step(w);
	cache_thread_leave();
	return NULL;
}

static void *background_main(void *arg)
{
	struct rig *r = arg;
	uint64_t now = r->now;

	cache_thread_enter();
	for (uint64_t n = 0; !atomic_load(&over); n++) {
		uint64_t freed;

		rig_tick(r->c, now += 100);
		if (n % 128 == 127) /* sometimes a quarter of a disk goes */
			cache_compact_step(r->c, n / 128 % 2, DISK * RIG_SLOT_BYTES / 4 * (n / 256 % 3 ? 4 : 3), &freed);
		nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
	}
	cache_thread_leave();
	return NULL;
}

static void storm(int engine)
{
	static struct worker workers[THREADS];
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0, hits = 0;
	struct cache_options o;
	pthread_t background;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	o = rig_disk_options(&d, 2, HOST);
	o.io = engine ? CACHE_IO_THREADS : CACHE_IO_AUTO;
	o.reservation_ttl_ms = o.lease_ttl_ms = o.session_idle_ms = 3600000;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	atomic_store(&over, false);
	ck_assert_int_eq(pthread_create(&background, NULL, background_main, &r), 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .seed = 77 + i, .first = i * KEYS, .rounds = RIG_ROUNDS(3000) };
		rig_join(&workers[i].rig, &r, 1);
		workers[i].rig.served = true;
		ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		hits += workers[i].hits;
	}
	atomic_store(&over, true);
	pthread_join(background, NULL);
	rig_quiet(&r);
	ck_assert_uint_gt(hits, 0);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_disk_step(r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_gt(sum.blocks, 0);
	ck_assert_uint_eq(sum.corrupt, 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_corrupt_blocks_total", ""), 0);
	ck_assert_double_gt(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), 0);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}

START_TEST(test_storm)
{
	storm(_i);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_disk_threads");
	TCase *tc = tcase_create("storm");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 200);
	tcase_add_loop_test(tc, test_storm, 0, 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
