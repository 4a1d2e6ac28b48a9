/* The replay: readers of the trace forms, the engine and the optimum against naive ones, hints, and the
 * published figures of a real trace. */
#include "eviction/replay.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/replay/options.h"
#include "eviction/replay/policies.h"
#include "eviction/replay/read.h"

static enum status parse(const char *text, struct trace *t, char *why)
{
	char *copy = strdup(text);
	enum status s = trace_parse(copy, strlen(copy), t, why, 128);

	free(copy);
	return s;
}

START_TEST(mooncake_is_read)
{
	struct trace t;
	char why[128];

	ck_assert_int_eq(parse("{\"timestamp\": 0, \"input_length\": 1030, \"output_length\": 5, \"hash_ids\": [7, 8, 9]}\n"
			       "\n{\"timestamp\": 1500, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [7]}\n", &t, why), STATUS_OK);
	ck_assert_uint_eq(t.request_count, 2);
	ck_assert_uint_eq(t.block_tokens, 512);
	ck_assert_uint_eq(t.unique, 2); /* the partial block is nobody's */
	ck_assert_uint_eq(t.requests[0].count, 2);
	ck_assert_uint_eq(t.requests[0].tokens, 1030);
	ck_assert_uint_eq(t.requests[1].time_us, 1500000);
	ck_assert_uint_eq(t.blocks[2], t.blocks[0]);
	trace_fini(&t);
}
END_TEST

START_TEST(qwen_is_read)
{
	struct trace t;
	char why[128];

	ck_assert_int_eq(parse(
		"{\"chat_id\": 5, \"parent_chat_id\": -1, \"timestamp\": 1.25, \"input_length\": 33, \"turn\": 1, \"hash_ids\": [1, 2, 3]}\n"
		"{\"chat_id\": 6, \"parent_chat_id\": -1, \"timestamp\": 2.0, \"input_length\": 16, \"turn\": 1, \"hash_ids\": [1]}\n"
		"{\"chat_id\": 9, \"parent_chat_id\": 5, \"timestamp\": 3.5, \"input_length\": 48, \"turn\": 2, \"hash_ids\": [1, 2, 4]}\n"
		"{\"chat_id\": 11, \"parent_chat_id\": 9, \"timestamp\": 4, \"input_length\": 48, \"hash_ids\": [1, 2, 4]}\n", &t, why), STATUS_OK);
	ck_assert_uint_eq(t.block_tokens, 16);
	ck_assert_uint_eq(t.requests[0].time_us, 1250000);
	ck_assert_uint_eq(t.requests[0].count, 2);
	ck_assert_uint_ne(t.requests[0].session, t.requests[1].session);
	ck_assert_uint_eq(t.requests[2].session, t.requests[0].session);
	ck_assert_uint_eq(t.requests[2].turn, 2);
	ck_assert_uint_eq(t.requests[3].session, t.requests[0].session);
	ck_assert_uint_eq(t.requests[3].turn, 3);
	trace_fini(&t);
}
END_TEST

START_TEST(text_is_read)
{
	struct trace t;
	char why[128];

	ck_assert_int_eq(parse("# x 16 2 3\n10 40 193 1 2 5 6\n20 16 0 2 1 5\n", &t, why), STATUS_OK);
	ck_assert_uint_eq(t.request_count, 2);
	ck_assert_uint_eq(t.block_tokens, 16);
	ck_assert_uint_eq(t.requests[0].session, 193);
	ck_assert_uint_eq(t.requests[0].hint, POLICY_HINT_TOOL);
	ck_assert_uint_eq(t.requests[1].hint, POLICY_HINT_TURN);
	ck_assert_uint_eq(t.requests[1].time_us, 20000);
	trace_fini(&t);
}
END_TEST

