/* The graph in memory: seeded sequences against what must always hold, a naive model of weights, the walk to a
 * catalog and back, and the mailbox with many threads.
 */
#include "eviction/graph_edges.h"

#include <check.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/graph_mail.h"
#include "eviction/hash.h"
#include "eviction/sketch.h"

#ifdef TERRACE_SANITIZED
enum { SEEDS = 5 };
#elif defined(TERRACE_TESTS_SMALL)
enum { SEEDS = 10 };
#else
enum { SEEDS = 20 };
#endif
enum { SECOND = 1000000, IDS_MAX = 300 };

static const struct graph_edges_options small = { .nodes_max = 64, .edges_max = 200, .sessions_max = 16,
						  .half_life_us = 60 * SECOND };
static const struct graph_edges_options roomy = { .nodes_max = 4096, .edges_max = 16384, .sessions_max = 256,
						  .half_life_us = 60 * SECOND };

/* Something of each call; ids are 1 .. range. */
static void step(struct graph_edges *g, uint64_t seed, uint64_t now, uint64_t range)
{
	uint64_t r = hash_mix(seed), a = 1 + (r >> 8) % range, b = 1 + (r >> 32) % range;
	uint64_t chain[6] = { a, a % range + 1, (a + 1) % range + 1, b, b % range + 1, (b + 4) % range + 1 };

	switch (r % 8) {
	case 0:
		graph_edges_live(g, now, a, r >> 60 & 1);
		break;
	case 2:
		if (a != b)
			graph_edges_pair(g, now, (enum edge_type)((r >> 40) % EDGE_TYPES), a, b, 1 + (float)(r >> 61));
		break;
	default:
		graph_edges_request(g, now, (r >> 50) % 20, chain, 1 + (uint32_t)(r >> 16) % 6, false);
	}
}

/* Counts agree with the walks, bounds hold, no edge leads to what is not there. */
static void check_whole(struct graph_edges *g, const struct graph_edges_options *o, uint64_t now)
{
	struct graph_edges_counts c = graph_edges_count(g);
	uint32_t nodes = 0, live = 0, edges = 0, cursor = 0;
	uint8_t degree[IDS_MAX + 1] = { 0 };
	struct graph_node_record n;
	struct graph_edge_record e;

	while (graph_edges_next_node(g, now, &cursor, &n)) {
		nodes++;
		live += n.live;
		ck_assert_uint_le(n.touched_us, now);
	}
	cursor = 0;
	while (graph_edges_next_edge(g, now, &cursor, &e)) {
		struct graph_near near[EDGES_OF_NODE];
		uint32_t found = graph_edges_near(g, now, &e.from, 1, EDGE_MASK(e.type), near, EDGES_OF_NODE), i = 0;

		edges++;
		ck_assert_uint_le(++degree[e.from], EDGES_OF_NODE);
		ck_assert_uint_ne(e.from, e.to);
		ck_assert(e.weight > 0 && isfinite(e.weight));
		while (i < found && near[i].id != e.to)
			i++;
		ck_assert_uint_lt(i, found);
	}
	ck_assert_uint_eq(nodes, c.nodes);
	ck_assert_uint_eq(live, c.live);
	ck_assert_uint_le(edges, c.edges); /* some lead to nodes that are gone */
	ck_assert_uint_le(c.nodes, o->nodes_max);
	ck_assert_uint_le(c.edges, o->edges_max);
}

START_TEST(what_must_hold_holds)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		const struct graph_edges_options *o = seed % 4 ? &small : &roomy;
		struct graph_edges *g = graph_edges_create(o);
		uint64_t now = SECOND;

		ck_assert_ptr_nonnull(g);
		for (uint64_t i = 0; i < 3000; i++) {
			now += hash_mix(seed * 7919 + i) % SECOND;
			step(g, seed * 1000003 + i, now, seed % 2 ? 40 : IDS_MAX);
			if (i % 100 == 0)
				check_whole(g, o, now);
		}
		check_whole(g, o, now);
		ck_assert_uint_gt(graph_edges_count(g).forgotten_edges, 0);
		graph_edges_destroy(g);
	}
}
END_TEST

