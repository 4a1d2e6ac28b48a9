/* The graph over restarts: nodes and edges in the catalog's table of edges, written a little at each pass, round after
 * round.
 *
 *     node   'a', name 8                    version 1, chains 1, 0 2, round 4, touched, unix ms 8
 *     edge   'b', from 8, to 8, type 1      version 1, 0 1, sessions 2, round 4, touched, unix ms 8, weight, a float's
 *     bits, 4
 *
 * chains is a sum: 1, the node needs no other before it (`entered` in eviction/graph_edges.h); 2, a block behind it was
 * dropped (`forgot`). Records of older versions have 0 there. Which blocks exist is not kept: the index says it.
 * Numbers in keys are big-endian, so that nodes come before edges; in values little-endian. A record that neither the
 * last finished round nor the one before it has written is not in the graph any more, and is dropped. A record that
 * cannot be read is skipped, since the graph is only advice.
 */
#include "daemon/advice/graph.h"
#include "daemon/advice/catalog_key.h"
#include "daemon/block/lock.h"
#include "daemon/disk/state.h"
#include "eviction/graph_edges.h"
#include "store/catalog/catalog.h"
#include "store/clock.h"
#include "store/status.h"

#include <stdatomic.h>
#include <string.h>

_Static_assert((int)GRAPH_KEY_MAX == (int)CATALOG_KEY_MAX, "a place in the catalog is kept whole");

enum {
	VERSION = 1, ENTERED = 1, FORGOT = 2, NODE_KEY = 9, NODE_VALUE = 16, EDGE_KEY = 18, EDGE_VALUE = 20,
	WALK_A_PASS = 1 << 13,         /* records of the catalog that are looked at in one pass: some ms */
};
#define ROUND_US (30 * 1000 * 1000ull)

static uint64_t get_be(const uint8_t *at)
{
	uint64_t n = 0;

	for (int i = 0; i < 8; i++)
		n = n << 8 | at[i];
	return n;
}

/* ---- out ---- */

static uint64_t touched_ms(const struct advisor *a, uint64_t touched_us)
{
	return clock_unix_ms() - (a->latest_us - touched_us) / 1000;
}

static enum status keep_node(struct cache *c, const struct advisor *a, const struct graph_node_record *r)
{
	const uint8_t chains = (uint8_t)((r->entered ? ENTERED : 0) | (r->forgot ? FORGOT : 0));
	uint8_t key[NODE_KEY] = { 'a' }, value[NODE_VALUE] = { VERSION, chains };
	uint64_t ms = touched_ms(a, r->touched_us);

	put_be(key + 1, r->id, 8);
	memcpy(value + 4, &a->cycle, 4);
	memcpy(value + 8, &ms, 8);
	return catalog_put(c->tier->catalog, CATALOG_EDGES, key, sizeof(key), value, sizeof(value));
}

static enum status keep_edge(struct cache *c, const struct advisor *a, const struct graph_edge_record *r)
{
	uint8_t key[EDGE_KEY] = { 'b' }, value[EDGE_VALUE] = { VERSION };
	uint64_t ms = touched_ms(a, r->touched_us);

	put_be(key + 1, r->from, 8);
	put_be(key + 9, r->to, 8);
	key[17] = r->type;
	memcpy(value + 2, &r->sessions, 2);
	memcpy(value + 4, &a->cycle, 4);
	memcpy(value + 8, &ms, 8);
	memcpy(value + 16, &r->weight, 4);
	return catalog_put(c->tier->catalog, CATALOG_EDGES, key, sizeof(key), value, sizeof(value));
}

static uint32_t round_of(const void *value, size_t bytes)
{
	uint32_t round = 0;

	if (bytes >= NODE_VALUE)
		memcpy(&round, (const uint8_t *)value + 4, 4);
	return round;
}

/* ---- parts of a walk ---- */

typedef bool visit_fn(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes);

/* True: that was the last, or the catalog cannot be read. */
static bool walk_part(struct catalog *catalog, struct edges_walk *w, visit_fn *visit, void *arg)
{
	enum status s;

	w->left = WALK_A_PASS;
	w->stopped = false;
	s = catalog_walk_from(catalog, CATALOG_EDGES, w->key, w->key_bytes, visit, arg, NULL);
	return s || !w->stopped;
}

/* For visit to return: the next part begins with this record. */
static bool walk_stop(struct edges_walk *w, const void *key, size_t key_bytes)
{
	memcpy(w->key, key, key_bytes);
	w->key_bytes = key_bytes;
	w->stopped = true;
	return false;
}

/* ---- rounds ---- */

struct sweeping {
	struct catalog *catalog;
	struct edges_walk *walk;
};

static bool drop_old(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	const struct sweeping *s = arg;

	if (!s->walk->left--)
		return walk_stop(s->walk, key, key_bytes);
	if (round_of(value, value_bytes) < s->walk->round && catalog_drop(s->catalog, CATALOG_EDGES, key, key_bytes))
		return walk_stop(s->walk, key, key_bytes);
	return true;
}