static const struct {
	const char *text, *why;
} broken[] = {
	{ "", "no requests" },
	{ "\n\n", "no requests" },
	{ "# x 0 1 1\n", "line 1: expected `# NAME" },
	{ "# x\n", "line 1: expected `# NAME" },
	{ "# x 16 1 1\n1 16 1 1 2 5\n", "line 2: fewer ids" },
	{ "# x 16 1 1\n1 16 1 1 1 5 6\n", "line 2: more ids" },
	{ "# x 16 1 1\n1 16 1 1 99999999 5 6\n", "line 2: expected" },
	{ "# x 16 1 1\n1 16 1 9 1 5\n", "line 2: expected" },
	{ "# x 16 1 1\n1 99999999999 1 1 1 5\n", "line 2: expected" },
	{ "# x 16 1 1\n2 16 1 1 1 5\n1 16 1 1 1 5\n", "line 3: earlier" },
	{ "# x 16 1 1\n-1 16 1 1 1 5\n", "line 2: expected" },
	{ "{\n", "line 1: not a JSON object" },
	{ "[1]\n", "line 1: not a JSON object" },
	{ "{\"timestamp\": \"1\", \"input_length\": 1, \"hash_ids\": []}\n", "timestamp" },
	{ "{\"timestamp\": -1, \"input_length\": 1, \"hash_ids\": []}\n", "timestamp" },
	{ "{\"timestamp\": 1, \"input_length\": -1, \"hash_ids\": []}\n", "input_length" },
	{ "{\"timestamp\": 1, \"input_length\": 1, \"hash_ids\": 1}\n", "hash_ids is not" },
	{ "{\"timestamp\": 1, \"input_length\": 1, \"hash_ids\": [\"a\"]}\n", "hash_ids holds" },
	{ "{\"chat_id\": \"a\", \"timestamp\": 1, \"input_length\": 1, \"hash_ids\": [1]}\n", "chat_id" },
};

START_TEST(broken_traces_are_refused)
{
	struct trace t;
	char why[128] = "";

	ck_assert_int_eq(parse(broken[_i].text, &t, why), STATUS_CORRUPT);
	ck_assert_msg(strstr(why, broken[_i].why) != NULL, "%s", why);
}
END_TEST

/* ---- the engine ---- */

#ifdef TERRACE_SANITIZED
enum { BOUND_SEEDS = 2 };
#elif defined(TERRACE_TESTS_SMALL)
enum { BOUND_SEEDS = 4 };
#else
enum { BOUND_SEEDS = 10 };
#endif
enum { BLOCK = 16 };

static void ask(struct trace *t, uint64_t s, const uint64_t *ids, uint32_t count)
{
	struct trace_request r = { .time_us = s * 1000000, .tokens = count * BLOCK + 3 };

	ck_assert_int_eq(trace_add(t, &r, ids, count), STATUS_OK);
}

/* Chains over a small tree: the block behind `a` is 2a or 2a + 1. */
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

/* LRU by time of last use, deepest first within a request. */
static uint64_t naive_lru(const struct trace *t, uint32_t capacity)
{
	uint64_t *used = calloc(t->unique, sizeof(*used)), hits = 0;

	for (uint32_t i = 0; i < t->request_count; i++) {
		const struct trace_request *r = &t->requests[i];
		const uint32_t *b = t->blocks + r->first;
		uint32_t there = 0, n = 0;

		while (n < r->count && used[b[n]])
			n++;
		hits += n;
		for (uint32_t k = 0; k < r->count; k++)
			used[b[k]] = (uint64_t)(i + 1) * 100 + 50 - k;
		for (uint32_t k = 0; k < t->unique; k++)
			there += used[k] != 0;
		for (; there > capacity; there--) {
			uint32_t oldest = UINT32_MAX;

			for (uint32_t k = 0; k < t->unique; k++)
				if (used[k] && (oldest == UINT32_MAX || used[k] < used[oldest]))
					oldest = k;
			used[oldest] = 0;
		}
	}
	free(used);
	return hits;
}

START_TEST(the_engine_agrees_with_a_naive_lru)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct replay_result r;
		struct trace t;

		random_tree(&t, 400, seed);
		for (uint32_t capacity = 6; capacity < 60; capacity += 9) {
			struct replay_options o = { .capacity = capacity };

			ck_assert_int_eq(replay_run(&t, replay_policy_find("lru"), &o, &r), STATUS_OK);
			ck_assert_uint_eq(r.hit_blocks, naive_lru(&t, capacity));
			ck_assert_uint_eq(r.hit_tokens, r.hit_blocks * BLOCK);
			ck_assert_uint_eq(r.blocks, t.block_count);
			ck_assert_uint_eq(r.requests, 400);
		}
		trace_fini(&t);
	}
}
END_TEST

