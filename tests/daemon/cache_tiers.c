/* A public trace driven through a cache with memory and a disk, in the trace's time, by whole requests: Lookup, Lease, puts. What hits is
 * what a replay says, in memory as in both tiers together; the disk's waits that reading ahead turns into hits in memory, and what it
 * wastes; and the first minute after a restart. With --long [REQUESTS]: all of the trace, with memory for 1, 5 and 10 % of its blocks, a row
 * each; with --row POLICY HOST DISK REQUESTS LEAD_US one row without a verdict (set CK_DEFAULT_TIMEOUT and CK_FORK=no to run it by hand). */
#include "daemon/advice/graph.h"
#include "daemon/block/by_id.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/call/settle.h"
#include "daemon/disk/state.h"
#include "eviction/policy.h"
#include "eviction/replay.h"
#include "eviction/replay/read.h"
#include "eviction/trace.h"
#include "tests/daemon/cache_chain.h"
#include "tests/store/index_records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define START_US 1000000ull
#define PASS_US 500000ull
#define MINUTE_US 60000000ull
#define LEAD_US 20000
#define COUNTED_EVERY 64 /* requests: to count all records takes its time */
#define PATIENCE_US 1000000 /* what is read ahead is judged, not the disk of the machine; with --long the disk, too */

struct drive {
	const char *policy;
	uint32_t host, disk;           /* blocks */
	uint32_t requests;
	uint32_t lead_us;              /* from Lookup to Lease; 0: nothing is read ahead of it */
	uint32_t lead_us_max;          /* what a slow disk may take of real time for what was begun */
	uint64_t prefetch_bytes;
	uint64_t window_us;            /* of the trace: the minute that begins then is counted apart; 0: none */
	bool restart;                  /* when it begins: a stop and a start */
};

struct outcome {
	uint64_t tokens, blocks;
	uint64_t hits, host_hits;      /* blocks of prefixes in both tiers, in memory, at the Lookup */
	uint64_t waits, wait_blocks;   /* leases of continuing sessions that waited for the disk, and for so many blocks */
	uint64_t continuing;
	uint64_t window_tokens, window_hits;
	double held;                   /* blocks that both tiers have, each once: the mean of the second half */
	double loaded, used, wasted, late;
};

/* ---- the trace ---- */

static void trace_load(struct trace *out)
{
	char why[160] = "";

	ck_assert_msg(!trace_read(TEST_DATA "/traces/mooncake_conversation.jsonl.xz", out, why, sizeof(why)), "%s", why);
}

/* Whether the request goes on from where an earlier one ended, and nothing else has gone on from there. */
static bool goes_on(bool *is_end, const struct trace *t, const struct trace_request *q)
{
	const uint32_t *blocks = t->blocks + q->first;
	uint32_t i = q->count;

	while (i > 0 && !is_end[blocks[i - 1]])
		i--;
	if (i > 0)
		is_end[blocks[i - 1]] = false;
	is_end[blocks[q->count - 1]] = true;
	return i > 0;
}

/* ---- one drive ---- */

struct driver {
	struct rig r;
	struct rig_disks disks;
	struct cache_options o;
	const struct drive *d;
	uint64_t passed_us;
	uint32_t begun, counted;       /* requests; of these, one in COUNTED_EVERY of the second half */
	struct outcome out;
};

static void clock_to(struct driver *v, uint64_t us)
{
	while (v->passed_us + PASS_US <= us) {
		v->passed_us += PASS_US;
		v->r.now = v->passed_us;
		rig_tick(v->r.c, v->r.now);
		advisor_pass(v->r.c);
	}
	v->r.now = us > v->r.now ? us : v->r.now;
}

/* Blocks of the first `count` that memory has, from the head on; and how many of all of them it lacks. */
static uint32_t in_memory(struct driver *v, const uint64_t *keys, uint32_t count, uint32_t *lacks)
{
	uint32_t prefix = 0, present = 0;
	uint8_t key[RIG_KEY_BYTES];

	cache_lock(v->r.c);
	for (uint32_t i = 0; i < count; i++) {
		const struct block *b;

		rig_key(key, keys[i]);
		b = by_id_find(v->r.c, policy_id(key_name(key, sizeof(key)), v->r.c->pools[0]->layout_id));
		present += b && b->span;
		prefix += prefix == i && b && b->span;
	}
	cache_unlock(v->r.c);
	*lacks = count - present;
	return prefix;
}

