/* The advisor: what it learns of requests, what is read ahead by it and how that ends, and its graph over a restart. */
#include "daemon/advice/graph.h"
#include "daemon/block/by_id.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/disk/state.h"
#include "eviction/hash.h"
#include "kernels/codec.h"
#include "kernels/format.h"
#include "store/catalog/catalog.h"
#include "store/status.h"
#include "tests/daemon/cache_chain.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HOST = 128, DISK = 1024 };

static struct cache_options options(const struct rig_disks *d)
{
	struct cache_options o = d ? rig_disk_options(d, 1, HOST) : rig_options(HOST);

	o.graph_nodes = 4096;
	o.prefetch_bytes = 1 << 30;
	return o;
}

static const uint64_t head[] = { 1, 2 }, long_[] = { 1, 2, 3, 4, 5, 6 };

/* Edges of a key: how many of that type; *to: the key's number of the first. */
static uint32_t edges(struct rig *r, uint64_t n, const char *type, uint64_t *to)
{
	struct cache_graph_edge e[64];
	uint8_t key[RIG_KEY_BYTES];
	uint32_t count, found = 0;

	rig_key(key, n);
	ck_assert_int_eq(cache_graph(r->c, key, sizeof(key), e, 64, &count, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		if (!strcmp(e[i].type, type) && !found++ && to)
			memcpy(to, e[i].key, 8);
	return found;
}

START_TEST(requests_become_edges)
{
	const struct cache_options o = options(NULL);
	const uint8_t key[RIG_KEY_BYTES] = { 0 };
	uint64_t to;
	struct rig r;

	rig_open(&r, &o, 1);
	chain_request(&r, head, 2);
	chain_request(&r, long_, 6);
	rig_tick(r.c, r.now);
	advisor_pass(r.c);
	ck_assert_uint_eq(edges(&r, 1, "prefix_share", &to), 1);
	ck_assert_uint_eq(to, 2);
	ck_assert_uint_eq(edges(&r, 5, "prefix_share", &to), 1);
	ck_assert_uint_eq(to, 6);
	ck_assert_uint_eq(edges(&r, 2, "temporal", &to), 1);
	ck_assert_uint_eq(to, 6);
	ck_assert_uint_eq(edges(&r, 6, "prefix_share", NULL), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_graph_nodes", ""), 6);
	ck_assert_double_ge(rig_stat(&r, "terrace_graph_edges", ""), 6);
	ck_assert_double_eq(rig_stat(&r, "terrace_advisor_passes_total", ""), 1);
	ck_assert_int_eq(cache_graph(r.c, key, 0, NULL, 0, &(uint32_t){ 0 }, &r.why), STATUS_INVALID);
	rig_close(&r);

	struct cache_options none = rig_options(HOST);

	rig_open(&r, &none, 1);
	ck_assert_int_eq(cache_graph(r.c, key, 1, NULL, 0, &(uint32_t){ 0 }, &r.why), STATUS_UNAVAILABLE);
	rig_close(&r);
}
END_TEST

/* The long chain is known, and pushed out of memory; then its head is asked for. */
static void push_out(struct rig *r, const struct rig_disks *d, const struct cache_options *o)
{
	(void)d;
	rig_open(r, o, 1);
	rig_restored(r);
	chain_request(r, head, 2);
	chain_request(r, long_, 6);
	for (uint64_t n = 1000; n < 1000 + 4 * HOST; n += 8) {
		rig_put(r, n, 8);
		rig_quiet(r);
	}
	rig_tick(r->c, r->now);
	advisor_pass(r->c);
}

static uint32_t in_memory(struct rig *r, uint64_t first, uint32_t count)
{
	struct cache_keys k = rig_keys(first, count);
	uint32_t prefix, n = 0;
	uint8_t states[16];

	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, states, 16, &r->why), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		n += states[i] == 1;
	free((void *)k.bytes);
	return n;
}

START_TEST(what_is_expected_is_read_prefetch)
{
	struct cache_place places[8];
	struct cache_leased leased;
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	push_out(&r, &d, &o);
	rig_quiet(&r);
	r.now += 1000000;
	/* The two that a Lease will ask for, and what came after them before. */
	ck_assert_uint_eq(rig_prefix(&r, 1, 2), 2);
	rig_tick(r.c, r.now);
	rig_quiet(&r);
	ck_assert_uint_eq(in_memory(&r, 1, 6), 6);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), 6 * RIG_SLOT_BYTES);
	ck_assert_int_eq(rig_lease(&r, 1, 2, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=used"), 2 * RIG_SLOT_BYTES);
	ck_assert_int_eq(rig_lease(&r, 3, 3, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=used"), 5 * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=wasted"), 0);
	r.now += 6000000; /* nobody is expected to want it any more */
	for (uint64_t n = 5000; n < 5000 + 2 * HOST; n += 8) {
		rig_put(&r, n, 8);
		rig_quiet(&r);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=wasted"), RIG_SLOT_BYTES);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(the_budget_and_old_lists_are_kept_to)
{
	static const struct {
		uint64_t bytes, later_us;
		double loaded;
		const char *refused;
	} table[] = {
		{ 2 * RIG_SLOT_BYTES, 1000000, 1, "reason=budget" },
		{ 1 << 30, 2500000, 2, "reason=stale" },
		{ 0, 1000000, 0, NULL },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct cache_options o;
		struct rig_disks d;
		struct rig r;

		rig_disks_make(&d, NULL, 1, DISK);
		o = options(&d);
		o.prefetch_bytes = table[i].bytes;
		push_out(&r, &d, &o);
		rig_quiet(&r);
		r.now += table[i].later_us;
		rig_prefix(&r, 1, 2);
		rig_tick(r.c, r.now);
		rig_quiet(&r);
		ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), table[i].loaded * RIG_SLOT_BYTES);
		if (table[i].refused)
			ck_assert_double_ge(rig_stat(&r, "terrace_prefetch_refused_total", table[i].refused), 1);
		rig_close(&r);
		rig_disks_remove(&d);
	}
}
END_TEST

START_TEST(the_graph_survives_a_restart)
{
	struct cache_options o;
	struct rig_disks d;
	uint64_t to = 0;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	push_out(&r, &d, &o);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	for (int restarts = 0; restarts < 3; restarts++) {
		rig_open(&r, &o, 1);
		rig_restored(&r);
		rig_tick(r.c, r.now);
		advisor_pass(r.c);
		ck_assert_uint_eq(edges(&r, 1, "prefix_share", &to), 1);
		ck_assert_uint_eq(to, 2);
		ck_assert_uint_eq(edges(&r, 2, "temporal", &to), 1);
		ck_assert_uint_eq(to, 6);
		rig_close(&r);
	}
	rig_disks_remove(&d);
}
END_TEST

START_TEST(rounds_forget_what_the_graph_forgot)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	o.graph_nodes = 64;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint64_t n = 0; n < 160; n++) {
		struct catalog_view v;
		const uint64_t chain[] = { 10 * n, 10 * n + 1, 10 * n + 2, 10 * n + 3 };

		r.now += 31 * 1000000;
		chain_request(&r, chain, 4);
		rig_tick(r.c, r.now);
		advisor_pass(r.c);
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
		catalog_look(r.c->tier->catalog, &v);
		ck_assert_uint_le(v.records[CATALOG_EDGES], 64 * 10);
	}
	ck_assert_double_gt(rig_stat(&r, "terrace_graph_kept_total", ""), 64 * 10);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- ties besides chains ---- */

/* Without asking. */
static uint32_t seen_in_memory(struct rig *r, uint64_t first, uint32_t count)
{
	uint8_t key[RIG_KEY_BYTES];
	uint32_t n = 0;

	cache_lock(r->c);
	for (uint64_t i = first; i < first + count; i++) {
		const struct block *b;

		rig_key(key, i);
		b = by_id_find(r->c, policy_id(key_name(key, sizeof(key)), r->c->pools[0]->layout_id));
		n += b && b->span;
	}
	cache_unlock(r->c);
	return n;
}

struct held {
	struct cache_place places[64];
	struct cache_leased leased;
};

/* A lease of a chain. */
static void hold(struct rig *r, const uint64_t *chain, uint32_t count, struct held *out)
{
	uint8_t bytes[64 * RIG_KEY_BYTES];
	const struct cache_keys k = { bytes, count, RIG_KEY_BYTES };

	for (uint32_t i = 0; i < count; i++)
		rig_key(bytes + i * RIG_KEY_BYTES, chain[i]);
	ck_assert_int_eq(rig_lease_keys(r, &k, out->places, &out->leased), STATUS_OK);
	ck_assert_uint_eq(out->leased.blocks, count);
}

static void let_go(struct rig *r, const struct held *h)
{
	ck_assert_int_eq(cache_release(r->c, r->s.id, h->leased.lease), STATUS_OK);
}

START_TEST(leases_held_at_a_time_are_tied)
{
	const struct cache_options o = options(NULL);
	struct cache_place places[4];
	struct cache_leased a, b, longer;
	uint64_t to = 0;
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 100, 4);
	rig_put(&r, 200, 4);
	rig_put(&r, 300, 4);
	ck_assert_int_eq(rig_lease(&r, 100, 3, true, places, &a), STATUS_OK);
	ck_assert_int_eq(rig_lease(&r, 100, 4, true, places, &longer), STATUS_OK); /* the same chain: no news */
	ck_assert_int_eq(rig_lease(&r, 200, 4, true, places, &b), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, a.lease), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, b.lease), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, longer.lease), STATUS_OK);
	ck_assert_int_eq(rig_lease(&r, 300, 4, true, places, &a), STATUS_OK); /* alone */
	ck_assert_int_eq(cache_release(r.c, r.s.id, a.lease), STATUS_OK);
	rig_tick(r.c, r.now);
	advisor_pass(r.c);
	/* From the end of each to the beginning of the other. */
	ck_assert_uint_eq(edges(&r, 103, "co_attend", &to), 1);
	ck_assert_uint_eq(to, 200);
	ck_assert_uint_eq(edges(&r, 203, "co_attend", &to), 1);
	ck_assert_uint_eq(to, 100);
	ck_assert_uint_eq(edges(&r, 102, "co_attend", NULL), 1);
	ck_assert_uint_eq(edges(&r, 303, "co_attend", NULL), 0);
	ck_assert_uint_eq(edges(&r, 203, "spill_link", &to), 1);
	ck_assert_uint_eq(to, 203);
	rig_close(&r);
}
END_TEST