/* No policy beats the optimum, none hits more than an endless cache, and parts of the trace add up to
 * the whole. */
START_TEST(the_optimum_bounds_all)
{
	for (uint64_t seed = 1; seed <= BOUND_SEEDS; seed++) {
		struct replay_result endless, opt, plain, r, part;
		struct trace t;

		random_tree(&t, 600, seed);
		ck_assert_int_eq(replay_run(&t, replay_policy_find("lru"), &(struct replay_options){ .capacity = t.unique }, &endless), STATUS_OK);
		for (uint32_t capacity = 6; capacity < 80; capacity += 12) {
			struct replay_options o = { .capacity = capacity };

			ck_assert_int_eq(replay_opt(&t, true, &o, &opt), STATUS_OK);
			ck_assert_int_eq(replay_opt(&t, false, &o, &plain), STATUS_OK);
			ck_assert_uint_le(opt.hit_blocks, endless.hit_blocks);
			ck_assert_uint_le(plain.hit_blocks, opt.hit_blocks);
			for (const struct policy_ops *const *row = replay_policy_table; *row; row++) {
				uint64_t sum = 0;

				ck_assert_int_eq(replay_run(&t, *row, &o, &r), STATUS_OK);
				ck_assert_uint_le(r.hit_blocks, opt.hit_blocks);
				for (o.from = 0; o.from < 600; o.from = o.to) {
					o.to = o.from + 200;
					ck_assert_int_eq(replay_run(&t, *row, &o, &part), STATUS_OK);
					ck_assert_uint_eq(part.requests, 200);
					sum += part.hit_blocks;
				}
				ck_assert_uint_eq(sum, r.hit_blocks);
				o.from = o.to = 0;
			}
		}
		ck_assert_int_eq(replay_run(&t, replay_policy_find("lru"), &(struct replay_options){ 0 }, &r),
				 STATUS_INVALID);
		ck_assert_int_eq(replay_opt(&t, true, &(struct replay_options){ 0 }, &r), STATUS_INVALID);
		trace_fini(&t);
	}
}
END_TEST

/* A request longer than the cache keeps its head, and none of its own blocks goes for it. */
START_TEST(a_request_in_flight_is_pinned)
{
	static const uint64_t chain[] = { 1, 2, 3, 4, 5, 6, 7, 8 };

	for (const struct policy_ops *const *row = replay_policy_table; *row; row++) {
		struct replay_result r;
		struct trace t;

		trace_init(&t, BLOCK);
		ask(&t, 1, chain, 8);
		ask(&t, 2, chain, 8);
		ck_assert_int_eq(replay_run(&t, *row, &(struct replay_options){ .capacity = 5 }, &r), STATUS_OK);
		ck_assert_uint_eq(r.hit_blocks, 5);
		ck_assert_uint_eq(r.evicted, 0);
		ck_assert_uint_eq(r.refused, 6);
		trace_fini(&t);
	}
}
END_TEST

START_TEST(hints_tell_of_the_last_request)
{
	static const uint64_t a[] = { 1, 2, 3 }, b[] = { 1, 9 };
	struct trace t;

	trace_init(&t, BLOCK);
	ask(&t, 1, a, 2);
	ask(&t, 2, a, 3);
	ask(&t, 3, b, 2);
	ck_assert_int_eq(trace_hint_end(&t, 1, 0), STATUS_OK);
	ck_assert_uint_eq(t.requests[0].hint, POLICY_HINT_NONE);
	ck_assert_uint_eq(t.requests[1].hint, POLICY_HINT_END);
	ck_assert_uint_eq(t.requests[2].hint, POLICY_HINT_END);
	trace_fini(&t);

	trace_init(&t, BLOCK);
	for (uint32_t i = 0; i < 4000; i++) {
		struct trace_request r = { .time_us = i, .session = 1 + i % 2000, .tokens = BLOCK };

		ck_assert_int_eq(trace_add(&t, &r, a, 1), STATUS_OK);
	}
	ck_assert_int_eq(trace_hint_end(&t, 0.8, 0.05), STATUS_OK);
	for (int half = 0; half < 2; half++) {
		uint32_t told = 0;

		for (uint32_t i = 0; i < 2000; i++)
			told += t.requests[half * 2000 + i].hint == POLICY_HINT_END;
		ck_assert_uint_ge(told, half ? 1520 : 60);
		ck_assert_uint_le(told, half ? 1680 : 140);
	}
	trace_fini(&t);
}
END_TEST

