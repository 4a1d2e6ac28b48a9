/* Puts by borrow and by stream: claims, who wins, open blocks, and what a commit refuses. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/memory/grow.h"
#include "daemon/session/end.h"
#include "daemon/threads/deadline.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static enum status reserve_one(struct rig *r, uint64_t n, uint64_t *id, struct cache_place *places)
{
	struct cache_keys k = rig_keys(n, 1);
	enum status st = STATUS_INTERNAL;

	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r->now, .statuses = &st, .reservations = id,
			.places = places, .places_max = r->s.layouts }, &r->why), STATUS_OK);
	free((void *)k.bytes);
	return st;
}

static enum status commit_one(struct rig *r, const struct cache_commit_item *item)
{
	enum status st = STATUS_INTERNAL;

	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = r->s.id, .items = item,
			.count = 1, .now_us = r->now, .unix_ms = 1, .statuses = &st }, NULL, &r->why),
			 STATUS_OK);
	return st;
}

START_TEST(two_puts_of_one_key_end_as_one_block)
{
	const struct cache_options o = rig_options(64);
	struct cache_place places[2];
	uint64_t id, other, open_id;
	enum status st;
	struct rig a, b;

	rig_open(&a, &o, 2);
	rig_join(&b, &a, 2);
	ck_assert_int_eq(reserve_one(&a, 1, &id, places), STATUS_OK);
	ck_assert_int_eq(reserve_one(&b, 1, &other, places), STATUS_BUSY);
	ck_assert_uint_eq(other, 0);
	ck_assert_uint_eq(rig_prefix(&a, 1, 1), 0); /* reserved is not stored */
	/* An open block claims no key: it may be first all the same. */
	struct cache_keys none = { NULL, 1, 0 };
	ck_assert_int_eq(cache_reserve(b.c, &(struct cache_reserve_call){ .session = b.s.id, .keys = &none,
			.open = true, .on = &(struct cache_on){ .attachment = b.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = b.now, .statuses = &st, .reservations = &open_id,
			.places = places, .places_max = 2 }, &b.why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	for (uint32_t l = 0; l < 2; l++)
		rig_fill(rig_block(&b, &places[l]), b.s.block_bytes[l], 1, l);
	struct cache_commit_item item = { .reservation = open_id, .tokens = 16, .key_bytes = RIG_KEY_BYTES };
	rig_key(item.key, 1);
	ck_assert_int_eq(commit_one(&b, &item), STATUS_OK);
	ck_assert_int_eq(commit_one(&a, &(struct cache_commit_item){ .reservation = id }), STATUS_EXISTS);
	ck_assert_int_eq(commit_one(&a, &(struct cache_commit_item){ .reservation = id }), STATUS_NOT_FOUND);
	ck_assert_int_eq(reserve_one(&a, 1, &id, places), STATUS_EXISTS);
	ck_assert_uint_eq(rig_prefix(&a, 1, 1), 1);
	ck_assert_double_eq(rig_stat(&a, "terrace_slots_used", "tier=host"), 2);
	ck_assert_double_eq(rig_stat(&a, "terrace_reserved_bytes", "tier=host"), 0);
	rig_close(&a);
}
END_TEST

START_TEST(a_key_stored_in_some_layouts_gets_slots_in_the_others)
{
	const struct cache_options o = rig_options(64);
	struct cache_place places[3];
	struct cache_leased leased;
	enum status st;
	uint64_t id;
	struct rig one, three;

	rig_open(&one, &o, 1);
	rig_join(&three, &one, 3);
	ck_assert_uint_eq(rig_put(&one, 7, 1), 1);
	ck_assert_int_eq(reserve_one(&three, 7, &id, places), STATUS_OK);
	ck_assert_uint_eq(places[0].extent, (uint32_t)CACHE_EXTENT_NONE);
	for (uint32_t l = 1; l < 3; l++)
		rig_fill(rig_block(&three, &places[l]), three.s.block_bytes[l], 7, l);
	const struct cache_commit_item item = { .reservation = id };
	ck_assert_int_eq(cache_commit(three.c, &(struct cache_commit_call){ .session = three.s.id,
			.items = &item, .count = 1, .want_lease = true, .on = &(struct cache_on){
			.attachment = three.attachment, .gpu = CACHE_HOST }, .now_us = three.now, .unix_ms = 1,
			.statuses = &st, .places = places, .places_max = 3 }, &leased, &three.why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	ck_assert_uint_ne(leased.lease, 0);
	for (uint32_t l = 0; l < 3; l++)
		ck_assert(rig_matches(rig_block(&three, &places[l]), three.s.block_bytes[l], 7, l));
	ck_assert_double_eq(rig_stat(&one, "terrace_pinned_bytes", "tier=host"), 3 * RIG_SLOT_BYTES);
	rig_close(&one);
}
END_TEST

/* What keys lack is said; of a call that lacks nothing, nothing. */
START_TEST(a_refusal_has_a_reason)
{
	enum { SLOTS = 16, KEYS = 20 };
	const struct cache_options o = rig_options(SLOTS);
	struct cache_keys k = rig_keys(1, KEYS);
	struct cache_place places[KEYS];
	uint64_t id[KEYS];
	enum status st[KEYS];
	struct rig r;
	struct cache_reserve_call q = { .keys = &k, .may_grow = true, .statuses = st, .reservations = id,
					.places = places, .places_max = KEYS };

	rig_open(&r, &o, 1);
	q.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST };
	q.session = r.s.id;
	q.now_us = r.now;
	ck_assert_int_eq(cache_reserve(r.c, &q, &r.why), STATUS_OK);
	ck_assert_int_eq(st[0], STATUS_OK);
	ck_assert_int_eq(st[KEYS - 1], STATUS_EXHAUSTED);
	ck_assert_msg(r.why && strstr(r.why, "host memory has no room") && strstr(r.why, "host_bytes"), "%s", r.why);
	for (uint32_t i = 0; i < KEYS; i++)
		if (id[i])
			ck_assert_int_eq(cache_abort(r.c, r.s.id, id[i]), STATUS_OK);
	k.count = 4;
	ck_assert_int_eq(cache_reserve(r.c, &q, &r.why), STATUS_OK);
	ck_assert_int_eq(st[3], STATUS_OK);
	ck_assert_ptr_null(r.why);
	rig_close(&r);
	free((void *)k.bytes);
}
END_TEST

START_TEST(open_blocks_grow_and_are_stored)
{
	const struct cache_options o = rig_options(64);
	struct cache_keys none = { NULL, 9, 0 };
	struct cache_place places[9];
	enum status st[9];
	uint64_t id[9];
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &none,
			.open = true, .on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = st, .reservations = id, .places = places,
			.places_max = 9 }, &r.why), 0);
	ck_assert_int_eq(st[7], STATUS_OK);
	ck_assert_int_eq(st[8], STATUS_EXHAUSTED); /* the quota */
	ck_assert_msg(r.why && strstr(r.why, "open_blocks_max"), "%s", r.why);
	ck_assert_double_eq(rig_stat(&r, "terrace_open_blocks", ""), 8);

	struct cache_commit_item item = { .reservation = id[0], .tokens = 3, .keep_open = true };
	ck_assert_int_eq(commit_one(&r, &item), STATUS_OK);
	item.tokens = 2; /* shrinking */
	ck_assert_int_eq(commit_one(&r, &item), STATUS_INVALID);
	item.tokens = 17;
	ck_assert_int_eq(commit_one(&r, &item), STATUS_INVALID);
	item.tokens = 9;
	item.key_bytes = 4; /* a key, yet to be kept open */
	ck_assert_int_eq(commit_one(&r, &item), STATUS_INVALID);
	item.key_bytes = 0;
	item.keep_open = false; /* to be stored without a key */
	ck_assert_int_eq(commit_one(&r, &item), STATUS_INVALID);
	item.key_bytes = SLOT_KEY_MAX + 1;
	ck_assert_int_eq(commit_one(&r, &item), STATUS_INVALID);
	item.key_bytes = RIG_KEY_BYTES;
	rig_key(item.key, 3);
	rig_fill(rig_block(&r, &places[0]), r.s.block_bytes[0], 3, 0);
	ck_assert_int_eq(commit_one(&r, &item), STATUS_OK);
	ck_assert_uint_eq(rig_prefix(&r, 3, 1), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_open_blocks", ""), 7);

	item = (struct cache_commit_item){ .reservation = id[1], .key_bytes = 1 };
	ck_assert_int_eq(commit_one(&r, &item), STATUS_INVALID); /* no token in it */
	for (int i = 1; i < 8; i++)
		ck_assert_int_eq(cache_abort(r.c, r.s.id, id[i]), STATUS_OK);
	struct cache_read read;
	uint8_t key[RIG_KEY_BYTES];
	rig_key(key, 3);
	ck_assert_int_eq(cache_read_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .key = key,
			.key_bytes = sizeof(key), .now_us = r.now }, &read, NULL, &r.why), STATUS_OK);
	ck_assert_uint_eq(read.tokens, 9);
	ck_assert(rig_matches_to(read.block, read.block_bytes, 3, 0, 9));
	cache_read_end(r.c, &read);
	cache_read_end(r.c, &read);
	rig_close(&r);
}
END_TEST

