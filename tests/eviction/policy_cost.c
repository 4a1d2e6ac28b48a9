/* What `graph` costs: bytes a node, CPU time an access, told as a daemon would tell it, and of its refresh twice a second: samples
 * that outgrow an age, worth and ranks. Beside it what `lru` takes for the same requests, and a random read of 64 bytes of as many
 * nodes' bytes, all three by turns; and `graph` where the blocks of a chain differ in cost. `policy_cost [NODES [REQUESTS]]` prints them as terrace-bench prints its figures; the bytes must be as promised, times
 * are only printed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "eviction/hash.h"
#include "eviction/lines.h"
#include "eviction/memory.h"
#include "eviction/policy.h"

enum { CHAIN = 24, TURNS = 16, READS = 1 << 20, SCATTER = 7368787, BYTES_MAX = 64, REQUEST_US = 2000, REFRESH_US = 500 * 1000, GROWTH = CHAIN * 16 / 8, PAUSE_US = 3600 * 1000 * 1000u };

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of a live block: its links, its record, and its share of the index by id and of the marks. */
static double bytes_a_node(uint64_t nodes)
{
	struct memory m;
	struct lines l;
	double bytes;

	if (!memory_init(&m, nodes))
		return -1;
	if (!lines_init(&l, nodes)) {
		memory_fini(&m);
		return -1;
	}
	bytes = (double)sizeof(struct policy_node) + (double)sizeof(m.records[0]) +
		(double)sizeof(m.buckets[0]) * (double)m.buckets_count / (double)m.records_max +
		(double)sizeof(l.marks[0]) * (double)l.marks_max / (double)nodes;
	memory_fini(&m);
	lines_fini(&l);
	return bytes;
}

