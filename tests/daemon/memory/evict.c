/* Memory that goes from one class to another: spans are emptied and cut anew, and no process is asked. */
#include "daemon/block/block.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/values.h"
#include "daemon/cache.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/memory/evict.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "daemon/session/session.h"
#include "kernels/format.h"
#include "store/arena/arena.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A session over one layout of another class than the rig's own. */
static struct rig other_class(struct rig *r)
{
	const struct kv_layout l = rig_layout_other(40);
	struct rig b = { .c = r->c, .now = r->now };
	uint64_t session;

	ck_assert_int_eq(cache_session_open(b.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = b.now }, &b.s, &b.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(b.c, b.s.token, 1, b.now, &b.attachment, &session, &b.why), STATUS_OK);
	ck_assert_uint_eq(b.s.slot_bytes[0], RIG_OTHER_SLOT_BYTES);
	return b;
}

/* With spans of several slots: granules of 64 KiB, of which a span of the rig's own class has one, and so 8 slots. */
static struct cache_options options_of_spans(uint32_t spans)
{
	struct cache_options o = rig_options(8 * spans);

	o.granule_bytes = 64 << 10;
	o.host_bytes = (spans + 1) * o.granule_bytes; /* and the reserve */
	o.extent_bytes = 4 * o.granule_bytes;
	return o;
}

static void pass(struct rig *a, struct rig *b, uint64_t us)
{
	a->now = b->now = (a->now > b->now ? a->now : b->now) + us;
	rig_tick(a->c, a->now);
}

static double trades(struct rig *r, const char *reason)
{
	char labels[64];

	snprintf(labels, sizeof(labels), "tier=host,reason=%s", reason);
	return rig_stat(r, "terrace_span_trades_total", labels);
}

/* Of the only layout of a session. */
static struct memory_class *class_of(const struct rig *r)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];

	ck_assert_uint_eq(session_pools(r->c, r->s.id, pools), 1);
	return pools[0]->class;
}

/* The slots that the policy of the class of a session's layout was told of. */
static uint64_t room_of(const struct rig *r)
{
	return class_of(r)->policy_room;
}

START_TEST(policies_are_told_what_others_leave)
{
	struct cache_options o = rig_options(64);
	struct rig a, b;

	o.policy = "graph";
	rig_open(&a, &o, 1);
	b = other_class(&a);
	ck_assert_uint_eq(rig_put(&a, 0, 16), 16);
	ck_assert_uint_ge(room_of(&a), 64);
	rig_put(&b, 0, 32); /* all that is left */
	pass(&a, &b, 2000 * 1000);
	ck_assert_uint_ge(room_of(&a), 16);
	ck_assert_uint_le(room_of(&a), 20);
	ck_assert_uint_ge(room_of(&b), 30);
	ck_assert_uint_le(room_of(&b), 34);
	rig_close(&a);
}
END_TEST

/* Whatever another class has filled: from the reserve, then from its coldest spans, at the first try each time. */
START_TEST(a_newcomer_is_served_at_once)
{
	const struct cache_options o = options_of_spans(16);
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 128), 128);
	b = other_class(&a);
	pass(&a, &b, 50000);
	ck_assert_uint_eq(rig_put(&b, 0, 5), 5);
	ck_assert_double_eq(trades(&a, "need"), 0);
	ck_assert_uint_eq(rig_prefix(&a, 0, 128), 128); /* what was kept for newcomers was enough */
	rig_check_accounting(a.c);
	rig_close(&a);
}
END_TEST

