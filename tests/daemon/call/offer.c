/* What is offered to other members before memory drops it (daemon/call/offer.h): the coldest, within bounds, and never in
 * the way of what is stored. What a member takes is tested in arrival.c. */
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/counters.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/call/loan.h"
#include "daemon/call/offer.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <string.h>

enum { HOST = 256, HOLD_US = 2 * 1000 * 1000 };

static struct rig r;
static const struct offer_answer nothing = { .had_room = false };
static const struct offer_answer all = { .taken = { 255, 255, 255, 255, 255, 255, 255, 255 }, .taken_bytes = 8 };

static void open_full(void)
{
	struct cache_options o = rig_options(HOST);

	o.spill_share_milli = 250;
	rig_open(&r, &o, 1);
	for (uint64_t i = 0; i < 2 * HOST; i++)
		ck_assert_uint_eq(rig_put(&r, i, 1), 1);
}

static uint64_t counted(enum counter which)
{
	return atomic_load(&r.c->counters[which]);
}

static bool is_marked(const struct offer *o, uint32_t i, uint8_t bit)
{
	bool is;

	cache_lock(r.c);
	const struct block *b = by_id_find(r.c, o->block[i].id);

	is = b && block_is(b, bit);
	cache_unlock(r.c);
	return is;
}

/* The coldest are offered, in their order, at most 1/16 of memory at a time. */
START_TEST(the_coldest_are_offered)
{
	struct offer o, second;

	open_full();
	const uint64_t before = counted(COUNTER_EVICTED_FULL);

	ck_assert(cache_offer_begin(r.c, HOLD_US, r.now, &o));
	ck_assert_uint_eq(o.count, HOST / OFFER_SHARE);
	ck_assert_uint_le(o.bytes, r.c->options.host_bytes / OFFER_SHARE);
	for (uint32_t i = 1; i < o.count; i++) {
		uint8_t key[RIG_KEY_BYTES];
		uint64_t n, first;

		memcpy(&n, o.block[i].key, sizeof(n));
		memcpy(&first, o.block[0].key, sizeof(first));
		rig_key(key, n);
		ck_assert_uint_eq(n, first + i);
	}
	ck_assert(!cache_offer_begin(r.c, HOLD_US, r.now, &second));
	ck_assert_uint_eq(cache_offer_end(r.c, &o, &nothing), 0);
	ck_assert_uint_eq(r.c->offered_bytes, 0);
	ck_assert(cache_offer_begin(r.c, HOLD_US, r.now, &second)); /* the same again */
	ck_assert_uint_eq(second.block[0].id, o.block[0].id);
	cache_offer_end(r.c, &second, &nothing);
	ck_assert_uint_eq(counted(COUNTER_EVICTED_FULL), before);
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

/* What was taken is not offered again, and is no loss when it goes. */
START_TEST(what_was_taken_is_marked)
{
	struct offer o, next;

	open_full();
	const uint64_t before = counted(COUNTER_EVICTED_FULL);

	ck_assert(cache_offer_begin(r.c, HOLD_US, r.now, &o));
	ck_assert_uint_eq(cache_offer_end(r.c, &o, &all), o.count);
	ck_assert(is_marked(&o, 0, BLOCK_AT_PEER));
	ck_assert(cache_offer_begin(r.c, HOLD_US, r.now, &next));
	ck_assert_uint_ne(next.block[0].id, o.block[0].id);
	cache_offer_end(r.c, &next, &(struct offer_answer){ .had_room = true });
	ck_assert(is_marked(&next, 0, BLOCK_UNWANTED));
	for (uint64_t i = 0; i < o.count; i++)
		ck_assert_uint_eq(rig_put(&r, 1000 + i, 1), 1);
	ck_assert_uint_eq(counted(COUNTER_EVICTED_PEER), o.count);
	ck_assert_uint_eq(counted(COUNTER_EVICTED_FULL), before);
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

/* A block that would be dropped is not dropped in the place of a colder one that is offered. */
START_TEST(memory_that_is_short_withdraws)
{
	struct offer o;

	open_full();
	ck_assert(cache_offer_begin(r.c, HOLD_US, r.now, &o));
	ck_assert_uint_eq(rig_put(&r, 1000, 1), 1);
	ck_assert_uint_eq(counted(COUNTER_OFFERS_WITHDRAWN), 1);
	ck_assert_uint_eq(r.c->offered_bytes, 0);
	cache_lock(r.c);
	ck_assert_ptr_null(by_id_find(r.c, o.block[0].id));
	ck_assert_ptr_nonnull(by_id_find(r.c, o.block[1].id));
	cache_unlock(r.c);
	ck_assert_uint_eq(cache_offer_end(r.c, &o, &(struct offer_answer){ .had_room = true }), 0);
	ck_assert(!is_marked(&o, 1, BLOCK_UNWANTED | BLOCK_AT_PEER));
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { the_coldest_are_offered, what_was_taken_is_marked, memory_that_is_short_withdraws };

	return rig_main("cache_offer", tests, sizeof(tests) / sizeof(tests[0]));
}
