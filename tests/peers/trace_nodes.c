/* Engines of several nodes that replay a public trace through their daemons, and what the replay says of the same. A
 * session of the trace stays on a node (eviction/replay/nodes.h). A node serves its requests in the order of the trace,
 * as many at a time as it has threads: a Lookup, a Lease, which may fetch blocks of other nodes, Reserve and Commit of
 * the rest, Release.
 *
 *     trace_nodes run TRACE SPEED TO SPREAD THREADS ADDRESS...    time passes SPEED times as fast as in the trace
 *     trace_nodes replay TRACE SPEED TO SPREAD NODES BLOCKS TOLD  what nodes with so many blocks each hit alone, with
 *                                                                 peers and all in one, while time passes as fast
 *
 * SPREAD is `session` or `request`, as of terrace-replay. Only the first TO requests are served. Prints one JSON object. Blocks are the smallest there are, of whatever bytes.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/include/terrace.h"
#include "eviction/replay/nodes.h"
#include "eviction/replay/policies.h"
#include "eviction/replay/read.h"

enum { THREADS_MAX = 8, BLOCKS_MAX = 4096, KEY_BYTES = 16, TOKENS = 16, CALL_US = 30 * 1000 * 1000 };

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
	uint64_t found;      /* blocks of the prefix at the Lookup: on the node itself */
	uint64_t leased;
	uint64_t stored;
	uint64_t late_us;    /* the longest that a request began behind its time */
};

static struct {
	struct trace trace;
	uint8_t *node_of;
	struct timespec began;
} shared;

struct node {
	pthread_mutex_t lock;
	struct terrace_client *client;
	uint32_t number, next; /* request */
	struct tally all;
};

struct engine {
	struct node *node;
	struct terrace_session *session;
	pthread_t thread;
	struct tally tally;
	uint8_t key[BLOCKS_MAX * KEY_BYTES], state[BLOCKS_MAX];
	struct terrace_block_info info[BLOCKS_MAX];
};

static void die(const char *what, const char *why)
{
	fprintf(stderr, "trace_nodes: %s: %s\n", what, why);
	exit(1);
}

static void must(enum terrace_status status, const char *what)
{
	if (status != TERRACE_OK)
		die(what, terrace_error());
}

/* Reads the first requests, and says which node serves each. */
static void trace_load(char **argv, uint32_t nodes)
{
	struct nodes_spread spread = { .nodes = nodes, .seed = 1, .by_request = !strcmp(argv[3], "request") };
	struct trace *t = &shared.trace;
	uint32_t sessions;
	char why[160] = "";

	if (trace_read(argv[0], t, why, sizeof(why)))
		die(argv[0], why);
	if ((uint32_t)atoi(argv[2]) < t->request_count)
		t->request_count = (uint32_t)atoi(argv[2]);
	for (uint32_t i = 0; i < t->request_count; i++)
		t->requests[i].time_us = (uint64_t)((double)t->requests[i].time_us / atof(argv[1]));
	for (uint32_t i = 0; i < nodes && i < NODES_MAX; i++)
		spread.load[i] = 1;
	shared.node_of = malloc((size_t)t->request_count + 1);
	if (!nodes || nodes > NODES_MAX || !t->request_count || !shared.node_of ||
	    nodes_spread(t, &spread, shared.node_of, &sessions))
		die("arguments", "out of range, or no memory");
}

/* ---- a request ---- */

static void keys_of(struct engine *e, const struct trace_request *q)
{
	for (uint32_t i = 0; i < q->count; i++) {
		uint64_t n = shared.trace.blocks[q->first + i], mixed = (n + 1) * 0x9e3779b97f4a7c15u;

		memcpy(e->key + (size_t)i * KEY_BYTES, &n, 8);
		memcpy(e->key + (size_t)i * KEY_BYTES + 8, &mixed, 8);
	}
}

static void put(struct engine *e, const struct terrace_keys *all, uint32_t from)
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
		e->tally.stored += statuses[i] == TERRACE_OK;
}

static void serve(struct engine *e, const struct trace_request *q)
{
	const struct terrace_keys k = { e->key, q->count, KEY_BYTES };
	struct terrace_lease *lease = NULL;
	uint32_t found, leased;
	enum terrace_status s;

	keys_of(e, q);
	must(terrace_lookup(e->session, &k, CALL_US, &found, e->state), "lookup");
	s = terrace_lease(e->session, &k, TERRACE_LEASE_PREFIX, CALL_US, &lease);
	if (s != TERRACE_MISS)
		must(s, "lease");
	leased = s ? 0 : terrace_lease_count(lease);
	e->tally.requests++;
	e->tally.tokens += q->tokens;
	e->tally.blocks += q->count;
	e->tally.found += found;
	e->tally.leased += leased;
	if (leased < q->count)
		put(e, &k, leased);
	if (!s)
		terrace_release(lease);
}

/* ---- the run ---- */

static uint64_t since_began_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)((now.tv_sec - shared.began.tv_sec) * 1000000 + (now.tv_nsec - shared.began.tv_nsec) / 1000);
}

