/* The replay of several nodes: which requests are a session, what peers are told of and lend, what spill adds, and
 * bounds on random traces and on a real one. */
#include "eviction/replay/nodes.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "eviction/hash.h"
#include "eviction/replay/policies.h"
#include "eviction/replay/read.h"

enum { BLOCK = 16, NODES = 4, CHAIN = 40 };

#ifdef TERRACE_SANITIZED
enum { SEEDS = 2 };
#else
enum { SEEDS = 8 };
#endif

static void ask(struct trace *t, uint64_t s, const uint64_t *ids, uint32_t count)
{
	struct trace_request r = { .time_us = s * 1000000, .tokens = count * BLOCK + 3 };

	ck_assert_int_eq(trace_add(t, &r, ids, count), STATUS_OK);
}

/* A chain of blocks first, first + 1, .. */
static void ask_run(struct trace *t, uint64_t s, uint64_t first, uint32_t count)
{
	uint64_t ids[CHAIN];

	for (uint32_t i = 0; i < count; i++)
		ids[i] = first + i;
	ask(t, s, ids, count);
}

/* Chains over a tree, so that nodes share beginnings: the block behind `a` is 2a or 2a + 1. */
static void random_tree(struct trace *t, uint32_t requests, uint64_t seed)
{
	trace_init(t, BLOCK);
	for (uint32_t i = 0; i < requests; i++) {
		uint64_t ids[6], r = hash_mix(seed * 1000003 + i);
		uint32_t count = 1 + (uint32_t)(r >> 32) % 6;

		for (uint32_t b = 0; b < count; b++)
			ids[b] = b ? 2 * ids[b - 1] + (r >> b & 1) : 1 + (r >> 20) % 3;
		ask(t, i, ids, count);
	}
}

static struct nodes_options options_of(uint32_t capacity, enum nodes_mode mode)
{
	struct nodes_options o = { .nodes = NODES, .mode = mode, .told_every = 1, .told_age_us = 1000000 };

	for (uint32_t i = 0; i < NODES; i++)
		o.capacity[i] = capacity;
	return o;
}

static uint64_t hits_of(const struct trace *t, const uint8_t *node_of, const struct nodes_options *o,
			struct nodes_result *r)
{
	ck_assert_int_eq(nodes_run(t, node_of, replay_policy_find("lru"), o, r), STATUS_OK);
	return r->all.hit_blocks;
}

/* ---- sessions ---- */

START_TEST(a_session_stays_on_its_node)
{
	static const uint64_t first[] = { 1, 2, 3 }, goes_on[] = { 1, 2, 3, 4 }, again[] = { 1, 2, 3, 4 };
	static const uint64_t forks[] = { 1, 2, 3, 9 }, head[] = { 1 }, behind_head[] = { 1, 7 };
	const struct nodes_spread s = { .nodes = 8, .seed = 1, .load = { 1, 1, 1, 1, 1, 1, 1, 1 } };
	uint32_t sessions;
	uint8_t node[6];
	struct trace t;

	trace_init(&t, BLOCK);
	ask(&t, 1, first, 3);
	ask(&t, 2, goes_on, 4);
	ask(&t, 3, again, 4);
	ask(&t, 4, forks, 4);      /* from where another request has gone on: a session of its own */
	ask(&t, 5, head, 1);       /* the first block alone tells nothing */
	ask(&t, 6, behind_head, 2);
	ck_assert_int_eq(nodes_spread(&t, &s, node, &sessions), STATUS_OK);
	ck_assert_uint_eq(sessions, 4);
	ck_assert_uint_eq(node[0], node[1]);
	ck_assert_uint_eq(node[0], node[2]);
	trace_fini(&t);
}
END_TEST

