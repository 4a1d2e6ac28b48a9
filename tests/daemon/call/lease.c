/* Leases against eviction and deletion, and the bound of pinned bytes. */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

START_TEST(a_leased_block_is_never_evicted)
{
	const struct cache_options o = rig_options(8);
	struct cache_place places[8], again[8];
	struct cache_leased first, all;
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, 8), 8);
	ck_assert_int_eq(rig_lease(&r, 0, 3, true, places, &first), STATUS_OK);
	ck_assert_uint_eq(rig_put(&r, 100, 40), 8 - 3); /* five at a time: reserved slots are not evicted */
	ck_assert_uint_eq(rig_prefix(&r, 0, 8), 3);
	for (uint64_t n = 0; n < 3; n++)
		ck_assert(rig_matches(rig_block(&r, &places[n]), r.s.block_bytes[0], n, 0));
	/* Everything under lease: full means EXHAUSTED, and a release ends that. */
	ck_assert_int_eq(rig_lease(&r, 100, 5, true, again, &all), STATUS_OK);
	ck_assert_uint_eq(rig_put(&r, 200, 2), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_reserve_keys_total", "status=exhausted"), 35 + 2);
	ck_assert_int_eq(cache_release(r.c, r.s.id, first.lease), STATUS_OK);
	ck_assert_uint_eq(rig_put(&r, 200, 2), 2);
	ck_assert_uint_eq(rig_prefix(&r, 100, 5), 5);
	rig_close(&r);
}
END_TEST

/* Old leases lie at the cold end in their thousands: the warm blocks behind them can still be evicted. */
START_TEST(long_leases_do_not_hide_what_can_go)
{
	enum { LEASED = 3000, OTHERS = 1096 };
	const struct cache_options o = rig_options(LEASED + OTHERS);
	struct cache_place *places = calloc(LEASED, sizeof(*places));
	struct cache_leased leased;
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, LEASED), LEASED);
	ck_assert_int_eq(rig_lease(&r, 0, LEASED, true, places, &leased), STATUS_OK);
	ck_assert_uint_eq(rig_put(&r, 10000, OTHERS), OTHERS);
	for (uint64_t n = 20000; n < 20010; n++)
		ck_assert_uint_eq(rig_put(&r, n, 1), 1);
	ck_assert_uint_eq(rig_put(&r, 30000, OTHERS), OTHERS);
	ck_assert_uint_eq(rig_prefix(&r, 0, LEASED), LEASED);
	rig_close(&r);
	free(places);
}
END_TEST