START_TEST(commits_are_checked)
{
	const struct cache_options o = rig_options(64);
	struct slot_info info = { .tokens = 17 };
	struct cache_keys k = rig_keys(1, 1);
	struct cache_place place;
	uint64_t id;
	enum status st[2];
	struct rig a, b;

	rig_open(&a, &o, 1);
	rig_join(&b, &a, 1);
	ck_assert_int_eq(cache_reserve(a.c, &(struct cache_reserve_call){ .session = a.s.id, .keys = &k,
			.info = &info, .on = &(struct cache_on){ .attachment = a.attachment,
			.gpu = CACHE_HOST }, .may_grow = true, .now_us = a.now, .statuses = st,
			.reservations = &id, .places = &place, .places_max = 1 }, &a.why), 0);
	ck_assert_int_eq(st[0], STATUS_INVALID);
	info = (struct slot_info){ .tokens = 5, .parent_bytes = SLOT_KEY_MAX + 1 };
	ck_assert_int_eq(cache_reserve(a.c, &(struct cache_reserve_call){ .session = a.s.id, .keys = &k,
			.info = &info, .on = &(struct cache_on){ .attachment = a.attachment,
			.gpu = CACHE_HOST }, .may_grow = true, .now_us = a.now, .statuses = st,
			.reservations = &id, .places = &place, .places_max = 1 }, &a.why), 0);
	ck_assert_int_eq(st[0], STATUS_INVALID);
	info.parent_bytes = 2;
	ck_assert_int_eq(cache_reserve(a.c, &(struct cache_reserve_call){ .session = a.s.id, .keys = &k,
			.info = &info, .on = &(struct cache_on){ .attachment = a.attachment,
			.gpu = CACHE_HOST }, .may_grow = true, .now_us = a.now, .statuses = st,
			.reservations = &id, .places = &place, .places_max = 1 }, &a.why), 0);
	ck_assert_int_eq(st[0], STATUS_OK);
	ck_assert_uint_eq(place.tokens, 5);
	ck_assert_int_eq(commit_one(&b, &(struct cache_commit_item){ .reservation = id }), STATUS_NOT_FOUND);
	ck_assert_int_eq(commit_one(&a, &(struct cache_commit_item){ .reservation = id, .tokens = 99 }),
			 STATUS_INVALID);
	ck_assert_int_eq(commit_one(&a, &(struct cache_commit_item){ .reservation = 12 }), STATUS_NOT_FOUND);
	/* The same reservation twice in a call: once is enough. */
	const struct cache_commit_item twice[2] = { { .reservation = id, .tokens = 6 },
						    { .reservation = id } };
	ck_assert_int_eq(cache_commit(a.c, &(struct cache_commit_call){ .session = a.s.id, .items = twice,
			.count = 2, .now_us = a.now, .unix_ms = 1, .statuses = st }, NULL, &a.why), STATUS_OK);
	ck_assert_int_eq(st[0], STATUS_OK);
	ck_assert_int_eq(st[1], STATUS_BUSY);
	ck_assert_int_eq(cache_commit(a.c, &(struct cache_commit_call){ .session = a.s.id, .items = twice,
			.count = 2, .want_lease = true, .on = &(struct cache_on){ .attachment = 999,
			.gpu = CACHE_HOST }, .now_us = a.now, .unix_ms = 1, .statuses = st, .places = &place,
			.places_max = 1 }, NULL, &a.why), STATUS_INVALID);
	ck_assert_int_eq(cache_commit(a.c, &(struct cache_commit_call){ .session = a.s.id, .items = twice,
			.count = 1, .want_lease = true, .on = &(struct cache_on){ .attachment = 999,
			.gpu = CACHE_HOST }, .now_us = a.now, .unix_ms = 1, .statuses = st, .places = &place,
			.places_max = 1 }, NULL, &a.why), STATUS_PRECONDITION);
	ck_assert_int_eq(cache_reserve(a.c, &(struct cache_reserve_call){ .session = a.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = 999, .gpu = CACHE_HOST }, .may_grow = true,
			.now_us = a.now, .statuses = st, .reservations = &id, .places = &place,
			.places_max = 1 }, &a.why), STATUS_PRECONDITION);
	free((void *)k.bytes);
	rig_close(&a);
}
END_TEST