START_TEST(named_sessions_count_and_loads_are_kept)
{
	const struct nodes_spread s = { .nodes = 4, .seed = 3, .load = { 4, 2, 0, 1 } };
	uint32_t sessions, on[4] = { 0 };
	static uint8_t node[8000];
	struct trace t;
	uint64_t id = 5;

	trace_init(&t, BLOCK);
	for (uint32_t i = 0; i < 8000; i++) {
		struct trace_request r = { .time_us = i, .session = 1 + i % 4000, .tokens = BLOCK };

		ck_assert_int_eq(trace_add(&t, &r, &id, 1), STATUS_OK);
	}
	ck_assert_int_eq(nodes_spread(&t, &s, node, &sessions), STATUS_OK);
	ck_assert_uint_eq(sessions, 4000);
	for (uint32_t i = 0; i < 8000; i++) {
		ck_assert_uint_eq(node[i], node[i % 4000]);
		on[node[i]]++;
	}
	ck_assert_uint_eq(on[2], 0);
	ck_assert_uint_ge(on[0], 8000 * 4 / 7 - 400);
	ck_assert_uint_le(on[0], 8000 * 4 / 7 + 400);
	ck_assert_uint_ge(on[3], 8000 / 7 - 300);
	ck_assert_uint_le(on[3], 8000 / 7 + 300);
	trace_fini(&t);
}
END_TEST

/* ---- what peers are told of ---- */

START_TEST(blocks_are_told_of_late_or_upon_their_second_use)
{
	static const uint8_t node[] = { 0, 1, 2, 3, 0, 1 };
	struct nodes_options o = options_of(100, NODES_PEERS);
	struct nodes_result r;
	struct trace t;

	o.told_age_us = 10000000;
	trace_init(&t, BLOCK);
	ask_run(&t, 0, 1, 4);
	ask_run(&t, 9, 1, 4);      /* too young, on node 0 */
	ask_run(&t, 10, 1, 4);     /* node 0 has told */
	ask_run(&t, 11, 50, 4);
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 4);
	ck_assert_uint_eq(r.fetched, 4);
	ask_run(&t, 12, 80, 4);
	ask_run(&t, 13, 80, 4);    /* node 1: too young */
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 4);
	trace_fini(&t);

	static const uint8_t used[] = { 0, 0, 1 };

	trace_init(&t, BLOCK);
	ask_run(&t, 0, 1, 4);
	ask_run(&t, 1, 1, 3);      /* local; three are told of */
	ask_run(&t, 2, 1, 4);      /* the holder lends what it has behind them, too */
	ck_assert_uint_eq(hits_of(&t, used, &o, &r), 7);
	ck_assert_uint_eq(r.fetched, 4);
	trace_fini(&t);
}
END_TEST

/* Of a chain each 16th block is told of: shorter ones are not found, and neither is what is missing behind the last. */
START_TEST(chains_are_found_by_every_16th_block)
{
	static const uint8_t node[] = { 0, 1, 1, 2, 2 };
	struct nodes_options o = options_of(100, NODES_PEERS);
	struct nodes_result r;
	struct trace t;

	o.told_every = NODES_TOLD_EVERY;
	trace_init(&t, BLOCK);
	ask_run(&t, 0, 1, 30);
	ask_run(&t, 20, 1, 15);    /* no 16th block is asked for: computed */
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 0);
	ask_run(&t, 21, 1, 30);    /* 15 are here, and 15 are lent */
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 30);
	ck_assert_uint_eq(r.fetched, 15);
	ask_run(&t, 40, 1, 16);    /* all from one peer */
	ask_run(&t, 41, 1, 30);    /* the rest has no 16th block: computed */
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 30 + 16 + 16);
	ck_assert_uint_eq(r.fetched, 15 + 16);
	trace_fini(&t);
}
END_TEST

/* Where blocks leave, peers do not hear any more of the next ones to leave. */
START_TEST(what_is_about_to_leave_is_taken_back)
{
	static const uint8_t node[] = { 0, 0, 0, 1 };
	struct nodes_options o = options_of(16, NODES_PEERS);
	struct nodes_result r;
	struct trace t;

	o.told_every = 8;
	trace_init(&t, BLOCK);
	ask_run(&t, 1, 1, 8);
	ask_run(&t, 2, 11, 8);
	ask_run(&t, 3, 21, 8);     /* the first chain leaves */
	ask_run(&t, 4, 11, 8);
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 0);
	o.capacity[0] = 100;
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 8);
	ck_assert_uint_eq(r.fetched, 8);
	trace_fini(&t);
}
END_TEST