/* A session's report comes after its last request, and takes nothing from it. */
START_TEST(reports_are_not_the_last_requests)
{
	static const uint64_t a[] = { 1, 2 }, unknown[] = { 77 };
	const struct trace_request of_session = { .time_us = 2, .session = 5, .hint = POLICY_HINT_TURN };
	const struct trace_request of_nobody = { .time_us = 3, .hint = POLICY_HINT_TURN };
	struct trace_request r = { .time_us = 1, .session = 5, .tokens = 2 * BLOCK };
	struct trace t;

	trace_init(&t, BLOCK);
	ck_assert_int_eq(trace_add(&t, &r, a, 2), STATUS_OK);
	ck_assert_int_eq(trace_add(&t, &of_session, &a[1], 1), STATUS_OK);
	ck_assert_int_eq(trace_add(&t, &of_session, unknown, 1), STATUS_OK);
	ck_assert_int_eq(trace_add(&t, &of_nobody, a, 1), STATUS_OK);
	ck_assert_uint_eq(t.requests[1].about, 2);
	ck_assert_uint_eq(t.requests[2].about, 0);
	ck_assert_uint_eq(t.requests[3].about, 1); /* who reports may not know whose chain it is */
	ck_assert_int_eq(trace_hint_end(&t, 1, 0), STATUS_OK);
	ck_assert_uint_eq(t.requests[0].hint, POLICY_HINT_END);
	for (int i = 1; i < 4; i++)
		ck_assert_uint_eq(t.requests[i].hint, POLICY_HINT_TURN);
	trace_fini(&t);
}
END_TEST

/* ---- a real trace ---- */

/* Figures published with the trace, in %, at 1, 5, 10, 25 and 50 %. */
static const struct {
	const char *policy;
	double rate[5], near;
} published[] = {
	{ "fifo", { 5.2, 17.6, 25.3, 33.2, 36.2 }, 0.06 },
	{ "lru", { 5.3, 19.8, 28.2, 36.0, 37.0 }, 0.06 },
	{ "arc", { 6.5, 21.3, 28.8, 33.9, 36.9 }, 0.35 },
	{ "s3fifo", { 7.6, 18.7, 24.7, 35.0, 36.9 }, 0.35 },
	{ "opt", { 24.4, 37.3, 37.3, 37.3, 37.3 }, 0.06 },
};
static const double shares[5] = { 0.01, 0.05, 0.1, 0.25, 0.5 };

START_TEST(the_conversation_trace_gives_the_known_figures)
{
	static const double gains[5] = { 4.5, 2.5, 1.4, 0, 0 }; /* of graph over LRU, in points */
	double best[5] = { 0 }, lru[5], graph;
	struct replay_result r;
	struct trace t;
	char why[128];

	ck_assert_int_eq(trace_read(TEST_DATA "/traces/mooncake_conversation.jsonl.xz", &t, why, sizeof(why)), STATUS_OK);
	ck_assert_uint_eq(t.request_count, 12031);
	for (size_t p = 0; p < sizeof(published) / sizeof(published[0]); p++)
		for (int s = 0; s < 5; s++) {
			struct replay_options o = { .capacity = (uint64_t)(shares[s] * t.unique + 0.5) };
			double rate;

			if (strcmp(published[p].policy, "opt") == 0)
				ck_assert_int_eq(replay_opt(&t, true, &o, &r), STATUS_OK);
			else
				ck_assert_int_eq(replay_run(&t, replay_policy_find(published[p].policy), &o, &r),
						 STATUS_OK);
			rate = replay_hit_tokens(&r);
			ck_assert_msg(rate > published[p].rate[s] - published[p].near && rate < published[p].rate[s] + published[p].near,
				      "%s at %g: %.3f", published[p].policy, shares[s], rate);
			if (strcmp(published[p].policy, "lru") == 0)
				lru[s] = rate;
			if (strcmp(published[p].policy, "opt") != 0 && rate > best[s])
				best[s] = rate;
		}
	for (int s = 0; s < 5; s++) {
		struct replay_options o = { .capacity = (uint64_t)(shares[s] * t.unique + 0.5) };

		ck_assert_int_eq(replay_run(&t, replay_policy_find("graph"), &o, &r), STATUS_OK);
		graph = replay_hit_tokens(&r);
		ck_assert_msg(graph >= lru[s] + gains[s] && graph >= best[s] - 0.02, "graph at %g: %.3f, lru %.3f, best %.3f",
			      shares[s], graph, lru[s], best[s]);
	}
	trace_fini(&t);
}
END_TEST