/* Weights of pairs, by a table of all pairs. */
START_TEST(weights_are_the_models)
{
	enum { IDS = 12 };
	static double weight[IDS + 1][IDS + 1];
	struct graph_edges *g = graph_edges_create(&roomy);
	uint64_t now = SECOND;

	memset(weight, 0, sizeof(weight));
	for (uint64_t i = 0; i < 4000; i++) {
		uint64_t r = hash_mix(i), a = 1 + r % IDS, b = 1 + (r >> 8) % IDS, passed = (r >> 16) % 20 * SECOND;
		struct graph_near near[IDS];
		uint32_t found;

		now += passed;
		for (int x = 1; x <= IDS; x++)
			for (int y = 1; y <= IDS; y++)
				weight[x][y] *= exp2(-(double)passed / (60.0 * SECOND));
		if (a == b)
			continue;
		graph_edges_pair(g, now, EDGE_CO_ATTEND, a, b, 2);
		weight[a][b] += 2;
		found = graph_edges_near(g, now, &a, 1, EDGE_MASK_ALL, near, IDS);
		for (uint32_t k = 0; k < found; k++) {
			ck_assert_double_eq_tol(near[k].weight, weight[a][near[k].id], 1e-3 * weight[a][near[k].id] + 1e-30);
			ck_assert(k == 0 || near[k - 1].weight >= near[k].weight);
		}
		for (uint32_t k = 0; k + 1 < found; k++)
			ck_assert_uint_ne(near[k].id, a);
		ck_assert_uint_eq(graph_edges_near(g, now, &a, 1, EDGE_MASK(EDGE_SEMANTIC), near, IDS), 0);
	}
	graph_edges_destroy(g);
}
END_TEST

START_TEST(a_request_makes_its_edges)
{
	static const uint64_t first[] = { 1, 2, 3 }, second[] = { 1, 2, 4 };
	struct graph_edges *g = graph_edges_create(&roomy);
	struct graph_near near[8];
	struct graph_edge_record e;
	uint32_t cursor = 0;
	bool seen = false;

	graph_edges_request(g, SECOND, 7, first, 3, false);
	graph_edges_request(g, SECOND, 8, second, 3, false);
	graph_edges_request(g, SECOND, 7, second, 3, false);
	/* 3 to 4: session 7 went on there. */
	ck_assert_uint_eq(graph_edges_near(g, SECOND, &first[2], 1, EDGE_MASK_ALL, near, 8), 1);
	ck_assert_uint_eq(near[0].id, 4);
	ck_assert_uint_eq(graph_edges_near(g, SECOND, &first[2], 1, EDGE_MASK(EDGE_PREFIX_SHARE), near, 8), 0);
	/* Of a set, what is in it is not near. */
	ck_assert_uint_eq(graph_edges_near(g, SECOND, first, 3, EDGE_MASK_ALL, near, 8), 1);
	ck_assert_float_eq_tol(near[0].weight, 3, 1e-5);
	ck_assert_uint_eq(graph_edges_near(g, SECOND, first, 3, EDGE_MASK_ALL, near, 0), 0);
	while (graph_edges_next_edge(g, SECOND, &cursor, &e))
		if (e.from == 1 && e.to == 2) {
			ck_assert_uint_eq(e.sessions, 3); /* 7, 8, 7 */
			seen = true;
		}
	ck_assert(seen);
	/* A half life later it weighs half. */
	ck_assert_uint_eq(graph_edges_near(g, 61 * SECOND, first, 1, EDGE_MASK_ALL, near, 8), 1);
	ck_assert_float_eq_tol(near[0].weight, 1.5, 1e-5);
	graph_edges_destroy(g);
}
END_TEST