/* One that finds its own blocks all held takes the coldest span of the other's, and no more than that. */
START_TEST(what_is_held_makes_no_room)
{
	const struct cache_options o = options_of_spans(16);
	struct cache_place places[5];
	struct cache_leased leased;
	struct rig a, b;

	rig_open(&a, &o, 1);
	b = other_class(&a);
	ck_assert_uint_eq(rig_put(&a, 120, 8), 8);
	pass(&a, &b, 1000 * 1000);
	ck_assert_uint_eq(rig_put(&a, 0, 120), 120);
	ck_assert_uint_eq(rig_put(&b, 0, 5), 5);
	ck_assert_int_eq(rig_lease(&b, 0, 5, true, places, &leased), STATUS_OK);
	pass(&a, &b, 1000 * 1000);
	ck_assert_uint_eq(rig_put(&b, 5, 5), 5);
	ck_assert_double_eq(trades(&a, "need"), 1);
	ck_assert_double_eq(rig_stat(&a, "terrace_evictions_total", "tier=host,reason=trade"), 8);
	ck_assert_uint_eq(rig_prefix(&a, 0, 128), 120);
	for (uint64_t n = 0; n < 5; n++)
		ck_assert(rig_matches(rig_block(&b, &places[n]), b.s.block_bytes[0], n, 0));
	rig_check_accounting(a.c);
	rig_close(&a);
}
END_TEST

/* Each span has a block that is held, so none can be emptied: the reserve is all there is, and nothing is given up for nothing. */
START_TEST(one_pinned_block_in_each_span)
{
	const struct cache_options o = options_of_spans(16);
	struct cache_place places[16];
	struct cache_leased leased[16];
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 128), 128);
	for (uint64_t n = 0; n < 16; n++)
		ck_assert_int_eq(rig_lease(&a, 8 * n, 1, true, &places[n], &leased[n]), STATUS_OK);
	b = other_class(&a);
	pass(&a, &b, 1000 * 1000);
	ck_assert_uint_eq(rig_put(&b, 0, 5), 5);
	ck_assert_uint_eq(rig_put(&b, 5, 3), 3); /* of its own */
	for (uint64_t n = 0; n < 16; n++)
		ck_assert(rig_matches(rig_block(&a, &places[n]), a.s.block_bytes[0], 8 * n, 0));
	ck_assert_uint_eq(rig_prefix(&a, 0, 128), 128);
	rig_check_accounting(a.c);
	rig_close(&a);
}
END_TEST

/* A process that has all memory mapped for writing, and never answers, keeps none of it. */
START_TEST(nobody_is_asked_to_unmap)
{
	const struct cache_options o = options_of_spans(16);
	struct cache_place place[128];
	struct cache_leased leased;
	struct rig a, b;
	struct cache_lent lent[128];

	rig_open(&a, &o, 1);
	rig_watch(&a, getpid());
	ck_assert_uint_eq(rig_put(&a, 0, 128), 128);
	ck_assert_int_eq(rig_lease(&a, 0, 128, true, place, &leased), STATUS_OK);
	for (int i = 0; i < 128; i++)
		ck_assert_int_eq(cache_attach_lend(a.c, a.attachment, place[i].extent, false, &lent[i]), STATUS_OK);
	ck_assert_int_eq(cache_release(a.c, a.s.id, leased.lease), STATUS_OK);
	b = other_class(&a);
	pass(&a, &b, 1000 * 1000);
	for (uint64_t n = 0; n < 200; n++, pass(&a, &b, 100 * 1000))
		ck_assert_uint_eq(rig_put(&b, n, 1), 1);
	ck_assert_uint_ge(rig_prefix(&b, 150, 50), 50);
	rig_check_accounting(a.c);
	for (int i = 0; i < 128; i++)
		close(lent[i].fd);
	rig_close(&a);
}
END_TEST