static bool loading(struct cache *c)
{
	bool is = false;

	cache_lock(c);
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		is |= c->tier->units[i].loading > 0;
	cache_unlock(c);
	return is;
}

static uint64_t clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Time between a Lookup and its Lease. */
static void lead(struct driver *v)
{
	const struct timespec step = { .tv_nsec = 100000 };
	const uint64_t began = clock_us();

	if (!v->d->lead_us)
		return;
	rig_tick(v->r.c, v->r.now);
	while (clock_us() - began < v->d->lead_us_max && loading(v->r.c))
		nanosleep(&step, NULL);
	v->r.now += v->d->lead_us;
}

static void request(struct driver *v, const struct trace *t, const struct trace_request *q, bool continuing, uint64_t *keys)
{
	struct outcome *o = &v->out;
	const bool in_window = v->d->window_us && q->time_us >= v->d->window_us && q->time_us < v->d->window_us + MINUTE_US;
	uint32_t hits, lacks;

	for (uint32_t b = 0; b < q->count; b++)
		keys[b] = t->blocks[q->first + b];
	hits = chain_lookup(&v->r, keys, q->count);
	o->host_hits += in_memory(v, keys, hits, &lacks);
	o->tokens += q->tokens;
	o->blocks += q->count;
	o->window_tokens += in_window ? q->tokens : 0;
	lead(v);
	in_memory(v, keys, hits, &lacks);
	o->continuing += continuing;
	o->waits += continuing && lacks;
	o->wait_blocks += continuing ? lacks : 0;
	hits = chain_serve(&v->r, keys, q->count);
	o->hits += hits;
	o->window_hits += in_window ? hits : 0;
	rig_quiet(&v->r);
	if (v->begun++ >= v->d->requests / 2 && v->begun % COUNTED_EVERY == 0)
		o->held += ((double)index_records(v->r.c->index) - o->held) / (double)++v->counted;
}

static void start(struct driver *v, uint64_t now_us)
{
	rig_open(&v->r, &v->o, 1);
	v->r.now = v->passed_us = now_us;
	rig_restored(&v->r);
}

/* The orderly way, as the daemon does it. */
static void stop(struct driver *v)
{
	const uint64_t began = clock_us();
	struct outcome *o = &v->out;

	o->loaded += rig_stat(&v->r, "terrace_prefetch_bytes_total", "result=loaded");
	o->used += rig_stat(&v->r, "terrace_prefetch_bytes_total", "result=used");
	o->wasted += rig_stat(&v->r, "terrace_prefetch_bytes_total", "result=wasted");
	o->late += rig_stat(&v->r, "terrace_prefetch_bytes_total", "result=late");
	while (!cache_settle(v->r.c, 0, NULL)) {
		ck_assert_msg(clock_us() - began < MINUTE_US, "it does not settle");
		rig_tick(v->r.c, v->r.now += 50000);
	}
	rig_close(&v->r);
}

static void drive(const struct trace *t, const struct drive *d, struct outcome *out)
{
	struct driver v = { .d = d };
	bool *is_end = calloc((size_t)t->unique + 1, sizeof(bool));
	uint64_t *keys = malloc(4096 * sizeof(*keys));
	bool restarted = false;

	rig_disks_make(&v.disks, NULL, 1, d->disk);
	v.o = rig_disk_options(&v.disks, 1, d->host);
	v.o.policy = v.o.disk_policy = d->policy;
	v.o.graph_nodes = 1 << 17;
	v.o.prefetch_bytes = d->lead_us ? d->prefetch_bytes : 0;
	v.o.spill_share_milli = 250;
	start(&v, START_US);
	for (uint32_t i = 0; i < d->requests && i < t->request_count; i++) {
		const struct trace_request *q = &t->requests[i];

		if (d->restart && q->time_us >= d->window_us && !restarted) {
			stop(&v);
			start(&v, START_US + d->window_us);
			restarted = true;
		}
		clock_to(&v, START_US + q->time_us);
		if (q->count)
			request(&v, t, q, goes_on(is_end, t, q), keys);
	}
	stop(&v);
	*out = v.out;
	rig_disks_remove(&v.disks);
	free(is_end);
	free(keys);
}

