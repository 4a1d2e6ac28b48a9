/* Why a block is where it is. */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/explain.h"
#include "daemon/call/lease.h"
#include "eviction/policy.h"
#include "tests/daemon/cache_rig.h"

#include <string.h>

#ifdef TERRACE_SANITIZED
enum { SLOTS = 64 };
#else
enum { SLOTS = 128 };
#endif

static bool explain(struct rig *r, uint64_t n, struct cache_explained *out)
{
	uint8_t key[RIG_KEY_BYTES];
	uint32_t shown;

	rig_key(key, n);
	ck_assert_int_eq(cache_explain(r->c, &(struct cache_block_name){ .tenant = "", .key = key,
			.key_bytes = sizeof(key) }, r->now, out, 1, &shown, &r->why), STATUS_OK);
	return shown;
}

START_TEST(those_that_are_there_have_a_rank_and_a_rival)
{
	struct cache_options o = rig_options(SLOTS);
	struct cache_explained e;
	uint8_t key[RIG_KEY_BYTES];
	struct rig r;

	rig_open(&r, &o, 1);
	for (uint64_t n = 0; n < 16; n++)
		rig_put(&r, n, 1);
	r.now += 3000000;
	rig_key(key, 0);
	for (uint64_t n = 0; n < 16; n++) {
		ck_assert(explain(&r, n, &e));
		ck_assert_str_eq(e.tier, "host");
		ck_assert_str_eq(e.policy, "lru");
		ck_assert(e.ranked);
		ck_assert_uint_eq(e.rank, n);
		ck_assert_uint_eq(e.idle_ms, 3000);
		ck_assert_uint_eq(e.rival_bytes, RIG_KEY_BYTES);
		ck_assert(!memcmp(e.rival, key, sizeof(key)));
		ck_assert_str_eq(e.left, "");
	}
	ck_assert(!explain(&r, 99, &e));
	ck_assert_int_eq(cache_explain(r.c, &(struct cache_block_name){ .tenant = "absent", .key = key,
			.key_bytes = sizeof(key) }, r.now, &e, 1, &(uint32_t){ 0 }, &r.why), STATUS_DENIED);
	ck_assert_int_eq(cache_explain(r.c, &(struct cache_block_name){ .tenant = "", .key = key }, r.now, &e,
				       1, &(uint32_t){ 0 }, &r.why), STATUS_INVALID);
	rig_close(&r);
}
END_TEST

START_TEST(those_that_left_say_when_and_why)
{
	struct cache_options o = rig_options(SLOTS);
	struct cache_explained e;
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, SLOTS);
	r.now += 5000000;
	rig_put(&r, 1000, 1);
	r.now += 2000000;
	ck_assert(explain(&r, SLOTS - 1, &e));
	ck_assert_str_eq(e.tier, "");
	ck_assert_str_eq(e.left, "host");
	ck_assert_str_eq(e.left_reason, "full");
	ck_assert_uint_eq(e.left_idle_ms, 5000);
	ck_assert_uint_eq(e.left_ms_ago, 2000);
	ck_assert(!e.regretted);
	rig_prefix(&r, SLOTS - 1, 1);
	rig_tick(r.c, r.now);
	ck_assert(explain(&r, SLOTS - 1, &e));
	ck_assert(e.regretted);
	rig_put(&r, SLOTS - 1, 1);
	ck_assert(explain(&r, SLOTS - 1, &e));
	ck_assert_str_eq(e.tier, "host");
	ck_assert_str_eq(e.left, "");
	rig_close(&r);
}
END_TEST