/* What is saved is counted as the formula says: a token costs 1 and as much more as there are tokens before it, by growth. */
START_TEST(saved_cost_is_what_hits_would_cost)
{
	static const uint64_t ids[4] = { 1, 2, 3, 4 };
	const struct trace_request whole = { .time_us = 1, .tokens = 4 * 16 + 5 };
	struct replay_options o = { .capacity = 10, .growth = 32 };
	struct replay_result r, plain;
	double all = 0, hits = 0;
	struct trace t;

	trace_init(&t, 16);
	ck_assert_int_eq(trace_add(&t, &whole, ids, 4), STATUS_OK);
	ck_assert_int_eq(trace_add(&t, &whole, ids, 4), STATUS_OK);
	for (uint32_t i = 0; i < whole.tokens; i++) {
		const double cost = 1 + (i + 0.5) / 32;

		all += 2 * cost;
		hits += i < 4 * 16 ? cost : 0;
	}
	ck_assert_int_eq(replay_run(&t, replay_policy_find("lru"), &o, &r), STATUS_OK);
	ck_assert_double_eq_tol(replay_saved_cost(&r), 100 * hits / all, 1e-9);
	ck_assert_double_lt(replay_saved_cost(&r), replay_hit_tokens(&r)); /* what hits lies in front */
	ck_assert_int_eq(replay_opt(&t, true, &o, &plain), STATUS_OK);
	ck_assert_double_eq_tol(replay_saved_cost(&plain), 100 * hits / all, 1e-9);
	o.growth = 0;
	ck_assert_int_eq(replay_run(&t, replay_policy_find("lru"), &o, &plain), STATUS_OK);
	ck_assert_double_eq(replay_saved_cost(&plain), replay_hit_tokens(&plain));
	ck_assert_double_eq(replay_saved_cost(&(struct replay_result){ .requests = 0 }), 0);
	trace_fini(&t);
}
END_TEST

/* Gone by cost, as its model has it, `graph` saves more of it where there is little room, and hits less; policies that know no cost go the same way. */
START_TEST(going_by_cost_saves_more_of_it)
{
	struct replay_result hits, cost, lru, lru_told;
	struct replay_options o = { .growth = 30000 };
	struct trace t;
	char why[128];

	ck_assert_int_eq(trace_read(TEST_DATA "/traces/mooncake_conversation.jsonl.xz", &t, why, sizeof(why)), STATUS_OK);
	o.capacity = t.unique / 100;
	ck_assert_int_eq(replay_run(&t, replay_policy_find("graph"), &o, &hits), STATUS_OK);
	ck_assert_int_eq(replay_run(&t, replay_policy_find("lru"), &o, &lru), STATUS_OK);
	o.weigh = o.growth;
	ck_assert_int_eq(replay_run(&t, replay_policy_find("graph"), &o, &cost), STATUS_OK);
	ck_assert_int_eq(replay_run(&t, replay_policy_find("lru"), &o, &lru_told), STATUS_OK);
	ck_assert_msg(replay_saved_cost(&cost) > replay_saved_cost(&hits) + 0.1, "%f, %f", replay_saved_cost(&cost), replay_saved_cost(&hits));
	ck_assert_double_lt(replay_hit_tokens(&cost), replay_hit_tokens(&hits));
	ck_assert_mem_eq(&lru, &lru_told, sizeof(lru));
	trace_fini(&t);
}
END_TEST