/* The sender keeps what it has sent, if that is a use, and else what it has stored since. */
START_TEST(a_block_that_is_sent_is_used_or_not)
{
	static const uint8_t node[] = { 0, 0, 1, 0, 0 };
	struct nodes_options o = options_of(8, NODES_PEERS);
	struct nodes_result r;
	struct trace t;

	trace_init(&t, BLOCK);
	ask_run(&t, 0, 1, 4);
	ask_run(&t, 1, 11, 4);
	ask_run(&t, 2, 1, 4);      /* node 0 sends */
	ask_run(&t, 3, 21, 4);     /* and makes room */
	ask_run(&t, 4, 11, 4);
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 8);
	ck_assert_uint_eq(r.fetched, 4);
	o.sent_is_use = true;
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 4);
	trace_fini(&t);
}
END_TEST

/* ---- spill ---- */

START_TEST(a_full_node_spills_to_one_with_room)
{
	static const uint8_t node[] = { 0, 0, 0, 1, 0 };
	struct nodes_options o = options_of(4, NODES_SPILL);
	struct nodes_result r;
	struct trace t;

	trace_init(&t, BLOCK);
	ask_run(&t, 0, 1, 4);
	ask_run(&t, 1, 11, 4);     /* the first chain leaves, and a peer takes it */
	ask_run(&t, 2, 1, 4);      /* it comes back */
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 4);
	ck_assert_uint_eq(r.fetched, 4);
	ck_assert_uint_ge(r.spilled, 8);
	o.mode = NODES_PEERS;
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 0);
	ck_assert_uint_eq(r.spilled, 0);

	static const uint8_t one[4];
	struct trace again;

	trace_init(&again, BLOCK);
	for (uint32_t i = 0; i < 4; i++)
		ask_run(&again, i, i % 2 ? 11 : 1, 4);
	o = options_of(4, NODES_SPILL);
	ck_assert_uint_eq(hits_of(&again, one, &o, &r), 8);
	ck_assert_uint_eq(r.spilled, 12); /* what has come back is spilled anew */
	trace_fini(&again);

	o = options_of(4, NODES_SPILL);
	o.nodes = 2;
	ask_run(&t, 3, 21, 4);     /* the peer wants its room: what it has taken leaves first */
	ask_run(&t, 4, 11, 4);
	ck_assert_uint_eq(hits_of(&t, node, &o, &r), 4);
	trace_fini(&t);
}
END_TEST

/* ---- bounds ---- */

static void run_one(const struct trace *t, const struct policy_ops *ops, uint64_t capacity, struct replay_result *r)
{
	ck_assert_int_eq(replay_run(t, ops, &(struct replay_options){ .capacity = capacity }, r), STATUS_OK);
}

/* Four nodes of which one gets all requests are that one; with room around it, spill makes it an endless one. */
START_TEST(one_busy_node_is_one_node)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct replay_result one, endless;
		struct nodes_result r;
		static uint8_t node[600];
		struct trace t;

		random_tree(&t, 600, seed);
		for (uint32_t capacity = 6; capacity < 80; capacity += 12)
			for (const struct policy_ops *const *row = replay_policy_table; *row; row++) {
				struct nodes_options o = options_of(capacity, NODES_LONE);

				run_one(&t, *row, capacity, &one);
				for (o.mode = NODES_LONE; o.mode <= NODES_PEERS; o.mode++) {
					ck_assert_int_eq(nodes_run(&t, node, *row, &o, &r), STATUS_OK);
					ck_assert_mem_eq(&r.all, &one, sizeof(one));
					ck_assert_uint_eq(r.fetched + r.spilled, 0);
				}
			}
		struct nodes_options o = options_of(8, NODES_SPILL);

		for (uint32_t i = 1; i < NODES; i++)
			o.capacity[i] = t.unique;
		run_one(&t, replay_policy_find("lru"), t.unique, &endless);
		ck_assert_uint_eq(hits_of(&t, node, &o, &r), endless.hit_blocks);
		trace_fini(&t);
	}
}
END_TEST