static double percent(uint64_t hits, const struct trace *t, uint64_t tokens)
{
	return 100.0 * (double)(hits * t->block_tokens) / (double)tokens;
}

static double replayed(const struct trace *t, const struct drive *d, double capacity)
{
	const struct replay_options o = { .capacity = (uint64_t)capacity, .to = d->requests };
	struct replay_result result;

	ck_assert_int_eq(replay_run(t, policy_find(d->policy), &o, &result), STATUS_OK);
	return replay_hit_tokens(&result);
}

/* ---- the tests ---- */

static const char *const policies[] = { "lru", "graph" };

#ifdef TERRACE_TESTS_SMALL
enum { HOST = 512, DISK = 2048, REQUESTS = 400, GRAPH_SIZE = 1, RESTARTS = 0 };
#else
enum { HOST = 1024, DISK = 4096, REQUESTS = 1200, GRAPH_SIZE = 2, RESTARTS = 4 };
#endif
enum { LOADED_MIN = 1024 }; /* blocks: before so many it is not known yet what is worth loading */

/* What `graph` learns, and when, is not the same in two runs: of many requests with fewer blocks its hits differ by a point. */
static struct drive drive_of(const char *policy, uint32_t lead_us)
{
	const uint32_t size = strcmp(policy, "graph") ? 1 : GRAPH_SIZE;

	return (struct drive){ .policy = policy, .host = size * HOST, .disk = size * DISK, .requests = REQUESTS, .lead_us = lead_us,
			       .lead_us_max = PATIENCE_US, .prefetch_bytes = 64 << 20 };
}

static double share(double part, double whole)
{
	return whole > 0 ? 100 * part / whole : 0;
}

static void print_row(const struct trace *t, const struct drive *d, const struct outcome *o, const struct outcome *without)
{
	printf("{\"bench\": \"tiers\", \"policy\": \"%s\", \"host_blocks\": %u, \"disk_blocks\": %u, \"requests\": %u, \"lead_ms\": %.1f, "
	       "\"hit\": %.2f, \"replay_hit\": %.2f, \"host_hit\": %.2f, \"replay_host_hit\": %.2f, \"waits\": %" PRIu64
	       ", \"waits_without\": %" PRIu64 ", \"wait_blocks\": %" PRIu64 ", \"wait_blocks_without\": %" PRIu64
	       ", \"wasted_share\": %.1f}\n",
	       d->policy, d->host, d->disk, d->requests, d->lead_us / 1000.0, percent(o->hits, t, o->tokens), replayed(t, d, o->held),
	       percent(o->host_hits, t, o->tokens), replayed(t, d, d->host), o->waits, without->waits, o->wait_blocks,
	       without->wait_blocks, share(o->wasted, o->loaded));
	fflush(stdout);
}

static double window_of(const struct trace *t, const struct outcome *o)
{
	return percent(o->window_hits, t, o->window_tokens);
}

/* Points that a restart costs in the minute after it. */
static double restart_costs(const struct trace *t, struct drive d)
{
	struct outcome with, restarted;

	drive(t, &d, &with);
	d.restart = true;
	drive(t, &d, &restarted);
	printf("%s: %.2f %% in the minute after a restart, %.2f %% without\n", d.policy, window_of(t, &restarted), window_of(t, &with));
	fflush(stdout);
	return window_of(t, &with) - window_of(t, &restarted);
}

/* The mean of so many pairs of runs. Those of `lru` are all alike: -0.2 points. Of 24 pairs of `graph` the mean was 0.5 and the standard deviation
 * 0.5, so that the mean of four is above the bound once in twenty thousand times. Of a restart that loses every other block it is 8, and 3 of `lru`. */
static void check_restart(const struct trace *t, const struct drive *d)
{
	const bool graph = !strcmp(d->policy, "graph");
	const int runs = graph ? RESTARTS : 1;
	double sum = 0;

	for (int i = 0; i < runs; i++)
		sum += restart_costs(t, *d);
	ck_assert_double_eq_tol(sum / runs, 0, graph ? 1.5 : 1.0);
}

