/* What the advice makes of sessions with a grid: policies hear of cells alone, what a sparse layout has not is no loss,
 * chains are those of the layout that stands for them, and a recording counts units. */
#include "daemon/advice/graph.h"
#include "daemon/advice/trace.h"
#include "daemon/block/grid.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "eviction/policy.h"
#include "eviction/replay/read.h"
#include "eviction/trace.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT = RIG_TOKENS, FULL = 1, STATE = 2, KEYS_MAX = 16 };

/* Full attention of two units a block, and a state of one; they share a class of memory. */
static void join_hybrid(struct rig *to, struct rig *from, bool sparse)
{
	struct kv_layout layouts[2] = { rig_layout(20, 0), rig_layout(21, 0) };
	const struct grid_wish wishes[2] = { { .partial = false }, { .last = 1, .sparse = sparse } };
	const struct cache_open_call q = { .tenant = "",
					   .layouts = layouts,
					   .layout_count = 2,
					   .unit = UNIT,
					   .wishes = wishes,
					   .engine = "test",
					   .now_us = from->now };
	uint64_t session;

	layouts[0].block_tokens = 2 * UNIT;
	*to = (struct rig){ .c = from->c, .now = from->now };
	ck_assert_int_eq(cache_session_open(to->c, &q, &to->s, &to->why), STATUS_OK);
	ck_assert_int_eq(cache_attach(to->c, to->s.token, 1, to->now, &to->attachment, &session, &to->why), STATUS_OK);
}

static struct cache_keys keys_named(const uint64_t *chain, uint32_t count, uint8_t *bytes)
{
	for (uint32_t i = 0; i < count; i++)
		rig_key(bytes + (size_t)i * RIG_KEY_BYTES, chain[i]);
	return (struct cache_keys){ bytes, count, RIG_KEY_BYTES };
}

/* All full blocks of a chain that are not there yet, and a state at its end. */
static void put_chain(struct rig *r, const uint64_t *chain, uint32_t count)
{
	const struct cache_on on = { .attachment = r->attachment, .gpu = CACHE_HOST };
	uint8_t bytes[KEYS_MAX * RIG_KEY_BYTES];
	const struct cache_keys k = keys_named(chain, count, bytes);
	struct cache_commit_item items[KEYS_MAX] = { { 0 } };
	struct cache_place places[2 * KEYS_MAX];
	enum status statuses[KEYS_MAX];
	uint64_t cells[KEYS_MAX], reservations[KEYS_MAX];
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++)
		cells[i] = (i % 2 ? FULL : 0) | (i == count - 1 ? STATE : 0);
	const struct cache_reserve_call reserve = { .session = r->s.id, .keys = &k, .cells = cells, .on = &on,
						    .may_grow = true, .now_us = r->now, .statuses = statuses,
						    .reservations = reservations, .places = places,
						    .places_max = 2 * KEYS_MAX };

	ck_assert_int_eq(cache_reserve(r->c, &reserve, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		if (reservations[i])
			items[n++].reservation = reservations[i];
	const struct cache_commit_call commit = { .session = r->s.id, .items = items, .count = n, .now_us = r->now,
						  .unix_ms = 1, .statuses = statuses };

	ck_assert_int_eq(cache_commit(r->c, &commit, NULL, &r->why), STATUS_OK);
}

static uint32_t prefix_of(struct rig *r, const uint64_t *chain, uint32_t count)
{
	uint8_t bytes[KEYS_MAX * RIG_KEY_BYTES];
	const struct cache_keys k = keys_named(chain, count, bytes);
	uint32_t prefix = 99;

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, NULL, 0, &r->why), STATUS_OK);
	return prefix;
}

static const uint64_t chain[] = { 1, 2, 3, 4, 5, 6, 7, 8 }, longer[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 },
		      other[] = { 1, 2, 33, 34, 35, 36 };

/* ---- policies ---- */

static struct policy_ops fake;
static struct {
	uint32_t requests, count, tokens, block_tokens;
} heard;

static void hear(struct policy *p, const struct policy_request *q)
{
	(void)p;
	heard.requests++;
	heard.count = q->count;
	heard.tokens = q->tokens;
	heard.block_tokens = q->block_tokens;
}

START_TEST(policies_hear_of_cells_alone)
{
	const struct cache_options o = rig_options(64);
	struct rig plain, r;

	rig_open(&plain, &o, 1);
	join_hybrid(&r, &plain, true);
	fake = *policy_find("lru");
	fake.request = hear;
	r.c->policy = &fake;
	put_chain(&r, chain, 8);
	ck_assert_uint_eq(prefix_of(&r, longer, 10), 8);
	rig_tick(r.c, r.now);
	ck_assert_uint_eq(heard.requests, 1);
	ck_assert_uint_eq(heard.count, 5 + 1); /* full blocks, one of them not there, and the one state that is there */
	ck_assert_uint_eq(heard.tokens, 10 * UNIT);
	ck_assert_uint_ge(heard.count * heard.block_tokens, heard.tokens);
	rig_close(&plain);
}
END_TEST

/* Of what was there and has left: four full blocks, and a state. */
static double regrets(bool sparse)
{
	const struct cache_options o = rig_options(16);
	struct rig plain, r;
	double n;

	rig_open(&plain, &o, 1);
	join_hybrid(&r, &plain, sparse);
	put_chain(&r, chain, 8);
	plain.now = r.now += 1000000;
	for (uint64_t i = 0; i < 4; i++)
		ck_assert_uint_eq(rig_put(&plain, 1000 + 8 * i, 8), 8);
	ck_assert_uint_eq(prefix_of(&r, chain, 8), 0);
	rig_tick(r.c, r.now);
	n = rig_stat(&r, "terrace_evictions_regretted_total", "tier=host");
	rig_close(&plain);
	return n;
}

