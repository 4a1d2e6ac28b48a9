/* Nodes and edges are array elements linked by number; number 0 is no element. A node has a list of the edges that
 * leave it. The edges that lead to it are not listed. They carry the node's generation, and count as dead once the
 * node's number belongs to another block.
 *
 * Times are kept in units of a 2^17th of the half life, at least a millisecond, modulo 2^32. So an age is right up to
 * 49 days with the smallest unit, and up to 32768 half lives otherwise, which is 22 months with the daemon's. After
 * that the age begins anew, and the weight with it.
 */
#include "eviction/graph_edges.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "eviction/hash.h"

enum {
	ITEMS_MAX = 1 << 28,
	UNIT_LOG = 17,         /* log2 of half life / unit of time */
	HAND_STEPS = 64,
	EDGES_LOOKED_AT = 8,   /* edges looked at to find one to drop */
	SCORES = 2048,         /* a power of two, more than EDGES_ASKED_MAX * EDGES_OF_NODE */
};

struct node {
	uint64_t id;           /* 0: free */
	uint32_t touched;      /* time_of() */
	uint32_t next;         /* the next in the bucket, or the next free one */
	uint32_t edges;
	uint32_t before;       /* the node before it in its chains; 0: not known */
	uint16_t before_generation;
	uint16_t generation;
	uint8_t degree;
	bool live : 1;
	bool spared : 1;       /* the hand has passed it since it was touched */
	bool entered : 1;      /* a chain begins with it, or several nodes were before it */
	bool forgot : 1;       /* an edge of EDGE_PREFIX_SHARE that left it was dropped to make room */
};

struct edge {
	uint32_t from;         /* 0: free */
	uint32_t to;
	uint32_t next;         /* the next of the node, or the next free one */
	uint32_t touched;
	float weight;
	uint16_t generation;   /* of `to` */
	uint16_t sessions, session; /* `session`: a hash of the last session */
	uint8_t type;
};

_Static_assert(sizeof(struct node) == 32 && sizeof(struct edge) == 28, "as promised");

struct session {
	uint64_t session, end;
};

struct score {
	uint32_t node;
	float weight;
};

struct graph_edges {
	struct graph_edges_options options;
	struct node *nodes;
	struct edge *edges;
	struct session *sessions;
	uint32_t *buckets;
	uint32_t mask;
	uint64_t unit_us;
	uint64_t goes_on;      /* the id with which the next call begins if it is the rest of the same request; 0: it is
			        * not */
	uint32_t nodes_used, nodes_free, node_hand; /* used: numbers ever used */
	uint32_t edges_used, edges_free, edge_hand;
	struct graph_edges_counts counts;
	struct score scores[SCORES];
	uint16_t scored[EDGES_ASKED_MAX * EDGES_OF_NODE];
};

/* ---- time ---- */

static uint32_t time_of(const struct graph_edges *g, uint64_t us)
{
	return (uint32_t)(us / g->unit_us);
}

static uint64_t us_of(const struct graph_edges *g, uint32_t time, uint64_t now_us)
{
	uint64_t age = (uint32_t)(time_of(g, now_us) - time) * g->unit_us;

	return age < now_us ? now_us - age : 0;
}

static float weight_now(const struct graph_edges *g, const struct edge *e, uint64_t now_us)
{
	float age_us = (float)(uint32_t)(time_of(g, now_us) - e->touched) * (float)g->unit_us;

	return e->weight * exp2f(-age_us / (float)g->options.half_life_us);
}

/* ---- edges ---- */

static bool leads_on(const struct graph_edges *g, const struct edge *e)
{
	return g->nodes[e->to].id && g->nodes[e->to].generation == e->generation;
}

static void edge_drop(struct graph_edges *g, uint32_t number)
{
	struct edge *e = &g->edges[number];
	struct node *n = &g->nodes[e->from];
	uint32_t *at = &n->edges;

	while (*at != number)
		at = &g->edges[*at].next;
	*at = e->next;
	n->degree--;
	e->from = 0;
	e->next = g->edges_free;
	g->edges_free = number;
	g->counts.edges--;
}