START_TEST(what_is_on_disk_alone_left_memory)
{
	struct cache_explained e;
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 512);
	o = rig_disk_options(&d, 1, SLOTS);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint32_t i = 0; i < 2 * SLOTS; i += 8) {
		rig_put(&r, i, 8);
		rig_quiet(&r);
	}
	ck_assert(explain(&r, 7, &e));
	ck_assert_str_eq(e.tier, "disk");
	ck_assert_str_eq(e.left, "host");
	ck_assert(!e.ranked);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
	ck_assert(explain(&r, 7, &e));
	ck_assert_str_eq(e.tier, "host+disk");
	ck_assert_str_eq(e.left, "");
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What it costs to compute a block again is part of the score in every tier, if the daemon is told how it grows. */
START_TEST(the_score_counts_what_a_block_costs)
{
	for (uint32_t growth = 0; growth <= 16; growth += 16) {
		uint32_t said = 0, shown = 0, dear = 0;
		struct cache_explained e;
		struct cache_options o;
		struct rig_disks d;
		struct rig r;

		rig_disks_make(&d, NULL, 1, 512);
		o = rig_disk_options(&d, 1, SLOTS);
		o.policy = o.disk_policy = "graph";
		o.recompute_growth = growth;
		rig_open(&r, &o, 1);
		rig_restored(&r);
		for (uint32_t i = 0; i < 2 * SLOTS; i += 8) {
			r.now += 100000;
			rig_prefix(&r, i, 8);
			rig_tick(r.c, r.now);
			rig_put(&r, i, 8);
			rig_quiet(&r);
		}
		for (uint64_t n = 0; n < 2 * SLOTS; n++) {
			ck_assert(explain(&r, n, &e));
			for (uint32_t t = 0; t < e.tiers; t++, shown++)
				for (uint32_t f = 0; f < e.at[t].features; f++)
					if (!strcmp(e.at[t].feature[f].name, "cost_milli")) {
						said++;
						dear += e.at[t].feature[f].value > 1000;
					}
		}
		ck_assert_uint_gt(shown, 2 * SLOTS);
		ck_assert_uint_eq(said, growth ? shown : 0);
		ck_assert_int_eq(dear > 0, growth > 0);
		rig_close(&r);
		rig_disks_remove(&d);
	}
}
END_TEST

/* Each tier has a policy of its own, that says what it goes by; ranks are the orders in which blocks leave. */
START_TEST(each_tier_says_why)
{
	struct cache_explained e, least = { .tiers = 0 };
	struct cache_options o;
	struct rig_disks d;
	uint32_t seen = 0;
	uint64_t first;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 512);
	o = rig_disk_options(&d, 1, SLOTS);
	o.policy = "graph";
	o.disk_policy = "lru";
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint32_t i = 0; i < 2 * SLOTS; i += 8) {
		r.now += 100000;
		rig_put(&r, i, 8);
		rig_quiet(&r);
	}
	for (uint64_t n = 0; n < 2 * SLOTS; n++) {
		ck_assert(explain(&r, n, &e));
		ck_assert_uint_ge(e.tiers, 1);
		for (uint32_t t = 0; t < e.tiers; t++) {
			bool host = !strcmp(e.at[t].tier, "host");

			ck_assert_str_eq(e.at[t].policy, host ? "graph" : "lru");
			ck_assert(e.at[t].scored == host);
			ck_assert_uint_eq(e.at[t].features > 3, host);
			ck_assert(e.at[t].ranked);
			ck_assert_uint_eq(e.at[t].rival_bytes, RIG_KEY_BYTES);
			if (host && e.at[t].rank == 0)
				least = e;
			seen += host;
		}
	}
	ck_assert_uint_gt(seen, SLOTS / 2);
	/* The first in rank is its own rival. */
	memcpy(&first, least.at[0].rival, sizeof(first)); /* rig_key */
	ck_assert(explain(&r, first, &e));
	ck_assert_uint_eq(e.at[0].rank, 0);
	ck_assert_double_eq(e.at[0].score, e.at[0].rival_score);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- ranks ---- */

enum { KEYS = 3 * SLOTS };

/* Which key has each rank of a tier, among copies that may go; how many there are. Ranks are 0 to that less one, each once. */
static uint32_t ranks_of(struct rig *r, const char *tier, uint64_t *key_of_rank)
{
	static bool taken[KEYS];
	struct cache_explained e;
	uint32_t count = 0;

	memset(taken, 0, sizeof(taken));
	for (uint64_t n = 0; n < KEYS; n++) {
		if (!explain(r, n, &e))
			continue;
		for (uint32_t t = 0; t < e.tiers; t++) {
			if (strcmp(e.at[t].tier, tier) || *e.at[t].kept || (e.not_admitted && !strcmp(tier, "host")))
				continue;
			ck_assert(e.at[t].ranked && e.at[t].rank < KEYS);
			ck_assert(!taken[e.at[t].rank]);
			taken[e.at[t].rank] = true;
			key_of_rank[e.at[t].rank] = n;
			count++;
		}
	}
	for (uint32_t i = 0; i < count; i++)
		ck_assert(taken[i]);
	return count;
}

static bool is_there(struct rig *r, uint64_t n)
{
	struct cache_explained e;

	return explain(r, n, &e) && *e.tier;
}

/* The key that goes next, as any block of the layout is told of it: of what the policy refused the first. */
static uint64_t rival_of(struct rig *r, uint64_t of)
{
	struct cache_explained e;
	uint64_t n;

	ck_assert(explain(r, of, &e));
	ck_assert_uint_eq(e.rival_bytes, RIG_KEY_BYTES);
	memcpy(&n, e.rival, sizeof(n)); /* rig_key */
	return n;
}

