/* What the policies have learned over a restart of the cache: with memory and a disk, in the trace's time, the hits of the minutes after a
 * restart are those without one (--long); what is known of the disk's blocks is what was known; what was lost or damaged of it in the
 * catalog is learned anew. */
#include "daemon/advice/graph.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/call/settle.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "eviction/policy.h"
#include "eviction/replay/read.h"
#include "eviction/trace.h"
#include "store/catalog/catalog.h"
#include "tests/daemon/cache_chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define START_US 1000000ull
#define PASS_US 500000ull
#define MINUTE_US 60000000ull

#ifdef TERRACE_SANITIZED
enum { HOST = 256, DISK = 1024, REQUESTS = 300 };
#else
enum { HOST = 256, DISK = 2048, REQUESTS = 800 };
#endif
enum { RESTART_AT = 1600 }; /* of the long one */

struct driver {
	struct rig r;
	struct rig_disks disks;
	struct cache_options o;
	struct trace t;
	uint64_t passed_us;
	uint32_t next;                 /* request */
	uint64_t keys[4096];
};

static void open_(struct driver *d, uint64_t now_us)
{
	rig_open(&d->r, &d->o, 1);
	d->r.now = d->passed_us = now_us;
	rig_restored(&d->r);
}

static void close_(struct driver *d)
{
	int tries = 5000;

	while (!cache_settle(d->r.c, 0, NULL)) {
		ck_assert_int_gt(tries--, 0);
		rig_tick(d->r.c, d->r.now += 50000);
	}
	rig_close(&d->r);
}

static void make(struct driver *d, const char *policy)
{
	char why[160] = "";

	memset(d, 0, sizeof(*d));
	ck_assert_msg(!trace_read(TEST_DATA "/traces/mooncake_conversation.jsonl.xz", &d->t, why, sizeof(why)), "%s", why);
	rig_disks_make(&d->disks, NULL, 1, DISK);
	d->o = rig_disk_options(&d->disks, 1, HOST);
	d->o.policy = d->o.disk_policy = policy;
	d->o.graph_nodes = 1 << 14;
	d->o.spill_share_milli = 250;
	open_(d, START_US);
}

static void unmake(struct driver *d)
{
	close_(d);
	rig_disks_remove(&d->disks);
	trace_fini(&d->t);
}

static void clock_to(struct driver *d, uint64_t us)
{
	while (d->passed_us + PASS_US <= us) {
		d->passed_us += PASS_US;
		d->r.now = d->passed_us;
		rig_tick(d->r.c, d->r.now);
		advisor_pass(d->r.c);
	}
	d->r.now = us > d->r.now ? us : d->r.now;
}

struct hits {
	uint64_t blocks, tokens;
};

/* The trace up to a request or a time, whichever comes first. */
static struct hits run_to(struct driver *d, uint32_t end, uint64_t end_us)
{
	struct hits h = { 0 };

	for (; d->next < end && d->t.requests[d->next].time_us < end_us; d->next++) {
		const struct trace_request *q = &d->t.requests[d->next];

		for (uint32_t b = 0; b < q->count; b++)
			d->keys[b] = d->t.blocks[q->first + b];
		clock_to(d, START_US + q->time_us);
		if (q->count) {
			chain_lookup(&d->r, d->keys, q->count);
			h.blocks += chain_serve(&d->r, d->keys, q->count);
		}
		h.tokens += q->tokens;
		rig_quiet(&d->r);
	}
	return h;
}

static double percent(const struct driver *d, struct hits h)
{
	return 100.0 * (double)(h.blocks * d->t.block_tokens) / (double)h.tokens;
}

/* ---- what the catalog has ---- */

struct pieces {
	struct catalog *catalog;
	uint32_t count, policy_state;  /* of these not the conversations */
	bool damage, drop;
};

static bool visit_piece(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct pieces *p = arg;
	uint8_t bytes[CATALOG_VALUE_MAX];

	if (*(const uint8_t *)key != 'c')
		return true;
	p->count++;
	p->policy_state += ((const uint8_t *)key)[1] != 'k';
	memcpy(bytes, value, value_bytes);
	bytes[value_bytes / 2] ^= 1;
	if (p->drop)
		ck_assert_int_eq(catalog_drop(p->catalog, CATALOG_EDGES, key, key_bytes), STATUS_OK);
	else if (p->damage)
		ck_assert_int_eq(catalog_put(p->catalog, CATALOG_EDGES, key, key_bytes, bytes, value_bytes), STATUS_OK);
	return true;
}

/* Of a cache that is closed. */
static uint32_t pieces_of(struct driver *d, bool damage, bool drop)
{
	const struct catalog_options o = { .folder = d->disks.catalog };
	struct pieces p = { .damage = damage, .drop = drop };
	enum catalog_state state;
	char why[160];

	ck_assert_int_eq(catalog_open(&o, &p.catalog, &state, why, sizeof(why)), STATUS_OK);
	ck_assert_int_eq(catalog_walk(p.catalog, CATALOG_EDGES, visit_piece, &p, NULL), STATUS_OK);
	catalog_close(p.catalog);
	ck_assert_uint_gt(p.count, p.policy_state);
	return p.policy_state;
}

/* ---- what a block's policy knows of it ---- */

struct known {
	uint32_t order_by, turn, uses;
};

