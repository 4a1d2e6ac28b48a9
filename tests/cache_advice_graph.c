/* The advisor: what it learns of requests, what is read ahead by it and how that ends, and its graph over a restart. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/cache_advice_graph.h"
#include "daemon/cache_tier.h"
#include "tests/cache_chain.h"

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
	ck_assert_uint_eq(rig_prefix(r, 1, 6), 6);
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

START_TEST(what_is_expected_is_read_ahead)
{
	struct cache_place places[8];
	struct cache_leased leased;
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = options(&d);
	push_out(&r, &d, &o);
	ck_assert_uint_eq(in_memory(&r, 1, 6), 0);
	rig_tick(r.c, r.now);
	rig_quiet(&r);
	r.now += 1000000;
	ck_assert_uint_eq(rig_prefix(&r, 1, 2), 2);
	rig_tick(r.c, r.now);
	rig_quiet(&r);
	ck_assert_uint_eq(in_memory(&r, 3, 4), 4);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=loaded"), 4 * RIG_SLOT_BYTES);
	ck_assert_int_eq(rig_lease(&r, 3, 3, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=used"), 3 * RIG_SLOT_BYTES);
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=wasted"), 0);
	for (uint64_t n = 5000; n < 5000 + 2 * HOST; n += 8) {
		rig_put(&r, n, 8);
		rig_quiet(&r);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_prefetch_bytes_total", "result=wasted"), RIG_SLOT_BYTES);
	rig_check_books(r.c);
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
		{ 1 << 30, 2500000, 0, "reason=stale" },
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
			rig_stat(&r, "terrace_advisor_pass_us", "");
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
		requests_become_edges, what_is_expected_is_read_ahead, the_budget_and_old_lists_are_kept_to,
		the_graph_survives_a_restart, rounds_forget_what_the_graph_forgot, the_thread_runs_beside,
	};

	return rig_main("cache_advice_graph", tests, sizeof(tests) / sizeof(tests[0]));
}