/* Blocks of whom some are used again, so that no order but the policy's own is that of their keys. */
static void fill(struct rig *r, uint64_t count)
{
	for (uint64_t n = 0; n < count; n++) {
		r->now += 100000;
		ck_assert_uint_eq(rig_put(r, n, 1), 1);
		if (n % 3 == 0)
			rig_read_all(r, n / 3, 1);
	}
}

static void no_ranks(struct rig *r)
{
	struct cache_explained e;

	for (uint64_t n = 0; n < SLOTS; n++) {
		ck_assert(explain(r, n, &e));
		ck_assert(!e.ranked && e.rank == 0);
		for (uint32_t t = 0; t < e.tiers; t++)
			ck_assert(!e.at[t].ranked && e.at[t].rank == 0);
	}
}

/* Who has rank 0 goes with the next put, of every policy that can tell its order; the others have none. */
START_TEST(ranks_are_the_order_in_which_blocks_go)
{
	uint32_t walkers = 0;

	for (int i = 0; policy_table[i]; i++) {
		struct cache_options o = rig_options(SLOTS);
		uint64_t key_of_rank[KEYS], next;
		struct cache_place place;
		struct cache_leased l;
		struct rig r;

		o.policy = policy_table[i]->name;
		rig_open(&r, &o, 1);
		fill(&r, SLOTS);
		if (!policy_table[i]->walk) {
			no_ranks(&r);
			rig_close(&r);
			continue;
		}
		walkers++;
		for (uint64_t n = SLOTS; n < 2 * SLOTS; n++) {
			const uint32_t count = ranks_of(&r, "host", key_of_rank);

			next = rival_of(&r, n - 1);
			ck_assert(count == SLOTS ? next == key_of_rank[0] : count < SLOTS);
			ck_assert(is_there(&r, next));
			r.now += 100000;
			ck_assert_uint_eq(rig_put(&r, n, 1), 1);
			ck_assert_msg(!is_there(&r, next), "%s: %d was to go", o.policy, (int)next);
		}
		/* What may not go now is passed over. */
		ck_assert_uint_gt(ranks_of(&r, "host", key_of_rank), 1);
		next = key_of_rank[1];
		ck_assert_int_eq(rig_lease(&r, key_of_rank[0], 1, true, &place, &l), STATUS_OK);
		ranks_of(&r, "host", key_of_rank);
		ck_assert_msg(key_of_rank[0] == next, "%s", o.policy);
		ck_assert_int_eq(cache_release(r.c, r.s.id, l.lease), STATUS_OK);
		rig_close(&r);
	}
	ck_assert_uint_ge(walkers, 3);
}
END_TEST

/* The same below memory: a full disk gives up the copy of rank 0 for what memory spills. */
START_TEST(ranks_on_a_disk_are_too)
{
	for (int i = 0; policy_table[i]; i++) {
		uint64_t key_of_rank[KEYS];
		struct cache_options o;
		struct rig_disks d;
		uint32_t all_gone = 0;
		struct rig r;

		if (!policy_table[i]->walk)
			continue;
		rig_disks_make(&d, NULL, 1, SLOTS);
		o = rig_disk_options(&d, 1, SLOTS / 4);
		o.disk_policy = policy_table[i]->name;
		rig_open(&r, &o, 1);
		rig_restored(&r);
		for (uint64_t n = 0; n < KEYS; n++) {
			const uint32_t count = ranks_of(&r, "disk", key_of_rank);
			uint32_t gone = 0;

			r.now += 100000;
			ck_assert_uint_eq(rig_put(&r, n, 1), 1);
			rig_quiet(&r);
			while (gone < count && !is_there(&r, key_of_rank[gone]))
				gone++;
			for (uint32_t k = gone; k < count; k++) /* in that order */
				ck_assert_msg(is_there(&r, key_of_rank[k]), "%s: %d of rank %u has gone before %d", o.disk_policy,
					      (int)key_of_rank[k], k, (int)key_of_rank[gone]);
			all_gone += gone;
		}
		ck_assert_uint_ge(all_gone, SLOTS / 2);
		rig_close(&r);
		rig_disks_remove(&d);
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		the_score_counts_what_a_block_costs, each_tier_says_why, those_that_are_there_have_a_rank_and_a_rival, those_that_left_say_when_and_why,
		what_is_on_disk_alone_left_memory, ranks_are_the_order_in_which_blocks_go, ranks_on_a_disk_are_too,
	};

	return rig_main("cache_explain", tests, sizeof(tests) / sizeof(tests[0]));
}
