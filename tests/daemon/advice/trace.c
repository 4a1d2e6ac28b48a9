/* The recorder: what was asked of a cache, replayed, gives the same hits; a bounded file; no names. And a public trace, driven
 * through a cache, hits as the replay says. */
#include "daemon/advice/advice.h"
#include "daemon/advice/trace.h"
#include "daemon/block/by_id.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "eviction/policy.h"
#include "eviction/replay.h"
#include "eviction/replay/read.h"
#include "eviction/trace.h"
#include "tests/daemon/cache_chain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static uint64_t reported_blocks;

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
		if (i % 5 == 0) {
			chain_report(r, keys, n, CACHE_EVENT_TURN_END);
			reported_blocks += n;
		}
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
	ck_assert_ptr_nonnull(r.c->advice->recorder);
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
	ck_assert_double_eq_tol((double)replayed.hit_blocks / (double)asked, (double)hits / (double)asked, 0.01);
	trace_fini(&trace);
	unlink(path);
}
END_TEST

/* ---- what is reported ---- */

static struct policy_ops fake;
static struct {
	uint64_t requests, hinted, hinted_blocks, last;
} heard;

static void hear(struct policy *p, const struct policy_request *q)
{
	(void)p;
	heard.requests++;
	ck_assert_uint_gt(q->count, 0);
	if (q->hint == POLICY_HINT_TURN) {
		heard.hinted++;
		heard.hinted_blocks += q->count;
		ck_assert_uint_eq(q->ids[q->count - 1], heard.last); /* of the request before it, here */
	}
	heard.last = q->ids[q->count - 1];
}

/* A policy hears in the replay what it heard in the daemon: each report, with its hint, about the whole of its chain. */
START_TEST(reports_are_replayed)
{
	struct cache_options o = rig_options(SLOTS);
	const struct replay_options replay = { .capacity = SLOTS };
	struct cache_trace_result result;
	struct replay_result replayed;
	uint64_t asked = 0;
	struct trace trace;
	char path[32];
	struct rig r;

	rig_open(&r, &o, 1);
	ck_assert_int_eq(cache_trace_start(r.c, file_open(path), 0, &r.why), STATUS_OK);
	reported_blocks = 0;
	converse(&r, 400, &asked);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_OK);
	rig_close(&r);
	trace_load(path, &trace);
	fake = *policy_find("lru");
	fake.request = hear;
	memset(&heard, 0, sizeof(heard));
	ck_assert_int_eq(replay_run(&trace, &fake, &replay, &replayed), STATUS_OK);
	ck_assert_uint_eq(heard.requests, 480);
	ck_assert_uint_eq(heard.hinted, 80);
	ck_assert_uint_eq(heard.hinted_blocks, reported_blocks);
	ck_assert_uint_eq(replayed.blocks, asked);
	trace_fini(&trace);
	unlink(path);
}
END_TEST

/* ---- what is not told ---- */

static char *text_of(const char *path)
{
	char *text;
	FILE *f = fopen(path, "r");
	long size;

	ck_assert_ptr_nonnull(f);
	fseek(f, 0, SEEK_END);
	size = ftell(f);
	rewind(f);
	text = calloc(1, (size_t)size + 1);
	ck_assert_uint_eq(fread(text, 1, (size_t)size, f), (size_t)size);
	fclose(f);
	return text;
}

/* Nothing of a key, nor what the cache makes of it, which anybody could make too. */
static void expect_unknown(const struct rig *r, uint64_t number, uint64_t first, uint64_t count)
{
	for (uint64_t n = first; n < first + count; n++) {
		uint64_t word[RIG_KEY_BYTES / 8], name;
		uint8_t key[RIG_KEY_BYTES];

		rig_key(key, n);
		memcpy(word, key, sizeof(word));
		name = key_name(key, sizeof(key));
		ck_assert_uint_ne(number, name);
		ck_assert_uint_ne(number, policy_id(name, r->c->pools[0]->layout_id));
		ck_assert_uint_ne(number, word[0]);
		ck_assert_uint_ne(number, word[1]);
	}
}