/* Without reading ahead; with it, where a Lease comes 20 ms after its Lookup; and the same through a restart. */
static void policy_check(const char *policy)
{
	struct drive off = drive_of(policy, 0), on = drive_of(policy, LEAD_US);
	struct outcome without, with;
	struct trace t;

	trace_load(&t);
	on.window_us = t.requests[on.requests * 3 / 4].time_us;
	drive(&t, &off, &without);
	print_row(&t, &off, &without, &without);
	ck_assert_double_eq_tol(percent(without.hits, &t, without.tokens), replayed(&t, &off, without.held), 1.0);
	ck_assert_double_eq_tol(percent(without.host_hits, &t, without.tokens), replayed(&t, &off, off.host), 1.0);
	ck_assert_double_eq(without.loaded, 0);

	drive(&t, &on, &with);
	print_row(&t, &on, &with, &without);
	ck_assert_double_eq_tol(percent(with.hits, &t, with.tokens), replayed(&t, &on, with.held), 1.0);
	ck_assert_double_le((double)with.waits, (double)without.waits / 2);
	if (with.loaded >= LOADED_MIN * RIG_SLOT_BYTES)
		ck_assert_double_le(with.wasted, 0.3 * with.loaded);

	if (RESTARTS) /* of so small a trace a restart that lost half of the blocks would not be seen */
		check_restart(&t, &on);
	trace_fini(&t);
}

START_TEST(lru_does_as_replayed)
{
	policy_check("lru");
}
END_TEST

START_TEST(graph_does_as_replayed)
{
	policy_check("graph");
}
END_TEST

/* All of the trace, and memory for 1, 5 and 10 % of its blocks. */
static const struct { uint32_t host, disk; } sizes[] = { { 1827, 7308 }, { 9139, 36556 }, { 18279, 73116 } };
static const uint32_t leads_us[] = { 1000, 5000, LEAD_US };
static uint32_t long_requests = 12031;

START_TEST(larger_tiers)
{
	struct trace t;

	trace_load(&t);
	for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct drive d = { .policy = policies[i % 2], .host = sizes[i / 2].host, .disk = sizes[i / 2].disk,
				   .requests = long_requests, .prefetch_bytes = 64 << 20 };
		struct outcome without, with;

		drive(&t, &d, &without);
		print_row(&t, &d, &without, &without);
		ck_assert_double_eq_tol(percent(without.hits, &t, without.tokens), replayed(&t, &d, without.held), 1.0);
		ck_assert_double_eq_tol(percent(without.host_hits, &t, without.tokens), replayed(&t, &d, d.host), 1.0);
		for (size_t l = 0; l < sizeof(leads_us) / sizeof(leads_us[0]); l++) {
			d.lead_us = d.lead_us_max = leads_us[l];
			drive(&t, &d, &with);
			print_row(&t, &d, &with, &without);
			ck_assert_double_le(with.wasted, 0.3 * with.loaded);
		}
		ck_assert_double_le((double)with.waits, (double)without.waits / 2);
	}
	trace_fini(&t);
}
END_TEST

/* One row by hand. */
static struct drive row;

START_TEST(one_row)
{
	struct outcome o;
	struct trace t;

	trace_load(&t);
	drive(&t, &row, &o);
	print_row(&t, &row, &o, &o);
	trace_fini(&t);
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const one[] = { one_row };
	const TTest *const tests[] = { lru_does_as_replayed, graph_does_as_replayed };
	const TTest *const larger[] = { larger_tiers };

	if (argc > 6 && !strcmp(argv[1], "--row")) {
		row = (struct drive){ .policy = argv[2], .host = (uint32_t)atoi(argv[3]), .disk = (uint32_t)atoi(argv[4]),
				      .requests = (uint32_t)atoi(argv[5]), .lead_us = (uint32_t)atoi(argv[6]),
				      .lead_us_max = (uint32_t)atoi(argv[6]), .prefetch_bytes = 64 << 20 };
		return rig_main("cache_tiers", one, 1);
	}
	if (argc > 2)
		long_requests = (uint32_t)atoi(argv[2]);
	return argc > 1 && !strcmp(argv[1], "--long") ? rig_main("cache_tiers", larger, 1) :
							rig_main("cache_tiers", tests, sizeof(tests) / sizeof(tests[0]));
}
