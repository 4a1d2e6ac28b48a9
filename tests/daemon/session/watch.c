/* Watches: order, the first look around, overflow, and the end. */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/delete.h"
#include "daemon/call/lookup.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/session/watch.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

static int wakes;

static void wake(void *arg)
{
	(void)arg;
	wakes++;
}

static uint64_t number_of(const struct cache_watch_event *e)
{
	uint64_t n;

	ck_assert_uint_eq(e->key_bytes, RIG_KEY_BYTES);
	memcpy(&n, e->key, sizeof(n));
	return n;
}

START_TEST(events_come_in_order)
{
	const struct cache_options o = rig_options(8);
	struct cache_watch_event e;
	struct cache_keys k = rig_keys(2, 1);
	struct cache_watch *w;
	enum status st;
	struct rig r, other;

	wakes = 0;
	rig_open(&r, &o, 1);
	rig_put(&r, 0, 1);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id + 1, true, wake, NULL, &w, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, true, wake, NULL, &w, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_MISS);
	for (uint64_t n = 1; n < 8; n++)
		rig_put(&r, n, 1);
	ck_assert_int_eq(wakes, 1);
	cache_delete(r.c, r.s.id, &k, &st, NULL, &r.why);
	rig_put(&r, 100, 2); /* the free slot, and 0 is evicted */
	for (uint64_t n = 1; n < 8; n++) {
		ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
		ck_assert_int_eq(e.kind, CACHE_STORED);
		ck_assert_uint_eq(e.sequence, n);
		ck_assert_uint_eq(number_of(&e), n);
	}
	static const struct {
		enum cache_watch_kind kind;
		enum cache_reason reason;
		uint64_t n;
	} then[] = {
		{ CACHE_REMOVED, CACHE_REASON_DELETED, 2 }, { CACHE_REMOVED, CACHE_REASON_EVICTED, 0 },
		{ CACHE_STORED, CACHE_REASON_NONE, 100 }, { CACHE_STORED, CACHE_REASON_NONE, 101 },
	};
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
		ck_assert_int_eq(e.kind, then[i].kind);
		ck_assert_int_eq(e.reason, then[i].reason);
		ck_assert_uint_eq(number_of(&e), then[i].n);
		ck_assert_uint_eq(e.sequence, 8 + i);
	}
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_MISS);
	/* The layout counts, not who writes. */
	rig_join(&other, &r, 1);
	rig_put(&other, 500, 1);
	ck_assert_int_eq(wakes, 2);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	while (e.kind == CACHE_REMOVED)
		ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_uint_eq(number_of(&e), 500);
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_UNAVAILABLE);
	ck_assert_int_eq(wakes, 3);
	cache_watch_close(w);
	cache_watch_close(NULL);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(one_that_lags_is_told_to_look_anew)
{
	struct cache_options o = rig_options(1024);
	struct cache_watch_event e;
	struct cache_watch *w;
	struct rig r;

	o.watch_queue = 10;
	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, true, NULL, NULL, &w, &r.why), STATUS_OK);
	rig_put(&r, 0, 2);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_uint_eq(e.sequence, 1);
	rig_put(&r, 10, 13); /* nine fit; the tenth overflows; three follow */
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
	ck_assert_int_eq(e.kind, CACHE_RESYNC);
	ck_assert_uint_eq(e.sequence, 2);
	for (uint64_t n = 20; n < 23; n++) {
		ck_assert_int_eq(cache_watch_next(w, &e), STATUS_OK);
		ck_assert_uint_eq(number_of(&e), n);
	}
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_MISS);
	ck_assert_double_eq(rig_stat(&r, "terrace_watch_resyncs_total", ""), 1);
	cache_watch_close(w);
	rig_close(&r);
}
END_TEST

/* A client's set after the first look around, with changes going on all the while, is the truth. */
START_TEST(the_first_look_around_is_consistent)
{
	enum { KEYS = 200, LAYOUTS = 3 };
	struct cache_options o = rig_options(256);
	bool set[LAYOUTS][KEYS] = { 0 }, synced = false;
	struct cache_watch_event e;
	struct cache_watch *w;
	uint64_t sequence = 0;
	enum status s, st;
	struct rig r;

	o.watch_queue = 1 << 16;
	rig_open(&r, &o, LAYOUTS);
	srand(3);
	for (int i = 0; i < 60; i++)
		rig_put(&r, rand() % KEYS, 1);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, false, NULL, NULL, &w, &r.why), STATUS_OK);
	for (int idle = 0; !idle || !synced;) {
		s = cache_watch_next(w, &e);
		if (s == STATUS_OK && e.kind == CACHE_SYNCED)
			synced = true;
		else if (s == STATUS_OK)
			set[e.layout][number_of(&e)] = e.kind == CACHE_STORED;
		if (s == STATUS_OK)
			ck_assert_uint_eq(e.sequence, ++sequence);
		idle = s == STATUS_MISS;
		if (!synced) {
			struct cache_keys k = rig_keys(rand() % KEYS, 1);

			rig_put(&r, rand() % KEYS, 1);
			cache_delete(r.c, r.s.id, &k, &st, NULL, &r.why);
			free((void *)k.bytes);
		}
	}
	for (uint64_t n = 0; n < KEYS; n++) {
		struct cache_keys k = rig_keys(n, 1);
		uint8_t states[LAYOUTS];
		uint32_t prefix;

		ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, states, LAYOUTS, &r.why), STATUS_OK);
		for (int l = 0; l < LAYOUTS; l++)
			ck_assert_int_eq(states[l], set[l][n]);
		free((void *)k.bytes);
	}
	cache_watch_close(w);
	rig_close(&r);
}
END_TEST

