/* What the advisor keeps in the catalog, and how: in parts, with what policies have learned before all else at a stop, and of the right owner
 * though pools come while it is written. And which blocks are there, when nobody could tell it. */
#include "daemon/advice/advice.h"
#include "daemon/advice/graph.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/call/settle.h"
#include "daemon/disk/state.h"
#include "daemon/session/open.h"
#include "eviction/graph_edges.h"
#include "eviction/graph_mail.h"
#include "store/catalog/catalog.h"
#include "store/status.h"
#include "tests/daemon/cache_chain.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HOST = 128, DISK = 1024 };

struct kept {
	struct rig r;
	struct rig_disks d;
	struct cache_options o;
};

static void open_(struct kept *k)
{
	rig_open(&k->r, &k->o, 1);
	rig_restored(&k->r);
	rig_tick(k->r.c, k->r.now);
	advisor_pass(k->r.c);
}

static void make(struct kept *k, uint32_t disks, uint32_t nodes)
{
	memset(k, 0, sizeof(*k));
	rig_disks_make(&k->d, NULL, disks, DISK);
	k->o = rig_disk_options(&k->d, disks, HOST);
	k->o.disk_policy = k->o.policy = "graph";
	k->o.graph_nodes = nodes;
	open_(k);
}

static void unmake(struct kept *k)
{
	rig_close(&k->r);
	rig_disks_remove(&k->d);
}

static struct advisor *advisor_of(const struct kept *k)
{
	return k->r.c->advice->advisor;
}

/* So many conversations of two blocks each. */
static void converse(struct kept *k, uint32_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		const uint64_t chain[] = { 10 * i, 10 * i + 1 };

		k->r.now += 100000;
		chain_request(&k->r, chain, 2);
		if (i % 16 == 0)
			rig_quiet(&k->r);
	}
	rig_quiet(&k->r);
	rig_tick(k->r.c, k->r.now);
}

/* ---- the catalog ---- */

static void committed(void *arg, enum status s)
{
	ck_assert_int_eq(s, STATUS_OK);
	sem_post(arg);
}

static void wait_for(sem_t *s)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	ck_assert_int_eq(sem_timedwait(s, &until), 0);
}

static void commit_all(const struct kept *k)
{
	sem_t done;

	sem_init(&done, 0, 0);
	ck_assert_int_eq(catalog_flush(k->r.c->tier->catalog, committed, &done), STATUS_OK);
	wait_for(&done);
	sem_destroy(&done);
}

enum { RECORDS_MAX = 256, HEAD = 16 };
struct records {
	uint32_t nodes, edges, pieces; /* of these not the conversations */
	uint64_t but;                  /* a layout whose pieces are passed over */
	uint32_t count;
	struct {
		uint8_t key[CATALOG_KEY_MAX], value[CATALOG_VALUE_MAX];
		size_t key_bytes, value_bytes;
	} at[RECORDS_MAX];
};

static uint64_t layout_of(const uint8_t *key)
{
	uint64_t n = 0;

	for (int i = 0; i < 8; i++)
		n = n << 8 | key[10 + i];
	return n;
}

static bool count_one(void *arg, const void *key_, size_t key_bytes, const void *value, size_t value_bytes)
{
	const uint8_t *key = key_;
	struct records *x = arg;

	x->nodes += key[0] == 'a';
	x->edges += key[0] == 'b';
	x->pieces += key[0] == 'c' && key[1] != 'k';
	if (key[0] != 'c' || (key[1] == 'm' && layout_of(key) == x->but))
		return true;
	ck_assert_uint_lt(x->count, RECORDS_MAX);
	memset(&x->at[x->count], 0, sizeof(x->at[0]));
	memcpy(x->at[x->count].key, key, x->at[x->count].key_bytes = key_bytes);
	/* What is before the piece says when it was written. */
	x->at[x->count].value_bytes = value_bytes;
	memcpy(x->at[x->count++].value, (const uint8_t *)value + HEAD, value_bytes - HEAD);
	return true;
}

static void count_all(struct catalog *catalog, struct records *out, uint64_t but)
{
	memset(out, 0, sizeof(*out));
	out->but = but;
	ck_assert_int_eq(catalog_walk(catalog, CATALOG_EDGES, count_one, out, NULL), STATUS_OK);
}