/* Warm neighbours are left alone; what is older by a quarter than the own next victim is not. */
START_TEST(the_colder_of_two_classes_gives)
{
	const struct cache_options o = options_of_spans(16);
	double warm;
	struct rig a, b;

	rig_open(&a, &o, 1);
	b = other_class(&a);
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	ck_assert_uint_eq(rig_put(&b, 0, 40), 40);
	for (uint64_t n = 100; n < 160; n++, pass(&a, &b, 100 * 1000)) {
		ck_assert_uint_eq(rig_put(&b, n, 1), 1);
		ck_assert_uint_eq(rig_read_all(&a, 0, 64), 64);
	}
	ck_assert_uint_eq(rig_prefix(&a, 0, 64), 64);
	warm = trades(&a, "colder");
	for (uint64_t n = 200; n < 500; n++, pass(&a, &b, 100 * 1000))
		ck_assert_uint_eq(rig_put(&b, n, 1), 1);
	ck_assert_double_gt(trades(&a, "colder"), warm);
	ck_assert_uint_eq(rig_prefix(&a, 0, 64), 0);
	ck_assert_uint_ge(rig_prefix(&b, 425, 75), 75); /* it has the room now */
	rig_check_accounting(a.c);
	rig_close(&a);
}
END_TEST

/* Puts so many new keys, each of which evicts one of the class's own blocks: how often the class looked for what is
 * colder. */
static uint32_t looks_in(struct rig *r, uint64_t first, uint32_t puts)
{
	const struct memory_class *k = class_of(r);
	uint32_t looks = 0;

	for (uint64_t n = first; n < first + puts; n++) {
		ck_assert_uint_eq(rig_put(r, n, 1), 1);
		looks += k->evicted == 0;
	}
	return looks;
}

/* A look for what is colder searches all spans. As long as there is nothing, the next comes after twice as many
 * evictions, but eight times while the class turns over once, and after sixteen spans' worth at most. What is colder
 * then is found by the next look, and the class looks each span's worth again. */
static void vain_looks(uint32_t spans, uint32_t steady)
{
	const uint32_t slots = 8 * spans;
	const struct cache_options o = options_of_spans(spans);
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, slots), slots);
	ck_assert_uint_eq(looks_in(&a, 100000, 1), 1); /* the first has nothing before it */
	for (uint32_t n = 8; n < steady; n *= 2) {
		ck_assert_uint_eq(class_of(&a)->compare_at, n);
		ck_assert_uint_eq(looks_in(&a, 110000 + 1000 * n, n), 1);
	}
	ck_assert_uint_eq(class_of(&a)->compare_at, steady);
	ck_assert_uint_eq(looks_in(&a, 300000, 2 * slots), 2 * slots / steady);
	ck_assert_uint_ge(2 * slots / steady, 2 * 8);
	b = other_class(&a);
	ck_assert_uint_eq(rig_put(&b, 0, 5), 5);
	pass(&a, &b, 60 * 1000 * 1000);
	ck_assert_uint_eq(rig_read_all(&a, 300000 + slots, slots), slots);
	pass(&a, &b, 1000 * 1000);
	ck_assert_uint_eq(looks_in(&a, 400000, steady), 1);
	ck_assert_double_eq(trades(&a, "colder"), 1);
	ck_assert_uint_eq(class_of(&a)->compare_at, 8);
	rig_close(&a);
}

START_TEST(vain_looks_come_less_often)
{
	static const struct {
		uint32_t spans, steady; /* of 8 slots; evictions between two looks in the end */
	} turns[] = { { 16, 16 }, { 64, 64 }, { 256, 128 } };

	for (uint32_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++)
		vain_looks(turns[i].spans, turns[i].steady);
}
END_TEST