START_TEST(what_a_sparse_layout_has_not_is_no_regret)
{
	ck_assert_double_eq(regrets(true), 4);
	ck_assert_double_eq(regrets(false), 5);
}
END_TEST

/* ---- chains ---- */

static uint64_t hold(struct rig *r, const uint64_t *keys, uint32_t count)
{
	uint8_t bytes[KEYS_MAX * RIG_KEY_BYTES];
	const struct cache_keys k = keys_named(keys, count, bytes);
	struct cache_place places[2 * KEYS_MAX];
	struct cache_leased leased;

	ck_assert_int_eq(rig_lease_keys(r, &k, places, &leased), STATUS_OK);
	ck_assert_uint_eq(leased.blocks, count);
	return leased.lease;
}

static uint32_t ties(struct rig *r, uint64_t n, uint64_t *to)
{
	struct cache_graph_edge e[64];
	uint8_t key[RIG_KEY_BYTES];
	uint32_t count, found = 0;

	rig_key(key, n);
	ck_assert_int_eq(cache_graph(r->c, key, sizeof(key), e, 64, &count, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		if (!strcmp(e[i].type, "co_attend") && !found++ && to)
			memcpy(to, e[i].key, 8);
	return found;
}

/* A lease of a chain has other blocks than one of its beginning: another state. */
START_TEST(a_beginning_is_no_other_chain)
{
	struct cache_options o = rig_options(64);
	struct rig plain, r;
	uint64_t a, b, to = 0;

	o.graph_nodes = 4096;
	rig_open(&plain, &o, 1);
	join_hybrid(&r, &plain, true);
	put_chain(&r, chain, 8);
	put_chain(&r, longer, 10);
	put_chain(&r, other, 6);
	a = hold(&r, chain, 8);
	b = hold(&r, longer, 10);
	ck_assert_int_eq(cache_release(r.c, r.s.id, b), STATUS_OK);
	advisor_pass(r.c);
	ck_assert_uint_eq(ties(&r, 8, NULL), 0);
	ck_assert_uint_eq(ties(&r, 10, NULL), 0);
	b = hold(&r, other, 6); /* it parts behind the first block */
	ck_assert_int_eq(cache_release(r.c, r.s.id, a), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, b), STATUS_OK);
	advisor_pass(r.c);
	ck_assert_uint_eq(ties(&r, 8, &to), 1);
	ck_assert_uint_eq(to, 34);
	ck_assert_uint_eq(ties(&r, 36, &to), 1);
	ck_assert_uint_eq(to, 4);
	rig_close(&plain);
}
END_TEST

/* ---- what is read ahead ---- */

/* Of a Lookup's prefix what its Lease will need: the state at its end, and not the one before. */
START_TEST(what_a_prefix_needs_is_read_prefetch)
{
	uint8_t bytes[KEYS_MAX * RIG_KEY_BYTES], states[2 * KEYS_MAX];
	const struct cache_keys k = keys_named(chain, 8, bytes);
	struct cache_options o;
	struct rig plain, r;
	struct rig_disks d;
	uint32_t prefix;

	rig_disks_make(&d, NULL, 1, 1024);
	o = rig_disk_options(&d, 1, 128);
	o.graph_nodes = 4096;
	o.prefetch_bytes = 1 << 30;
	rig_open(&plain, &o, 1);
	rig_restored(&plain);
	join_hybrid(&r, &plain, true);
	put_chain(&r, chain, 4);
	put_chain(&r, chain, 8);
	rig_quiet(&plain);
	rig_put_slowly(&plain, 1000, 256);
	rig_quiet(&plain);
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, states, sizeof(states), &r.why), STATUS_OK);
	ck_assert_uint_eq(prefix, 8);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(states[2 * i], i % 2 ? 2 : 4);
	rig_tick(r.c, r.now);
	rig_quiet(&plain);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), 5 * RIG_SLOT_BYTES);
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, states, sizeof(states), &r.why), STATUS_OK);
	for (uint32_t i = 1; i < 8; i += 2)
		ck_assert_uint_eq(states[2 * i], 1);
	ck_assert_uint_eq(states[2 * 3 + 1], 2);
	ck_assert_uint_eq(states[2 * 7 + 1], 1);
	ck_assert_uint_eq(states[2 * 5 + 1], 0);
	rig_close(&plain);
	rig_disks_remove(&d);
}
END_TEST

/* ---- recordings ---- */

START_TEST(a_recording_counts_units)
{
	const struct cache_options o = rig_options(64);
	char path[] = "/tmp/terrace-units-XXXXXX", why[160] = "";
	struct cache_trace_result result;
	struct rig plain, r;
	struct trace trace;

	rig_open(&plain, &o, 1);
	join_hybrid(&r, &plain, true);
	put_chain(&r, chain, 8);
	ck_assert_int_eq(cache_trace_start(r.c, mkstemp(path), 0, &r.why), STATUS_OK);
	prefix_of(&r, longer, 10);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_OK);
	ck_assert_uint_eq(result.requests, 1);
	ck_assert_uint_eq(result.blocks, 10);
	ck_assert_uint_eq(result.dropped, 0);
	rig_close(&plain);
	ck_assert_msg(!trace_read(path, &trace, why, sizeof(why)), "%s", why);
	ck_assert_uint_eq(trace.block_tokens, UNIT);
	trace_fini(&trace);
	unlink(path);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { policies_hear_of_cells_alone, what_a_sparse_layout_has_not_is_no_regret,
				       a_beginning_is_no_other_chain, what_a_prefix_needs_is_read_prefetch,
				       a_recording_counts_units };

	return rig_main("cache_advice_units", tests, sizeof(tests) / sizeof(tests[0]));
}
