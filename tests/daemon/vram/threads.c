/* Engines' threads beside each other, on two GPUs, memory and a disk, with the daemon's background on one more thread; the bytes of a key are
 * always the same. In one run a GPU is lost on the way. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/stream.h"
#include "daemon/disk/tier.h"
#include "daemon/session/end.h"
#include "daemon/vram/state.h"
#include "daemon/vram/stats.h"
#include "proto/fdsock.h"
#include "store/host/extent.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, GPUS = 2, LOST = 1, KEYS = 96, RUN = 4, ROUNDS = 800 };

static struct vram_rig base;
static _Atomic bool stop, losing;
static _Atomic uint64_t leased, stored;

static bool is_lost(int32_t gpu)
{
	struct cache_gpu_view views[GPUS];

	cache_gpus(base.r.c, views, GPUS);
	return gpu >= 0 && views[gpu].lost;
}

static void *background(void *arg)
{
	uint64_t now = base.r.now;

	(void)arg;
	cache_thread_enter();
	while (!atomic_load(&stop)) {
		now += 5000;
		if (cache_tick(base.r.c, now)) {
			cache_disk_chores(base.r.c);
			cache_chores(base.r.c);
		}
		nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
	}
	cache_thread_leave();
	return NULL;
}

static void join(struct vram_rig *v)
{
	vr_join(v, &base, 0, "thread");
	vr_progress_page(v);
}

static void put_one(struct vram_rig *v, int32_t gpu, uint64_t n)
{
	struct cache_place p;
	enum status st;
	uint64_t id;

	if (vr_reserve(v, gpu, n, 1, &st, &id, &p)) {
		ck_assert(is_lost(gpu));
		return;
	}
	if (st)
		return;
	rig_fill(vr_bytes(v, &p), VR_BLOCK_BYTES, n, 0);
	ck_assert_int_eq(vr_commit(v, &id, 1, &st), STATUS_OK);
	stored += st == STATUS_OK;
}

/* Copies to a lost GPU fail before it is known to be lost: the progress page says so before it moves its word on. */
static bool copies_failed(const struct vram_rig *v, const struct cache_leased *l)
{
	const bool failed = l->progress_page_layers &&
	    v->progress_page[FDSOCK_PROGRESS_PAGE_FAILED + l->progress_page_word];

	ck_assert(!failed || (losing && l->progress_page_word == LOST));
	return failed;
}

static void lease_some(struct vram_rig *v, int32_t gpu, uint64_t first, uint32_t count, unsigned *seed)
{
	struct cache_place p[RUN];
	struct cache_leased l;

	if (vr_lease(v, gpu, first, count, false, rand_r(seed) % 3 == 0, p, &l))
		return;
	RIG_AWAIT(!l.progress_page_layers || vr_layer_there(v, &l, VR_LAYERS - 1) || is_lost(gpu));
	/* Whose progress page has failed believes no copy of the lease on that GPU, of which some may have come before
	 * and some not: so its reader does, who cannot tell them apart. What the lease has in memory is no business of
	 * the progress page's. */
	for (uint32_t i = 0; i < l.blocks; i++) {
		const struct gpu *g = vram_gpu_of_extent(v->r.c, p[i].extent);

		ck_assert(vr_matches(v, &p[i], first + i, 0) || (g && (is_lost((int32_t)g->number) || copies_failed(v, &l))));
	}
	leased++;
	vr_release(v, &l);
}

static void read_one(struct vram_rig *v, uint64_t n)
{
	uint8_t key[RIG_KEY_BYTES];
	struct cache_read r;

	rig_key(key, n);
	if (cache_read_begin(v->r.c, &(struct cache_stream_call){ .session = v->r.s.id, .key = key,
			.key_bytes = sizeof(key), .now_us = v->r.now }, &r, NULL, &v->r.why))
		return;
	ck_assert(rig_matches(r.block, r.block_bytes, n, 0));
	cache_read_end(v->r.c, &r);
}

static void *engine(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	struct vram_rig v;

	cache_thread_enter();
	join(&v);
	for (int i = 0; i < RIG_ROUNDS(ROUNDS); i++) {
		uint32_t count = 1 + rand_r(&seed) % RUN, dice = rand_r(&seed) % 100;
		uint64_t n = rand_r(&seed) % (KEYS - count);
		int32_t gpu = (int32_t)(rand_r(&seed) % (GPUS + 1)) - 1;
		enum status st;

		if (dice < 35)
			put_one(&v, gpu, n);
		else if (dice < 75)
			lease_some(&v, gpu, n, count, &seed);
		else if (dice < 82)
			read_one(&v, n);
		else if (dice < 88)
			rig_delete(&v.r, n, 1, &st);
		else if (dice < 96 && gpu >= 0 && !is_lost(gpu))
			vr_warm(&v, gpu, n, count);
		else
			rig_flush(&v.r, n, 1, &st);
	}
	cache_attach_gone(v.r.c, v.r.attachment, v.r.now, NULL);
	munmap(v.progress_page, EXTENT_PAGE_BYTES);
	cache_thread_leave();
	return NULL;
}

static void run(bool lose)
{
	pthread_t thread[THREADS], daemon;
	struct rig_disks d;

	setenv("SIM_GPU_US_PER_MIB", "200", 1);
	vr_disks_make(&d, 1, 200);
	vr_open(&base, &(struct vram_rig_options){ .gpus = GPUS, .gpu_slots = 24, .host_slots = 40, .disks = &d, .sum_threads = 2 });
	rig_restored(&base.r);
	base.r.served = true;
	pthread_create(&daemon, NULL, background, NULL);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, engine, (void *)(i + 1));
	if (lose) {
		for (int i = 0; leased < 20 && i < 20000; i++)
			nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
		losing = true;
		vr_lose(&base, LOST);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	ck_assert_uint_gt(leased, 5);
	ck_assert_uint_gt(stored, 5);
	atomic_store(&stop, true);
	pthread_join(daemon, NULL);
	base.r.served = false;
	base.r.now += 60000000;
	vr_close(&base);
	rig_disks_remove(&d);
}

START_TEST(beside_each_other)
{
	run(_i);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_vram_threads");
	TCase *t = tcase_create("cache_vram_threads");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 240);
	tcase_add_loop_test(t, beside_each_other, 0, 2);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