/* Of a cache that is closed. */
static void count_closed(const struct kept *k, struct records *out)
{
	const struct catalog_options o = { .folder = k->d.catalog };
	enum catalog_state state;
	struct catalog *catalog;
	char why[160];

	ck_assert_int_eq(catalog_open(&o, &catalog, &state, why, sizeof(why)), STATUS_OK);
	count_all(catalog, out, 0);
	catalog_close(catalog);
}

static struct records seen, again;

/* ---- a stop ---- */

struct stall {
	sem_t begun, over;
};

static void stall(void *arg, enum status s)
{
	struct stall *x = arg;

	ck_assert_int_eq(s, STATUS_OK);
	sem_post(&x->begun);
	sem_wait(&x->over);
}

static void *end_stall(void *arg)
{
	struct stall *x = arg;

	nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
	sem_post(&x->over);
	return NULL;
}

/* The catalog's queue is full when the cache stops, and has room a little later: all is kept. */
START_TEST(a_stop_waits_for_room_in_the_queue)
{
	uint8_t junk[CATALOG_VALUE_MAX] = { 1 };
	struct catalog *catalog;
	struct stall x;
	pthread_t thread;
	struct kept k;

	make(&k, 1, 4096);
	converse(&k, 320);
	advisor_pass(k.r.c);
	for (int i = 0; i < 100 && !cache_settle(k.r.c, 100000, NULL); i++)
		rig_quiet(&k.r); /* slabs are made, which nothing does beside cache_settle */
	ck_assert(cache_settle(k.r.c, 0, NULL));
	catalog = k.r.c->tier->catalog;
	ck_assert_int_eq(catalog_empty(catalog, CATALOG_EDGES), STATUS_OK);
	commit_all(&k);
	sem_init(&x.begun, 0, 0);
	sem_init(&x.over, 0, 0);
	ck_assert_int_eq(catalog_flush(catalog, stall, &x), STATUS_OK);
	wait_for(&x.begun);
	while (catalog_put(catalog, CATALOG_META, "junk", 4, junk, sizeof(junk)) == STATUS_OK)
		continue;
	ck_assert_int_eq(pthread_create(&thread, NULL, end_stall, &x), 0);
	rig_close(&k.r);
	pthread_join(thread, NULL);
	count_closed(&k, &seen);
	ck_assert_uint_ge(seen.pieces, 4);
	ck_assert_uint_gt(seen.count, seen.pieces); /* the conversations, too */
	ck_assert_uint_ge(seen.nodes, 640);
	ck_assert_uint_ge(seen.edges, 320);
	open_(&k);
	unmake(&k);
}
END_TEST

/* So many more of the first layout's pieces, as of an earlier run. How many it has without. */
static uint32_t more_pieces(struct kept *k, uint32_t more)
{
	struct catalog *catalog = k->r.c->tier->catalog;
	uint32_t count = 0, any = 0;

	count_all(catalog, &seen, 0);
	for (uint32_t i = 0; i < seen.count; i++)
		if (seen.at[i].key[1] == 'm') {
			any = i;
			count++;
		}
	ck_assert_uint_gt(count, 0);
	for (uint32_t n = count; n < count + more; n++) {
		uint8_t key[CATALOG_KEY_MAX];

		memcpy(key, seen.at[any].key, seen.at[any].key_bytes);
		key[seen.at[any].key_bytes - 1] = (uint8_t)n;
		ck_assert_int_eq(catalog_put(catalog, CATALOG_EDGES, key, seen.at[any].key_bytes, "a piece of what was", 20), STATUS_OK);
	}
	commit_all(k);
	return count;
}

