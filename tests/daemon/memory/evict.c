/* Memory that moves between layouts: extents are drained, holders delay that, and are told. */
#include "daemon/block/layout_pool.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/memory/evict.h"
#include "daemon/session/attachment.h"
#include "daemon/session/session.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A session over one layout that the rig's own does not have. */
static struct rig other_pool(struct rig *r)
{
	struct kv_layout l = rig_layout(40, 0);
	struct rig b = { .c = r->c, .now = r->now };
	uint64_t session;

	ck_assert_int_eq(cache_session_open(b.c, "", &l, 1, "", b.now, &b.s, &b.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(b.c, b.s.token, 1, b.now, &b.attachment, &session, &b.why), STATUS_OK);
	return b;
}

static uint32_t told, told_extent;
static uint64_t told_attachment;

static void retire(void *arg, uint64_t attachment, uint32_t extent)
{
	(void)arg;
	told++;
	told_attachment = attachment;
	told_extent = extent;
}

/* The slots that the policy of a session's layout was told of. */
static uint64_t room_of(const struct rig *r)
{
	struct pool *pools[CACHE_LAYOUTS_MAX];

	ck_assert_uint_eq(session_pools(r->c, r->s.id, pools), 1);
	return pools[0]->policy_room;
}

START_TEST(policies_are_told_what_others_leave)
{
	struct cache_options o = rig_options(64); /* 8 extents of 8 slots */
	struct rig a, b;

	o.policy = "graph";
	rig_open(&a, &o, 1);
	b = other_pool(&a);
	ck_assert_uint_eq(rig_put(&a, 0, 16), 16);
	ck_assert_uint_eq(room_of(&a), 64);
	rig_put(&b, 0, 48); /* all that is left */
	rig_tick(a.c, a.now += 2000 * 1000);
	ck_assert_uint_ge(room_of(&a), 16);
	ck_assert_uint_le(room_of(&a), 24); /* the next extent is made ahead */
	ck_assert_uint_ge(room_of(&b), 40);
	ck_assert_uint_le(room_of(&b), 48);
	rig_close(&a);
}
END_TEST

START_TEST(a_new_layout_gets_memory_of_a_full_one)
{
	const struct cache_options o = rig_options(64); /* 8 extents of 8 slots */
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	b = other_pool(&a);
	ck_assert_uint_eq(rig_put(&b, 0, 4), 0); /* EXHAUSTED now: a drain has begun */
	ck_assert_double_eq(rig_stat(&a, "terrace_draining_extents", "tier=host"), 1);
	a.now = b.now += 50000;
	rig_tick(a.c, a.now);
	ck_assert_uint_eq(rig_put(&b, 0, 4), 4);
	ck_assert_double_eq(rig_stat(&a, "terrace_draining_extents", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&a, "terrace_evictions_total", "tier=host,reason=drain"), 8);
	ck_assert_uint_eq(rig_prefix(&a, 0, 64), 56); /* the coldest extent went: the end of the chain */
	/* Warm neighbours are left alone: from here on B evicts its own. */
	ck_assert_uint_eq(rig_put(&b, 10, 4), 4);
	for (uint64_t n = 20; n < 60; n++, a.now = b.now += 100000) {
		ck_assert_uint_eq(rig_put(&b, n, 1), 1);
		rig_tick(a.c, a.now);
	}
	ck_assert_uint_eq(rig_prefix(&a, 0, 64), 56);
	/* A cold one is not: after a while B grows at A's cost. */
	for (uint64_t n = 100; n < 300; n++, a.now = b.now += 100000) {
		rig_put(&b, n, 1);
		rig_tick(a.c, a.now);
	}
	ck_assert_double_gt(rig_stat(&a, "terrace_extent_drains_total", ""), 2);
	rig_close(&a);
}
END_TEST

START_TEST(a_pinned_block_delays_a_drain)
{
	const struct cache_options o = rig_options(16); /* 8 extents of 2 slots */
	struct cache_place places[16];
	struct cache_leased leased[16];
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 16), 16);
	for (uint64_t n = 0; n < 16; n += 2)
		ck_assert_int_eq(rig_lease(&a, n, 1, true, &places[n], &leased[n]), STATUS_OK);
	b = other_pool(&a);
	for (int i = 0; i < 10; i++, a.now = b.now += 50000) {
		ck_assert_uint_eq(rig_put(&b, 0, 1), 0);
		rig_tick(a.c, a.now);
	}
	ck_assert_double_eq(rig_stat(&a, "terrace_draining_extents", "tier=host"), 1);
	for (uint64_t n = 0; n < 16; n += 2) {
		ck_assert(rig_matches(rig_block(&a, &places[n]), a.s.block_bytes[0], n, 0));
		ck_assert_int_eq(cache_release(a.c, a.s.id, leased[n].lease), STATUS_OK);
	}
	rig_tick(a.c, a.now += 50000);
	rig_tick(a.c, a.now += 50000);
	ck_assert_double_eq(rig_stat(&a, "terrace_draining_extents", "tier=host"), 0);
	ck_assert_uint_eq(rig_put(&b, 0, 1), 1);
	rig_close(&a);
}
END_TEST

