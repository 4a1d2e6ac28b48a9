/* An engine that replays a public trace through a real daemon: a Lookup when a request arrives, the Lease some time after it, Reserve and
 * Commit of the rest, Release. As many requests at a time as there are sessions, in the order of the trace.
 *
 *     trace_engine run ADDRESS TRACE SPEED FROM TO SESSIONS LEAD_US [MODELS]    time passes SPEED times as fast as in the trace
 *     trace_engine replay TRACE SPEED FROM TO POLICY BLOCKS            what a replay of the same hits, its time as fast
 *
 * Prints one JSON object. Blocks are the smallest there are, of whatever bytes: tests/fault checks bytes. With MODELS
 * each conversation belongs to one of so many models, whose blocks have as many sizes: the first has the smallest, and
 * each next takes a page more.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/include/terrace.h"
#include "eviction/replay.h"
#include "eviction/replay/read.h"

enum { SESSIONS_MAX = 64, MODELS_MAX = 16, LAYERS_A_PAGE = 7 };
enum { BLOCKS_MAX = 4096, KEY_BYTES = 16, TOKENS = 16, CALL_US = 30 * 1000 * 1000 };

static const struct terrace_layout layout = {
	.size = sizeof(struct terrace_layout),
	.fingerprint = "trace",
	.layers = 1,
	.heads = 1,
	.total_heads = 1,
	.head_dim_k = 64,
	.head_dim_v = 64,
	.block_tokens = TOKENS,
	.k_format = TERRACE_FORMAT_TQ2,
	.v_format = TERRACE_FORMAT_TQ2,
};

struct tally {
	uint64_t requests, tokens, blocks;
	uint64_t hits, host_hits;       /* blocks of the prefix at the Lookup: anywhere; in memory from the head on */
	uint64_t leased, stored;
	uint64_t continuing;
	uint64_t waits, wait_blocks;    /* of continuing sessions, at the Lookup: what a Lease there and then would have waited for */
	uint64_t lease_waits, lease_wait_blocks; /* at the Lease */
	uint64_t late_us;               /* the longest that a request began behind its time */
};

static struct {
	pthread_mutex_t lock;
	struct trace trace;
	bool *is_end;
	uint32_t next, to, lead_us, models;
	struct timespec began;
	uint64_t began_us;              /* of the trace */
	struct tally all;
} shared = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void die(const char *what, const char *why)
{
	fprintf(stderr, "trace_engine: %s: %s\n", what, why);
	exit(1);
}

static void must(enum terrace_status status, const char *what)
{
	if (status != TERRACE_OK)
		die(what, terrace_error());
}

/* ---- the trace ---- */

/* Its requests come `speed` times as fast from here on, for a replay as for an engine. */
static void trace_load(const char *path, double speed, struct trace *out)
{
	char why[160] = "";

	if (trace_read(path, out, why, sizeof(why)))
		die(path, why);
	for (uint32_t i = 0; i < out->request_count; i++)
		out->requests[i].time_us = (uint64_t)((double)out->requests[i].time_us / speed);
}

/* Whether the request goes on from where an earlier one ended, and nothing else has gone on from there. */
static bool goes_on(const struct trace_request *q)
{
	const uint32_t *blocks = shared.trace.blocks + q->first;
	uint32_t i = q->count;

	while (i > 0 && !shared.is_end[blocks[i - 1]])
		i--;
	if (i > 0)
		shared.is_end[blocks[i - 1]] = false;
	shared.is_end[blocks[q->count - 1]] = true;
	return i > 0;
}

static uint64_t since_began_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)((now.tv_sec - shared.began.tv_sec) * 1000000 + (now.tv_nsec - shared.began.tv_nsec) / 1000);
}

static void sleep_us(uint64_t us)
{
	nanosleep(&(struct timespec){ .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 }, NULL);
}

/* ---- a request ---- */

struct engine {
	struct terrace_session *session; /* of the request's model, of: */
	struct terrace_session *sessions[MODELS_MAX];
	pthread_t thread;
	uint8_t key[BLOCKS_MAX * KEY_BYTES], state[BLOCKS_MAX];
	struct terrace_block_info info[BLOCKS_MAX];
};

static void keys_of(struct engine *e, const struct trace_request *q)
{
	for (uint32_t i = 0; i < q->count; i++) {
		uint64_t n = shared.trace.blocks[q->first + i], mixed = (n + 1) * 0x9e3779b97f4a7c15u;

		memcpy(e->key + (size_t)i * KEY_BYTES, &n, 8);
		memcpy(e->key + (size_t)i * KEY_BYTES + 8, &mixed, 8);
	}
}

/* All conversations of the trace begin with the same block; the second tells them apart. */
static uint32_t model_of(const struct trace_request *q)
{
	return shared.trace.blocks[q->first + (q->count > 1)] % shared.models;
}