START_TEST(streams_write_and_read)
{
	const struct cache_options o = rig_options(64);
	uint8_t key[RIG_KEY_BYTES];
	struct cache_write w, v;
	struct cache_read read;
	uint64_t id;
	struct cache_place places[2];
	struct rig r;

	rig_open(&r, &o, 2);
	rig_key(key, 5);
	ck_assert_int_eq(cache_read_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &read, NULL, &r.why), STATUS_MISS);
	ck_assert_int_eq(cache_read_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 2,
			.key = key, .key_bytes = 16, .now_us = r.now }, &read, NULL, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 2,
			.key = key, .key_bytes = 16, .now_us = r.now }, &w, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 1,
			.key = key, .now_us = r.now }, &w, &r.why), STATUS_INVALID);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = 4, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &w, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &w, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &v, &r.why), STATUS_BUSY);
	ck_assert_int_eq(reserve_one(&r, 5, &id, places), STATUS_BUSY);
	ck_assert_int_eq(cache_abort(r.c, r.s.id, w.reservation),
			 STATUS_NOT_FOUND); /* not a client's to abort */
	ck_assert_int_eq(cache_write_end(r.c, r.s.id, &w, false, r.now, 1), STATUS_CANCELLED);
	ck_assert_int_eq(cache_read_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &read, NULL, &r.why), STATUS_MISS);
	ck_assert_int_eq(cache_write_begin(r.c, &(struct cache_stream_call){ .session = r.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &w, &r.why), STATUS_OK);
	rig_fill(w.block, w.block_bytes, 5, 1);
	/* The session ends before its put does: no harm. */
	ck_assert_int_eq(cache_session_close(r.c, r.s.id, r.now, &r.why), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 1);
	ck_assert_int_eq(cache_write_end(r.c, r.s.id, &w, true, r.now, 1), STATUS_OK);
	ck_assert_int_eq(cache_write_end(r.c, r.s.id, &w, true, r.now, 1), STATUS_NOT_FOUND);
	ck_assert_double_eq(rig_stat(&r, "terrace_ghost_sessions", ""), 0);
	struct rig b;
	rig_join(&b, &r, 2);
	ck_assert_int_eq(cache_write_begin(b.c, &(struct cache_stream_call){ .session = b.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &w, &r.why), STATUS_EXISTS);
	ck_assert_int_eq(cache_read_begin(b.c, &(struct cache_stream_call){ .session = b.s.id, .layout = 1,
			.key = key, .key_bytes = 16, .now_us = r.now }, &read, NULL, &r.why), STATUS_OK);
	ck_assert(rig_matches(read.block, read.block_bytes, 5, 1));
	cache_read_end(b.c, &read);
	rig_close(&r);
}
END_TEST

/* The slots of what was committed are pinned or reserved, not both at once. */
START_TEST(a_commit_at_the_bound_gets_its_lease)
{
	struct cache_options o = rig_options(64);
	struct cache_keys k = rig_keys(1, 4);
	struct cache_commit_item item[4] = { 0 };
	struct cache_place places[8];
	struct cache_leased leased;
	enum status st[4];
	uint64_t id[4];
	struct rig r;

	o.pinned_bytes_max = 8 * RIG_SLOT_BYTES;
	rig_open(&r, &o, 2);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = st, .reservations = id, .places = places,
			.places_max = 8 }, &r.why), STATUS_OK);
	for (int i = 0; i < 4; i++)
		item[i].reservation = id[i];
	ck_assert_int_eq(cache_commit(r.c, &(struct cache_commit_call){ .session = r.s.id, .items = item,
			.count = 4, .want_lease = true, .on = &(struct cache_on){ .attachment = r.attachment,
			.gpu = CACHE_HOST }, .now_us = r.now, .unix_ms = 1, .statuses = st, .places = places,
			.places_max = 8 }, &leased, &r.why), STATUS_OK);
	ck_assert_uint_ne(leased.lease, 0);
	ck_assert_uint_eq(leased.blocks, 4);
	ck_assert_double_eq(rig_stat(&r, "terrace_pinned_bytes", "tier=host"), 8 * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_reserved_bytes", "tier=host"), 0);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(overdue_reservations_keep_their_slots)
{
	const struct cache_options o = rig_options(8);
	struct cache_place place;
	uint64_t id;
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(reserve_one(&r, 1, &id, &place), STATUS_OK);
	r.now += 5000000;
	rig_tick(r.c, r.now);
	ck_assert_double_eq(rig_stat(&r, "terrace_reservations_overdue", ""), 1);
	ck_assert_uint_eq(rig_put(&r, 10, 20), 7);
	ck_assert_int_eq(commit_one(&r, &(struct cache_commit_item){ .reservation = id }), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_reservations_overdue", ""), 0);
	rig_close(&r);
}
END_TEST

/* Nothing of a call that needs more pages stays, though its first keys found room. */
START_TEST(without_leave_to_grow_nothing_is_reserved)
{
	const struct cache_options o = rig_options(8192); /* 8 extents of 1024 slots, of which the start makes half */
	struct cache_keys k = rig_keys(10000, 4);
	struct cache_place places[4];
	enum status st[4];
	uint64_t id[4];
	uint32_t extents, first;
	struct rig r;

	rig_open(&r, &o, 1);
	extents = (uint32_t)rig_stat(&r, "terrace_extents", "tier=host");
	ck_assert_uint_ge(extents, 1);
	ck_assert_uint_lt(extents, 8);
	first = 1024 * extents - 2;
	ck_assert_uint_eq(rig_put(&r, 0, first), first);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.now_us = r.now, .statuses = st, .reservations = id, .places = places,
			.places_max = 4 }, &r.why), STATUS_BUSY);
	ck_assert_double_eq(rig_stat(&r, "terrace_reservations", ""), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_reserve_keys_total", "status=ok"), first);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = st, .reservations = id, .places = places,
			.places_max = 4 }, &r.why), STATUS_OK);
	ck_assert_ptr_null(r.why); /* what ran out on the way has come */
	ck_assert_double_eq(rig_stat(&r, "terrace_reservations", ""), 4);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), extents + 1);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