/* A day after 2^32 ms, as the daemon has its half life, and a year later. */
START_TEST(what_was_long_ago_weighs_nothing)
{
	const struct graph_edges_options o = { .nodes_max = 8, .edges_max = 8, .sessions_max = 1, .half_life_us = 1800ull * SECOND };
	const uint64_t day = 86400ull * SECOND, wrapped = ((uint64_t)1 << 32) * 1000, later[] = { wrapped + SECOND, wrapped + day, 400 * day };
	struct graph_edges *g = graph_edges_create(&o);
	const uint64_t from = 1;
	struct graph_near near;
	struct graph_node_record n;
	uint32_t cursor;

	graph_edges_pair(g, SECOND, EDGE_CO_ATTEND, from, 2, 1e6f);
	for (int i = 0; i < 3; i++) {
		ck_assert_uint_eq(graph_edges_near(g, later[i], &from, 1, EDGE_MASK_ALL, &near, 1), 1);
		ck_assert_float_lt(near.weight, 1e-6f);
		cursor = 0;
		ck_assert(graph_edges_next_node(g, later[i], &cursor, &n));
		ck_assert_uint_lt(n.touched_us, 2 * SECOND);
	}
	graph_edges_destroy(g);
}
END_TEST

/* What comes before and behind in chains; where a chain begins, and where several meet, nothing comes before. */
START_TEST(chains_are_followed)
{
	static const uint64_t one[] = { 1, 2, 3, 4 }, branch[] = { 1, 2, 5 }, rest[] = { 4, 6 };
	static const uint64_t meet[] = { 7, 8, 5, 9 };
	struct graph_edges *g = graph_edges_create(&roomy);
	uint64_t after[EDGES_OF_NODE];
	bool all;

	ck_assert_ptr_nonnull(g);
	graph_edges_request(g, 1, 1, one, 3, true);
	graph_edges_request(g, 1, 1, one + 2, 2, false); /* the rest of the same */
	graph_edges_request(g, 2, 1, branch, 3, false);
	ck_assert_uint_eq(graph_edges_before(g, 4), 3);
	ck_assert_uint_eq(graph_edges_before(g, 3), 2);
	ck_assert_uint_eq(graph_edges_before(g, 1), 0);
	ck_assert_uint_eq(graph_edges_before(g, 77), 0);
	ck_assert_uint_eq(graph_edges_after(g, 2, after, &all), 2);
	ck_assert(all && after[0] + after[1] == 3 + 5);
	ck_assert_uint_eq(graph_edges_after(g, 4, after, &all), 0);
	ck_assert_uint_eq(graph_edges_after(g, 77, after, &all), 0);
	graph_edges_request(g, 3, 2, rest, 2, false);
	graph_edges_request(g, 4, 3, meet, 4, false);
	ck_assert_uint_eq(graph_edges_before(g, 4), 0);
	ck_assert_uint_eq(graph_edges_before(g, 5), 0);
	ck_assert_uint_eq(graph_edges_before(g, 6), 4);
	ck_assert_uint_eq(graph_edges_before(g, 9), 5);
	ck_assert_uint_eq(graph_edges_after(g, 2, after, &all), 1);
	ck_assert_uint_eq(after[0], 3);
	for (uint64_t i = 0; i <= EDGES_OF_NODE; i++)
		graph_edges_pair(g, 5, EDGE_SEMANTIC, 2, 100 + i, 9);
	graph_edges_after(g, 2, after, &all);
	ck_assert(!all);
	graph_edges_destroy(g);
}
END_TEST

static uint32_t after_of(const struct graph_edges *g, uint64_t id, bool *all)
{
	uint64_t after[EDGES_OF_NODE];

	return graph_edges_after(g, id, after, all);
}