/* What an earlier round had more of is dropped, though the catalog takes that only by and by. */
START_TEST(nothing_of_an_earlier_round_is_left)
{
	uint8_t junk[CATALOG_VALUE_MAX] = { 1 };
	struct catalog *catalog;
	struct stall x;
	struct kept k;
	uint32_t own;

	make(&k, 1, 4096);
	converse(&k, 320);
	advisor_pass(k.r.c);
	struct advisor *a = advisor_of(&k);

	catalog = k.r.c->tier->catalog;
	pthread_mutex_lock(&a->lock);
	policy_state_anew(a);
	ck_assert_int_eq(policy_state_keep(k.r.c, a, UINT32_MAX), STATUS_OK);
	commit_all(&k);
	own = more_pieces(&k, 3);
	count_all(catalog, &again, 0);
	ck_assert_uint_eq(again.pieces, seen.pieces + 3);
	policy_state_anew(a);
	for (uint32_t i = 0; i < own; i++)
		ck_assert_int_eq(policy_state_keep(k.r.c, a, 1), STATUS_BUSY);
	ck_assert_int_eq(a->learning.whom, 'm');
	sem_init(&x.begun, 0, 0);
	sem_init(&x.over, 0, 0);
	ck_assert_int_eq(catalog_flush(catalog, stall, &x), STATUS_OK);
	wait_for(&x.begun);
	while (catalog_put(catalog, CATALOG_META, "junk", 4, junk, sizeof(junk)) == STATUS_OK)
		continue;
	while (catalog_drop(catalog, CATALOG_META, "junk", 4) == STATUS_OK)
		continue;
	ck_assert_int_eq(policy_state_keep(k.r.c, a, 1), STATUS_EXHAUSTED);
	sem_post(&x.over);
	commit_all(&k);
	ck_assert_int_eq(policy_state_keep(k.r.c, a, UINT32_MAX), STATUS_OK);
	pthread_mutex_unlock(&a->lock);
	commit_all(&k);
	count_all(catalog, &again, 0);
	ck_assert_uint_eq(again.pieces, seen.pieces);
	unmake(&k);
}
END_TEST

/* ---- whose pieces ---- */

START_TEST(a_class_that_comes_between_changes_no_owner)
{
	const struct kv_layout l = rig_layout_other(40);
	struct kept k;
	struct rig other;
	uint64_t came;

	make(&k, 2, 4096);
	converse(&k, 320);
	struct advisor *a = advisor_of(&k);

	pthread_mutex_lock(&a->lock);
	policy_state_anew(a);
	while (a->learning.whom != 'd' || a->learning.number < 2)
		ck_assert_int_eq(policy_state_keep(k.r.c, a, 1), STATUS_BUSY);
	pthread_mutex_unlock(&a->lock);
	other = (struct rig){ .c = k.r.c, .now = k.r.now };
	ck_assert_int_eq(cache_session_open(other.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = other.now }, &other.s, &other.why),
			 STATUS_OK);
	came = k.r.c->classes[1]->stride;
	pthread_mutex_lock(&a->lock);
	/* The one before it is in its place, and begins at its own beginning. */
	ck_assert_int_eq(policy_state_keep(k.r.c, a, 1), STATUS_BUSY);
	ck_assert_int_eq(a->learning.whom, 'k');
	ck_assert_uint_eq(a->learning.number, 1);
	ck_assert_int_eq(policy_state_keep(k.r.c, a, UINT32_MAX), STATUS_OK);
	pthread_mutex_unlock(&a->lock);
	commit_all(&k);
	count_all(k.r.c->tier->catalog, &seen, came);
	pthread_mutex_lock(&a->lock);
	policy_state_anew(a);
	ck_assert_int_eq(policy_state_keep(k.r.c, a, UINT32_MAX), STATUS_OK);
	pthread_mutex_unlock(&a->lock);
	commit_all(&k);
	count_all(k.r.c->tier->catalog, &again, came);
	ck_assert_uint_ge(seen.pieces, 6);
	ck_assert_uint_eq(seen.count, again.count);
	for (uint32_t i = 0; i < seen.count; i++)
		ck_assert_mem_eq(&seen.at[i], &again.at[i], sizeof(seen.at[i]));
	unmake(&k);
}
END_TEST

/* ---- in parts ---- */

enum { MANY = 20000 };

/* Nodes `first` to MANY of one long chain. */
static void remember_many(struct kept *k, uint64_t first)
{
	struct advisor *a = advisor_of(k);
	uint64_t ids[2];

	pthread_mutex_lock(&a->lock);
	for (uint64_t i = first; i < MANY; i++) {
		ids[0] = i;
		ids[1] = i + 1;
		graph_edges_request(a->graph, a->latest_us, 0, ids, 2, false);
	}
	pthread_mutex_unlock(&a->lock);
}