START_TEST(files_that_are_none_are_refused)
{
	char name[] = "/tmp/terrace-replay-XXXXXX", why[128];
	static const char half[] = "\xfd" "7zXZ\0\0\4\346\326\264F\2";
	int fd = mkstemp(name);
	struct trace t;
	FILE *f;

	ck_assert_int_ge(fd, 0);
	f = fdopen(fd, "w");
	fwrite(half, 1, sizeof(half) - 1, f);
	fclose(f);
	ck_assert_int_eq(trace_read(name, &t, why, sizeof(why)), STATUS_CORRUPT);
	remove(name);
	ck_assert_int_eq(trace_read(name, &t, why, sizeof(why)), STATUS_IO);
	ck_assert_str_eq(why, "No such file or directory");
}
END_TEST

static const struct {
	const char *name, *value;
	bool good;
} arguments[] = {
	{ "--policy", "lru,graph,opt", true }, { "--policy", "all", true },	   { "--policy", "lru,", false },
	{ "--policy", "LRU", false },	       { "--size", "0.01,1", true },	   { "--size", "0", false },
	{ "--size", "2", false },	       { "--size", "", false },		   { "--size", "0.1x", false },
	{ "--hint", "end:0.8:0.05", true },    { "--hint", "end:0.8", false },	   { "--hint", "tool:1:1", false },
	{ "--hint", "end:1.1:0", false },      { "--count", "0.2:0.4", true },	   { "--count", "0.4:0.2", false },
	{ "--count", "a:b", false },	       { "--csv", "x", true },		   { "--zip", "x", false },
	{ "--folds", "5", true },	       { "--folds", "0", false },	   { "--folds", "2.5", false },
	{ "--offline", "--json", true },       { "--offline", "--folds", false },  { "--policy", "offline-past", false },
	{ "--recompute-growth", "30000", true }, { "--recompute-growth", "30000:0", true }, { "--recompute-growth", "1:x", false },
	{ "--recompute-growth", "-1", false },  { "--recompute-growth", "2.5", false },  { "--recompute-growth", ":5", false },
	{ "--recompute-growth", "5000000000", false }, { "--recompute-growth", "0000000000000000000000000000005", true },
	{ "--nodes", "4", true }, { "--nodes", "0", false }, { "--nodes", "17", false }, { "--load", "4:2:1:1", false },
	{ "--load", "0:0", false }, { "--spread", "request", true }, { "--spread", "user", false }, { "--sent", "none", true }, { "--room", "own", true },
	{ "--told", "1", true }, { "--told", "0", false }, { "--token-bytes", "0", false }, { "--seed", "7", true }, { "--seed", "-1", false },
	{ "--policy", NULL, false },
};

START_TEST(arguments_are_checked)
{
	char program[] = "terrace-replay", trace[] = "--trace", file[] = "t", name[32], value[32], why[256] = "";
	char *argv[] = { program, trace, file, name, arguments[_i].value ? value : NULL, NULL };
	struct options o;

	snprintf(name, sizeof(name), "%s", arguments[_i].name);
	snprintf(value, sizeof(value), "%s", arguments[_i].value ? arguments[_i].value : "");
	ck_assert_int_eq(options_parse(arguments[_i].value ? 5 : 4, argv, &o, why, sizeof(why)), arguments[_i].good);
	ck_assert_int_eq(arguments[_i].good, why[0] == '\0');
	ck_assert(options_parse(3, argv, &o, why, sizeof(why)));
	ck_assert(!options_parse(1, argv, &o, why, sizeof(why)));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("replay");
	TCase *tc = tcase_create("replay");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, mooncake_is_read);
	tcase_add_test(tc, qwen_is_read);
	tcase_add_test(tc, text_is_read);
	tcase_add_loop_test(tc, broken_traces_are_refused, 0, (int)(sizeof(broken) / sizeof(broken[0])));
	tcase_add_test(tc, the_engine_agrees_with_a_naive_lru);
	tcase_add_test(tc, the_optimum_bounds_all);
	tcase_add_test(tc, a_request_in_flight_is_pinned);
	tcase_add_test(tc, hints_tell_of_the_last_request);
	tcase_add_test(tc, reports_are_not_the_last_requests);
	tcase_add_test(tc, the_conversation_trace_gives_the_known_figures);
	tcase_add_test(tc, saved_cost_is_what_hits_would_cost);
	tcase_add_test(tc, going_by_cost_saves_more_of_it);
	tcase_add_test(tc, files_that_are_none_are_refused);
	tcase_add_loop_test(tc, arguments_are_checked, 0, (int)(sizeof(arguments) / sizeof(arguments[0])));
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
