/* Checksums by several threads. With --measure: how fast what comes down from a GPU is summed, by one thread and by several, in turn. */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/inspect.h"
#include "daemon/threads/checksum_pool.h"
#include "daemon/threads/pool.h"
#include "kernels/format.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/vram/rig.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 3, ITEMS = 1000, QUEUE = 256 };

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void open_small(struct vram_rig *v, uint32_t threads)
{
	vr_open(v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 16, .host_slots = 16, .sum_threads = threads });
}

/* ---- the pool ---- */

struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t all;
	uint32_t there, wanted;
	bool met;
};

/* Until `wanted` threads are in it at once; ten seconds at most. */
static void meet(void *arg, uint32_t i)
{
	struct meeting *m = arg;
	struct timespec until;

	(void)i;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	pthread_mutex_lock(&m->lock);
	if (++m->there == m->wanted) {
		m->met = true;
		pthread_cond_broadcast(&m->all);
	}
	while (!m->met && !pthread_cond_timedwait(&m->all, &m->lock, &until))
		continue;
	m->there--;
	pthread_mutex_unlock(&m->lock);
}

START_TEST(several_threads_at_once)
{
	struct meeting m = { .lock = PTHREAD_MUTEX_INITIALIZER, .all = PTHREAD_COND_INITIALIZER, .wanted = THREADS + 1 };
	struct vram_rig v;

	open_small(&v, THREADS);
	sums_each(v.r.c->sums, THREADS + 1, meet, &m);
	ck_assert(m.met);
	vr_close(&v);
}
END_TEST

static void count(void *arg, uint32_t i)
{
	atomic_fetch_add((_Atomic uint32_t *)arg + i, 1);
}

/* Each once, whatever there is of threads, and after they have ended. */
START_TEST(each_once)
{
	static _Atomic uint32_t counts[ITEMS];
	struct vram_rig v;

	open_small(&v, _i);
	for (uint32_t n = 0; n < ITEMS; n += n < 10 ? 1 : 99) {
		memset((void *)counts, 0, sizeof(counts));
		if (n == 505)
			sums_stop(v.r.c->sums);
		sums_each(v.r.c->sums, n, count, counts);
		for (uint32_t i = 0; i < ITEMS; i++)
			ck_assert_uint_eq(counts[i], i < n);
	}
	vr_close(&v);
}
END_TEST

struct begun {
	_Atomic uint32_t counts[ITEMS], left, early;
	uint32_t items;
	sem_t over;
};

static void count_begun(void *arg, uint32_t i)
{
	struct begun *b = arg;

	atomic_fetch_add(&b->counts[i], 1);
	atomic_fetch_sub(&b->left, 1);
}

static void begun_over(void *arg)
{
	struct begun *b = arg;

	atomic_fetch_add(&b->early, atomic_load(&b->left));
	sem_post(&b->over);
}

/* Nobody waits in it: its end is told once, when each has been done once; or nothing is begun. */
START_TEST(begun_and_told)
{
	static struct begun b;
	struct timespec until;
	struct vram_rig v;

	open_small(&v, _i);
	for (uint32_t n = 1; n < ITEMS; n += n < 10 ? 1 : 99) {
		memset((void *)&b, 0, sizeof(b));
		sem_init(&b.over, 0, 0);
		b.items = n;
		atomic_store(&b.left, n);
		if (n > 900)
			sums_stop(v.r.c->sums);
		ck_assert(sums_begin(v.r.c->sums, n, count_begun, begun_over, &b) == (_i > 0 && n <= 900));
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 10;
		if (_i && n <= 900)
			ck_assert_int_eq(sem_timedwait(&b.over, &until), 0);
		ck_assert_uint_eq(b.early, 0);
		for (uint32_t i = 0; i < ITEMS; i++)
			ck_assert_uint_eq(b.counts[i], i < n && _i && n <= 900);
		ck_assert_int_ne(sem_trywait(&b.over), 0);
		sem_destroy(&b.over);
	}
	vr_close(&v);
}
END_TEST

static _Atomic uint32_t due_below;

static bool is_due(void *arg, uint32_t i)
{
	(void)arg;
	return i < due_below;
}