/* What two chains have in common is no beginning of either: each begins where they part. */
START_TEST(ties_lead_to_where_chains_part)
{
	static const uint64_t one[] = { 1, 2, 11, 12 }, two[] = { 1, 2, 21, 22, 23 };
	const struct cache_options o = options(NULL);
	struct held a, b;
	uint64_t to = 0;
	struct rig r;

	rig_open(&r, &o, 1);
	chain_request(&r, one, 4);
	chain_request(&r, two, 5);
	hold(&r, one, 4, &a);
	hold(&r, two, 5, &b);
	let_go(&r, &a);
	let_go(&r, &b);
	rig_tick(r.c, r.now);
	advisor_pass(r.c);
	ck_assert_uint_eq(edges(&r, 12, "co_attend", &to), 1);
	ck_assert_uint_eq(to, 21);
	ck_assert_uint_eq(edges(&r, 23, "co_attend", &to), 1);
	ck_assert_uint_eq(to, 11);
	rig_close(&r);
}
END_TEST

/* Two long chains were held together, and are on the disk: who asks for one has the other's beginning read, as much as a list has room for. */
START_TEST(what_was_held_together_is_read_from_its_beginning)
{
	enum { ONE = 6, OTHER = 60 };
	uint64_t one[ONE], other[OTHER];
	struct cache_options o;
	struct rig_disks d;
	struct held a, b;
	uint32_t there;
	struct rig r;

	for (uint64_t i = 0; i < ONE; i++)
		one[i] = 100 + i;
	for (uint64_t i = 0; i < OTHER; i++)
		other[i] = 200 + i;
	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	chain_request(&r, one, ONE);
	chain_request(&r, other, OTHER);
	hold(&r, one, ONE, &a);
	hold(&r, other, OTHER, &b);
	let_go(&r, &a);
	let_go(&r, &b);
	for (uint64_t n = 1000; n < 1000 + 4 * HOST; n += 8) {
		rig_put(&r, n, 8);
		rig_quiet(&r);
	}
	ck_assert_uint_eq(seen_in_memory(&r, 200, OTHER), 0);
	rig_tick(r.c, r.now);
	advisor_pass(r.c);
	r.now += 1000000;
	ck_assert_uint_eq(rig_prefix(&r, 100, ONE), ONE);
	rig_tick(r.c, r.now);
	rig_quiet(&r);
	there = seen_in_memory(&r, 200, OTHER);
	ck_assert_uint_ge(there, LIST_NAMES / 2);
	ck_assert_uint_eq(seen_in_memory(&r, 200, there), there); /* a beginning */
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_expected_bytes_total", "result=loaded"), there * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), (there + ONE) * RIG_SLOT_BYTES);
	/* What the Lookup asked for is not among what was expected. */
	hold(&r, one, ONE, &a);
	let_go(&r, &a);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=used"), ONE * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_expected_bytes_total", "result=used"), 0);
	hold(&r, other, there, &a);
	let_go(&r, &a);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_expected_bytes_total", "result=used"), there * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_expected_bytes_total", "result=wasted"), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_expected_bytes_total", "result=late"), 0);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static float random_float(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (float)(hash_mix(*state) >> 40) / (float)(1 << 23) - 1;
}