/* Whatever makes the graph forget an id that comes after another: what is left is not all. */
START_TEST(forgotten_edges_are_told)
{
	const struct graph_edges_options few_edges = { .nodes_max = 64, .edges_max = 4, .sessions_max = 16,
						       .half_life_us = 60 * SECOND };
	const struct graph_edges_options few_nodes = { .nodes_max = 4, .edges_max = 64, .sessions_max = 16,
						       .half_life_us = 60 * SECOND };
	struct graph_edges *g = graph_edges_create(&few_edges);
	bool all;

	graph_edges_request(g, 1, 1, (const uint64_t[]){ 1, 2 }, 2, false);
	graph_edges_request(g, 1, 2, (const uint64_t[]){ 1, 3 }, 2, false);
	ck_assert_uint_eq(after_of(g, 1, &all), 2);
	ck_assert(all);
	after_of(g, 77, &all); /* nothing is known of that one */
	ck_assert(!all);
	for (uint64_t i = 10; i < 16; i += 2)
		graph_edges_pair(g, 2, EDGE_SEMANTIC, i, i + 1, 9);
	ck_assert_uint_eq(after_of(g, 1, &all), 1);
	ck_assert(!all);
	graph_edges_destroy(g);

	g = graph_edges_create(&few_nodes);
	graph_edges_request(g, 1, 1, (const uint64_t[]){ 1, 2 }, 2, false);
	for (uint64_t id = 10; id < 13; id++) { /* the first two of these stay with 1 */
		graph_edges_request(g, 2, 0, &id, 1, false);
		graph_edges_live(g, 2, 1, true);
	}
	ck_assert_uint_eq(after_of(g, 1, &all), 0);
	ck_assert(!all);
	graph_edges_destroy(g);

	g = graph_edges_create(&roomy);
	for (uint64_t i = 0; i <= EDGES_OF_NODE; i++)
		graph_edges_request(g, 1 + i, 1 + i, (const uint64_t[]){ 1, 10 + i }, 2, false);
	ck_assert_uint_eq(after_of(g, 1, &all), EDGES_OF_NODE);
	ck_assert(!all);
	graph_edges_destroy(g);
}
END_TEST

/* A block with which calls begin does not need the block before it, but chains go on with it there: it is missing. */
START_TEST(a_block_that_needs_no_other_is_told)
{
	struct graph_edges *g = graph_edges_create(&roomy);
	bool all;

	graph_edges_request(g, 1, 1, (const uint64_t[]){ 1, 2, 3 }, 3, false);
	ck_assert_uint_eq(after_of(g, 2, &all), 1);
	ck_assert(all);
	graph_edges_request(g, 2, 2, (const uint64_t[]){ 3, 4 }, 2, false);
	ck_assert_uint_eq(after_of(g, 2, &all), 0);
	ck_assert(!all);
	graph_edges_destroy(g);
}
END_TEST

static struct graph_edges *copied(const struct graph_edges *g, const struct graph_edges_options *o, uint64_t now)
{
	struct graph_edges *to = graph_edges_create(o);
	struct graph_node_record n;
	struct graph_edge_record e;
	uint32_t cursor = 0;

	while (graph_edges_next_node(g, now, &cursor, &n))
		ck_assert_int_eq(graph_edges_put_node(to, now, &n), STATUS_OK);
	cursor = 0;
	while (graph_edges_next_edge(g, now, &cursor, &e))
		graph_edges_put_edge(to, now, &e);
	return to;
}

/* A catalog has what is known of chains beyond their edges: where calls begin, and that more came after a block. */
START_TEST(what_is_known_of_chains_is_kept)
{
	const struct graph_edge_record lost = { .from = 1, .to = 999, .weight = 1 };
	struct graph_edges *g = graph_edges_create(&roomy), *to;
	bool all;

	graph_edges_request(g, 1, 1, (const uint64_t[]){ 1, 2, 3, 4 }, 4, false);
	graph_edges_request(g, 2, 2, (const uint64_t[]){ 3, 4 }, 2, false);
	for (uint64_t i = 0; i <= EDGES_OF_NODE; i++)
		graph_edges_request(g, 3 + i, 3 + i, (const uint64_t[]){ 1, 2, 10 + i }, 3, false);
	to = copied(g, &roomy, 100);
	ck_assert_uint_eq(graph_edges_before(to, 3), 0);
	ck_assert_uint_eq(graph_edges_before(to, 4), 3);
	ck_assert_uint_eq(after_of(to, 1, &all), 1);
	ck_assert(all);
	after_of(to, 2, &all);
	ck_assert(!all);
	/* A graph with fewer nodes than the last has no place for what an edge leads to. */
	ck_assert_int_eq(graph_edges_put_edge(to, 100, &lost), STATUS_INVALID);
	after_of(to, 1, &all);
	ck_assert(!all);
	graph_edges_destroy(to);
	graph_edges_destroy(g);
}
END_TEST