/* The node's weakest edge; an edge that leads to no node any more counts as weakest. */
static uint32_t weakest_of(const struct graph_edges *g, const struct node *n, uint64_t now_us)
{
	float least = INFINITY;
	uint32_t out = 0;

	for (uint32_t i = n->edges; i; i = g->edges[i].next) {
		float weight = leads_on(g, &g->edges[i]) ? weight_now(g, &g->edges[i], now_us) : -1;

		if (weight < least) {
			least = weight;
			out = i;
		}
	}
	return out;
}

/* The weakest of the next few edges, whatever nodes they leave. */
static uint32_t weakest_nearby(struct graph_edges *g, uint64_t now_us)
{
	float least = INFINITY;
	uint32_t out = 0;

	for (int step = 0; step < EDGES_LOOKED_AT; step++) {
		const struct edge *e;
		float weight;

		g->edge_hand = g->edge_hand < g->edges_used ? g->edge_hand + 1 : 1;
		e = &g->edges[g->edge_hand];
		weight = leads_on(g, e) ? weight_now(g, e, now_us) : -1;
		if (weight < least) {
			least = weight;
			out = g->edge_hand;
		}
	}
	return out;
}

static void edge_forget(struct graph_edges *g, uint32_t number)
{
	const struct edge *e = &g->edges[number];

	g->nodes[e->from].forgot |= e->type == EDGE_PREFIX_SHARE;
	edge_drop(g, number);
	g->counts.forgotten_edges++;
}

static uint32_t edge_take(struct graph_edges *g, uint32_t from, uint64_t now_us)
{
	uint32_t number;

	if (g->nodes[from].degree == EDGES_OF_NODE)
		edge_forget(g, weakest_of(g, &g->nodes[from], now_us));
	else if (!g->edges_free && g->edges_used == g->options.edges_max)
		edge_forget(g, weakest_nearby(g, now_us));
	number = g->edges_free;
	if (number)
		g->edges_free = g->edges[number].next;
	else
		number = ++g->edges_used;
	return number;
}

static struct edge *edge_find(const struct graph_edges *g, uint32_t from, uint32_t to, uint8_t type)
{
	for (uint32_t i = g->nodes[from].edges; i; i = g->edges[i].next)
		if (g->edges[i].to == to && g->edges[i].type == type && leads_on(g, &g->edges[i]))
			return &g->edges[i];
	return NULL;
}

static struct edge *edge_of(struct graph_edges *g, uint32_t from, uint32_t to, uint8_t type, uint64_t now_us)
{
	struct edge *e = edge_find(g, from, to, type);
	uint32_t number;

	if (e)
		return e;
	number = edge_take(g, from, now_us);
	e = &g->edges[number];
	*e = (struct edge){ .from = from, .to = to, .next = g->nodes[from].edges, .touched = time_of(g, now_us),
			    .generation = g->nodes[to].generation, .type = type };
	g->nodes[from].edges = number;
	g->nodes[from].degree++;
	g->counts.edges++;
	return e;
}

static struct edge *strengthen(struct graph_edges *g, uint32_t from, uint32_t to, enum edge_type type, float weight,
			       uint64_t now_us)
{
	struct edge *e = edge_of(g, from, to, (uint8_t)type, now_us);

	e->weight = fminf(weight_now(g, e, now_us) + weight, 1e30f);
	e->touched = time_of(g, now_us);
	return e;
}

/* ---- nodes ---- */

static uint32_t *bucket_of(const struct graph_edges *g, uint64_t id)
{
	return &g->buckets[hash_mix(id) & g->mask];
}

static uint32_t node_find(const struct graph_edges *g, uint64_t id)
{
	uint32_t i = *bucket_of(g, id);

	while (i && g->nodes[i].id != id)
		i = g->nodes[i].next;
	return i;
}

static void node_drop(struct graph_edges *g, uint32_t number)
{
	struct node *n = &g->nodes[number];
	uint32_t *at = bucket_of(g, n->id);

	while (n->edges)
		edge_drop(g, n->edges);
	while (*at != number)
		at = &g->nodes[*at].next;
	*at = n->next;
	g->counts.live -= n->live;
	g->counts.nodes--;
	*n = (struct node){ .generation = (uint16_t)(n->generation + 1), .next = g->nodes_free };
	g->nodes_free = number;
}