/* The advisor's graph is one without the nodes 1 to last. */
static void forget(const struct kept *k, struct advisor *a, uint64_t last)
{
	struct graph_edges *g = graph_edges_create(&(struct graph_edges_options){
		.nodes_max = MANY, .edges_max = MANY, .sessions_max = 16, .half_life_us = 30 * 60 * 1000000ull });
	struct graph_node_record n;
	struct graph_edge_record e;
	uint32_t at = 0;

	while (graph_edges_next_node(a->graph, k->r.now, &at, &n))
		ck_assert(n.id <= last || graph_edges_put_node(g, k->r.now, &n) == STATUS_OK);
	at = 0;
	while (graph_edges_next_edge(a->graph, k->r.now, &at, &e))
		ck_assert(e.from <= last || e.to <= last || graph_edges_put_edge(g, k->r.now, &e) == STATUS_OK);
	graph_edges_destroy(a->graph);
	a->graph = g;
}

START_TEST(a_large_graph_comes_and_goes_in_parts)
{
	uint32_t passes = 1;
	struct kept k;

	make(&k, 1, 1 << 16);
	remember_many(&k, 1);
	rig_close(&k.r);
	count_closed(&k, &seen);
	ck_assert_uint_eq(seen.nodes, MANY);
	ck_assert_uint_eq(seen.edges, MANY - 1);
	open_(&k);
	struct advisor *a = advisor_of(&k);

	for (; !a->loaded; passes++) {
		ck_assert_uint_lt(graph_edges_count(a->graph).nodes + graph_edges_count(a->graph).edges, passes * (MANY - 1));
		advisor_pass(k.r.c);
	}
	ck_assert_uint_ge(passes, 3);
	ck_assert_uint_eq(graph_edges_count(a->graph).nodes, MANY);
	ck_assert_uint_eq(graph_edges_count(a->graph).edges, MANY - 1);
	/* Half of it is forgotten; two rounds later the catalog has forgotten it too, over several passes. */
	forget(&k, a, MANY / 2);
	for (int round = 0; round < 3; round++) {
		rig_tick(k.r.c, k.r.now += 31 * 1000000);
		advisor_pass(k.r.c);
		pthread_mutex_lock(&a->lock);
		ck_assert_int_eq(keep_some(k.r.c, a, UINT32_MAX - 1), STATUS_OK);
		pthread_mutex_unlock(&a->lock);
		commit_all(&k);
		for (passes = 0; a->sweep.on; passes++) {
			ck_assert_uint_lt(passes, 10);
			advisor_pass(k.r.c);
		}
		ck_assert_uint_ge(passes, 2);
	}
	commit_all(&k);
	count_all(k.r.c->tier->catalog, &seen, 0);
	ck_assert_uint_eq(seen.nodes, MANY / 2);
	ck_assert_uint_eq(seen.edges, MANY / 2 - 1);
	unmake(&k);
}
END_TEST

/* ---- which are there ---- */

static void fill_mail(struct advisor *a)
{
	const struct graph_mail_event e = { .kind = GRAPH_MAIL_GONE, .count = 1, .ids = { 4711 } };

	while (graph_mail_post(a->mail, &e))
		continue;
}

/* Nodes of blocks, whoever asked for them. */
static void know(const struct kept *k, uint64_t first, uint32_t count)
{
	struct advisor *a = advisor_of(k);
	uint8_t key[RIG_KEY_BYTES];

	pthread_mutex_lock(&a->lock);
	for (uint64_t n = first; n < first + count; n++) {
		uint64_t id;

		rig_key(key, n);
		id = key_name(key, sizeof(key));
		graph_edges_request(a->graph, a->latest_us, 0, &id, 1, false);
	}
	pthread_mutex_unlock(&a->lock);
}

static uint32_t live_nodes(const struct kept *k)
{
	for (int i = 0; i < 3; i++) /* mail, nodes */
		advisor_pass(k->r.c);
	return graph_edges_count(advisor_of(k)->graph).live;
}

START_TEST(lost_letters_are_made_up_for)
{
	struct kept k = { .o = rig_options(HOST) };

	k.o.graph_nodes = 4096;
	rig_open(&k.r, &k.o, 1);
	advisor_pass(k.r.c);
	know(&k, 0, 16);
	know(&k, 1000, HOST);
	fill_mail(advisor_of(&k));
	rig_put(&k.r, 0, 16);
	ck_assert_double_ge(rig_stat(&k.r, "terrace_advisor_mail_dropped_total", ""), 16);
	ck_assert_uint_eq(live_nodes(&k), 16);
	rig_put(&k.r, 100, HOST - 16);
	ck_assert_uint_eq(live_nodes(&k), HOST);
	fill_mail(advisor_of(&k));
	rig_put(&k.r, 1000, HOST); /* all others leave */
	ck_assert_uint_eq(live_nodes(&k), HOST);
	ck_assert_uint_eq(rig_prefix(&k.r, 1000, HOST), HOST);
	rig_close(&k.r);
}
END_TEST

