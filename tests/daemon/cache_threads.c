/* Many threads on one cache: the same keys put, leased, read, deleted and looked up at once, with
 * evictions, a scrub and the tick going on. Whatever is read must be the bytes of its key. Most of all a
 * test for ThreadSanitizer.
 */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/inspect.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/session/end.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 6, KEYS = 48, LAYOUTS = 2 };

struct worker {
	pthread_t thread;
	struct rig rig;
	unsigned seed;
	int rounds;
	uint64_t stored, leased, read;
};

static _Atomic bool stop;

static uint64_t clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void lease_and_read(struct worker *w, uint64_t n)
{
	struct cache_place places[8 * LAYOUTS];
	struct cache_leased leased;

	if (rig_lease(&w->rig, n, 8, rand_r(&w->seed) % 4 == 0, places, &leased) != STATUS_OK)
		return;
	for (uint32_t i = 0; i < leased.blocks * LAYOUTS; i++)
		ck_assert(rig_matches(rig_block(&w->rig, &places[i]), w->rig.s.block_bytes[i % LAYOUTS],
				      n + i / LAYOUTS, i % LAYOUTS));
	w->leased += leased.blocks;
	ck_assert_int_eq(cache_release(w->rig.c, w->rig.s.id, leased.lease), STATUS_OK);
}

static void stream(struct worker *w, uint64_t n, uint32_t layout)
{
	uint8_t key[RIG_KEY_BYTES];
	struct cache_write write;
	struct cache_read read;

	rig_key(key, n);
	if (cache_read_begin(w->rig.c, &(struct cache_stream_call){ .session = w->rig.s.id, .layout = layout,
			.key = key, .key_bytes = sizeof(key), .now_us = w->rig.now }, &read, NULL,
			     &w->rig.why) == STATUS_OK) {
		ck_assert(rig_matches(read.block, read.block_bytes, n, layout));
		cache_read_end(w->rig.c, &read);
		w->read++;
	} else if (cache_write_begin(w->rig.c, &(struct cache_stream_call){ .session = w->rig.s.id,
			.layout = layout, .key = key, .key_bytes = sizeof(key), .now_us = w->rig.now }, &write,
				     &w->rig.why) == STATUS_OK) {
		rig_fill(write.block, write.block_bytes, n, layout);
		cache_write_end(w->rig.c, w->rig.s.id, &write, rand_r(&w->seed) % 8 != 0, w->rig.now, 1);
	}
}

static void reopen(struct worker *w)
{
	struct rig old = w->rig;

	rig_join(&w->rig, &old, LAYOUTS);
	if (rand_r(&w->seed) % 2)
		cache_session_close(old.c, old.s.id, clock_us(), &old.why);
	else
		cache_attach_gone(old.c, old.attachment, clock_us(), NULL);
}

static void *work(void *arg)
{
	struct worker *w = arg;

	cache_thread_enter();
	for (int i = 0; i < w->rounds; i++) {
		uint64_t n = rand_r(&w->seed) % KEYS;
		struct cache_keys k;
		enum status st;

		w->rig.now = clock_us();
		switch (rand_r(&w->seed) % 8) {
		case 0:
		case 1:
		case 2:
			w->stored += rig_put(&w->rig, n, 1 + rand_r(&w->seed) % 8);
			break;
		case 3:
		case 4:
			lease_and_read(w, n);
			break;
		case 5:
			stream(w, n, rand_r(&w->seed) % LAYOUTS);
			break;
		case 6:
			rig_prefix(&w->rig, n, 8);
			break;
		default:
			k = rig_keys(n, 1);
			ck_assert_int_eq(cache_delete(w->rig.c, w->rig.s.id, &k, &st, NULL, &w->rig.why),
					 STATUS_OK);
			free((void *)k.bytes);
			if (i % 50 == 0)
				reopen(w);
		}
	}
	cache_thread_leave();
	return NULL;
}

static void *scrub(void *arg)
{
	struct cache *c = arg;
	struct cache_verified sum = { 0 };

	cache_thread_enter();
	while (!stop) {
		struct timespec pause = { 0, 1000000 };
		uint64_t cursor = 0;

		while (cursor != UINT64_MAX)
			cache_verify_step(c, &cursor, 1 << 20, &sum);
		rig_tick(c, clock_us());
		nanosleep(&pause, NULL);
	}
	ck_assert_uint_eq(sum.corrupt, 0);
	cache_thread_leave();
	return NULL;
}