/* Drops a node, never `kept`. A touched node gets a second chance. Nodes that are not live go first; a live one goes
 * only if the hand has met no other for 2 * HAND_STEPS steps. */
static void node_give_way(struct graph_edges *g, uint32_t kept)
{
	struct node *n;

	for (int step = 0;; step++) {
		g->node_hand = g->node_hand < g->nodes_used ? g->node_hand + 1 : 1;
		n = &g->nodes[g->node_hand];
		if (g->node_hand == kept)
			continue;
		if (step >= 2 * HAND_STEPS || (!n->live && (n->spared || step >= HAND_STEPS)))
			break;
		n->spared = true;
	}
	node_drop(g, g->node_hand);
	g->counts.forgotten_nodes++;
}

/* The node of the id, made if there is none. */
static uint32_t node_of(struct graph_edges *g, uint64_t id, uint32_t kept, uint64_t now_us)
{
	uint32_t number = node_find(g, id), *bucket = bucket_of(g, id);
	struct node *n;

	assert(id);
	if (!number) {
		if (!g->nodes_free && g->nodes_used == g->options.nodes_max)
			node_give_way(g, kept);
		number = g->nodes_free;
		if (number)
			g->nodes_free = g->nodes[number].next;
		else
			number = ++g->nodes_used;
		n = &g->nodes[number];
		*n = (struct node){ .id = id, .next = *bucket, .generation = n->generation };
		*bucket = number;
		g->counts.nodes++;
	}
	n = &g->nodes[number];
	n->touched = time_of(g, now_us);
	n->spared = false;
	return number;
}

/* 0: none. */
static uint32_t before_of(const struct graph_edges *g, uint32_t node)
{
	const struct node *n = &g->nodes[node], *before = &g->nodes[n->before];

	return n->before && !n->entered && before->id && before->generation == n->before_generation ? n->before : 0;
}

static void come_after(struct graph_edges *g, uint32_t before, uint32_t node)
{
	struct node *n = &g->nodes[node];
	const uint32_t known = before_of(g, node);

	n->entered |= known && known != before;
	n->before = before;
	n->before_generation = g->nodes[before].generation;
}

/* ---- the calls ---- */

struct graph_edges *graph_edges_create(const struct graph_edges_options *o)
{
	struct graph_edges *g;
	uint32_t buckets = 1;

	if (o->nodes_max < 2 || o->nodes_max > ITEMS_MAX || o->edges_max == 0 || o->edges_max > ITEMS_MAX ||
	    o->half_life_us < 1000 || o->sessions_max == 0 || o->sessions_max & (o->sessions_max - 1))
		return NULL;
	g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	while (buckets < o->nodes_max)
		buckets *= 2;
	g->options = *o;
	g->unit_us = o->half_life_us / 1000 < 2 << UNIT_LOG ? 1000 : (o->half_life_us / 1000 >> UNIT_LOG) * 1000;
	g->mask = buckets - 1;
	g->nodes = calloc((uint64_t)o->nodes_max + 1, sizeof(g->nodes[0]));
	g->edges = calloc((uint64_t)o->edges_max + 1, sizeof(g->edges[0]));
	g->sessions = calloc(o->sessions_max, sizeof(g->sessions[0]));
	g->buckets = calloc(buckets, sizeof(g->buckets[0]));
	if (g->nodes && g->edges && g->sessions && g->buckets)
		return g;
	graph_edges_destroy(g);
	return NULL;
}

void graph_edges_destroy(struct graph_edges *g)
{
	if (!g)
		return;
	free(g->nodes);
	free(g->edges);
	free(g->sessions);
	free(g->buckets);
	free(g);
}

static void note_end(struct graph_edges *g, uint64_t now_us, uint64_t session, uint64_t end)
{
	struct session *s = &g->sessions[hash_mix(session) & (g->options.sessions_max - 1)];

	if (s->session == session && s->end != end)
		graph_edges_pair(g, now_us, EDGE_TEMPORAL, s->end, end, 1);
	*s = (struct session){ session, end };
}