static bool any(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

struct cache {
	const struct policy_ops *ops;
	struct policy *policy;
	struct policy_node *nodes; /* taken here and there: SCATTER is a prime */
	uint32_t *where;           /* by id: the node's number + 1; 0: not in */
	uint64_t count, used;
	uint64_t accesses;
	double took;               /* seconds */
	double refreshed, refresh_most; /* seconds */
	uint32_t refreshes;
};

/* A request without blocks, when the time has come: all that it costs is the refresh. */
static double refresh(struct cache *c, uint64_t now_us)
{
	const struct policy_request none = { .now_us = now_us };
	double began = cpu_seconds(), took;

	if (!c->ops->request)
		return 0;
	c->ops->request(c->policy, &none);
	took = cpu_seconds() - began;
	c->refreshed += took;
	c->refreshes++;
	if (took > c->refresh_most)
		c->refresh_most = took;
	return took;
}

static struct policy_node *take(struct cache *c, const struct policy_event *e)
{
	struct policy_node *v;

	if (c->used < c->count)
		return &c->nodes[c->used++ * SCATTER % c->count];
	v = c->ops->victim(c->policy, any, NULL, 64);
	if (!c->ops->admit || c->ops->admit(c->policy, e, v)) {
		c->ops->remove(c->policy, v);
		c->where[v->id] = 0;
		return v;
	}
	return NULL;
}

/* New chains, and chains of lately that are asked for again. */
static void ask(struct cache *c, uint64_t i)
{
	uint64_t ids[CHAIN], r = hash_mix(i), chain = r % 3 ? i : i - r / 3 % (i < 4096 ? i + 1 : 4096);
	uint64_t now = i * REQUEST_US;
	struct policy_request q = { .now_us = now, .ids = ids, .count = CHAIN, .block_tokens = 16 };

	for (uint64_t k = 0; k < CHAIN; k++)
		ids[k] = chain * CHAIN + k + 1;
	if (now % REFRESH_US == 0)
		refresh(c, now);
	if (c->ops->request)
		c->ops->request(c->policy, &q);
	for (uint32_t k = CHAIN; k-- > 0;) {
		struct policy_event e = { .now_us = now, .id = ids[k], .position = k, .tokens = 16 };
		struct policy_node *n = c->where[e.id] ? &c->nodes[c->where[e.id] - 1] : NULL;

		c->accesses++;
		if (n) {
			c->ops->use(c->policy, n, &e);
			continue;
		}
		n = take(c, &e);
		if (!n)
			continue;
		c->ops->insert(c->policy, n, &e);
		c->where[e.id] = (uint32_t)(n - c->nodes) + 1;
	}
}

static void print(uint64_t nodes, const char *what, double value, const char *unit)
{
	printf("{\"bench\":\"policy\",\"case\":\"%s, %llu nodes\",\"value\":%.4g,\"unit\":\"%s\"}\n", what,
	       (unsigned long long)nodes, value, unit);
}

static bool cache_init(struct cache *c, const char *policy, uint32_t growth, uint64_t nodes, uint64_t requests)
{
	c->ops = policy_find(policy);
	c->count = nodes;
	c->policy = policy_create(c->ops, nodes, growth);
	c->nodes = calloc(nodes, sizeof(c->nodes[0]));
	c->where = calloc((requests + 1) * CHAIN + 1, sizeof(c->where[0]));
	return c->policy && c->nodes && c->where;
}

static void cache_fini(struct cache *c)
{
	c->ops->destroy(c->policy);
	free(c->nodes);
	free(c->where);
}

static void ask_some(struct cache *c, uint64_t from, uint64_t to)
{
	const double began = cpu_seconds();

	for (uint64_t i = from; i < to; i++)
		ask(c, i);
	c->took += cpu_seconds() - began;
}

/* Each read says where the next one is. */
static double read_some(const uint64_t *words, uint64_t count, uint64_t *at)
{
	const double began = cpu_seconds();

	for (uint32_t i = 0; i < READS; i++)
		*at = hash_mix(*at + words[*at % count * 8]);
	return cpu_seconds() - began;
}

int main(int argc, char **argv)
{
	uint64_t nodes = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000, requests, at = 1;
	struct cache graph = { .ops = NULL }, weighed = { .ops = NULL }, lru = { .ops = NULL };
	double bytes = bytes_a_node(nodes), read = 0;
	uint64_t *words = calloc(nodes, 64);

	requests = argc > 2 ? strtoull(argv[2], NULL, 10) : 12 * nodes / CHAIN;
	if (bytes < 0 || !words || !cache_init(&graph, "graph", 0, nodes, requests) ||
	    !cache_init(&weighed, "graph", GROWTH, nodes, requests) || !cache_init(&lru, "lru", 0, nodes, requests)) {
		fprintf(stderr, "policy_cost: no memory\n");
		return EXIT_FAILURE;
	}
	for (uint64_t i = 0; i < nodes; i++)
		words[8 * i] = i;
	for (uint64_t turn = 0; turn < TURNS; turn++) {
		ask_some(&graph, requests * turn / TURNS, requests * (turn + 1) / TURNS);
		ask_some(&weighed, requests * turn / TURNS, requests * (turn + 1) / TURNS);
		ask_some(&lru, requests * turn / TURNS, requests * (turn + 1) / TURNS);
		read += read_some(words, nodes, &at);
	}
	print(nodes, "of a live node", bytes, "bytes");
	print(nodes, "access", 1e6 * graph.took / (double)graph.accesses, "us of CPU");
	print(nodes, "access, by cost", 1e6 * weighed.took / (double)weighed.accesses, "us of CPU");
	print(nodes, "access, lru", 1e6 * lru.took / (double)lru.accesses, "us of CPU");
	print(nodes, "a random read", 1e6 * read / TURNS / READS, "us of CPU");
	print(nodes, "access, of lru's", graph.took / lru.took, "times");
	print(nodes, "access, of a random read", graph.took / (double)graph.accesses / (read / TURNS / READS), "times");
	print(nodes, "refresh, mean", 1e3 * graph.refreshed / graph.refreshes, "ms of CPU");
	print(nodes, "refresh, longest", 1e3 * graph.refresh_most, "ms of CPU");
	print(nodes, "refresh after an hour without requests", 1e3 * refresh(&graph, requests * REQUEST_US + PAUSE_US), "ms of CPU");
	cache_fini(&graph);
	cache_fini(&weighed);
	cache_fini(&lru);
	free(words);
	return at != 0 && bytes <= BYTES_MAX ? EXIT_SUCCESS : EXIT_FAILURE;
}