/* The hits of the node's requests alone. */
static uint64_t hits_alone(const struct trace *all, const uint8_t *node, uint32_t of, uint32_t capacity,
			   const struct policy_ops *ops)
{
	struct replay_result r;
	struct trace t;

	trace_init(&t, BLOCK);
	for (uint32_t i = 0; i < all->request_count; i++) {
		const struct trace_request *q = &all->requests[i];
		uint64_t ids[6];

		for (uint32_t b = 0; b < q->count; b++)
			ids[b] = all->blocks[q->first + b] + 1;
		if (node[i] == of)
			ck_assert_int_eq(trace_add(&t, q, ids, q->count), STATUS_OK);
	}
	run_one(&t, ops, capacity, &r);
	trace_fini(&t);
	return r.hit_blocks;
}

/* Peers add to what lone nodes hit, spill adds to that, and no more is hit than by the optimum with all memory. */
START_TEST(peers_add_and_the_optimum_bounds)
{
	const struct nodes_spread s = { .nodes = NODES, .seed = 7, .load = { 4, 2, 1, 1 } };

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		static uint8_t node[600];
		uint32_t sessions;
		struct trace t;

		random_tree(&t, 600, seed);
		ck_assert_int_eq(nodes_spread(&t, &s, node, &sessions), STATUS_OK);
		for (uint32_t capacity = 6; capacity < 40; capacity += 8) {
			struct nodes_options lone = options_of(capacity, NODES_LONE), peers = lone, spill = lone;
			const struct replay_options all = { .capacity = (uint64_t)NODES * capacity };
			struct replay_result opt;
			struct nodes_result r[3];
			uint64_t alone = 0;

			peers.mode = NODES_PEERS;
			spill.mode = NODES_SPILL;
			hits_of(&t, node, &lone, &r[0]);
			hits_of(&t, node, &peers, &r[1]);
			hits_of(&t, node, &spill, &r[2]);
			for (uint32_t i = 0; i < NODES; i++)
				alone += hits_alone(&t, node, i, capacity, replay_policy_find("lru"));
			ck_assert_int_eq(replay_opt(&t, true, &all, &opt), STATUS_OK);
			ck_assert_uint_eq(r[0].all.hit_blocks, alone);
			ck_assert_uint_gt(r[1].fetched, 0);
			ck_assert_uint_ge(r[1].all.hit_blocks, alone + r[1].fetched);
			ck_assert_uint_ge(r[2].all.hit_blocks, r[1].all.hit_blocks);
			ck_assert_uint_le(r[2].all.hit_blocks, opt.hit_blocks);
			for (int i = 0; i < 3; i++)
				ck_assert_uint_eq(r[i].all.requests, 600);
		}
		trace_fini(&t);
	}
}
END_TEST

START_TEST(what_makes_no_sense_is_refused)
{
	struct nodes_options o = options_of(4, NODES_LONE);
	static const uint8_t node[1];
	struct nodes_result r;
	struct trace t;

	trace_init(&t, BLOCK);
	ask_run(&t, 0, 1, 4);
	o.capacity[3] = 0;
	ck_assert_int_eq(nodes_run(&t, node, replay_policy_find("lru"), &o, &r), STATUS_INVALID);
	o = options_of(4, NODES_LONE);
	o.nodes = NODES_MAX + 1;
	ck_assert_int_eq(nodes_run(&t, node, replay_policy_find("lru"), &o, &r), STATUS_INVALID);
	o = options_of(4, NODES_PEERS);
	o.told_every = 0;
	ck_assert_int_eq(nodes_run(&t, node, replay_policy_find("lru"), &o, &r), STATUS_INVALID);
	trace_fini(&t);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("replay_nodes");
	TCase *tc = tcase_create("replay_nodes");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, a_session_stays_on_its_node);
	tcase_add_test(tc, named_sessions_count_and_loads_are_kept);
	tcase_add_test(tc, blocks_are_told_of_late_or_upon_their_second_use);
	tcase_add_test(tc, chains_are_found_by_every_16th_block);
	tcase_add_test(tc, what_is_about_to_leave_is_taken_back);
	tcase_add_test(tc, a_block_that_is_sent_is_used_or_not);
	tcase_add_test(tc, a_full_node_spills_to_one_with_room);
	tcase_add_test(tc, one_busy_node_is_one_node);
	tcase_add_test(tc, peers_add_and_the_optimum_bounds);
	tcase_add_test(tc, what_makes_no_sense_is_refused);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