START_TEST(live_nodes_stay)
{
	struct graph_edges *g = graph_edges_create(&small);
	struct graph_node_record n;
	uint32_t cursor = 0, left = 0;

	for (uint64_t id = 1; id <= 20; id++)
		graph_edges_live(g, SECOND, id, true);
	for (uint64_t id = 100; id < 1000; id++)
		graph_edges_request(g, id * SECOND, 0, &id, 1, false);
	while (graph_edges_next_node(g, 1000ull * SECOND, &cursor, &n))
		left += n.id <= 20;
	ck_assert_uint_eq(left, 20);
	ck_assert_uint_eq(graph_edges_count(g).live, 20);
	ck_assert_uint_eq(graph_edges_count(g).nodes, small.nodes_max);
	/* When all are live the bound still holds. */
	for (uint64_t id = 2000; id < 2200; id++)
		graph_edges_live(g, 1000ull * SECOND, id, true);
	ck_assert_uint_eq(graph_edges_count(g).nodes, small.nodes_max);
	graph_edges_destroy(g);
}
END_TEST

/* Whether blocks are there is said of nodes without a use of them, and of what has none nothing. */
START_TEST(marks_are_no_touches)
{
	struct graph_edges *g = graph_edges_create(&small);
	struct graph_node_record n;
	uint32_t cursor = 0;

	for (uint64_t id = 1; id <= small.nodes_max; id++)
		graph_edges_request(g, id * SECOND, 0, &id, 1, false);
	for (uint64_t id = 1; id <= 1000; id++)
		graph_edges_mark(g, id, id % 2);
	ck_assert_uint_eq(graph_edges_count(g).nodes, small.nodes_max);
	ck_assert_uint_eq(graph_edges_count(g).live, small.nodes_max / 2);
	ck_assert_uint_eq(graph_edges_count(g).forgotten_nodes, 0);
	for (uint32_t i = 0; i < small.nodes_max; i++) {
		ck_assert(graph_edges_next_node(g, 1000ull * SECOND, &cursor, &n));
		ck_assert_uint_eq(n.touched_us, n.id * SECOND);
		ck_assert_int_eq(n.live, n.id % 2);
		graph_edges_mark(g, n.id, false);
	}
	ck_assert_uint_eq(graph_edges_count(g).live, 0);
	graph_edges_destroy(g);
}
END_TEST

static void copy(const struct graph_edges *from, struct graph_edges *to, uint64_t now)
{
	struct graph_node_record n;
	struct graph_edge_record e;
	uint32_t cursor = 0;

	while (graph_edges_next_node(from, now, &cursor, &n))
		ck_assert_int_eq(graph_edges_put_node(to, now, &n), STATUS_OK);
	cursor = 0;
	while (graph_edges_next_edge(from, now, &cursor, &e))
		ck_assert_int_eq(graph_edges_put_edge(to, now, &e), STATUS_OK);
}

