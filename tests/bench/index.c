/* The cache at a million blocks, in this process: what a block costs in memory, and what a lookup of 64 keys
 * costs inside the daemon, without the call around it. The blocks' records are the daemon's own; only their
 * slots have no memory (tests/daemon/fill.h). The baseline of lookups is as many independent reads from
 * random places of an array as large: what the machine's memory takes alone.
 */
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

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TERRACE_SANITIZED
enum { BLOCKS = 1 << 14 };
#else
enum { BLOCKS = 1 << 20 };
#endif
enum { KEY_BYTES = 32, BATCH = 64, LOOKUPS = 1000, LOOKUPS_QUICK = 50, RECORD_BYTES = 256 };

struct index_bench {
	struct cache *cache;
	struct cache_session_view session;
	uint8_t *keys;
	uint64_t (*memory)[RECORD_BYTES / 8];
	uint64_t seed;
	double best_ns, best_read_ns;
};

/* Anonymous memory of this process, resident; what malloc and liburcu's own mmap give alike. */
static double resident_bytes(void)
{
	char line[256];
	double kib = -1;
	FILE *file = fopen("/proc/self/status", "r");

	while (file && kib < 0 && fgets(line, sizeof(line), file))
		if (!strncmp(line, "RssAnon:", 8))
			kib = strtod(line + 8, NULL);
	if (file)
		fclose(file);
	if (kib < 0)
		bench_die("no RssAnon in /proc/self/status");
	return kib * 1024;
}

static double allocated_bytes(void)
{
	struct mallinfo2 m = mallinfo2();

	return (double)m.uordblks + (double)m.hblkhd;
}

static void check(enum status status, const char *what, const char *why)
{
	if (status != STATUS_OK)
		bench_die("%s: %s (%s)", what, status_text(status), why ? why : "");
}

static void open_cache(struct index_bench *b)
{
	struct cache_options options = {
		.host_bytes = 1 << 30,
		.extent_bytes = 64 << 20,
		.policy = "lru",
		.pinned_bytes_max = 1 << 30,
		.sessions_max = 16,
		.leases_max = 1024,
		.open_blocks_max = 16,
		.session_idle_ms = 3600000,
		.lease_ttl_ms = 60000,
		.reservation_ttl_ms = 60000,
		.watch_queue = 16,
	};
	struct kv_layout layout = {
		.layers = 1,
		.heads = 1,
		.total_heads = 1,
		.head_dim_k = 64,
		.head_dim_v = 64,
		.block_tokens = 16,
		.k_format = KV_TQ4,
		.v_format = KV_TQ4,
		.rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION,
		.layout_version = KV_LAYOUT_VERSION,
	};
	const char *why = NULL;

	cache_thread_enter();
	check(cache_create(&options, 1, &b->cache, &why), "cache", why);
	check(cache_session_open(b->cache, &(struct cache_open_call){ .tenant = "", .layouts = &layout,
			.layout_count = 1, .engine = "bench", .now_us = 1 }, &b->session, &why), "session",
	      why);
}

static void seed_blocks(struct index_bench *b)
{
	struct cache_keys keys = {.key_bytes = KEY_BYTES, .count = CACHE_KEYS_MAX};

	for (uint32_t i = 0; i < BLOCKS; i += CACHE_KEYS_MAX) {
		keys.bytes = b->keys + (size_t)i * KEY_BYTES;
		check(cache_seed(b->cache, b->session.id, 0, &keys, 1), "seed", NULL);
	}
}

static void report_bytes(double allocated, double resident)
{
	bench_report(&(struct bench_figure){.bench = "index",
					    .name = "memory a block, resident",
					    .unit = "bytes",
					    .value = resident / BLOCKS,
					    .baseline = NAN,
					    .goal = BENCH_AT_MOST,
					    .target = 256});
	if (allocated > 0) /* a sanitizer's malloc does not tell */
		bench_report(&(struct bench_figure){.bench = "index",
						    .name = "memory a block, of malloc",
						    .unit = "bytes",
						    .value = allocated / BLOCKS,
						    .baseline = NAN,
						    .goal = BENCH_AT_MOST,
						    .target = 256});
	bench_report(&(struct bench_figure){.bench = "index",
					    .name = "struct block",
					    .unit = "bytes",
					    .value = (double)cache_seed_block_struct_bytes(),
					    .baseline = NAN});
}

/* Keys from anywhere: no two of their records are neighbours. */
static double lookup_ns(struct index_bench *b)
{
	uint8_t batch[BATCH * KEY_BYTES], states[BATCH];
	struct cache_keys keys = {.bytes = batch, .count = BATCH, .key_bytes = KEY_BYTES};
	const char *why = NULL;
	uint32_t prefix = 0;
	uint64_t start, ns;

	for (int i = 0; i < BATCH; i++)
		memcpy(batch + i * KEY_BYTES, b->keys + bench_random(&b->seed) % BLOCKS * KEY_BYTES,
		       KEY_BYTES);
	start = bench_now_ns();
	check(cache_lookup(b->cache, b->session.id, &keys, &prefix, states, BATCH, &why), "lookup", why);
	ns = bench_now_ns() - start;
	if (prefix != BATCH)
		bench_die("lookup: a prefix of %u, not %d", prefix, BATCH);
	return (double)ns;
}

static double read_ns(struct index_bench *b)
{
	uint32_t at[BATCH];
	uint64_t start, sum = 0;

	for (int i = 0; i < BATCH; i++)
		at[i] = (uint32_t)(bench_random(&b->seed) % BLOCKS);
	start = bench_now_ns();
	for (int i = 0; i < BATCH; i++)
		sum += b->memory[at[i]][0];
	bench_keep(sum);
	return (double)(bench_now_ns() - start);
}

static void round_of_lookups(struct index_bench *b)
{
	unsigned n = bench_options.quick ? LOOKUPS_QUICK : LOOKUPS;
	static double lookup[LOOKUPS], read[LOOKUPS];

	for (unsigned i = 0; i < n; i++) {
		lookup[i] = lookup_ns(b);
		read[i] = read_ns(b);
	}
	b->best_ns = fmin(b->best_ns, bench_median(lookup, n));
	b->best_read_ns = fmin(b->best_read_ns, bench_median(read, n));
}

int bench_index(void)
{
	struct index_bench b = {.seed = 7, .best_ns = INFINITY, .best_read_ns = INFINITY};
	double allocated, resident;

	b.keys = malloc((size_t)BLOCKS * KEY_BYTES);
	b.memory = malloc((size_t)BLOCKS * sizeof(*b.memory));
	if (!b.keys || !b.memory)
		bench_die("out of memory");
	for (size_t i = 0; i < (size_t)BLOCKS * KEY_BYTES; i++)
		b.keys[i] = (uint8_t)bench_random(&b.seed);
	memset(b.memory, 1, (size_t)BLOCKS * sizeof(*b.memory));
	open_cache(&b);
	allocated = allocated_bytes();
	resident = resident_bytes();
	seed_blocks(&b);
	report_bytes(allocated_bytes() - allocated, resident_bytes() - resident);
	for (unsigned i = 0; i < bench_options.rounds; i++)
		round_of_lookups(&b);
	bench_report(&(struct bench_figure){.bench = "index",
					    .name = "lookup of 64 keys / 64 random reads",
					    .unit = "us, p50",
					    .value = b.best_ns / 1000,
					    .baseline = b.best_read_ns / 1000,
					    .goal = BENCH_AT_MOST,
					    .target = 20,
					    .of_value = true});
	cache_destroy(b.cache);
	cache_thread_leave();
	free(b.keys);
	free(b.memory);
	return 0;
}