/* One node is looked for in every layout: the more of these there are, the fewer nodes in a pass. */
START_TEST(many_layouts_are_looked_at_in_more_passes)
{
	enum { LAYOUTS = 16, LOOKS_A_PASS = 1 << 15 };
	struct kept k = { .o = rig_options(HOST) };
	uint32_t passes = 0;
	struct rig other;

	k.o.graph_nodes = 1 << 16;
	rig_open(&k.r, &k.o, 1);
	advisor_pass(k.r.c);
	remember_many(&k, 1);
	know(&k, 1000000, HOST);
	rig_put(&k.r, 1000000, HOST);
	ck_assert_uint_eq(live_nodes(&k), HOST);
	rig_join(&other, &k.r, LAYOUTS);
	ck_assert_uint_eq(k.r.c->pool_count, LAYOUTS);
	struct advisor *a = advisor_of(&k);

	fill_mail(a);
	rig_put(&k.r, 2000000, HOST / 2); /* of whom it hears nothing, and has no nodes; as many others leave */
	do {
		const uint32_t before = a->look.on ? a->look.node : 0;

		advisor_pass(k.r.c);
		ck_assert_uint_le(a->look.node - before, LOOKS_A_PASS / LAYOUTS);
		ck_assert_uint_lt(++passes, 100);
	} while (a->look.on);
	ck_assert_uint_ge(passes, MANY * LAYOUTS / LOOKS_A_PASS);
	ck_assert_uint_eq(live_nodes(&k), HOST / 2);
	rig_close(&k.r);
}
END_TEST

/* However many there are, a restart leaves the mail to requests. */
START_TEST(a_restart_writes_no_letters)
{
	struct graph_mail_event e;
	struct kept k;

	make(&k, 1, 4096);
	for (uint64_t n = 0; n < 256; n += 8) {
		rig_put(&k.r, n, 8);
		rig_quiet(&k.r);
	}
	ck_assert_int_eq(rig_flush(&k.r, 0, 0, NULL), STATUS_OK);
	rig_close(&k.r);
	rig_open(&k.r, &k.o, 1);
	rig_restored(&k.r);
	ck_assert(!graph_mail_take(advisor_of(&k)->mail, &e));
	rig_tick(k.r.c, k.r.now);
	ck_assert_uint_eq(live_nodes(&k), 256);
	unmake(&k);
}
END_TEST

enum { FEW = 256, KNOWN = 200, PRESENT = 600 };

/* A chain of blocks, of which the first half comes to the disk. */
static void remember_chain(const struct kept *k)
{
	struct advisor *a = advisor_of(k);
	uint8_t key[RIG_KEY_BYTES];
	uint64_t ids[KNOWN];

	for (uint64_t n = 0; n < KNOWN; n++) {
		rig_key(key, n < KNOWN / 2 ? n : PRESENT + n);
		ids[n] = key_name(key, sizeof(key));
	}
	pthread_mutex_lock(&a->lock);
	graph_edges_request(a->graph, a->latest_us, 0, ids, KNOWN, false);
	pthread_mutex_unlock(&a->lock);
}

/* There are many more blocks on the disk than the graph has nodes: it comes through a restart as it was, and the catalog's copy too. */
START_TEST(blocks_displace_nothing_that_is_known)
{
	struct graph_edges_counts counts;
	struct kept k;

	make(&k, 1, FEW);
	remember_chain(&k);
	rig_close(&k.r);
	k.o.graph_nodes = 0;
	rig_open(&k.r, &k.o, 1);
	rig_restored(&k.r);
	for (uint64_t n = 0; n < PRESENT; n += 8) {
		ck_assert_uint_eq(rig_put(&k.r, n, 8), 8);
		rig_quiet(&k.r);
	}
	ck_assert_int_eq(rig_flush(&k.r, 0, 0, NULL), STATUS_OK);
	rig_close(&k.r);
	k.o.graph_nodes = FEW;
	for (int restart = 0; restart < 3; restart++) {
		open_(&k);
		ck_assert_double_eq(rig_stat(&k.r, "terrace_blocks", "tier=disk"), PRESENT);
		ck_assert_uint_eq(live_nodes(&k), KNOWN / 2);
		counts = graph_edges_count(advisor_of(&k)->graph);
		ck_assert_uint_eq(counts.nodes, KNOWN);
		ck_assert_uint_eq(counts.edges, KNOWN - 1);
		ck_assert_uint_eq(counts.forgotten_nodes, 0);
		rig_close(&k.r);
	}
	count_closed(&k, &seen);
	ck_assert_uint_eq(seen.nodes, KNOWN);
	ck_assert_uint_eq(seen.edges, KNOWN - 1);
	rig_disks_remove(&k.d);
}
END_TEST