/* The node's next request, once its time has come; NULL: there is none. */
static const struct trace_request *take(struct engine *e)
{
	const struct trace_request *q = NULL;
	struct node *n = e->node;

	pthread_mutex_lock(&n->lock);
	while (!q && n->next < shared.trace.request_count) {
		const uint32_t i = n->next++;

		if (shared.node_of[i] == n->number && shared.trace.requests[i].count)
			q = &shared.trace.requests[i];
	}
	if (q) {
		const uint64_t at = q->time_us - shared.trace.requests[0].time_us, now = since_began_us();
		const uint64_t wait = at > now ? at - now : 0;

		if (wait) /* the others of this node come later still */
			nanosleep(&(struct timespec){ (time_t)(wait / 1000000), (long)(wait % 1000000) * 1000 }, NULL);
		else if (now - at > e->tally.late_us)
			e->tally.late_us = now - at;
	}
	pthread_mutex_unlock(&n->lock);
	return q;
}

static void *engine_main(void *arg)
{
	struct engine *e = arg;
	const struct trace_request *q;

	while ((q = take(e)))
		serve(e, q);
	return NULL;
}

static void tally_add(struct tally *to, const struct tally *t)
{
	to->requests += t->requests;
	to->tokens += t->tokens;
	to->blocks += t->blocks;
	to->found += t->found;
	to->leased += t->leased;
	to->stored += t->stored;
	to->late_us = t->late_us > to->late_us ? t->late_us : to->late_us;
}

static double percent(uint64_t blocks, uint64_t tokens)
{
	return tokens ? 100.0 * (double)(blocks * shared.trace.block_tokens) / (double)tokens : 0;
}

static int run(int argc, char **argv)
{
	const uint32_t threads = (uint32_t)atoi(argv[4]), nodes = (uint32_t)argc - 5;
	static struct node node[NODES_MAX];
	struct engine *engines = calloc((size_t)nodes * THREADS_MAX, sizeof(*engines));
	struct tally all = { 0 };

	trace_load(argv, nodes);
	if (!engines || !threads || threads > THREADS_MAX)
		die("arguments", "out of range, or no memory");
	for (uint32_t i = 0; i < nodes; i++) {
		struct terrace_connect_options o = TERRACE_CONNECT_OPTIONS_INIT;

		node[i].number = i;
		pthread_mutex_init(&node[i].lock, NULL);
		o.address = argv[5 + i];
		must(terrace_connect(&o, &node[i].client), "connect");
	}
	for (uint32_t i = 0; i < nodes * threads; i++) {
		engines[i].node = &node[i % nodes];
		must(terrace_session_open(engines[i].node->client, &layout, 1, NULL, &engines[i].session), "session");
	}
	clock_gettime(CLOCK_MONOTONIC, &shared.began);
	for (uint32_t i = 0; i < nodes * threads; i++)
		if (pthread_create(&engines[i].thread, NULL, engine_main, &engines[i]))
			die("thread", "cannot be started");
	for (uint32_t i = 0; i < nodes * threads; i++) {
		pthread_join(engines[i].thread, NULL);
		tally_add(&all, &engines[i].tally);
		terrace_session_close(engines[i].session);
	}
	for (uint32_t i = 0; i < nodes; i++)
		terrace_disconnect(node[i].client);
	printf("{\"requests\": %" PRIu64 ", \"blocks\": %" PRIu64 ", \"hit\": %.3f, \"local\": %.3f, \"stored\": %" PRIu64
	       ", \"seconds\": %.1f, \"late_s\": %.3f}\n",
	       all.requests, all.blocks, percent(all.leased, all.tokens), percent(all.found, all.tokens), all.stored,
	       (double)since_began_us() / 1e6, (double)all.late_us / 1e6);
	free(engines);
	return 0;
}

/* ---- the replay ---- */

static int replay(char **argv)
{
	const uint32_t count = (uint32_t)atoi(argv[4]);
	const struct policy_ops *lru = replay_policy_find("lru");
	struct nodes_options o = { .nodes = count, .told_every = (uint32_t)atoi(argv[6]),
				   .told_age_us = NODES_TOLD_AGE_US };
	const struct replay_options all = { .capacity = (uint64_t)atoll(argv[5]) * count };
	struct nodes_result lone, peers;
	struct replay_result one;

	trace_load(argv, count);
	for (uint32_t i = 0; i < count; i++)
		o.capacity[i] = (uint64_t)atoll(argv[5]);
	if (nodes_run(&shared.trace, shared.node_of, lru, &o, &lone))
		die("replay", "no blocks, or no memory");
	o.mode = NODES_PEERS;
	o.sent_is_use = true;
	if (nodes_run(&shared.trace, shared.node_of, lru, &o, &peers) || replay_run(&shared.trace, lru, &all, &one))
		die("replay", "no memory");
	printf("{\"lone\": %.3f, \"hit\": %.3f, \"fetched_blocks\": %" PRIu64 ", \"one\": %.3f}\n",
	       replay_hit_tokens(&lone.all), replay_hit_tokens(&peers.all), peers.fetched, replay_hit_tokens(&one));
	return 0;
}

int main(int argc, char **argv)
{
	int code = 2;

	if (argc >= 8 && argc <= 7 + NODES_MAX && !strcmp(argv[1], "run"))
		code = run(argc - 2, argv + 2);
	else if (argc == 9 && !strcmp(argv[1], "replay"))
		code = replay(argv + 2);
	else
		fprintf(stderr, "usage: trace_nodes run TRACE SPEED TO SPREAD THREADS ADDRESS...\n"
				"       trace_nodes replay TRACE SPEED TO SPREAD NODES BLOCKS TOLD\n");
	free(shared.node_of);
	trace_fini(&shared.trace);
	return code;
}