void graph_edges_request(struct graph_edges *g, uint64_t now_us, uint64_t session, const uint64_t *ids,
			 uint32_t count, bool goes_on)
{
	uint16_t session_hash = (uint16_t)(hash_mix(session) >> 40);
	uint32_t before = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t node = node_of(g, ids[i], before, now_us);
		struct edge *e;

		if (before && before != node) {
			e = strengthen(g, before, node, EDGE_PREFIX_SHARE, 1, now_us);
			if ((e->sessions == 0 || e->session != session_hash) && e->sessions < UINT16_MAX)
				e->sessions++;
			e->session = session_hash;
			come_after(g, before, node);
		}
		g->nodes[node].entered |= !i && ids[0] != g->goes_on;
		before = node;
	}
	g->goes_on = count && goes_on ? ids[count - 1] : 0;
	if (count && session && !goes_on)
		note_end(g, now_us, session, ids[count - 1]);
}

void graph_edges_pair(struct graph_edges *g, uint64_t now_us, enum edge_type type, uint64_t from, uint64_t to,
		      float weight)
{
	uint32_t a;

	assert(from != to && weight > 0 && (uint32_t)type < EDGE_TYPES);
	a = node_of(g, from, 0, now_us);
	strengthen(g, a, node_of(g, to, a, now_us), type, weight, now_us);
}

void graph_edges_live(struct graph_edges *g, uint64_t now_us, uint64_t id, bool live)
{
	if (live)
		node_of(g, id, 0, now_us);
	graph_edges_mark(g, id, live);
}

void graph_edges_mark(struct graph_edges *g, uint64_t id, bool live)
{
	const uint32_t number = node_find(g, id);

	if (!number || g->nodes[number].live == live)
		return;
	g->nodes[number].live = live;
	g->counts.live += live ? 1u : -1u;
}

/* ---- near ---- */

static bool among(const uint64_t *ids, uint32_t count, uint64_t id)
{
	for (uint32_t i = 0; i < count; i++)
		if (ids[i] == id)
			return true;
	return false;
}

/* Adds to the node's score. Returns the new number of nodes with a score. */
static uint32_t score_add(struct graph_edges *g, uint32_t scored, uint32_t node, float weight)
{
	uint32_t at = (uint32_t)hash_mix(node) & (SCORES - 1);

	while (g->scores[at].node && g->scores[at].node != node)
		at = (at + 1) & (SCORES - 1);
	if (!g->scores[at].node) {
		g->scores[at] = (struct score){ node, 0 };
		g->scored[scored++] = (uint16_t)at;
	}
	g->scores[at].weight += weight;
	return scored;
}

static bool comes_first(const struct graph_near *a, const struct graph_near *b)
{
	return a->weight != b->weight ? a->weight > b->weight : a->id < b->id;
}

/* Puts `n` at its place among the `count` best. Returns the new count. */
static uint32_t insert_ranked(struct graph_near *out, uint32_t count, uint32_t max, struct graph_near n)
{
	uint32_t at = count < max ? count : max;

	if (at == max && (max == 0 || !comes_first(&n, &out[max - 1])))
		return at;
	if (at == max)
		at--;
	for (count = at + 1; at > 0 && comes_first(&n, &out[at - 1]); at--)
		out[at] = out[at - 1];
	out[at] = n;
	return count;
}

uint32_t graph_edges_near(struct graph_edges *g, uint64_t now_us, const uint64_t *ids, uint32_t count,
			  uint32_t mask, struct graph_near *out, uint32_t max)
{
	uint32_t asked = count < EDGES_ASKED_MAX ? count : EDGES_ASKED_MAX, scored = 0, found = 0;

	for (uint32_t i = 0; i < asked; i++) {
		uint32_t node = node_find(g, ids[i]);

		for (uint32_t at = node ? g->nodes[node].edges : 0; at; at = g->edges[at].next) {
			const struct edge *e = &g->edges[at];

			if ((mask >> e->type & 1) && leads_on(g, e) && !among(ids, asked, g->nodes[e->to].id))
				scored = score_add(g, scored, e->to, weight_now(g, e, now_us));
		}
	}
	for (uint32_t i = 0; i < scored; i++) {
		struct score *s = &g->scores[g->scored[i]];
		const struct node *n = &g->nodes[s->node];

		found = insert_ranked(out, found, max, (struct graph_near){ n->id, s->weight, n->live });
		*s = (struct score){ 0 };
	}
	return found;
}