/* ---- measured ---- */

enum { NODES = 1 << 20 };

/* A full graph: so many nodes, four edges each. */
static void fill_graph(struct advisor *a)
{
	pthread_mutex_lock(&a->lock);
	for (uint64_t i = 1; i <= NODES; i++) {
		const struct graph_node_record n = { .id = i, .touched_us = a->latest_us };

		ck_assert_int_eq(graph_edges_put_node(a->graph, a->latest_us, &n), STATUS_OK);
	}
	for (uint64_t i = 1; i <= NODES; i++)
		for (uint64_t e = 0; e < 4; e++)
			graph_edges_pair(a->graph, a->latest_us, EDGE_TEMPORAL, i, 1 + (i + (e << 16) + 1) % NODES, 1);
	pthread_mutex_unlock(&a->lock);
}

static void keep_whole_round(struct kept *k)
{
	struct advisor *a = advisor_of(k);
	enum status s;

	rig_tick(k->r.c, k->r.now += 31 * 1000000);
	advisor_pass(k->r.c);
	do {
		pthread_mutex_lock(&a->lock);
		s = keep_some(k->r.c, a, UINT32_MAX - 1);
		pthread_mutex_unlock(&a->lock);
		commit_all(k);
	} while (s == STATUS_EXHAUSTED);
	ck_assert_int_eq(s, STATUS_OK);
}

struct longest {
	uint32_t passes;
	double ms, sum_ms;
};

/* Passes while that is so. */
static struct longest pass_while(struct kept *k, const bool *wanted, bool is)
{
	struct longest l = { 0, 0, 0 };

	for (; *wanted == is; l.passes++) {
		double ms;

		advisor_pass(k->r.c);
		ms = rig_stat(&k->r, "terrace_advisor_pass_seconds", "") * 1e3;
		l.ms = ms > l.ms ? ms : l.ms;
		l.sum_ms += ms;
	}
	return l;
}

/* The rounds of a graph of a million nodes with its catalog. */
START_TEST(a_full_graph)
{
	struct graph_edges_counts counts;
	struct longest load, sweep;
	struct kept k;

	make(&k, 1, NODES);
	fill_graph(advisor_of(&k));
	keep_whole_round(&k);
	rig_close(&k.r);
	rig_open(&k.r, &k.o, 1);
	rig_restored(&k.r);
	rig_tick(k.r.c, k.r.now);
	load = pass_while(&k, &advisor_of(&k)->loaded, false);
	keep_whole_round(&k);
	sweep = pass_while(&k, &advisor_of(&k)->sweep.on, true);
	counts = graph_edges_count(advisor_of(&k)->graph);
	printf("%u nodes, %u edges: loaded in %u passes of %.1f ms, the longest %.1f ms; swept in %u of %.1f ms, the longest %.1f ms\n", counts.nodes,
	       counts.edges, load.passes, load.sum_ms / load.passes, load.ms, sweep.passes, sweep.sum_ms / sweep.passes, sweep.ms);
	fflush(stdout);
	unmake(&k);
}
END_TEST

/* Without arguments the short ones; --measure: how long a pass of a full graph takes. */
int main(int argc, char **argv)
{
	const TTest *const tests[] = {
		a_stop_waits_for_room_in_the_queue, nothing_of_an_earlier_round_is_left, a_class_that_comes_between_changes_no_owner,
		a_large_graph_comes_and_goes_in_parts,
		lost_letters_are_made_up_for, many_layouts_are_looked_at_in_more_passes, a_restart_writes_no_letters,
		blocks_displace_nothing_that_is_known,
	};
	const TTest *const measured[] = { a_full_graph };

	if (argc > 1 && !strcmp(argv[1], "--measure"))
		return rig_main("cache_advice_keep, measured", measured, 1);

	return rig_main("cache_advice_keep", tests, sizeof(tests) / sizeof(tests[0]));
}