static void growing_set(struct cache *c, bool on, uint64_t for_us)
{
	cache_lock(c);
	c->growing = on;
	c->growth_until = deadline_in(for_us);
	pthread_cond_broadcast(&c->growth);
	cache_unlock(c);
}

/* While another thread takes pages a small call that may come again does so. One that is larger than a step waits: what
 * it has got so far would be lost, and there may never be as much free at once. */
START_TEST(a_call_comes_again_when_pages_have_come)
{
	enum { SMALL = 4, LARGE = 400 };
	const struct cache_options o = rig_options(8192);
	struct cache_keys k = rig_keys(10000, LARGE);
	uint64_t again_us = 0, id[LARGE], begun_us;
	struct cache_place places[LARGE];
	enum status st[LARGE];
	struct cache_on on = { .gpu = CACHE_HOST, .again_us = &again_us };
	struct timespec t;
	uint32_t first;
	struct rig r;

	rig_open(&r, &o, 1);
	on.attachment = r.attachment;
	first = 1024 * (uint32_t)rig_stat(&r, "terrace_extents", "tier=host") - 2;
	ck_assert_uint_eq(rig_put(&r, 0, first), first);
	k.count = SMALL;
	growing_set(r.c, true, 60 * 1000000ull);
	for (int may_grow = 0; may_grow < 2; may_grow++) {
		again_us = 0;
		ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
				.on = &on, .may_grow = may_grow, .now_us = r.now, .statuses = st,
				.reservations = id, .places = places, .places_max = SMALL }, &r.why),
				 STATUS_BUSY);
		ck_assert_uint_gt(again_us, 0);
		ck_assert_double_eq(rig_stat(&r, "terrace_reservations", ""), 0);
	}
	again_us = 0;
	k.count = LARGE;
	growing_set(r.c, true, 100 * 1000);
	clock_gettime(CLOCK_MONOTONIC, &t);
	begun_us = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &on, .may_grow = true, .now_us = r.now, .statuses = st, .reservations = id,
			.places = places, .places_max = LARGE }, &r.why), STATUS_OK);
	clock_gettime(CLOCK_MONOTONIC, &t);
	ck_assert_uint_ge((uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000 - begun_us, 90 * 1000);
	ck_assert_uint_eq(again_us, 0);
	growing_set(r.c, false, 0);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

/* A call that waits for another thread's pages goes on with those, though that thread has begun to take more by then. */
struct waiting {
	struct rig *rig;
	atomic_bool over;
};

static void *reserve_waits(void *arg)
{
	struct waiting *w = arg;
	struct cache_place place;
	uint64_t id;

	ck_assert_int_eq(reserve_one(w->rig, 100000, &id, &place), STATUS_OK);
	atomic_store(&w->over, true);
	return NULL;
}

/* Called before the lock is let go. */
static void next_step_begins(struct cache *c)
{
	c->growth_until = c->growing ? c->growth_until : deadline_in(20 * 1000000);
	c->growing = true;
}

static void *grow_prefetch(void *arg)
{
	room_preallocate(arg);
	return NULL;
}

START_TEST(a_step_of_another_thread_is_enough)
{
	const struct cache_options o = rig_options(8192);
	const struct timespec pause = { .tv_nsec = 20 * 1000000 };
	uint32_t first, extents;
	struct waiting w;
	pthread_t t, grows;
	struct rig r;

	rig_open(&r, &o, 1);
	extents = (uint32_t)rig_stat(&r, "terrace_extents", "tier=host");
	first = 1024 * extents;
	ck_assert_uint_eq(rig_put(&r, 0, first), first);
	growing_set(r.c, true, 60 * 1000000ull);
	w = (struct waiting){ .rig = &r };
	pthread_create(&t, NULL, reserve_waits, &w);
	nanosleep(&pause, NULL);
	ck_assert(!atomic_load(&w.over));
	cache_lock(r.c);
	r.c->growing = false; /* without a word to the one that waits */
	cache_unlock(r.c);
	r.c->before_unlock = next_step_begins;
	pthread_create(&grows, NULL, grow_prefetch, r.c); /* one step; the next only seems to last */
	for (int i = 0; !atomic_load(&w.over); i++, nanosleep(&pause, NULL))
		ck_assert_int_lt(i, 500);
	cache_lock(r.c);
	r.c->before_unlock = NULL;
	cache_unlock(r.c);
	growing_set(r.c, false, 0);
	pthread_join(t, NULL);
	pthread_join(grows, NULL);
	rig_close(&r);
}
END_TEST

/* Steps of other threads, one behind the other. */
static void *steps_follow(void *arg)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	struct waiting *w = arg;

	while (!atomic_load(&w->over)) {
		growing_set(w->rig->c, true, 60 * 1000000ull);
		nanosleep(&pause, NULL);
	}
	growing_set(w->rig->c, false, 0);
	return NULL;
}