static bool known_of(struct driver *d, uint64_t n, struct known *out)
{
	uint8_t key[RIG_KEY_BYTES];
	const struct block *b;
	struct policy_explained e = { .features = 0 };

	rig_key(key, n);
	cache_lock(d->r.c);
	b = by_id_find(d->r.c, policy_id(key_name(key, sizeof(key)), d->r.c->pools[0]->layout_id));
	if (b && b->slab_map)
		d->r.c->tier->policy->explain(b->slab_map->class->policy, &b->slab_map->at[b->slab_map_slot].node, &e);
	cache_unlock(d->r.c);
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < e.features; i++) {
		uint32_t *to = !strcmp(e.feature[i].name, "order_by") ? &out->order_by : !strcmp(e.feature[i].name, "turn") ? &out->turn :
			       !strcmp(e.feature[i].name, "uses_remembered") ? &out->uses : NULL;

		if (to)
			*to = e.feature[i].value;
	}
	return e.features > 0;
}

enum { LOOKED_AT = 20000 };
static struct known before[LOOKED_AT], after;
static bool was_known[LOOKED_AT];

/* How many of the blocks that were on the disk before are as they were. */
static double share_that_is_the_same(struct driver *d)
{
	uint32_t all = 0, same = 0;

	for (uint64_t n = 0; n < LOOKED_AT; n++) {
		if (!was_known[n] || !known_of(d, n, &after))
			continue;
		all++;
		same += !memcmp(&before[n], &after, sizeof(after));
	}
	ck_assert_uint_gt(all, DISK / 4);
	return (double)same / all;
}

static void look(struct driver *d)
{
	for (uint64_t n = 0; n < LOOKED_AT; n++)
		was_known[n] = known_of(d, n, &before[n]);
}

START_TEST(what_is_known_of_blocks_is_kept)
{
	static struct driver d;

	make(&d, "graph");
	run_to(&d, REQUESTS / 2, UINT64_MAX);
	ck_assert_double_gt(rig_stat(&d.r, "terrace_learned_kept_total", ""), 10); /* without a stop, too */
	rig_quiet(&d.r);
	look(&d);
	close_(&d);
	ck_assert_uint_gt(pieces_of(&d, false, false), 10);
	open_(&d, d.r.now);
	ck_assert_double_ge(share_that_is_the_same(&d), 0.95); /* spills at the stop told the disk's policy of some more */
	close_(&d);
	ck_assert_uint_gt(pieces_of(&d, false, true), 10);
	open_(&d, d.r.now);
	ck_assert_double_le(share_that_is_the_same(&d), 0.5); /* it is the pieces that do it */
	unmake(&d);
}
END_TEST

/* Every piece has a bit wrong: as if there were none, and the next stop leaves sound ones. */
START_TEST(damaged_pieces_are_passed_over)
{
	static struct driver d;
	struct hits h;

	make(&d, "graph");
	run_to(&d, REQUESTS / 4, UINT64_MAX);
	look(&d);
	close_(&d);
	ck_assert_uint_gt(pieces_of(&d, true, false), 10);
	open_(&d, d.r.now);
	ck_assert_double_le(share_that_is_the_same(&d), 0.5);
	h = run_to(&d, REQUESTS / 2, UINT64_MAX);
	ck_assert_uint_gt(h.blocks, 0);
	rig_check_accounting(d.r.c);
	look(&d);
	close_(&d);
	open_(&d, d.r.now);
	ck_assert_double_ge(share_that_is_the_same(&d), 0.95);
	unmake(&d);
}
END_TEST

START_TEST(policies_that_learn_nothing_keep_nothing)
{
	static struct driver d;

	make(&d, "lru");
	run_to(&d, REQUESTS / 4, UINT64_MAX);
	close_(&d);
	ck_assert_uint_eq(pieces_of(&d, false, false), 0);
	open_(&d, d.r.now);
	unmake(&d);
}
END_TEST

/* Hits of the five minutes from a request on, with a restart before it or without. */
static double five_minutes(bool restart)
{
	static struct driver d;
	uint64_t from_us;
	double hits;

	make(&d, "graph");
	run_to(&d, RESTART_AT, UINT64_MAX);
	from_us = d.t.requests[RESTART_AT].time_us;
	if (restart) {
		close_(&d);
		open_(&d, START_US + from_us);
	}
	hits = percent(&d, run_to(&d, UINT32_MAX, from_us + 5 * MINUTE_US));
	unmake(&d);
	return hits;
}

START_TEST(a_restart_costs_no_hits)
{
	const double none = five_minutes(false), kept = five_minutes(true);

	printf("%.2f %% in the five minutes after a restart, %.2f %% without\n", kept, none);
	fflush(stdout);
	ck_assert_double_gt(none, 1);
	ck_assert_double_ge(kept, none - 1);
}
END_TEST

/* Without arguments the short ones; --long: the trace. */
int main(int argc, char **argv)
{
	const TTest *const tests[] = {
		what_is_known_of_blocks_is_kept, damaged_pieces_are_passed_over, policies_that_learn_nothing_keep_nothing,
	};
	const TTest *const longer[] = { a_restart_costs_no_hits };

	if (argc > 1 && !strcmp(argv[1], "--long"))
		return rig_main("cache_learned, long", longer, 1);
	return rig_main("cache_learned", tests, sizeof(tests) / sizeof(tests[0]));
}