/* What was emptied for a class that puts nothing more is kept for it for some seconds, and then is anybody's. */
START_TEST(what_was_emptied_in_vain_is_free_again)
{
	const struct cache_options o = options_of_spans(16);
	double kept;
	struct rig a, b;

	rig_open(&a, &o, 1);
	b = other_class(&a);
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	ck_assert_uint_eq(rig_put(&b, 0, 40), 40);
	pass(&a, &b, 60 * 1000 * 1000);
	for (uint64_t n = 100; trades(&a, "colder") == 0; n++) {
		ck_assert_uint_lt(n, 1000);
		ck_assert_uint_eq(rig_put(&b, n, 1), 1);
	}
	for (int i = 0; rig_stat(&a, "terrace_span_trades", "tier=host") > 0; i++) {
		ck_assert_int_lt(i, 1000);
		pass(&a, &b, 1000);
	}
	kept = rig_stat(&a, "terrace_free_bytes", "tier=host");
	pass(&a, &b, 4 * 1000 * 1000);
	ck_assert_double_eq(rig_stat(&a, "terrace_free_bytes", "tier=host"), kept);
	for (int i = 0; i < 4; i++)
		pass(&a, &b, 1000 * 1000);
	ck_assert_double_gt(rig_stat(&a, "terrace_free_bytes", "tier=host"), kept);
	rig_check_accounting(a.c);
	rig_close(&a);
}
END_TEST

/* Memory without a taken slot belongs to no class. */
START_TEST(what_is_free_needs_no_trade)
{
	const struct cache_options o = options_of_spans(16);
	struct cache_keys k = rig_keys(0, 32);
	struct cache_place places[128];
	struct cache_leased leased;
	enum status st[32];
	struct rig a, b;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 128), 128);
	ck_assert_int_eq(rig_lease(&a, 32, 96, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_delete(a.c, a.s.id, &k, st, NULL, &a.why), STATUS_OK);
	b = other_class(&a);
	ck_assert_uint_eq(rig_put(&b, 0, 20), 20);
	ck_assert_double_eq(trades(&a, "need") + trades(&a, "colder"), 0);
	ck_assert_double_eq(rig_stat(&a, "terrace_evictions_total", "tier=host,reason=trade"), 0);
	ck_assert_uint_eq(rig_prefix(&a, 32, 96), 96);
	free((void *)k.bytes);
	rig_close(&a);
}
END_TEST