/* What is not due is waited for, and others have their turn meanwhile. */
START_TEST(begun_when_due)
{
	enum { FIRST = 10 };
	static struct begun b;
	struct timespec until;
	struct vram_rig v;

	open_small(&v, THREADS);
	b.items = ITEMS;
	atomic_store(&b.left, ITEMS);
	sem_init(&b.over, 0, 0);
	due_below = FIRST;
	ck_assert(sums_begin_due(v.r.c->sums, ITEMS, count_begun, is_due, begun_over, &b, false));
	RIG_AWAIT(b.left <= ITEMS - FIRST);
	for (int i = 0; i < 3; i++) {
		static struct begun short_one;

		atomic_store(&short_one.left, 2);
		sem_init(&short_one.over, 0, 0);
		ck_assert(sums_begin(v.r.c->sums, 2, count_begun, begun_over, &short_one));
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 10;
		ck_assert_int_eq(sem_timedwait(&short_one.over, &until), 0);
	}
	ck_assert_uint_ge(b.left, ITEMS - FIRST - THREADS);
	due_below = ITEMS;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	ck_assert_int_eq(sem_timedwait(&b.over, &until), 0);
	for (uint32_t i = 0; i < ITEMS; i++)
		ck_assert_uint_eq(b.counts[i], 1);
	vr_close(&v);
}
END_TEST

struct held_work {
	struct work work;
	pthread_mutex_t *gate;
	_Atomic uint32_t *ran;
};

static void run_held(struct work *w)
{
	struct held_work *h = (struct held_work *)w;

	pthread_mutex_lock(h->gate);
	pthread_mutex_unlock(h->gate);
	atomic_fetch_add(h->ran, 1);
}

/* A full queue is the caller's to help with; who comes in numbers does all himself, and waits for nobody. */
START_TEST(a_full_queue)
{
	static _Atomic uint32_t counts[ITEMS];
	static struct held_work held[QUEUE + 2];
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	_Atomic uint32_t ran = 0;
	uint32_t taken = 0;
	struct vram_rig v;

	memset((void *)counts, 0, sizeof(counts));
	open_small(&v, 1);
	pthread_mutex_lock(&gate);
	for (; taken < QUEUE + 2; taken++) {
		held[taken] = (struct held_work){ .work = { .run = run_held }, .gate = &gate, .ran = &ran };
		if (!sums_submit(v.r.c->sums, &held[taken].work))
			break;
	}
	ck_assert_uint_ge(taken, QUEUE);
	ck_assert_uint_le(taken, QUEUE + 1);
	sums_each(v.r.c->sums, ITEMS, count, counts);
	for (uint32_t i = 0; i < ITEMS; i++)
		ck_assert_uint_eq(counts[i], 1);
	pthread_mutex_unlock(&gate);
	sums_stop(v.r.c->sums);
	ck_assert_uint_eq(ran, taken);
	ck_assert(!sums_submit(v.r.c->sums, &held[0].work));
	vr_close(&v);
}
END_TEST

/* Down, to a disk, and back, where a damaged copy is found out whoever sums it. */
START_TEST(what_comes_down_is_summed)
{
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0;
	struct rig_disks d;
	struct vram_rig v;

	vr_disks_make(&d, 1, 96);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 32, .host_slots = 48, .write_back = true, .disks = &d,
						.sum_threads = THREADS });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_put(&v, 0, 0, 32), 32);
	ck_assert_uint_eq(vr_warm(&v, CACHE_HOST, 0, 32), 32);
	while (cursor != UINT64_MAX)
		ck_assert_int_eq(cache_verify_step(v.r.c, &cursor, UINT64_MAX, &sum), STATUS_OK);
	ck_assert_uint_eq(sum.blocks, 32);
	ck_assert_uint_eq(sum.corrupt, 0);
	ck_assert_int_eq(rig_flush(&v.r, 0, 0, NULL), STATUS_OK);
	vr_close(&v);
	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = 32, .host_slots = 48, .disks = &d, .sum_threads = THREADS });
	rig_restored(&v.r);
	ck_assert_uint_eq(vr_warm(&v, 0, 0, 32), 32);
	ck_assert_uint_eq(vr_read_all(&v, 0, 0, 32), 32);
	vr_close(&v);
	rig_disks_remove(&d);
}
END_TEST