START_TEST(a_walk_brings_all_back)
{
	struct graph_edges *g = graph_edges_create(&roomy), *h = graph_edges_create(&roomy);
	struct graph_edges_counts a, b;
	uint64_t now = SECOND;

	for (uint64_t i = 0; i < 5000; i++)
		step(g, i, now += SECOND / 7, 500);
	copy(g, h, now);
	a = graph_edges_count(g);
	b = graph_edges_count(h);
	ck_assert_uint_eq(a.nodes, b.nodes);
	ck_assert_uint_eq(a.live, b.live);
	for (uint64_t id = 1; id <= 500; id++) {
		struct graph_near x[EDGES_OF_NODE], y[EDGES_OF_NODE];
		uint32_t count = graph_edges_near(g, now, &id, 1, EDGE_MASK_ALL, x, EDGES_OF_NODE);

		ck_assert_uint_eq(graph_edges_near(h, now, &id, 1, EDGE_MASK_ALL, y, EDGES_OF_NODE), count);
		for (uint32_t i = 0; i < count; i++) {
			ck_assert_uint_eq(x[i].live, y[i].live);
			ck_assert_float_eq_tol(x[i].weight, y[i].weight, 1e-3f * x[i].weight);
		}
	}
	graph_edges_destroy(g);
	graph_edges_destroy(h);
}
END_TEST

START_TEST(broken_records_are_refused)
{
	struct graph_edges *g = graph_edges_create(&roomy);
	const struct graph_edge_record good = { .from = 1, .to = 2, .weight = 1, .touched_us = 5 };
	struct graph_edge_record e[7];

	ck_assert_int_eq(graph_edges_put_node(g, 9, &(struct graph_node_record){ .id = 0 }), STATUS_INVALID);
	ck_assert_int_eq(graph_edges_put_node(g, 9, &(struct graph_node_record){ .id = 1, .touched_us = 10 }), STATUS_INVALID);
	ck_assert_int_eq(graph_edges_put_node(g, 9, &(struct graph_node_record){ .id = 1 }), STATUS_OK);
	ck_assert_int_eq(graph_edges_put_node(g, 9, &(struct graph_node_record){ .id = 2 }), STATUS_OK);
	for (int i = 0; i < 7; i++)
		e[i] = good;
	e[0].from = 0;
	e[1].to = 3;
	e[2].to = 1;
	e[3].type = EDGE_TYPES;
	e[4].weight = NAN;
	e[5].weight = -1;
	e[6].touched_us = 10;
	for (int i = 0; i < 7; i++)
		ck_assert_int_eq(graph_edges_put_edge(g, 9, &e[i]), STATUS_INVALID);
	ck_assert_uint_eq(graph_edges_count(g).edges, 0);
	ck_assert_int_eq(graph_edges_put_edge(g, 9, &good), STATUS_OK);
	ck_assert_uint_eq(graph_edges_count(g).edges, 1);
	graph_edges_destroy(g);
	ck_assert_ptr_null(graph_edges_create(&(struct graph_edges_options){ .nodes_max = 9, .edges_max = 9,
									     .sessions_max = 3, .half_life_us = SECOND }));
}
END_TEST

START_TEST(the_same_calls_give_the_same_graph)
{
	struct graph_edges *g[2] = { graph_edges_create(&small), graph_edges_create(&small) };
	struct graph_edge_record a = { 0 }, b = { 0 };
	uint32_t x = 0, y = 0;

	for (int k = 0; k < 2; k++)
		for (uint64_t i = 0; i < 4000; i++)
			step(g[k], i, i * SECOND, 200);
	while (graph_edges_next_edge(g[0], 4000ull * SECOND, &x, &a)) {
		ck_assert(graph_edges_next_edge(g[1], 4000ull * SECOND, &y, &b));
		ck_assert_uint_eq(a.from, b.from);
		ck_assert_uint_eq(a.to, b.to);
		ck_assert(a.weight == b.weight);
	}
	ck_assert(!graph_edges_next_edge(g[1], 4000ull * SECOND, &y, &b));
	graph_edges_destroy(g[0]);
	graph_edges_destroy(g[1]);
}
END_TEST