START_TEST(threads_agree)
{
	struct cache_options o = rig_options(96);
	struct worker w[THREADS] = { 0 };
	pthread_t scrubber;
	struct rig keeper;
	uint64_t stored = 0, leased = 0, read = 0;

	rig_open(&keeper, &o, LAYOUTS);
	for (int i = 0; i < THREADS; i++) {
		w[i].seed = 100 + i;
		w[i].rounds = RIG_ROUNDS(6000);
		rig_join(&w[i].rig, &keeper, LAYOUTS);
	}
	pthread_create(&scrubber, NULL, scrub, keeper.c);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&w[i].thread, NULL, work, &w[i]);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(w[i].thread, NULL);
		stored += w[i].stored;
		leased += w[i].leased;
		read += w[i].read;
	}
	stop = true;
	pthread_join(scrubber, NULL);
	ck_assert_uint_gt(stored, 100);
	ck_assert_uint_gt(leased, 100);
	ck_assert_uint_gt(read, 10);
	rig_close(&keeper);
}
END_TEST

struct racer {
	pthread_t thread;
	struct rig rig;
	uint64_t id;
	int won;
	pthread_barrier_t *start;
};

static void *race(void *arg)
{
	struct racer *x = arg;
	struct cache_commit_item item = { .reservation = x->id, .tokens = 16, .key_bytes = RIG_KEY_BYTES };
	struct cache_place places[LAYOUTS];
	struct cache_leased leased;
	enum status st;

	rig_key(item.key, 1);
	cache_thread_enter();
	pthread_barrier_wait(x->start);
	ck_assert_int_eq(cache_commit(x->rig.c, &(struct cache_commit_call){ .session = x->rig.s.id,
			.items = &item, .count = 1, .want_lease = true, .on = &(struct cache_on){
			.attachment = x->rig.attachment, .gpu = CACHE_HOST }, .now_us = x->rig.now,
			.unix_ms = 1, .statuses = &st, .places = places, .places_max = LAYOUTS }, &leased,
				      &x->rig.why), STATUS_OK);
	x->won = st == STATUS_OK;
	if (!x->won)
		ck_assert_int_eq(st, STATUS_EXISTS);
	/* Winner or not, the lease is of what won. */
	for (uint32_t l = 0; l < LAYOUTS; l++)
		ck_assert(rig_matches(rig_block(&x->rig, &places[l]), x->rig.s.block_bytes[l], 1, l));
	ck_assert_int_eq(cache_release(x->rig.c, x->rig.s.id, leased.lease), STATUS_OK);
	cache_thread_leave();
	return NULL;
}

START_TEST(one_of_many_commits_wins)
{
	const struct cache_options o = rig_options(256);
	struct racer x[THREADS];
	struct cache_keys k = rig_keys(1, 1);
	pthread_barrier_t start;
	struct rig keeper;
	enum status st;

	rig_open(&keeper, &o, LAYOUTS);
	for (int round = 0; round < RIG_ROUNDS(200); round++) {
		int won = 0;

		pthread_barrier_init(&start, NULL, THREADS);
		for (int i = 0; i < THREADS; i++) {
			struct cache_keys none = { NULL, 1, 0 };
			struct cache_place places[LAYOUTS];

			rig_join(&x[i].rig, &keeper, LAYOUTS);
			x[i].start = &start;
			ck_assert_int_eq(cache_reserve(x[i].rig.c, &(struct cache_reserve_call){
					.session = x[i].rig.s.id, .keys = &none, .open = true,
					.on = &(struct cache_on){ .attachment = x[i].rig.attachment,
					.gpu = CACHE_HOST }, .may_grow = true, .now_us = x[i].rig.now,
					.statuses = &st, .reservations = &x[i].id, .places = places,
					.places_max = LAYOUTS }, &x[i].rig.why), 0);
			ck_assert_int_eq(st, STATUS_OK);
			for (uint32_t l = 0; l < LAYOUTS; l++)
				rig_fill(rig_block(&x[i].rig, &places[l]), x[i].rig.s.block_bytes[l], 1, l);
		}
		for (int i = 0; i < THREADS; i++)
			pthread_create(&x[i].thread, NULL, race, &x[i]);
		for (int i = 0; i < THREADS; i++) {
			pthread_join(x[i].thread, NULL);
			won += x[i].won;
			cache_session_close(keeper.c, x[i].rig.s.id, keeper.now, &keeper.why);
		}
		ck_assert_int_eq(won, 1);
		ck_assert_double_eq(rig_stat(&keeper, "terrace_slots_used", "tier=host"), LAYOUTS);
		ck_assert_int_eq(cache_delete(keeper.c, keeper.s.id, &k, &st, NULL, &keeper.why), STATUS_OK);
		pthread_barrier_destroy(&start);
	}
	free((void *)k.bytes);
	rig_close(&keeper);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { threads_agree, one_of_many_commits_wins };

	return rig_main("cache_threads", tests, sizeof(tests) / sizeof(tests[0]));
}