/* A block whose keys point about where `seed` says, `noise` beside it, and share a part with all others. */
static void put_keys(struct rig *r, uint64_t n, uint64_t seed, float noise, uint64_t *state)
{
	const struct kv_layout l = rig_layout(0, 0);
	struct cache_keys k = rig_keys(n, 1);
	struct cache_commit_item item = { 0 };
	float keys[RIG_TOKENS][64];
	struct cache_place place;
	struct kv_geometry g;
	enum status st;

	kv_geometry_of(&l, &g);
	for (int t = 0; t < RIG_TOKENS; t++) {
		uint64_t direction = seed;

		for (int i = 0; i < 64; i++)
			keys[t][i] = 3 + random_float(&direction) + noise * random_float(state);
	}
	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r->now, .statuses = &st, .reservations = &item.reservation,
			.places = &place, .places_max = 1 }, &r->why), STATUS_OK);
	kv_encode(&l, &g, rig_block(r, &place), 0, 0, KV_SIDE_K, 0, RIG_TOKENS, keys, KV_DTYPE_F32, 64);
	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = r->s.id, .items = &item,
			.count = 1, .now_us = r->now, .unix_ms = 1, .statuses = &st }, NULL, &r->why),
			 STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	free((void *)k.bytes);
}

START_TEST(blocks_that_are_alike_are_tied)
{
	uint32_t alike = 0, strangers = 0;
	struct cache_options o;
	struct rig_disks d;
	uint64_t state = 11;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint64_t n = 0; n < 64; n++)
		put_keys(&r, n, 1000 + n, 0.1f, &state);
	for (uint64_t n = 0; n < 16; n++) {
		put_keys(&r, 100 + n, 7000 + n, 0.1f, &state);
		put_keys(&r, 200 + n, 7000 + n, 0.1f, &state);
	}
	rig_tick(r.c, r.now);
	advisor_pass(r.c);
	for (uint64_t n = 0; n < 16; n++) {
		uint64_t to = 0;
		uint32_t found = edges(&r, 100 + n, "semantic", &to);

		alike += found && to == 200 + n;
		strangers += found > 1 || (found && to != 200 + n);
	}
	ck_assert_uint_ge(alike, 12);
	ck_assert_uint_le(strangers, 2);
	rig_close(&r);
	/* They are there after a restart, too. */
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_tick(r.c, r.now);
	advisor_pass(r.c);
	for (uint64_t n = 0; n < 16; n++)
		alike -= edges(&r, 100 + n, "semantic", NULL) > 0;
	ck_assert_uint_le(alike, 2);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What is alike, and on the disk, is read ahead when one of it is asked for. */