/* Nor does it keep the lock, or the thread that it is on, for long where there is little to find. */
START_TEST(the_first_look_around_is_in_pieces)
{
	enum { OTHERS = 5000 }; /* blocks of another layout */
	const struct cache_options o = rig_options(8 * OTHERS);
	const struct kv_layout layout = rig_layout(1, 0);
	struct cache_watch_event e;
	struct cache_watch *w;
	enum status s;
	uint32_t pieces = 0, told = 0;
	uint64_t session;
	struct rig r, other;

	rig_open(&r, &o, 1);
	rig_put(&r, 1, 1);
	other = r;
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &layout,
			.layout_count = 1, .engine = "other", .now_us = r.now }, &other.s, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r.c, other.s.token, 1, r.now, &other.attachment, &session, &r.why), STATUS_OK);
	for (uint64_t n = 0; n < OTHERS; n += 1000)
		ck_assert_uint_eq(rig_put(&other, n, 1000), 1000);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, false, NULL, NULL, &w, &r.why), STATUS_OK);
	while ((s = cache_watch_next(w, &e)) == STATUS_BUSY || (s == STATUS_OK && e.kind == CACHE_STORED)) {
		pieces += s == STATUS_BUSY;
		told += s == STATUS_OK;
	}
	ck_assert_int_eq(s, STATUS_OK);
	ck_assert_int_eq(e.kind, CACHE_SYNCED);
	ck_assert_uint_eq(e.sequence, 2);
	ck_assert_uint_eq(told, 1);
	ck_assert_uint_ge(pieces, 1);
	ck_assert_int_eq(cache_watch_next(w, &e), STATUS_MISS);
	cache_watch_close(w);
	rig_close(&r);
}
END_TEST

/* What is there at the beginning is told once before SYNCED, also where it moves from the disk to memory meanwhile. */
START_TEST(a_block_that_transfers_is_told_once)
{
	enum { HOST = 16, BLOCKS = 4 * HOST };
	struct cache_watch_event e;
	uint32_t told[BLOCKS] = { 0 };
	struct cache_options o;
	struct cache_watch *w;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 2 * BLOCKS);
	o = rig_disk_options(&d, 1, HOST);
	o.watch_queue = 4096;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put_slowly(&r, 0, BLOCKS);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, false, NULL, NULL, &w, &r.why), STATUS_OK);
	for (uint32_t i = 0; cache_watch_next(w, &e) == STATUS_OK && e.kind == CACHE_STORED; i++) {
		told[number_of(&e)]++;
		ck_assert_uint_eq(rig_read_all(&r, 17ull * i % BLOCKS, 1), 1);
	}
	ck_assert_int_eq(e.kind, CACHE_SYNCED);
	for (uint32_t n = 0; n < BLOCKS; n++)
		ck_assert_uint_eq(told[n], 1);
	cache_watch_close(w);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(watches_have_a_bound)
{
	const struct cache_options o = rig_options(64);
	struct cache_watch *w[65];
	struct rig r;

	rig_open(&r, &o, 1);
	for (int i = 0; i < 64; i++)
		ck_assert_int_eq(cache_watch_open(r.c, r.s.id, true, NULL, NULL, &w[i], &r.why), STATUS_OK);
	ck_assert_int_eq(cache_watch_open(r.c, r.s.id, true, NULL, NULL, &w[64], &r.why), STATUS_EXHAUSTED);
	for (int i = 0; i < 64; i += 2)
		cache_watch_close(w[i]);
	rig_put(&r, 1, 3);
	rig_close(&r); /* with half of them open */
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { events_come_in_order, one_that_lags_is_told_to_look_anew,
				       the_first_look_around_is_consistent, the_first_look_around_is_in_pieces,
				       a_block_that_transfers_is_told_once, watches_have_a_bound };

	return rig_main("cache_watch", tests, sizeof(tests) / sizeof(tests[0]));
}
