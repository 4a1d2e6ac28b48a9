/* What the advisor costs at a million blocks: its round, with the graph full and half a second of a busy node's mail; and lookups of 64 keys
 * while it makes one round after the other, against a cache without it.
 */
#include "daemon/advice/graph.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/lookup.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/bench/bench.h"
#include "tests/daemon/fill.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { BLOCKS = 1 << 14 };
#else
enum { BLOCKS = 1 << 20 };
#endif
enum { KEY_BYTES = 32, CHAIN = 64, MAIL_CHAINS = 256, PASSES = 40, PASSES_QUICK = 4, LOOKUPS = 5000, LOOKUPS_QUICK = 500, PART = 4096 };

struct advised {
	struct cache *cache;
	struct cache_session_view session;
	uint64_t now_us, seed;
	double *ns;
	size_t count;
};

static uint8_t *all_keys;
static atomic_bool ended;

static void check(enum status status, const char *what, const char *why)
{
	if (status != STATUS_OK)
		bench_die("%s: %s (%s)", what, status_text(status), why ? why : "");
}

static struct cache_keys keys_at(uint32_t first, uint32_t count)
{
	return (struct cache_keys){ all_keys + (size_t)first * KEY_BYTES, count, KEY_BYTES };
}

static void cache_open(struct advised *a, uint32_t graph_nodes)
{
	const struct cache_options o = {
		.host_bytes = (uint64_t)BLOCKS * (256 << 10), .extent_bytes = 64 << 20, .policy = "lru", .pinned_bytes_max = 1 << 30, .sessions_max = 16,
		.leases_max = 1024, .open_blocks_max = 16, .session_idle_ms = 3600000, .lease_ttl_ms = 60000,
		.reservation_ttl_ms = 60000, .watch_queue = 16, .graph_nodes = graph_nodes,
	};
	const struct kv_layout layout = {
		.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16,
		.k_format = KV_TQ4, .v_format = KV_TQ4, .rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};
	const char *why = NULL;

	*a = (struct advised){ .now_us = 1, .seed = 7 };
	check(cache_create(&o, a->now_us, &a->cache, &why), "cache", why);
	check(cache_session_open(a->cache, &(struct cache_open_call){ .tenant = "", .layouts = &layout,
			.layout_count = 1, .engine = "bench", .now_us = a->now_us }, &a->session, &why),
	      "session", why);
}

static void look_up(struct advised *a, uint32_t first)
{
	const struct cache_keys k = keys_at(first, CHAIN);
	const char *why = NULL;
	uint32_t prefix;

	check(cache_lookup(a->cache, a->session.id, &k, &prefix, NULL, 0, &why), "lookup", why);
	if (prefix != CHAIN)
		bench_die("lookup: a prefix of %u, not %d", prefix, CHAIN);
}

/* A million blocks in chains, each asked for once. */
static void fill(struct advised *a, bool advised)
{
	for (uint32_t i = 0; i < BLOCKS; i += PART) {
		const struct cache_keys k = keys_at(i, PART);

		check(cache_seed(a->cache, a->session.id, 0, &k, a->now_us), "seed", NULL);
		for (uint32_t c = i; c < i + PART; c += CHAIN)
			look_up(a, c);
		cache_tick(a->cache, a->now_us += 50000);
		if (advised)
			advisor_pass(a->cache);
	}
}

/* Half a second of a busy node: 500 prompts a second. */
static double pass_ms(struct advised *a)
{
	uint64_t start;

	for (uint32_t i = 0; i < MAIL_CHAINS; i++)
		look_up(a, (uint32_t)(bench_random(&a->seed) % (BLOCKS / CHAIN)) * CHAIN);
	cache_tick(a->cache, a->now_us += 500000);
	start = bench_now_ns();
	advisor_pass(a->cache);
	return (double)(bench_now_ns() - start) / 1e6;
}

static void *pass_on(void *arg)
{
	struct advised *a = arg;

	cache_thread_enter();
	while (!atomic_load(&ended))
		advisor_pass(a->cache);
	cache_thread_leave();
	return NULL;
}

static void time_lookups(struct advised *a, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t first = (uint32_t)(bench_random(&a->seed) % (BLOCKS / CHAIN)) * CHAIN;
		uint64_t start = bench_now_ns();

		look_up(a, first);
		a->ns[a->count++] = (double)(bench_now_ns() - start);
		if (i % 64 == 0)
			cache_tick(a->cache, a->now_us += 50000);
	}
}

/* The value below which a share of them lies; sorted by bench_median. */
static double quantile(const struct advised *a, double share)
{
	return a->ns[(size_t)(share * (double)(a->count - 1))];
}

static void report(double pass_best, double pass_worst, const struct advised *with, const struct advised *without)
{
	bench_report(&(struct bench_figure){ .bench = "advisor", .name = "round, median", .unit = "ms", .value = pass_best,
					     .baseline = NAN, .goal = BENCH_AT_MOST, .target = 100 });
	bench_report(&(struct bench_figure){ .bench = "advisor", .name = "round, worst", .unit = "ms", .value = pass_worst,
					     .baseline = NAN, .goal = BENCH_AT_MOST, .target = 100 });
	bench_report(&(struct bench_figure){ .bench = "advisor", .name = "lookup of 64 beside rounds / without, p50", .unit = "us",
					     .value = quantile(with, 0.5) / 1e3, .baseline = quantile(without, 0.5) / 1e3 });
	bench_report(&(struct bench_figure){ .bench = "advisor", .name = "lookup of 64 beside rounds / without, p99", .unit = "us",
					     .value = quantile(with, 0.99) / 1e3, .baseline = quantile(without, 0.99) / 1e3 });
}

int bench_advisor(void)
{
	const size_t rounds = bench_options.rounds, each = bench_options.quick ? LOOKUPS_QUICK : LOOKUPS;
	const size_t passes = bench_options.quick ? PASSES_QUICK : PASSES;
	struct advised with, without;
	double pass[PASSES], median;
	pthread_t thread;
	uint64_t seed = 5;

	cache_thread_enter();
	all_keys = malloc((size_t)BLOCKS * KEY_BYTES);
	if (!all_keys)
		bench_die("out of memory");
	for (size_t i = 0; i < (size_t)BLOCKS * KEY_BYTES / 8; i++)
		((uint64_t *)all_keys)[i] = bench_random(&seed);
	cache_open(&with, BLOCKS);
	cache_open(&without, 0);
	fill(&with, true);
	fill(&without, false);
	for (size_t i = 0; i < passes; i++)
		pass[i] = pass_ms(&with);
	median = bench_median(pass, passes);
	with.ns = calloc(rounds * each, sizeof(double));
	without.ns = calloc(rounds * each, sizeof(double));
	if (!with.ns || !without.ns || pthread_create(&thread, NULL, pass_on, &with))
		bench_die("out of memory");
	for (size_t i = 0; i < rounds; i++) {
		time_lookups(&with, each);
		time_lookups(&without, each);
	}
	atomic_store(&ended, true);
	pthread_join(thread, NULL);
	bench_median(with.ns, with.count);
	bench_median(without.ns, without.count);
	report(median, pass[passes - 1], &with, &without);
	free(with.ns);
	free(without.ns);
	free(all_keys);
	cache_destroy(with.cache);
	cache_destroy(without.cache);
	cache_thread_leave();
	return 0;
}