START_TEST(what_is_alike_is_read_prefetch)
{
	enum { PAIRS = 12 };
	uint32_t alike = 0, asked = 0;
	struct cache_options o;
	struct rig_disks d;
	uint64_t state = 11;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint64_t n = 0; n < 64; n++)
		put_keys(&r, n, 1000 + n, 0.1f, &state);
	for (uint64_t n = 0; n < PAIRS; n++) {
		put_keys(&r, 100 + n, 7000 + n, 0.1f, &state);
		put_keys(&r, 200 + n, 7000 + n, 0.1f, &state);
	}
	for (uint64_t n = 0; n < PAIRS; n++) /* what was asked for lately has a list */
		rig_prefix(&r, 100 + n, 1);
	for (uint64_t n = 1000; n < 1000 + 4 * HOST; n += 8) {
		rig_put(&r, n, 8);
		rig_quiet(&r);
	}
	ck_assert_uint_eq(seen_in_memory(&r, 200, PAIRS), 0);
	rig_tick(r.c, r.now += 31 * 1000000); /* later, or the same Lookup is the same request */
	advisor_pass(r.c);
	r.now += 1000000;
	for (uint64_t n = 0; n < PAIRS; n++) {
		alike += edges(&r, 100 + n, "semantic", NULL) > 0;
		asked += rig_prefix(&r, 100 + n, 1);
	}
	rig_tick(r.c, r.now);
	rig_quiet(&r);
	ck_assert_uint_eq(asked, PAIRS);
	ck_assert_uint_ge(alike, PAIRS * 3 / 4);
	ck_assert_uint_ge(seen_in_memory(&r, 200, PAIRS), PAIRS * 3 / 4);
	ck_assert_double_ge(rig_stat(&r, "terrace_prefetch_expected_bytes_total", "result=loaded"), PAIRS * 3 / 4 * RIG_SLOT_BYTES);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- wishes ---- */