/* A recording of the same requests twice: lines of numbers, none of which is of a key; and nothing tells that they are the same blocks. */
START_TEST(a_recording_has_nothing_of_a_key)
{
	enum { CHAIN = 12, FIRST = 1 << 20 };
	struct cache_options o = rig_options(SLOTS);
	struct cache_trace_result result;
	uint64_t keys[CHAIN], ids[2][CHAIN + 1];
	char path[32];
	struct rig r;

	for (uint64_t i = 0; i < CHAIN; i++)
		keys[i] = FIRST + i;
	rig_open(&r, &o, 1);
	for (int time = 0; time < 2; time++) {
		char *text, *line, *rest, *number;
		uint32_t n = 0;

		ck_assert_int_eq(cache_trace_start(r.c, file_open(path), 0, &r.why), STATUS_OK);
		r.now += 60000000;
		chain_request(&r, keys, CHAIN);
		chain_report(&r, keys, CHAIN, CACHE_EVENT_TURN_END);
		ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_OK);
		rest = text = text_of(path);
		ck_assert_int_eq(strncmp(strsep(&rest, "\n"), "# terrace-trace ", 16), 0);
		while ((line = strsep(&rest, "\n")) && *line) {
			ck_assert_uint_eq(strspn(line, "0123456789 "), strlen(line));
			for (int column = 0; (number = strsep(&line, " ")); column++) {
				const uint64_t value = strtoull(number, NULL, 10);

				expect_unknown(&r, value, FIRST, CHAIN);
				if (column >= 5)
					ids[time][n++] = value;
			}
		}
		ck_assert_uint_eq(n, CHAIN + 1);
		ck_assert_uint_eq(ids[time][CHAIN], ids[time][CHAIN - 1]); /* the report's */
		free(text);
		unlink(path);
	}
	for (uint32_t i = 0; i < CHAIN; i++)
		for (uint32_t j = 0; j < CHAIN; j++)
			ck_assert_uint_ne(ids[0][i], ids[1][j]);
	rig_close(&r);
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
	ck_assert_int_eq(cache_trace_error(r.c), 0);
	converse(&r, 50, &asked);
	for (int i = 0; !cache_trace_error(r.c) && i < 60000; i++)
		usleep(1000);
	ck_assert_int_eq(cache_trace_error(r.c), ENOSPC);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_EXHAUSTED);
	ck_assert_int_eq(result.error, ENOSPC);
	ck_assert_uint_eq(result.bytes, 0);
	ck_assert_int_eq(cache_trace_error(r.c), 0);
	rig_close(&r);
}
END_TEST

/* Takes what a pipe holds, and no more. Returns the end to read. */
static int record_to_pipe(struct rig *r)
{
	uint64_t asked = 0;
	int ends[2];

	ck_assert_int_eq(pipe(ends), 0);
	ck_assert_int_eq(cache_trace_start(r->c, ends[1], 0, &r->why), STATUS_OK);
	converse(r, 400, &asked);
	return ends[0];
}

/* To its end: it is closed after all. */
static void pipe_drain(int end)
{
	char bytes[4096];

	while (read(end, bytes, sizeof(bytes)) > 0)
		continue;
	close(end);
}

/* As on a disk that hangs: it keeps nobody, who stops the recording, the next one, or the end of the cache. */
START_TEST(a_file_that_takes_no_more_is_left)
{
	struct cache_options o = rig_options(SLOTS);
	struct cache_trace_result result;
	int ends[2];
	struct rig r;

	o.disk_close_ms = 200;
	rig_open(&r, &o, 1);
	ends[0] = record_to_pipe(&r);
	ck_assert_int_eq(cache_trace_stop(r.c, &result, &r.why), STATUS_IO);
	ck_assert_uint_eq(result.bytes, 0);
	ck_assert_ptr_null(r.c->advice->recorder);
	ends[1] = record_to_pipe(&r);
	rig_close(&r);
	pipe_drain(ends[0]);
	pipe_drain(ends[1]);
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
		what_is_recorded_replays_to_the_same_hits, reports_are_replayed, a_recording_has_nothing_of_a_key, a_full_file_says_what_is_missing, a_disk_that_takes_nothing_is_told,
		a_file_that_takes_no_more_is_left, a_public_trace_hits_as_its_replay_says,
	};

	return rig_main("cache_trace", tests, sizeof(tests) / sizeof(tests[0]));
}