/* Blocks of the prefix; from the head on in memory; and how many of them a disk alone has. */
static uint32_t look_up(struct engine *e, const struct terrace_keys *k, uint32_t *host, uint32_t *on_disk)
{
	uint32_t prefix;

	must(terrace_lookup(e->session, k, CALL_US, &prefix, e->state), "lookup");
	*host = *on_disk = 0;
	for (uint32_t i = 0; i < prefix; i++) {
		*host += *host == i && e->state[i] == TERRACE_STATE_HOST;
		*on_disk += e->state[i] == TERRACE_STATE_DISK;
	}
	return prefix;
}

static void put(struct engine *e, const struct terrace_keys *all, uint32_t from, struct tally *t)
{
	const struct terrace_keys rest = { all->bytes + (size_t)from * KEY_BYTES, all->count - from, KEY_BYTES };
	enum terrace_status statuses[BLOCKS_MAX];
	struct terrace_reservation *r;

	for (uint32_t i = from; i < all->count; i++)
		e->info[i - from] = (struct terrace_block_info){
			.size = sizeof(e->info[0]), .position = (uint64_t)i * TOKENS, .tokens = TOKENS,
			.parent = i ? all->bytes + (size_t)(i - 1) * KEY_BYTES : NULL,
		};
	must(terrace_reserve(e->session, &rest, e->info, CALL_US, statuses, &r), "reserve");
	must(terrace_commit(r, CALL_US, statuses, NULL), "commit");
	for (uint32_t i = 0; i < rest.count; i++)
		t->stored += statuses[i] == TERRACE_OK;
}

static void serve(struct engine *e, const struct trace_request *q, bool continuing, struct tally *t)
{
	const struct terrace_keys k = { e->key, q->count, KEY_BYTES };
	uint32_t host, on_disk, hits, leased = 0, ignored;
	struct terrace_lease *lease = NULL;
	enum terrace_status s;

	keys_of(e, q);
	e->session = e->sessions[model_of(q)];
	hits = look_up(e, &k, &host, &on_disk);
	t->requests++;
	t->tokens += q->tokens;
	t->blocks += q->count;
	t->hits += hits;
	t->host_hits += host;
	t->continuing += continuing;
	t->waits += continuing && on_disk;
	t->wait_blocks += continuing ? on_disk : 0;
	if (shared.lead_us)
		sleep_us(shared.lead_us);
	if (on_disk && shared.lead_us)
		look_up(e, &k, &ignored, &on_disk);
	t->lease_waits += continuing && on_disk;
	t->lease_wait_blocks += continuing ? on_disk : 0;
	s = terrace_lease(e->session, &k, TERRACE_LEASE_PREFIX, CALL_US, &lease);
	if (s != TERRACE_MISS)
		must(s, "lease");
	leased = s ? 0 : terrace_lease_count(lease);
	t->leased += leased;
	if (leased < q->count)
		put(e, &k, leased, t);
	if (!s)
		terrace_release(lease);
}

/* ---- the run ---- */

static bool take(struct trace_request *out, bool *continuing)
{
	bool taken = false;

	pthread_mutex_lock(&shared.lock);
	while (!taken && shared.next < shared.to) {
		const struct trace_request *q = &shared.trace.requests[shared.next++];
		uint64_t now_us = since_began_us();

		if (!q->count || q->count > BLOCKS_MAX)
			continue;
		*out = *q;
		*continuing = goes_on(q);
		taken = true;
		if (q->time_us - shared.began_us > now_us)
			sleep_us(q->time_us - shared.began_us - now_us); /* the others come later still */
		else if (now_us - (q->time_us - shared.began_us) > shared.all.late_us)
			shared.all.late_us = now_us - (q->time_us - shared.began_us);
	}
	pthread_mutex_unlock(&shared.lock);
	return taken;
}

static void tally_add(struct tally *to, const struct tally *t)
{
	to->requests += t->requests;
	to->tokens += t->tokens;
	to->blocks += t->blocks;
	to->hits += t->hits;
	to->host_hits += t->host_hits;
	to->leased += t->leased;
	to->stored += t->stored;
	to->continuing += t->continuing;
	to->waits += t->waits;
	to->wait_blocks += t->wait_blocks;
	to->lease_waits += t->lease_waits;
	to->lease_wait_blocks += t->lease_wait_blocks;
}

static void *engine_main(void *arg)
{
	struct tally *t = calloc(1, sizeof(*t));
	struct trace_request q;
	bool continuing;

	if (!t)
		die("engine", "no memory");
	while (take(&q, &continuing))
		serve(arg, &q, continuing, t);
	pthread_mutex_lock(&shared.lock);
	tally_add(&shared.all, t);
	pthread_mutex_unlock(&shared.lock);
	free(t);
	return NULL;
}