/* However many steps of other threads a call sees begin before its own, it waits no longer for them than for one. */
START_TEST(steps_of_others_are_not_waited_for_without_end)
{
	const struct cache_options o = rig_options(8192);
	const struct timespec pause = { .tv_nsec = 20 * 1000000 };
	pthread_t waits, follow;
	struct waiting w;
	uint32_t first;
	struct rig r;

	rig_open(&r, &o, 1);
	first = 1024 * (uint32_t)rig_stat(&r, "terrace_extents", "tier=host");
	ck_assert_uint_eq(rig_put(&r, 0, first), first);
	growing_set(r.c, true, 60 * 1000000ull);
	w = (struct waiting){ .rig = &r };
	pthread_create(&follow, NULL, steps_follow, &w);
	pthread_create(&waits, NULL, reserve_waits, &w);
	for (int i = 0; !atomic_load(&w.over); i++, nanosleep(&pause, NULL))
		ck_assert_int_lt(i, 1000);
	pthread_join(waits, NULL);
	pthread_join(follow, NULL);
	ck_assert_uint_lt(rig_prefix(&r, 0, first), first); /* it has taken the slot of another block */
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		two_puts_of_one_key_end_as_one_block, a_key_stored_in_some_layouts_gets_slots_in_the_others,
		open_blocks_grow_and_are_stored, a_refusal_has_a_reason, commits_are_checked, streams_write_and_read,
		a_commit_at_the_bound_gets_its_lease, overdue_reservations_keep_their_slots,
		without_leave_to_grow_nothing_is_reserved, a_call_comes_again_when_pages_have_come,
		a_step_of_another_thread_is_enough, steps_of_others_are_not_waited_for_without_end,
	};

	return rig_main("cache_put", tests, sizeof(tests) / sizeof(tests[0]));
}