/* ---- figures ---- */

enum { BLOCKS = 512, ROUNDS = 5, SUMMED = 64, SUM_ROUNDS = 200 };

struct seals {
	uint8_t *slots;
	struct kv_layout layout;
};

static void seal_one(void *arg, uint32_t i)
{
	static const uint8_t key[RIG_KEY_BYTES] = { 1 };
	const struct seals *s = arg;
	const struct slot_ident ident = { .tenant = "default", .key = key, .key_bytes = sizeof(key), .layout_id = 1, .layers = VR_LAYERS,
					  .block_bytes = VR_BLOCK_BYTES, .layer_bytes = VR_BLOCK_BYTES / VR_LAYERS };

	slot_seal(s->slots + (size_t)i * VR_SLOT_BYTES, &ident, &(struct slot_info){ .tokens = 256 }, i, 1);
}

/* Seconds, at best: sums of SUMMED blocks alone; BLOCKS down from the GPU. */
static void round_of(uint32_t threads, struct seals *seals, double *sums, double *down)
{
	struct vram_rig v;
	enum status st;
	double since;

	vr_open(&v, &(struct vram_rig_options){ .gpus = 1, .gpu_slots = BLOCKS, .host_slots = BLOCKS + 64, .write_back = true,
						.spill_milli = 1, .sum_threads = threads });
	for (int i = 0; i < SUM_ROUNDS; i++) { /* short ones: a busy machine has idle processors for no longer */
		since = now_s();
		sums_each(v.r.c->sums, SUMMED, seal_one, seals);
		since = now_s() - since;
		if (since < *sums)
			*sums = since;
	}
	ck_assert_uint_eq(vr_put(&v, CACHE_HOST, 1000000, BLOCKS), BLOCKS); /* memory has its extents, and its pages */
	for (uint64_t n = 1000000; n < 1000000 + BLOCKS; n++)
		ck_assert_int_eq(rig_delete(&v.r, n, 1, &st), STATUS_OK);
	for (uint64_t n = 0; n < BLOCKS; n++)
		ck_assert_uint_eq(vr_put(&v, 0, n, 1), 1);
	since = now_s();
	ck_assert_uint_eq(vr_warm(&v, CACHE_HOST, 0, BLOCKS), BLOCKS);
	since = now_s() - since;
	if (since < *down)
		*down = since;
	vr_close(&v);
}

START_TEST(measure)
{
	struct seals seals = { .slots = aligned_alloc(4096, (size_t)SUMMED * VR_SLOT_BYTES) };
	const double gb = (double)BLOCKS * VR_BLOCK_BYTES / 1e9, summed = (double)SUMMED * VR_BLOCK_BYTES / 1e9;
	double sums[2] = { 1e9, 1e9 }, down[2] = { 1e9, 1e9 };

	memset(seals.slots, 7, (size_t)SUMMED * VR_SLOT_BYTES);
	for (int i = 0; i < ROUNDS; i++)
		for (int k = 0; k < 2; k++)
			round_of(k ? THREADS : 0, &seals, &sums[k], &down[k]);
	printf("{\"blocks\": %d, \"bytes\": %d, \"threads\": [1, %d], \"sums_gb_s\": [%.2f, %.2f], \"sums_ratio\": %.2f, "
	       "\"down_gb_s\": [%.2f, %.2f], \"down_ratio\": %.2f}\n",
	       BLOCKS, VR_BLOCK_BYTES, THREADS + 1, summed / sums[0], summed / sums[1], sums[0] / sums[1], gb / down[0], gb / down[1],
	       down[0] / down[1]);
	free(seals.slots);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite = suite_create("cache_vram_sums");
	TCase *t = tcase_create("cache_vram_sums");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 240);
	if (argc > 1 && !strcmp(argv[1], "--measure")) {
		tcase_add_test(t, measure);
	} else {
		tcase_add_test(t, several_threads_at_once);
		tcase_add_loop_test(t, each_once, 0, 4);
		tcase_add_loop_test(t, begun_and_told, 0, 4);
		tcase_add_test(t, begun_when_due);
		tcase_add_test(t, a_full_queue);
		tcase_add_test(t, what_comes_down_is_summed);
	}
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