START_TEST(holders_are_told_and_waited_for)
{
	const struct cache_options o = rig_options(8); /* 8 extents of one slot */
	struct cache_place place[8];
	struct cache_leased leased;
	uint32_t page;
	uint64_t bytes;
	struct rig a, b;
	int fd[8];

	told = 0;
	rig_open(&a, &o, 1);
	rig_watch(&a, getpid());
	cache_on_retire(a.c, retire, NULL);
	ck_assert_uint_eq(rig_put(&a, 0, 8), 8);
	ck_assert_int_eq(rig_lease(&a, 0, 8, true, place, &leased), STATUS_OK);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(
			cache_attach_map(a.c, a.attachment, place[i].extent, false, &fd[i], &bytes, &page),
			0);
	ck_assert_int_eq(cache_release(a.c, a.s.id, leased.lease), STATUS_OK);
	b = other_pool(&a);
	ck_assert_uint_eq(rig_put(&b, 0, 1), 0);
	ck_assert_uint_eq(told, 1);
	ck_assert_uint_eq(told_attachment, a.attachment);
	for (int i = 0; i < 25; i++) {
		rig_tick(a.c, a.now += 50000);
		ck_assert_double_eq(rig_stat(&a, "terrace_draining_extents", "tier=host"), 1);
	}
	ck_assert_uint_eq(told, 2); /* once a second */
	ck_assert_int_eq(cache_attach_map(a.c, a.attachment, told_extent, false, &(int){ 0 }, &bytes, &page),
			 STATUS_NOT_FOUND);
	/* Stuck for five seconds: another drain may begin, and this one gets through. */
	a.now += 5000000;
	b.now = a.now;
	ck_assert_uint_eq(rig_put(&b, 0, 1), 0);
	ck_assert_double_eq(rig_stat(&a, "terrace_draining_extents", "tier=host"), 2);
	for (int i = 0; i < 8; i++) {
		close(fd[i]);
		cache_attach_unmapped(a.c, a.attachment, place[i].extent);
	}
	rig_tick(a.c, a.now += 50000);
	ck_assert_double_eq(rig_stat(&a, "terrace_draining_extents", "tier=host"), 0);
	b.now = a.now;
	ck_assert_uint_eq(rig_put(&b, 0, 1), 1);
	rig_close(&a);
}
END_TEST

START_TEST(an_unused_extent_goes_first)
{
	const struct cache_options o = rig_options(64);
	struct cache_keys k = rig_keys(8, 8);
	struct cache_place places[48];
	struct cache_leased leased;
	enum status st[8];
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	/* Everything else is out of reach. */
	ck_assert_int_eq(rig_lease(&a, 0, 8, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(rig_lease(&a, 16, 48, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_delete(a.c, a.s.id, &k, st, NULL, &a.why), STATUS_OK);
	b = other_pool(&a);
	rig_put(&b, 0, 1);
	rig_tick(a.c, a.now += 50000);
	b.now = a.now;
	ck_assert_uint_eq(rig_put(&b, 0, 8), 8);
	ck_assert_double_eq(rig_stat(&a, "terrace_evictions_total", "tier=host,reason=drain"), 0);
	ck_assert_uint_eq(rig_prefix(&a, 16, 48), 48);
	free((void *)k.bytes);
	rig_close(&a);
}
END_TEST

START_TEST(a_pool_that_fills_gets_its_next_extent_ahead)
{
	const struct cache_options o = rig_options(64); /* 8 extents of 8 slots */
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_uint_eq(rig_put(&r, 0, 6), 6);
	rig_tick(r.c, r.now += 50000);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 1); /* a quarter is free */
	ck_assert_uint_eq(rig_put(&r, 6, 1), 1);
	rig_tick(r.c, r.now += 50000);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 2);
	for (int i = 0; i < 5; i++)
		rig_tick(r.c, r.now += 50000);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 2);
	/* The last one of the budget waits until it is needed. */
	for (uint64_t n = 7; n < 56; n++) {
		ck_assert_uint_eq(rig_put(&r, n, 1), 1);
		rig_tick(r.c, r.now += 50000);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 7);
	ck_assert_uint_eq(rig_put(&r, 56, 1), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 8);
	ck_assert_uint_eq(rig_prefix(&r, 0, 57), 57);
	rig_close(&r);
}
END_TEST

/* The tick itself must not take the kernel's time. */
START_TEST(a_tick_leaves_chores_to_others)
{
	const struct cache_options o = rig_options(64);
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert(!cache_tick(a.c, a.now += 50000));
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	b = other_pool(&a);
	ck_assert_uint_eq(rig_put(&b, 0, 1), 0);
	ck_assert(cache_tick(a.c, a.now += 50000));
	ck_assert_double_eq(rig_stat(&a, "terrace_extents", "tier=host"), 8);
	cache_chores(a.c);
	ck_assert_double_eq(rig_stat(&a, "terrace_extents", "tier=host"), 7);
	ck_assert(!cache_tick(a.c, a.now += 50000));
	rig_close(&a);
}
END_TEST

/* One that has much to evict asks all the time whether others have colder blocks. */
START_TEST(who_has_nothing_need_not_wait_for_who_has)
{
	const struct cache_options o = rig_options(64);
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	b = other_pool(&a);
	ck_assert_uint_eq(rig_put(&a, 64, 1), 1);
	ck_assert_uint_eq(rig_put(&b, 0, 1), 0);
	cache_chores(a.c);
	ck_assert_double_eq(rig_stat(&a, "terrace_extents", "tier=host"), 7);
	ck_assert_uint_eq(rig_put(&b, 0, 1), 1);
	rig_close(&a);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { a_new_layout_gets_memory_of_a_full_one, policies_are_told_what_others_leave, a_pinned_block_delays_a_drain,
				       holders_are_told_and_waited_for, an_unused_extent_goes_first,
				       a_pool_that_fills_gets_its_next_extent_ahead,
				       a_tick_leaves_chores_to_others, who_has_nothing_need_not_wait_for_who_has };

	return rig_main("cache_room", tests, sizeof(tests) / sizeof(tests[0]));
}