/* A Lease that comes with its Lookup finds nothing begun, and what it wanted is not loaded twice. */
START_TEST(what_is_late_is_dropped)
{
	struct cache_place places[8];
	struct cache_leased leased;
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	push_out(&r, &d, &o);
	rig_quiet(&r);
	ck_assert_uint_eq(rig_prefix(&r, 1, 6), 6);
	ck_assert_int_eq(rig_lease_wait(&r, 1, 6, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_refused_total", "reason=late"), 6);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* With its thread, a Lookup has what it found on a disk read ahead without any tick. */
START_TEST(a_lookup_pokes_the_advisor)
{
	struct timespec step = { .tv_nsec = 1000000 };
	struct cache_options o;
	struct rig_disks d;
	struct rig r;
	int ms = 0;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	o.advisor_ms = 60000;
	push_out(&r, &d, &o);
	rig_quiet(&r);
	ck_assert_uint_eq(rig_prefix(&r, 1, 6), 6);
	while (rig_stat(&r, "terrace_loads_total", "status=ok") < 6) {
		ck_assert_int_lt(ms++, 10000);
		nanosleep(&step, NULL);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), 6 * RIG_SLOT_BYTES);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Who looks and never leases is not believed for long. */
START_TEST(lookups_without_leases_are_unverified)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;
	double loaded;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	push_out(&r, &d, &o);
	rig_quiet(&r);
	for (uint64_t n = 0; n < 64; n++) {
		rig_prefix(&r, 1000 + 4 * (n % 32), 4);
		rig_tick(r.c, r.now);
		rig_quiet(&r);
		r.now += 31 * 1000000ull;
		rig_put(&r, 9000 + 8 * n, 8);
		rig_quiet(&r);
	}
	loaded = rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded") / RIG_SLOT_BYTES;
	ck_assert_double_ge(loaded, 64);
	ck_assert_double_le(loaded, 200);
	ck_assert_double_ge(rig_stat(&r, "terrace_prefetch_refused_total", "reason=doubted"), 64);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What is expected takes seconds to be seen as wrong: until then it is 64 blocks, though there is room for twice as many. After that it is four
 * blocks of one wish in eight. What Lookups found is loaded all the while. */
START_TEST(what_is_expected_proves_itself)
{
	enum { CHAINS = 40, LENGTH = 8, HEAD = 2, TRIED = 64 };
	struct cache_place places[HEAD];
	struct cache_leased leased;
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 8 * DISK);
	o = rig_disk_options(&d, 1, 4 * HOST);
	o.graph_nodes = 1 << 15;
	o.prefetch_bytes = 1 << 30;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint64_t c = 0; c < CHAINS; c++) {
		uint64_t chain[LENGTH];

		for (uint64_t i = 0; i < LENGTH; i++)
			chain[i] = 10000 + c * LENGTH + i;
		chain_request(&r, chain, HEAD);
		chain_request(&r, chain, LENGTH);
	}
	for (uint64_t n = 20000; n < 20000 + 16 * HOST; n += 8) {
		rig_put(&r, n, 8);
		rig_quiet(&r);
	}
	for (uint64_t round = 0; round < 2; round++) {
		double before = rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), more;

		rig_tick(r.c, r.now);
		advisor_pass(r.c);
		for (uint64_t c = 0; c < CHAINS; c++) {
			const uint64_t first = 10000 + c * LENGTH;

			r.now += 31 * 1000;
			ck_assert_uint_eq(rig_prefix(&r, first, HEAD), HEAD);
			rig_tick(r.c, r.now);
			rig_quiet(&r);
			ck_assert_uint_eq(in_memory(&r, first, HEAD), HEAD);
			ck_assert_int_eq(rig_lease(&r, first, HEAD, true, places, &leased), STATUS_OK);
			ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
		}
		more = (rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded") - before) / RIG_SLOT_BYTES;
		if (round == 0)
			ck_assert_double_eq(more, CHAINS * HEAD + TRIED);
		else
			ck_assert_double_eq(more, CHAINS * HEAD + CHAINS / 8 * 4);
		r.now += 31 * 1000000ull;
		for (uint64_t n = 40000 + round * 16 * HOST; n < 40000 + (round + 1) * 16 * HOST; n += 8) {
			rig_put(&r, n, 8);
			rig_quiet(&r);
		}
	}
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* The thread, requests and statistics at a time. */
START_TEST(the_thread_runs_beside)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	o.advisor_ms = 1;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	for (uint64_t n = 0; n < (uint64_t)RIG_ROUNDS(2000); n++) {
		const uint64_t chain[] = { n % 7, 100 + n % 31, 1000 + n % 97, 2000 + n % 211 };

		r.now += 20000;
		chain_request(&r, chain, 4);
		if (n % 8 == 0) {
			rig_tick(r.c, r.now);
			edges(&r, n % 7, "prefix_share", NULL);
			rig_stat(&r, "terrace_advisor_pass_seconds", "");
		}
	}
	rig_quiet(&r);
	ck_assert_double_gt(rig_stat(&r, "terrace_advisor_passes_total", ""), 3);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		requests_become_edges, what_is_expected_is_read_prefetch, the_budget_and_old_lists_are_kept_to,
		leases_held_at_a_time_are_tied, ties_lead_to_where_chains_part, what_was_held_together_is_read_from_its_beginning, blocks_that_are_alike_are_tied,
		what_is_alike_is_read_prefetch, what_is_late_is_dropped, a_lookup_pokes_the_advisor,
		lookups_without_leases_are_unverified,
		what_is_expected_proves_itself,
		the_graph_survives_a_restart, rounds_forget_what_the_graph_forgot, the_thread_runs_beside,
	};

	return rig_main("cache_advice_graph", tests, sizeof(tests) / sizeof(tests[0]));
}