/* By the C library's books; under a sanitizer, which has books of its own, always 0. */
static uint64_t allocated(void)
{
	const struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

START_TEST(memory_is_as_stated)
{
	struct graph_edges_options o = { .nodes_max = 1 << 20, .edges_max = 1 << 20, .sessions_max = 1024, .half_life_us = SECOND };
	const uint64_t before = allocated();
	struct graph_edges *g = graph_edges_create(&o);

	ck_assert_uint_le(allocated() - before, (uint64_t)(1 << 20) * (32 + 8 + 28) + (1 << 17));
	graph_edges_destroy(g);
}
END_TEST

/* ---- the mailbox ---- */

enum { THREADS = 4, POSTS = 5000 };

static struct graph_mail *mail;

static void *post(void *arg)
{
	uint64_t thread = (uint64_t)(uintptr_t)arg;

	for (uint64_t i = 1; i <= POSTS;) {
		struct graph_mail_event e = { .now_us = i, .kind = GRAPH_MAIL_LIVE, .ids = { thread << 32 | i } };

		i += graph_mail_post(mail, &e);
	}
	return NULL;
}

/* Each thread's events come once and in order. */
START_TEST(no_event_is_lost)
{
	uint64_t next[THREADS] = { 1, 1, 1, 1 }, taken = 0;
	struct graph_mail_event e;
	pthread_t threads[THREADS];

	mail = graph_mail_create(64);
	ck_assert_ptr_nonnull(mail);
	for (uintptr_t t = 0; t < THREADS; t++)
		ck_assert_int_eq(pthread_create(&threads[t], NULL, post, (void *)t), 0);
	while (taken < (uint64_t)THREADS * POSTS) {
		if (!graph_mail_take(mail, &e))
			continue;
		taken++;
		ck_assert_uint_eq(e.ids[0] & UINT32_MAX, next[e.ids[0] >> 32]);
		next[e.ids[0] >> 32]++;
	}
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	ck_assert(!graph_mail_take(mail, &e));
	graph_mail_destroy(mail);
}
END_TEST

START_TEST(a_full_mailbox_drops_and_counts)
{
	struct graph_mail_event e = { .kind = GRAPH_MAIL_LIVE, .ids = { 5 } };
	struct graph_mail *m = graph_mail_create(8);

	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 8; i++)
			ck_assert(graph_mail_post(m, &e));
		ck_assert(!graph_mail_post(m, &e));
		for (int i = 0; i < 8; i++)
			ck_assert(graph_mail_take(m, &e));
		ck_assert(!graph_mail_take(m, &e));
	}
	ck_assert_uint_eq(graph_mail_dropped(m), 5);
	graph_mail_destroy(m);
	ck_assert_ptr_null(graph_mail_create(7));
}
END_TEST

/* Through the mailbox, a long chain in parts makes the same graph. */
START_TEST(mail_makes_the_same_graph)
{
	struct graph_edges *g = graph_edges_create(&roomy), *h = graph_edges_create(&roomy);
	struct graph_mail *m = graph_mail_create(1024);
	struct graph_mail_event e;
	struct graph_edge_record a, b;
	uint32_t x = 0, y = 0;

	for (uint64_t i = 0; i < 200; i++) {
		uint64_t ids[40];
		uint32_t count = (uint32_t)(hash_mix(i) % 41);

		for (uint32_t k = 0; k < count; k++)
			ids[k] = 1 + hash_mix(i % 50) % 7 * 100 + k;
		graph_edges_request(g, i * SECOND, 1 + i % 9, ids, count, false);
		ck_assert(graph_mail_request(m, i * SECOND, 1 + i % 9, ids, count));
		while (graph_mail_take(m, &e))
			graph_edges_request(h, e.now_us, e.session, e.ids, e.count, e.goes_on);
	}
	while (graph_edges_next_edge(g, 200ull * SECOND, &x, &a)) {
		ck_assert(graph_edges_next_edge(h, 200ull * SECOND, &y, &b));
		ck_assert_uint_eq(a.from, b.from);
		ck_assert_uint_eq(a.to, b.to);
		ck_assert_uint_eq(a.sessions, b.sessions);
		ck_assert(a.weight == b.weight);
	}
	ck_assert(!graph_edges_next_edge(h, 200ull * SECOND, &y, &b));
	ck_assert_uint_gt(graph_edges_count(g).edges, 200);
	graph_mail_destroy(m);
	graph_edges_destroy(g);
	graph_edges_destroy(h);
}
END_TEST

