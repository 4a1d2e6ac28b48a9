/* Why a block is where it is. */
#include <string.h>

#include "tests/cache_rig.h"

enum { SLOTS = 128 };

static bool explain(struct rig *r, uint64_t n, struct cache_explained *out)
{
	uint8_t key[RIG_KEY_BYTES];
	uint32_t shown;

	rig_key(key, n);
	ck_assert_int_eq(cache_explain(r->c, "", 0, key, sizeof(key), r->now, out, 1, &shown, &r->why), STATUS_OK);
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
	ck_assert_int_eq(cache_explain(r.c, "nobody", 0, key, sizeof(key), r.now, &e, 1, &(uint32_t){ 0 }, &r.why), STATUS_DENIED);
	ck_assert_int_eq(cache_explain(r.c, "", 0, key, 0, r.now, &e, 1, &(uint32_t){ 0 }, &r.why), STATUS_INVALID);
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

int main(void)
{
	const TTest *const tests[] = {
		the_score_counts_what_a_block_costs, each_tier_says_why, those_that_are_there_have_a_rank_and_a_rival, those_that_left_say_when_and_why,
		what_is_on_disk_alone_left_memory,
	};

	return rig_main("cache_explain", tests, sizeof(tests) / sizeof(tests[0]));
}