/* ---- chains ---- */

uint64_t graph_edges_before(const struct graph_edges *g, uint64_t id)
{
	return g->nodes[before_of(g, node_find(g, id))].id;
}

uint32_t graph_edges_after(const struct graph_edges *g, uint64_t id, uint64_t out[EDGES_OF_NODE], bool *all)
{
	const uint32_t node = node_find(g, id);
	uint32_t n = 0;

	*all = node && !g->nodes[node].forgot;
	for (uint32_t at = node ? g->nodes[node].edges : 0; at; at = g->edges[at].next) {
		const struct edge *e = &g->edges[at];

		if (e->type != EDGE_PREFIX_SHARE)
			continue;
		if (leads_on(g, e) && before_of(g, e->to) == node)
			out[n++] = g->nodes[e->to].id;
		else
			*all = false;
	}
	return n;
}

/* ---- for a catalog ---- */

/* An edge to a node that was dropped is not kept: the record says that there was one. */
static bool has_forgotten(const struct graph_edges *g, const struct node *n)
{
	for (uint32_t at = n->edges; at; at = g->edges[at].next)
		if (g->edges[at].type == EDGE_PREFIX_SHARE && !leads_on(g, &g->edges[at]))
			return true;
	return n->forgot;
}

bool graph_edges_next_node(const struct graph_edges *g, uint64_t now_us, uint32_t *cursor, struct graph_node_record *out)
{
	while (*cursor < g->nodes_used) {
		const struct node *n = &g->nodes[++*cursor];

		if (!n->id)
			continue;
		*out = (struct graph_node_record){ .id = n->id, .touched_us = us_of(g, n->touched, now_us) };
		out->live = n->live;
		out->entered = n->entered;
		out->forgot = has_forgotten(g, n);
		return true;
	}
	return false;
}

bool graph_edges_next_edge(const struct graph_edges *g, uint64_t now_us, uint32_t *cursor, struct graph_edge_record *out)
{
	while (*cursor < g->edges_used) {
		const struct edge *e = &g->edges[++*cursor];

		if (!e->from || !leads_on(g, e))
			continue;
		*out = (struct graph_edge_record){ g->nodes[e->from].id, g->nodes[e->to].id, us_of(g, e->touched, now_us),
						   e->weight, e->sessions, e->type };
		return true;
	}
	return false;
}

enum status graph_edges_put_node(struct graph_edges *g, uint64_t now_us, const struct graph_node_record *r)
{
	struct node *n;

	if (!r->id || r->touched_us > now_us)
		return STATUS_INVALID;
	n = &g->nodes[node_of(g, r->id, 0, r->touched_us)];
	n->entered |= r->entered;
	n->forgot |= r->forgot;
	graph_edges_mark(g, r->id, r->live);
	return STATUS_OK;
}

enum status graph_edges_put_edge(struct graph_edges *g, uint64_t now_us, const struct graph_edge_record *r)
{
	uint32_t from = node_find(g, r->from), to = node_find(g, r->to);
	struct edge *e;

	if (from && r->to && !to && r->type == EDGE_PREFIX_SHARE)
		g->nodes[from].forgot = true;
	if (!r->from || !r->to || !from || !to || from == to || r->type >= EDGE_TYPES || r->touched_us > now_us ||
	    !(r->weight > 0) || !isfinite(r->weight))
		return STATUS_INVALID;
	e = edge_of(g, from, to, r->type, now_us);
	e->weight = r->weight;
	e->touched = time_of(g, r->touched_us);
	e->sessions = r->sessions;
	if (r->type == EDGE_PREFIX_SHARE)
		come_after(g, from, to);
	return STATUS_OK;
}

struct graph_edges_counts graph_edges_count(const struct graph_edges *g)
{
	return g->counts;
}