/* ---- sketches ---- */

enum { SKETCHES = 2000 };

/* Vectors that share a large part, and differ by a direction and some noise. */
static void vector_of(uint64_t direction, uint64_t noise, int8_t v[SKETCH_BITS])
{
	for (uint64_t i = 0; i < SKETCH_BITS; i++)
		v[i] = (int8_t)(60 + (int)(hash_mix(direction * 64 + i) % 101) - 50 + (int)(hash_mix(noise * 64 + i) % 9) - 4);
}

static bool is_near(const struct sketch_near *near, uint32_t n, uint64_t id)
{
	for (uint32_t i = 0; i < n; i++)
		if (near[i].id == id)
			return true;
	return false;
}

/* The second of each pair is to find the first, and nobody else. */
START_TEST(sketches_find_what_is_near)
{
	struct sketches *s = sketches_create(2 * SKETCHES);
	uint32_t found = 0, strangers = 0;
	struct sketch_near near[8];
	int8_t v[SKETCH_BITS];

	ck_assert_ptr_nonnull(s);
	for (uint64_t i = 0; i < 64; i++) { /* the mean */
		vector_of(1000000 + i, i, v);
		ck_assert(i < 32 ? !sketches_bits(s, 5, v) : sketches_bits(s, 5, v) != 0);
	}
	for (uint64_t i = 1; i <= SKETCHES; i++) {
		uint32_t n;

		vector_of(i, 2 * i, v);
		sketches_add(s, i, sketches_bits(s, 5, v), near, 8);
		vector_of(i, 2 * i + 1, v);
		n = sketches_add(s, SKETCHES + i, sketches_bits(s, 5, v), near, 8);
		for (uint32_t k = 0; k < n; k++)
			ck_assert_uint_le(near[k].distance, SKETCH_NEAR);
		found += is_near(near, n, i);
		strangers += n - is_near(near, n, i);
	}
	ck_assert_uint_ge(found, SKETCHES * 9 / 10);
	ck_assert_uint_le(strangers, SKETCHES / 100);
	sketches_destroy(s);
	sketches_destroy(NULL);
}
END_TEST

/* Anonymous memory that this process has now, in KiB. */
static long resident(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[128];
	long kib = -1;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		sscanf(line, "RssAnon: %ld", &kib);
	fclose(f);
	return kib;
}

/* 64 bytes a block, taken at once: sketches fall anywhere, and would take them page by page. */
START_TEST(sketches_take_their_memory_at_once)
{
	const long before = resident();
	struct sketches *s = sketches_create(1 << 17);

	ck_assert_ptr_nonnull(s);
	ck_assert_int_ge(before, 0);
	ck_assert_int_ge(resident() - before, 8192);
	sketches_destroy(s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("graph_edges");
	TCase *tc = tcase_create("graph");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, what_must_hold_holds);
	tcase_add_test(tc, what_was_long_ago_weighs_nothing);
	tcase_add_test(tc, sketches_find_what_is_near);
	tcase_add_test(tc, sketches_take_their_memory_at_once);
	tcase_add_test(tc, weights_are_the_models);
	tcase_add_test(tc, a_request_makes_its_edges);
	tcase_add_test(tc, chains_are_followed);
	tcase_add_test(tc, forgotten_edges_are_told);
	tcase_add_test(tc, a_block_that_needs_no_other_is_told);
	tcase_add_test(tc, what_is_known_of_chains_is_kept);
	tcase_add_test(tc, live_nodes_stay);
	tcase_add_test(tc, marks_are_no_touches);
	tcase_add_test(tc, a_walk_brings_all_back);
	tcase_add_test(tc, broken_records_are_refused);
	tcase_add_test(tc, the_same_calls_give_the_same_graph);
	tcase_add_test(tc, memory_is_as_stated);
	tcase_add_test(tc, no_event_is_lost);
	tcase_add_test(tc, a_full_mailbox_drops_and_counts);
	tcase_add_test(tc, mail_makes_the_same_graph);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
