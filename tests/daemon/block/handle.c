/* Handles: found until they are dropped, drawn anew where they cannot stand, and of use to whom they were granted alone. */
#include "daemon/block/handle.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/flush.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stats.h"
#include "daemon/call/stream.h"
#include "daemon/call/warm.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/session/watch.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 5000, GUESSES = 4096 };

/* ---- the table ---- */

START_TEST(found_until_dropped)
{
	static uint64_t handle[MANY];
	static char item[MANY];
	struct handle_source from = { .left = 0 };
	struct handles h;

	ck_assert_int_eq(handles_init(&h, MANY), STATUS_OK);
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < MANY; i++)
			if (!handle[i])
				ck_assert_uint_ne(handle[i] = handles_give(&h, &from, &item[i]), 0);
		ck_assert_uint_eq(handles_give(&h, &from, &item[0]), 0); /* all are taken */
		for (int i = 0; i < MANY; i++)
			ck_assert_ptr_eq(handles_find(&h, handle[i]), &item[i]);
		for (int i = round % 3; i < MANY; i += 1 + round) {
			handles_drop(&h, handle[i]);
			handles_drop(&h, handle[i]);
			ck_assert_ptr_null(handles_find(&h, handle[i]));
			handle[i] = 0;
		}
		ck_assert_uint_eq(h.used, MANY - (MANY - round % 3 + round) / (1 + round));
	}
	ck_assert_ptr_null(handles_find(&h, 0));
	for (uint64_t n = 1; n < 3 * MANY; n++)
		ck_assert_ptr_null(handles_find(&h, n));
	handles_fini(&h);
}
END_TEST

/* The kernel's numbers are made to be 0, equal, and of a place that is taken: the batch is used from its end. */
START_TEST(what_cannot_stand_is_drawn_again)
{
	struct handle_source from = { .stock = { 0x77, 0x5500000000000003, 0x33, 0x4400000000000003, 0, 0x1100000000000003 }, .left = 6 };
	struct handles h;
	char item[4];

	ck_assert_int_eq(handles_init(&h, 8), STATUS_OK);
	ck_assert_uint_eq(handles_give(&h, &from, &item[0]), 0x1100000000000003);
	ck_assert_uint_eq(handles_give(&h, &from, &item[1]), 0x77); /* 0x33 and the others end in 3, of 16 places */
	ck_assert_uint_eq(from.left, 0);
	ck_assert_ptr_eq(handles_find(&h, 0x1100000000000003), &item[0]);
	ck_assert_ptr_eq(handles_find(&h, 0x77), &item[1]);
	ck_assert_ptr_null(handles_find(&h, 0x4400000000000003));
	ck_assert_uint_ne(handles_give(&h, &from, &item[2]), 0); /* from the kernel again */
	ck_assert_uint_lt(from.left, HANDLE_BATCH);
	for (uint32_t i = from.left; i < HANDLE_BATCH; i++)
		ck_assert_uint_eq(from.stock[i], 0); /* no copy of what was granted */
	handles_fini(&h);
}
END_TEST

START_TEST(what_is_used_is_filled_up)
{
	static struct handle_source from;
	uint64_t fresh[HANDLE_FRESH], sum = 0;
	struct handles h;
	char item;

	ck_assert_int_eq(handles_init(&h, 4), STATUS_OK);
	for (uint64_t n = 0; handle_source_wants(&from); n++) {
		for (uint32_t i = 0; i < HANDLE_FRESH; i++)
			fresh[i] = 1 + n * HANDLE_FRESH + i;
		handle_source_add(&from, fresh);
	}
	ck_assert_uint_eq(from.left, HANDLE_STOCK);
	handle_source_add(&from, fresh); /* there is no room */
	ck_assert_uint_eq(from.left, HANDLE_STOCK);
	for (uint32_t i = 0; i < HANDLE_STOCK; i++) {
		const uint64_t handle = handles_give(&h, &from, &item);

		sum += handle;
		handles_drop(&h, handle);
	}
	ck_assert_uint_eq(sum, (uint64_t)HANDLE_STOCK * (HANDLE_STOCK + 1) / 2); /* each once */
	for (uint32_t i = 0; i < HANDLE_STOCK; i++)
		ck_assert_uint_eq(from.stock[i], 0);
	ck_assert_uint_ne(handles_give(&h, &from, &item), 0);
	handles_fini(&h);
}
END_TEST