START_TEST(modes_and_owners)
{
	const struct cache_options o = rig_options(64);
	struct cache_leased leased = { 0 };
	struct cache_place places[20];
	struct rig r, b;

	rig_open(&r, &o, 2);
	rig_join(&b, &r, 2);
	ck_assert_int_eq(rig_lease(&r, 0, 4, false, places, &leased), STATUS_MISS);
	rig_put(&r, 0, 4);
	ck_assert_int_eq(rig_lease(&r, 0, 5, true, places, &leased), STATUS_MISS);
	ck_assert_double_eq(rig_stat(&r, "terrace_pinned_bytes", "tier=host"), 0);
	ck_assert_int_eq(rig_lease(&r, 0, 5, false, places, &leased), STATUS_OK);
	ck_assert_uint_eq(leased.blocks, 4);
	ck_assert_uint_eq(leased.layouts, 2);
	ck_assert_double_eq(rig_stat(&r, "terrace_pinned_bytes", "tier=host"), 8 * RIG_SLOT_BYTES);
	ck_assert_int_eq(cache_release(r.c, b.s.id, leased.lease), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease + 1), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_release(r.c, 0, leased.lease), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_pinned_bytes", "tier=host"), 0);
	struct cache_keys k = rig_keys(0, 4);
	ck_assert_int_eq(cache_lease(r.c, &(struct cache_lease_call){ .session = r.s.id, .keys = &k,
			.all = true, .on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.now_us = r.now, .places = places, .places_max = 7 }, &leased, NULL, &r.why),
			 STATUS_INVALID);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

/* What a call was granted whose caller never heard of it is given back by the call's number, and nothing else. */
START_TEST(granted_to_a_call_that_nobody_hears_of)
{
	const struct cache_options o = rig_options(64);
	struct cache_on mine = { .gpu = CACHE_HOST, .call = 7 }, other = { .gpu = CACHE_HOST, .call = 8 };
	struct cache_keys k = rig_keys(0, 4), fresh = rig_keys(100, 4), more = rig_keys(200, 1);
	struct cache_leased leased, kept;
	struct cache_place places[4];
	enum status statuses[4];
	uint64_t ids[4], id;
	struct rig r, b;

	rig_open(&r, &o, 1);
	rig_join(&b, &r, 1);
	mine.attachment = other.attachment = r.attachment;
	ck_assert_uint_eq(rig_put(&r, 0, 4), 4);
	ck_assert_int_eq(cache_lease(r.c, &(struct cache_lease_call){ .session = r.s.id, .keys = &k,
			.all = true, .on = &other, .now_us = r.now, .places = places, .places_max = 4 }, &kept,
				     NULL, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_lease(r.c, &(struct cache_lease_call){ .session = r.s.id, .keys = &k,
			.all = true, .on = &mine, .now_us = r.now, .places = places, .places_max = 4 }, &leased,
				     NULL, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &fresh,
			.on = &mine, .may_grow = true, .now_us = r.now, .statuses = statuses,
			.reservations = ids, .places = places, .places_max = 4 }, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &more,
			.on = &other, .may_grow = true, .now_us = r.now, .statuses = statuses,
			.reservations = &id, .places = places, .places_max = 1 }, &r.why), STATUS_OK);
	cache_recall(r.c, b.s.id, 7); /* another session's */
	ck_assert_double_eq(rig_stat(&r, "terrace_leases", ""), 2);
	ck_assert_double_eq(rig_stat(&r, "terrace_reservations", ""), 5);
	cache_recall(r.c, r.s.id, 7);
	ck_assert_double_eq(rig_stat(&r, "terrace_leases", ""), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_reservations", ""), 1);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_abort(r.c, r.s.id, ids[3]), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_release(r.c, r.s.id, kept.lease), STATUS_OK);
	ck_assert_int_eq(cache_abort(r.c, r.s.id, id), STATUS_OK);
	free((void *)k.bytes);
	free((void *)fresh.bytes);
	free((void *)more.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(pinned_and_reserved_bytes_have_a_bound)
{
	struct cache_options o = rig_options(64);
	struct cache_leased a, b, c;
	struct cache_place places[16];
	enum status st[4];
	uint64_t id[4];
	struct rig r, s;

	o.pinned_bytes_max = 10 * RIG_SLOT_BYTES;
	rig_open(&r, &o, 1);
	rig_join(&s, &r, 1);
	rig_put(&r, 0, 8);
	rig_put(&r, 8, 8);
	ck_assert_int_eq(rig_lease(&r, 0, 6, true, places, &a), STATUS_OK);
	/* What is pinned already costs nothing more; six others would be too many. */
	ck_assert_int_eq(rig_lease(&s, 0, 6, true, places, &b), STATUS_OK);
	ck_assert_int_eq(rig_lease(&s, 8, 6, true, places, &c), STATUS_EXHAUSTED);
	ck_assert_int_eq(rig_lease(&s, 8, 2, true, places, &c), STATUS_OK);
	struct cache_keys k = rig_keys(100, 4);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = st, .reservations = id, .places = places,
			.places_max = 16 }, &r.why), 0);
	ck_assert_int_eq(st[1], STATUS_OK);
	ck_assert_int_eq(st[2], STATUS_EXHAUSTED);
	ck_assert_int_eq(st[3], STATUS_EXHAUSTED);
	ck_assert_uint_eq(id[2], 0);
	ck_assert_int_eq(cache_abort(r.c, s.s.id, id[0]), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_abort(r.c, r.s.id, id[0]), STATUS_OK);
	ck_assert_int_eq(cache_abort(r.c, r.s.id, id[0]), STATUS_NOT_FOUND);
	ck_assert_int_eq(rig_lease(&s, 10, 1, true, places, &b), STATUS_OK);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(two_engines_that_want_more_than_fits_take_turns)
{
	struct cache_options o = rig_options(64);
	struct cache_place places[16];
	struct cache_leased a, b;
	int turns_a = 0, turns_b = 0;
	struct rig r, s;

	o.pinned_bytes_max = 10 * RIG_SLOT_BYTES;
	rig_open(&r, &o, 1);
	rig_join(&s, &r, 1);
	rig_put(&r, 0, 8);
	rig_put(&r, 8, 8);
	/* Whoever is refused holds nothing, so the other always gets through. */
	for (int i = 0; i < 20; i++) {
		enum status x = rig_lease(&r, 0, 8, true, places, &a);
		enum status y = rig_lease(&s, 8, 8, true, places, &b);

		ck_assert((x == STATUS_OK) != (y == STATUS_OK));
		if (x == STATUS_OK)
			cache_release(r.c, r.s.id, a.lease);
		if (rig_lease(&s, 8, 8, true, places, &b) == STATUS_OK) {
			turns_b++;
			cache_release(s.c, s.s.id, b.lease);
		}
		turns_a += x == STATUS_OK;
	}
	ck_assert_int_eq(turns_a, 20);
	ck_assert_int_eq(turns_b, 20);
	rig_close(&r);
}
END_TEST

START_TEST(deleted_while_leased)
{
	const struct cache_options o = rig_options(8);
	struct cache_keys k = rig_keys(0, 3);
	struct cache_place places[8];
	struct cache_leased leased;
	enum status st[3];
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 2);
	ck_assert_int_eq(rig_lease(&r, 0, 2, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_delete(r.c, r.s.id, &k, st, NULL, &r.why), STATUS_OK);
	ck_assert_int_eq(st[0], STATUS_OK);
	ck_assert_int_eq(st[2], STATUS_MISS);
	ck_assert_uint_eq(rig_prefix(&r, 0, 2), 0);
	/* The same keys again, next to their dead ancestors, whose bytes stay as they are. */
	ck_assert_uint_eq(rig_put(&r, 0, 2), 2);
	ck_assert_uint_eq(rig_put(&r, 10, 8), 6);
	for (uint64_t n = 0; n < 2; n++)
		ck_assert(rig_matches(rig_block(&r, &places[n]), r.s.block_bytes[0], n, 0));
	ck_assert_double_eq(rig_stat(&r, "terrace_slots_used", "tier=host"), 8);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_slots_used", "tier=host"), 6);
	ck_assert_double_eq(rig_stat(&r, "terrace_pinned_bytes", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_deleted_blocks_total", ""), 2);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(use_refreshes)
{
	const struct cache_options o = rig_options(8);
	struct cache_keys k = rig_keys(0, 9);
	struct cache_leased leased;
	struct cache_place places[8];
	uint32_t found;
	struct rig r;

	rig_open(&r, &o, 1);
	for (uint64_t n = 0; n < 8; n++, r.now += 1000)
		rig_put(&r, n, 1);
	k.count = 1;
	ck_assert_int_eq(cache_touch(r.c, r.s.id, &k, r.now, &found, &r.why), STATUS_OK);
	ck_assert_uint_eq(found, 1);
	k.count = 9;
	ck_assert_int_eq(rig_lease(&r, 1, 1, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_uint_eq(rig_put(&r, 100, 6), 6); /* 2 .. 7 go */
	ck_assert_uint_eq(rig_prefix(&r, 0, 8), 2);
	ck_assert_int_eq(cache_report(r.c, r.s.id, &k, &(struct cache_hint){ .event = CACHE_EVENT_TURN_END,
			.priority = 3, .ttl_ms = 10 }, r.now, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_report(r.c, r.s.id, &k, &(struct cache_hint){ .event = (enum cache_event)9,
			.priority = 3, .ttl_ms = 10 }, r.now, &r.why), STATUS_INVALID);
	ck_assert_double_eq(rig_stat(&r, "terrace_reports_total", "event=turn_end"), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_touched_blocks_total", ""), 3);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(overdue_leases_are_counted_not_broken)
{
	const struct cache_options o = rig_options(64);
	struct cache_leased leased, other;
	struct cache_place places[8];
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, 2);
	ck_assert_int_eq(rig_lease(&r, 0, 1, true, places, &leased), STATUS_OK);
	r.now += 900000;
	ck_assert_int_eq(rig_lease(&r, 1, 1, true, places, &other), STATUS_OK);
	rig_tick(r.c, r.now);
	ck_assert_double_eq(rig_stat(&r, "terrace_leases_overdue", ""), 0);
	r.now += 200000;
	rig_tick(r.c, r.now);
	ck_assert_double_eq(rig_stat(&r, "terrace_leases_overdue", ""), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_leases", ""), 2);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_leases_overdue", ""), 0);
	ck_assert_int_eq(cache_release(r.c, r.s.id, other.lease), STATUS_OK);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_leased_block_is_never_evicted,
		long_leases_do_not_hide_what_can_go,
		modes_and_owners,
		granted_to_a_call_that_nobody_hears_of,
		pinned_and_reserved_bytes_have_a_bound,
		two_engines_that_want_more_than_fits_take_turns,
		deleted_while_leased,
		use_refreshes,
		overdue_leases_are_counted_not_broken,
	};

	return rig_main("cache_lease", tests, sizeof(tests) / sizeof(tests[0]));
}
