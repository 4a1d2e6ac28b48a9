/* The recorder: what was asked of a cache, replayed, gives the same hits; a bounded file; no names. And a public trace, driven
 * through a cache, hits as the replay says. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eviction/replay.h"
#include "eviction/replay/read.h"
#include "tests/cache_chain.h"

enum { SLOTS = 256, SESSIONS = 40, TURNS = 8, CHAIN_MAX = 4 + 3 * TURNS };

/* Conversations that share a beginning, and grow. */
static uint32_t chain_of(uint64_t session, uint32_t turn, uint64_t *keys)
{
	uint32_t n = 4 + 3 * turn;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = i < 4 ? session % 3 * 10 + i : 1000 + session * 100 + i;
	return n;
}

static uint64_t random_of(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* Hits of a few hundred requests. */
static uint64_t converse(struct rig *r, uint32_t requests, uint64_t *asked)
{
	uint64_t keys[CHAIN_MAX + 3], hits = 0, state = 7;
	uint32_t turn[SESSIONS] = { 0 };

	for (uint32_t i = 0; i < requests; i++) {
		uint64_t s = random_of(&state) % SESSIONS;
		uint32_t n = chain_of(s, turn[s], keys);

		turn[s] = (turn[s] + 1) % TURNS;
		r->now += 1000 * (1 + random_of(&state) % 5000);
		hits += chain_request(r, keys, n);
		*asked += n;
		if (i % 5 == 0)
			chain_report(r, keys, n, CACHE_EVENT_TURN_END);
		if (i % 7 == 0)
			rig_tick(r->c, r->now);
	}
	return hits;
}

static int file_open(char path[32])
{
	strcpy(path, "/tmp/terrace-trace-XXXXXX");
	return mkstemp(path);
}

static void trace_load(const char *path, struct trace *out)
{
	char why[160] = "";

	ck_assert_msg(!trace_read(path, out, why, sizeof(why)), "%s", why);
}

START_TEST(what_is_recorded_replays_to_the_same_hits)
{
	struct cache_options o = rig_options(SLOTS);
	struct replay_options replay = { .capacity = SLOTS };
	struct cache_trace_result result;
	struct replay_result replayed;
	uint64_t hits, asked = 0;
	struct trace trace;
	char path[32];
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_trace_start(r.c, file_open(path), 0, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_trace_start(r.c, -1, 0, &r.why), STATUS_BUSY);
	ck_assert(cache_tracing(r.c));
	hits = converse(&r, 400, &asked);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_OK);
	ck_assert_uint_eq(result.requests, 400);
	ck_assert_uint_eq(result.blocks, asked);
	ck_assert_uint_eq(result.dropped, 0);
	rig_close(&r);

	trace_load(path, &trace);
	ck_assert_uint_eq(trace.block_tokens, RIG_TOKENS);
	ck_assert_uint_eq(trace.request_count, 400 + 80);
	ck_assert_int_eq(replay_run(&trace, policy_find("lru"), &replay, &replayed), STATUS_OK);
	ck_assert_uint_gt(hits, asked / 4);
	ck_assert_uint_lt(hits, asked * 9 / 10);
	/* Reports are uses here, and no requests there. */
	ck_assert_double_eq_tol((double)replayed.hit_blocks / (double)asked, (double)hits / (double)asked, 0.01);
	trace_fini(&trace);
	unlink(path);
}
END_TEST

START_TEST(a_full_file_says_what_is_missing)
{
	struct cache_options o = rig_options(SLOTS);
	struct cache_trace_result result;
	struct trace trace;
	uint64_t asked = 0;
	char path[32], *text;
	struct rig r;
	FILE *f;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_trace_start(r.c, file_open(path), 8192, &r.why), STATUS_OK);
	converse(&r, 200, &asked);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_OK);
	ck_assert_uint_le(result.bytes, 8192);
	ck_assert_uint_gt(result.dropped, 20);
	rig_close(&r);
	trace_load(path, &trace);
	ck_assert_uint_ge(trace.request_count, result.requests);
	trace_fini(&trace);
	text = calloc(1, 8193);
	f = fopen(path, "r");
	ck_assert_uint_gt(fread(text, 1, 8192, f), 0);
	ck_assert_ptr_nonnull(strstr(text, "requests were dropped up to here"));
	fclose(f);
	free(text);
	unlink(path);
}
END_TEST

START_TEST(a_disk_that_takes_nothing_is_told)
{
	struct cache_options o = rig_options(SLOTS);
	struct cache_trace_result result;
	uint64_t asked = 0;
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_trace_start(r.c, open("/dev/full", O_WRONLY), 0, &r.why), STATUS_OK);
	converse(&r, 50, &asked);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_IO);
	ck_assert_uint_eq(result.bytes, 0);
	rig_close(&r);
}
END_TEST

/* ---- a public trace ---- */

enum { PUBLIC_SLOTS = 8192 };

static double public_hits(const struct trace *t, const char *policy, uint32_t requests)
{
	struct cache_options o = rig_options(PUBLIC_SLOTS);
	uint64_t *keys = malloc(4096 * sizeof(*keys)), tokens = 0, hits = 0;
	struct rig r;

	o.policy = policy;
	rig_open(&r, &o, 1);
	for (uint32_t i = 0; i < requests; i++) {
		const struct trace_request *q = &t->requests[i];

		for (uint32_t b = 0; b < q->count; b++)
			keys[b] = t->blocks[q->first + b];
		r.now = 1000000 + q->time_us;
		if (q->count)
			hits += chain_request(&r, keys, q->count);
		tokens += q->tokens;
	}
	rig_close(&r);
	free(keys);
	return 100.0 * (double)(hits * t->block_tokens) / (double)tokens;
}

START_TEST(a_public_trace_hits_as_its_replay_says)
{
	static const char *const policies[] = { "lru", "graph" };
	const uint32_t requests = RIG_ROUNDS(4000);
	struct replay_options o = { .capacity = PUBLIC_SLOTS, .to = requests };
	struct trace trace;

	trace_load(TEST_DATA "/traces/mooncake_conversation.jsonl.xz", &trace);
	for (int i = 0; i < 2; i++) {
		struct replay_result replayed;
		double own = public_hits(&trace, policies[i], requests);

		ck_assert_int_eq(replay_run(&trace, policy_find(policies[i]), &o, &replayed), STATUS_OK);
		printf("%s: %.2f %% of the tokens hit, %.2f %% in the replay\n", policies[i], own, replay_hit_tokens(&replayed));
		ck_assert_double_eq_tol(own, replay_hit_tokens(&replayed), 1.0);
	}
	trace_fini(&trace);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		what_is_recorded_replays_to_the_same_hits, a_full_file_says_what_is_missing, a_disk_that_takes_nothing_is_told,
		a_public_trace_hits_as_its_replay_says,
	};

	return rig_main("cache_trace", tests, sizeof(tests) / sizeof(tests[0]));
}