static void sweep_some(struct cache *c, struct advisor *a)
{
	struct sweeping s = { c->tier->catalog, &a->sweep };

	if (walk_part(s.catalog, s.walk, drop_old, &s))
		a->sweep.on = false;
}

/* What was written anew in this round may still be queued, and then shows the round before. */
static void round_end(struct advisor *a)
{
	a->sweep = (struct edges_walk){ .on = true, .round = a->cycle - 1 };
	a->cycle_us = a->latest_us;
	a->edges_now = false;
	a->cursor = 0;
	a->cycle++;
}

/* One record. BUSY: there are more. OK: the round is over. Else the catalog did not take it. */
static enum status keep_one(struct cache *c, struct advisor *a)
{
	struct graph_node_record n;
	struct graph_edge_record e;
	uint32_t before = a->cursor;
	enum status s;

	if (!a->edges_now && graph_edges_next_node(a->graph, a->latest_us, &a->cursor, &n)) {
		s = keep_node(c, a, &n);
	} else {
		if (!a->edges_now)
			a->cursor = before = 0;
		a->edges_now = true;
		if (!graph_edges_next_edge(a->graph, a->latest_us, &a->cursor, &e))
			return STATUS_OK;
		s = keep_edge(c, a, &e);
	}
	if (s) {
		a->cursor = before;
		return s;
	}
	atomic_fetch_add(&a->kept, 1);
	return STATUS_BUSY;
}

enum status keep_some(struct cache *c, struct advisor *a, uint32_t records)
{
	const bool begun = a->cursor || a->edges_now, last = records == UINT32_MAX;
	enum status s = STATUS_BUSY;

	if (!c->tier || !c->tier->catalog || !a->loaded)
		return STATUS_OK;
	if (a->sweep.on && !last) {
		sweep_some(c, a);
		return STATUS_BUSY;
	}
	if (!begun && !last && a->latest_us - a->cycle_us < ROUND_US)
		return STATUS_OK;
	for (; records && s == STATUS_BUSY; records--)
		s = keep_one(c, a);
	if (!s)
		round_end(a);
	return s;
}

/* ---- in ---- */

struct loading {
	struct advisor *a;
	struct catalog *catalog;
	uint64_t unix_ms;
};

/* As long ago as it was; the clock of this run may not reach back so far. */
static uint64_t touched_us(const struct loading *l, const uint8_t *value)
{
	uint64_t ms, ago_us;

	memcpy(&ms, value + 8, 8);
	ago_us = l->unix_ms > ms ? (l->unix_ms - ms) * 1000 : 0;
	return ago_us < l->a->latest_us ? l->a->latest_us - ago_us : 0;
}

static bool load_one(void *arg, const void *key_, size_t key_bytes, const void *value_, size_t value_bytes)
{
	const uint8_t *key = key_, *value = value_;
	struct loading *l = arg;
	struct edges_walk *w = &l->a->load;
	uint32_t round = round_of(value_, value_bytes);

	if (!w->left--)
		return walk_stop(w, key, key_bytes);
	w->round = round > w->round && round < UINT32_MAX ? round : w->round;
	if (policy_state_is_old(key, key_bytes, value, value_bytes))
		catalog_drop(l->catalog, CATALOG_EDGES, key, key_bytes);
	if (key_bytes == NODE_KEY && key[0] == 'a' && value_bytes == NODE_VALUE && value[0] == VERSION) {
		const struct graph_node_record n = { .id = get_be(key + 1), .touched_us = touched_us(l, value),
						     .entered = value[1] & ENTERED, .forgot = value[1] & FORGOT };

		graph_edges_put_node(l->a->graph, l->a->latest_us, &n);
	} else if (key_bytes == EDGE_KEY && key[0] == 'b' && value_bytes == EDGE_VALUE && value[0] == VERSION) {
		struct graph_edge_record e = { .from = get_be(key + 1), .to = get_be(key + 9), .type = key[17],
					       .touched_us = touched_us(l, value) };

		memcpy(&e.sessions, value + 2, 2);
		memcpy(&e.weight, value + 16, 4);
		graph_edges_put_edge(l->a->graph, l->a->latest_us, &e);
	}
	return true;
}

void keep_load(struct cache *c, struct advisor *a)
{
	struct loading l = { .a = a, .catalog = c->tier ? c->tier->catalog : NULL, .unix_ms = clock_unix_ms() };

	if (l.catalog && !walk_part(l.catalog, &a->load, load_one, &l))
		return;
	a->loaded = true;
	a->cycle = a->load.round + 1;
	a->cycle_us = a->learning.round_us = a->latest_us;
	atomic_store(&a->unseen, true); /* which of them are there, the catalog did not say */
}