/* Each bit is 1 in half of them: within 8 standard deviations, which a fair one misses in 1 of 10^15 runs. */
START_TEST(every_bit_is_random)
{
	struct handle_source from = { .left = 0 };
	struct handles h;
	int ones[64] = { 0 };
	char item;

	ck_assert_int_eq(handles_init(&h, 16), STATUS_OK);
	for (int i = 0; i < MANY; i++) {
		const uint64_t handle = handles_give(&h, &from, &item);

		for (int bit = 0; bit < 64; bit++)
			ones[bit] += handle >> bit & 1;
		handles_drop(&h, handle);
	}
	for (int bit = 0; bit < 64; bit++)
		ck_assert_int_lt(abs(ones[bit] - MANY / 2), 8 * 36); /* the root of MANY / 4 is 35.4 */
	handles_fini(&h);
}
END_TEST

/* ---- what a stranger can do with numbers ---- */

/* What a stranger knows and tries: his own handles, numbers near them, public numbers, none. */
struct guesses {
	uint64_t at[GUESSES];
	uint32_t count;
};

static void guess_near(struct guesses *g, uint64_t own)
{
	for (int64_t step = -64; step <= 64; step++) {
		g->at[g->count++] = own + (uint64_t)step;
		g->at[g->count++] = own + (uint64_t)step * (1 << 20);
		g->at[g->count++] = own + (uint64_t)step * ((1 << 20) + 1);
		g->at[g->count++] = own ^ 1ull << (step & 63);
	}
}