static double percent(uint64_t blocks, uint64_t tokens)
{
	return tokens ? 100.0 * (double)(blocks * shared.trace.block_tokens) / (double)tokens : 0;
}

static void print(const struct tally *t)
{
	printf("{\"requests\": %" PRIu64 ", \"blocks\": %" PRIu64 ", \"hit\": %.3f, \"host_hit\": %.3f, \"leased\": %" PRIu64
	       ", \"stored\": %" PRIu64 ", \"continuing\": %" PRIu64 ", \"waits\": %" PRIu64 ", \"wait_blocks\": %" PRIu64
	       ", \"lease_waits\": %" PRIu64 ", \"lease_wait_blocks\": %" PRIu64 ", \"seconds\": %.1f, \"late_s\": %.3f}\n",
	       t->requests, t->blocks, percent(t->hits, t->tokens), percent(t->host_hits, t->tokens), t->leased, t->stored, t->continuing,
	       t->waits, t->wait_blocks, t->lease_waits, t->lease_wait_blocks, (double)since_began_us() / 1e6, (double)t->late_us / 1e6);
}

static void sessions_open(struct engine *e, struct terrace_client *client)
{
	for (uint32_t i = 0; i < shared.models; i++) {
		struct terrace_layout l = layout;

		l.layers += i * LAYERS_A_PAGE;
		l.first_layer = i; /* another model's */
		must(terrace_session_open(client, &l, 1, NULL, &e->sessions[i]), "session");
	}
}

static int run(char **argv)
{
	const uint32_t from = (uint32_t)atoi(argv[3]), sessions = (uint32_t)atoi(argv[5]);
	struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;
	struct terrace_client *client;
	struct engine *engines = calloc(SESSIONS_MAX, sizeof(*engines));

	trace_load(argv[1], atof(argv[2]), &shared.trace);
	shared.is_end = calloc((size_t)shared.trace.unique + 1, sizeof(bool));
	shared.to = (uint32_t)atoi(argv[4]) < shared.trace.request_count ? (uint32_t)atoi(argv[4]) : shared.trace.request_count;
	shared.lead_us = (uint32_t)atoi(argv[6]);
	shared.models = argv[7] ? (uint32_t)atoi(argv[7]) : 1;
	if (!engines || !shared.is_end || !sessions || sessions > SESSIONS_MAX || !shared.models ||
	    shared.models > MODELS_MAX || from >= shared.to)
		die("arguments", "out of range, or no memory");
	for (; shared.next < from; shared.next++)
		if (shared.trace.requests[shared.next].count)
			goes_on(&shared.trace.requests[shared.next]);
	shared.began_us = shared.trace.requests[from].time_us;
	o.address = argv[0];
	must(terrace_connect(&o, &client), "connect");
	for (uint32_t i = 0; i < sessions; i++)
		sessions_open(&engines[i], client);
	clock_gettime(CLOCK_MONOTONIC, &shared.began);
	for (uint32_t i = 0; i < sessions; i++)
		if (pthread_create(&engines[i].thread, NULL, engine_main, &engines[i]))
			die("thread", "cannot be started");
	for (uint32_t i = 0; i < sessions; i++) {
		pthread_join(engines[i].thread, NULL);
		for (uint32_t m = 0; m < shared.models; m++)
			terrace_session_close(engines[i].sessions[m]);
	}
	terrace_disconnect(client);
	print(&shared.all);
	free(engines);
	free(shared.is_end);
	trace_fini(&shared.trace);
	return 0;
}

static int replay(char **argv)
{
	const struct replay_options o = { .from = (uint32_t)atoi(argv[2]), .to = (uint32_t)atoi(argv[3]),
					  .capacity = (uint64_t)atoll(argv[5]) };
	const struct policy_ops *policy = policy_find(argv[4]);
	struct replay_result result;
	struct trace t;

	trace_load(argv[0], atof(argv[1]), &t);
	if (!policy || replay_run(&t, policy, &o, &result))
		die("replay", "no such policy, no blocks, or no memory");
	printf("{\"hit\": %.3f, \"unique\": %u}\n", replay_hit_tokens(&result), t.unique);
	trace_fini(&t);
	return 0;
}

int main(int argc, char **argv)
{
	if ((argc == 9 || argc == 10) && !strcmp(argv[1], "run"))
		return run(argv + 2);
	if (argc == 8 && !strcmp(argv[1], "replay"))
		return replay(argv + 2);
	fprintf(stderr, "usage: trace_engine run ADDRESS TRACE SPEED FROM TO SESSIONS LEAD_US [MODELS]\n"
			"       trace_engine replay TRACE SPEED FROM TO POLICY BLOCKS\n");
	return 2;
}