/* A reservation of several layouts of one class, each of whose slots is a span: all of a key's slots or none, and the call ends. */
START_TEST(a_key_of_many_layouts_ends)
{
	enum { LAYOUTS = 12 };
	const struct cache_options o = rig_options(64);
	struct cache_keys k = rig_keys(0, 1);
	struct cache_place places[LAYOUTS];
	uint64_t id[2], session;
	struct kv_layout l[LAYOUTS];
	struct rig a, b = { .why = NULL };
	enum status st;

	rig_open(&a, &o, 1);
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	for (uint32_t i = 0; i < LAYOUTS; i++)
		l[i] = rig_layout_other(40 + 8 * i);
	b.c = a.c;
	b.now = a.now;
	ck_assert_int_eq(cache_session_open(b.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = LAYOUTS, .engine = "", .now_us = b.now }, &b.s, &b.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(b.c, b.s.token, 1, b.now, &b.attachment, &session, &b.why), STATUS_OK);
	pass(&a, &b, 1000 * 1000);
	ck_assert_int_eq(cache_reserve(b.c, &(struct cache_reserve_call){ .session = b.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = b.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = b.now, .statuses = &st, .reservations = &id[0],
			.places = places, .places_max = LAYOUTS }, &b.why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	free((void *)k.bytes);
	k = rig_keys(1, 1);
	ck_assert_int_eq(cache_reserve(b.c, &(struct cache_reserve_call){ .session = b.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = b.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = b.now, .statuses = &st, .reservations = &id[1],
			.places = places, .places_max = LAYOUTS }, &b.why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	k.count = 1;
	free((void *)k.bytes);
	rig_check_accounting(a.c);
	rig_close(&a);
}
END_TEST

/* Pages are taken ahead of need, in the chores and not in the tick. */
START_TEST(extents_are_made_prefetch)
{
	const struct cache_options o = rig_options(8192); /* 8 extents of 8 MiB, and one for the reserve */
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 4); /* 32 MiB */
	ck_assert(!cache_tick(r.c, r.now += 50000));
	ck_assert_uint_eq(rig_put(&r, 0, 16), 16);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 4);
	ck_assert(cache_tick(r.c, r.now += 50000));
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 4);
	cache_chores(r.c);
	ck_assert_double_eq(rig_stat(&r, "terrace_extents", "tier=host"), 5);
	ck_assert(!cache_tick(r.c, r.now += 50000));
	rig_close(&r);
}
END_TEST

/* The tick itself must not take the kernel's time, nor empty spans. */
START_TEST(a_tick_leaves_chores_to_others)
{
	const struct cache_options o = options_of_spans(16);
	struct rig a, b;
	double evicted;

	rig_open(&a, &o, 1);
	b = other_class(&a);
	ck_assert_uint_eq(rig_put(&a, 0, 64), 64);
	ck_assert_uint_eq(rig_put(&b, 0, 40), 40);
	pass(&a, &b, 1000 * 1000);
	ck_assert_uint_eq(rig_put(&b, 100, 40), 40);
	a.now = b.now += 10 * 1000 * 1000;
	cache_tick(a.c, a.now);
	evicted = rig_stat(&a, "terrace_evictions_total", "tier=host,reason=trade");
	for (uint64_t n = 200; n < 212; n++)
		ck_assert_uint_eq(rig_put(&b, n, 1), 1);
	if (trades(&a, "colder") > 0) {
		ck_assert_double_eq(rig_stat(&a, "terrace_evictions_total", "tier=host,reason=trade"), evicted);
		ck_assert(cache_tick(a.c, a.now += 50000));
		cache_chores(a.c);
		ck_assert_double_gt(rig_stat(&a, "terrace_evictions_total", "tier=host,reason=trade"), evicted);
	}
	rig_close(&a);
}
END_TEST

/* Nine of a span's bytes in ten belong to no layout: classes of nearly the same need are one, and their blocks lie side by side. */
START_TEST(layouts_of_nearly_one_size_share)
{
	struct cache_options o = rig_options(256);
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct kv_layout l[2] = { rig_layout(0, 0), rig_layout(200, 0) };
	struct cache_place places[8];
	struct cache_leased leased;
	uint64_t session;
	struct rig r;

	o.extent_bytes = o.host_bytes;
	rig_open(&r, &o, 1);
	l[0].layers = 200; /* 115,200 bytes, in a slot of 122,880 */
	l[1].layers = 195;
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = 2, .engine = "", .now_us = r.now }, &r.s, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r.c, r.s.token, 1, r.now, &r.attachment, &session, &r.why), STATUS_OK);
	ck_assert_uint_eq(session_pools(r.c, r.s.id, pools), 2);
	ck_assert_uint_gt(pools[0]->geometry.need_bytes, pools[1]->geometry.need_bytes);
	ck_assert_ptr_eq(pools[0]->class, pools[1]->class);
	ck_assert_uint_eq(pools[1]->class->stride, pools[0]->geometry.need_bytes);
	ck_assert_uint_eq(rig_put(&r, 0, 4), 4);
	ck_assert_int_eq(rig_lease(&r, 0, 4, true, places, &leased), STATUS_OK);
	for (uint64_t n = 0; n < 4; n++)
		for (uint32_t i = 0; i < 2; i++)
			ck_assert(rig_matches(rig_block(&r, &places[2 * n + i]), r.s.block_bytes[i], n, i));
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { policies_are_told_what_others_leave, a_newcomer_is_served_at_once, what_is_held_makes_no_room,
				       one_pinned_block_in_each_span, nobody_is_asked_to_unmap, the_colder_of_two_classes_gives,
				       what_was_emptied_in_vain_is_free_again, what_is_free_needs_no_trade,
				       a_key_of_many_layouts_ends, extents_are_made_prefetch,
				       a_tick_leaves_chores_to_others, vain_looks_come_less_often,
				       layouts_of_nearly_one_size_share };

	return rig_main("cache_room", tests, sizeof(tests) / sizeof(tests[0]));
}