/* Of any session that a guess names: whether some call takes it for one. */
static void try_session(struct rig *r, uint64_t guess)
{
	struct cache_keys k = rig_keys(0, 1);
	struct cache_place place;
	struct cache_leased leased;
	struct cache_watch *w;
	struct cache_write write;
	struct cache_read read;
	struct cache_commit_item item = { .reservation = guess };
	enum status st;
	uint64_t id;
	uint32_t n;

	ck_assert_int_eq(cache_lookup(r->c, guess, &k, &n, NULL, 0, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_lease(r->c, &(struct cache_lease_call){ .session = guess, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.now_us = r->now, .places = &place, .places_max = 1 }, &leased, NULL, &r->why),
			 STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = guess, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r->now, .statuses = &st, .reservations = &id,
			.places = &place, .places_max = 1 }, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = guess, .items = &item,
			.count = 1, .now_us = r->now, .unix_ms = 1, .statuses = &st }, &leased, &r->why),
			 STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_write_begin(r->c, &(struct cache_stream_call){ .session = guess, .key = k.bytes,
			.key_bytes = k.key_bytes, .now_us = r->now }, &write, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_read_begin(r->c, &(struct cache_stream_call){ .session = guess, .key = k.bytes,
			.key_bytes = k.key_bytes, .now_us = r->now }, &read, NULL, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_touch(r->c, guess, &k, r->now, &n, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_report(r->c, guess, &k, &(struct cache_hint){ .event = CACHE_EVENT_NONE },
				      r->now, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_warm(r->c, &(struct cache_warm_call){ .session = guess, .keys = &k,
			.gpu = CACHE_HOST, .now_us = r->now }, NULL, &n, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_flush(r->c, guess, &k, r->now, NULL, &st, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_delete(r->c, guess, &k, &st, NULL, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_watch_open(r->c, guess, true, NULL, NULL, &w, &r->why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_session_close(r->c, guess, r->now, &r->why), STATUS_NOT_FOUND);
	ck_assert_uint_eq(cache_session_layouts(r->c, guess), 0);
	free((void *)k.bytes);
}

START_TEST(a_stranger_has_no_use_of_numbers)
{
	static struct guesses g;
	const struct cache_options o = rig_options(64);
	struct rig holder, stranger;
	struct cache_place place;
	struct cache_leased held, own;
	struct cache_keys k = rig_keys(9, 2);
	struct cache_load load;
	enum status st;
	uint64_t reserved, own_reserved;

	rig_open(&holder, &o, 1);
	rig_join(&stranger, &holder, 1);
	rig_put(&holder, 0, 1);
	ck_assert_int_eq(rig_lease(&holder, 0, 1, true, &place, &held), STATUS_OK);
	ck_assert_int_eq(rig_lease(&stranger, 0, 1, true, &place, &own), STATUS_OK);
	k.count = 1;
	ck_assert_int_eq(cache_reserve(holder.c, &(struct cache_reserve_call){ .session = holder.s.id,
			.keys = &k, .on = &(struct cache_on){ .attachment = holder.attachment,
							      .gpu = CACHE_HOST }, .may_grow = true,
			.now_us = holder.now, .statuses = &st, .reservations = &reserved, .places = &place,
			.places_max = 1 }, &holder.why), STATUS_OK);
	k.bytes += RIG_KEY_BYTES;
	ck_assert_int_eq(cache_reserve(stranger.c, &(struct cache_reserve_call){ .session = stranger.s.id,
			.keys = &k, .on = &(struct cache_on){ .attachment = stranger.attachment,
							      .gpu = CACHE_HOST }, .may_grow = true,
			.now_us = stranger.now, .statuses = &st, .reservations = &own_reserved,
			.places = &place, .places_max = 1 }, &stranger.why), STATUS_OK);
	for (uint64_t n = 0; n <= 64; n++)
		g.at[g.count++] = n; /* public numbers, and numbers of attachments */
	guess_near(&g, stranger.s.id);
	guess_near(&g, own.lease);
	guess_near(&g, own_reserved);
	/* Handles of the other kinds, and the holder's own: without its session they are of no use. */
	g.at[g.count++] = held.lease;
	g.at[g.count++] = reserved;
	for (uint32_t i = 0; i < g.count; i++) {
		const struct cache_commit_item item = { .reservation = g.at[i] };

		if (g.at[i] != stranger.s.id)
			try_session(&stranger, g.at[i]);
		if (g.at[i] != own.lease)
			ck_assert_int_eq(cache_release(stranger.c, stranger.s.id, g.at[i]), STATUS_NOT_FOUND);
		if (g.at[i] == own_reserved)
			continue;
		ck_assert_int_eq(cache_abort(stranger.c, stranger.s.id, g.at[i]), STATUS_NOT_FOUND);
		ck_assert_int_eq(cache_commit(stranger.c, &(struct cache_commit_call){ .session = stranger.s.id,
				.items = &item, .count = 1, .now_us = stranger.now, .unix_ms = 1,
				.statuses = &st }, &own, &stranger.why), STATUS_OK);
		ck_assert_int_eq(st, STATUS_NOT_FOUND);
	}
	cache_load(holder.c, &load);
	ck_assert_uint_eq(load.sessions, 2);
	ck_assert_uint_eq(load.leases, 2);
	ck_assert_uint_eq(load.reservations, 2);
	ck_assert_int_eq(cache_release(holder.c, holder.s.id, held.lease), STATUS_OK);
	ck_assert_int_eq(cache_abort(holder.c, holder.s.id, reserved), STATUS_OK);
	free((void *)(k.bytes - RIG_KEY_BYTES));
	rig_close(&holder);
}
END_TEST

/* A call number is its session's: the same number in another session gives nothing back. */
START_TEST(a_call_number_is_of_its_session)
{
	const struct cache_options o = rig_options(64);
	const struct cache_on on = { .gpu = CACHE_HOST, .call = 7 };
	struct cache_keys k = rig_keys(0, 1);
	struct rig holder, stranger;
	struct cache_on mine = on;
	struct cache_place place;
	struct cache_leased held;
	struct cache_load load;

	rig_open(&holder, &o, 1);
	rig_join(&stranger, &holder, 1);
	rig_put(&holder, 0, 1);
	mine.attachment = holder.attachment;
	ck_assert_int_eq(cache_lease(holder.c, &(struct cache_lease_call){ .session = holder.s.id, .keys = &k,
			.all = true, .on = &mine, .now_us = holder.now, .places = &place, .places_max = 1 },
				     &held, NULL, &holder.why), STATUS_OK);
	cache_recall(stranger.c, stranger.s.id, on.call);
	cache_recall(stranger.c, holder.s.number, on.call);
	cache_load(holder.c, &load);
	ck_assert_uint_eq(load.leases, 1);
	/* Nor is another session's attachment of use. */
	ck_assert_int_eq(cache_lease(stranger.c, &(struct cache_lease_call){ .session = stranger.s.id,
			.keys = &k, .all = true, .on = &mine, .now_us = stranger.now, .places = &place,
			.places_max = 1 }, &held, NULL, &stranger.why), STATUS_PRECONDITION);
	cache_recall(holder.c, holder.s.id, on.call);
	cache_load(holder.c, &load);
	ck_assert_uint_eq(load.leases, 0);
	free((void *)k.bytes);
	rig_close(&holder);
}
END_TEST

/* ---- what is shown ---- */

struct shown {
	const uint64_t *secret;
	uint32_t secrets, rows;
	bool numbered;
};

static void look_for(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct shown *s = arg;
	char words[3][32];

	(void)counter;
	(void)help;
	s->rows++;
	s->numbered |= !strcmp(name, "terrace_session_held_bytes") && strstr(labels, "session=1,");
	for (uint32_t i = 0; i < s->secrets; i++) {
		snprintf(words[0], sizeof(words[0]), "%llu", (unsigned long long)s->secret[i]);
		snprintf(words[1], sizeof(words[1]), "%lld", (long long)s->secret[i]);
		snprintf(words[2], sizeof(words[2]), "%llx", (unsigned long long)s->secret[i]);
		for (int w = 0; w < 3; w++)
			ck_assert_msg(!strstr(labels, words[w]), "%s{%s} shows a handle", name, labels);
		ck_assert(value != (double)s->secret[i]);
	}
}

START_TEST(statistics_show_public_numbers)
{
	const struct cache_options o = rig_options(64);
	struct cache_keys k = rig_keys(9, 1);
	struct cache_place place;
	struct cache_leased held;
	uint64_t secret[3];
	struct shown shown = { .secret = secret, .secrets = 3 };
	enum status st;
	struct rig r, other;

	rig_open(&r, &o, 1);
	rig_join(&other, &r, 1);
	ck_assert_uint_eq(r.s.number, 1);
	ck_assert_uint_eq(other.s.number, 2);
	rig_put(&r, 0, 1);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, &place, &held), STATUS_OK);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = &st, .reservations = &secret[2],
			.places = &place, .places_max = 1 }, &r.why), STATUS_OK);
	secret[0] = r.s.id;
	secret[1] = held.lease;
	cache_stats(r.c, r.now, look_for, &shown);
	ck_assert_uint_gt(shown.rows, 40);
	ck_assert(shown.numbered);
	ck_assert_uint_eq(cache_session_number(r.c, r.s.id), 1);
	ck_assert_uint_eq(cache_session_number(r.c, r.s.number), 0);
	ck_assert_uint_eq(cache_session_number(r.c, 0), 0);
	ck_assert_int_eq(cache_session_close(r.c, other.s.id, r.now, &r.why), STATUS_OK);
	rig_join(&other, &r, 1);
	ck_assert_uint_eq(other.s.number, 3); /* never used twice */
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

/* ---- lookups take no lock ---- */

struct beside {
	struct rig *r;
	atomic_bool stop;
	_Atomic uint64_t closed; /* a session that has ended */
};

static void *open_and_close(void *arg)
{
	struct beside *b = arg;
	struct rig other;

	cache_thread_enter();
	for (int i = 0; i < RIG_ROUNDS(2000); i++) {
		rig_join(&other, b->r, 1);
		ck_assert_int_eq(cache_session_close(other.c, other.s.id, other.now, &other.why), STATUS_OK);
		cache_attach_gone(other.c, other.attachment, other.now, NULL);
		atomic_store(&b->closed, other.s.id);
	}
	atomic_store(&b->stop, true);
	cache_thread_leave();
	return NULL;
}

START_TEST(a_lookup_finds_its_session_and_no_ended_one)
{
	const struct cache_options o = rig_options(64);
	struct cache_keys k = rig_keys(0, 1);
	struct beside b = { .stop = false };
	pthread_t thread;
	struct rig r;
	uint32_t n;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 1);
	b.r = &r;
	ck_assert_int_eq(pthread_create(&thread, NULL, open_and_close, &b), 0);
	while (!atomic_load(&b.stop)) {
		ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &n, NULL, 0, &r.why), STATUS_OK);
		ck_assert_uint_eq(n, 1);
		ck_assert_int_eq(cache_lookup(r.c, atomic_load(&b.closed), &k, &n, NULL, 0, &r.why), STATUS_NOT_FOUND);
	}
	pthread_join(thread, NULL);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		found_until_dropped, what_cannot_stand_is_drawn_again, what_is_used_is_filled_up, every_bit_is_random, a_stranger_has_no_use_of_numbers,
		a_call_number_is_of_its_session, statistics_show_public_numbers, a_lookup_finds_its_session_and_no_ended_one,
	};

	return rig_main("cache_handle", tests, sizeof(tests) / sizeof(tests[0]));
}
