/* The graph's policy: what is worth least goes first, where worth is the expected hits per second of
 * keeping a block, by its class and the time since its last use.
 *
 * At an access the features of the block in the graph, and of the request, give a class (class.c); the
 * class and the age give the worth (survival.c). Every TICK_US the worth of all pairs of class and age
 * is computed anew and the pairs are ranked; between, only the ranks are used. Live nodes hang in one
 * list a pair, oldest first, and move on as they age. A block is never of less worth at its access than
 * the block behind it in the chain: without it that one is of no use.
 *
 * Two things are done only while they pay. A newcomer of less worth than what would go for it is
 * refused unless what was refused comes back much more often than what was spared by that. And when an
 * LRU cache, followed on the samples, would have hit more, victims are taken by age alone for a while,
 * longer each time.
 */
#include "eviction/graph.h"

#include <stdlib.h>
#include <string.h>

#include "eviction/memory.h"
#include "eviction/queue.h"

enum {
	TICK_US = 500 * 1000,
	PAIRS = CLASSES * SURVIVAL_BUCKETS,
	LEVELS = 256,          /* of worth, eight an octave */
	LEVEL_LEAST = (127 - 26) << 3, /* 2^-26 hits per second */
	BYPASS_MEMORY = 500,   /* blocks come back, then what they told is halved */
	DUEL_EVENTS = 2000,    /* samples come back before LRU is compared */
	TRIALS_MAX = 6,        /* doublings of the time by age */
};

/* Refusing goes on until what was refused comes back this many times as often as what was spared: what
 * is refused is the rest of a chain, which may come back in part only. */
#define BYPASS_BENEFIT 2.0f

/* Of the request that is being told. */
struct telling {
	uint64_t now_us;
	struct class_features features;
	bool known;            /* request() was called */
	uint32_t there;        /* blocks that hit */
	uint64_t deeper_us;    /* the block told last: when, where, which class */
	uint32_t deeper, deeper_class;
};

struct policy {
	struct memory memory;
	struct queue lists[PAIRS];
	uint16_t rank_of[PAIRS], pair_at[PAIRS];
	uint64_t filled[PAIRS / 64]; /* by rank */
	uint64_t ticked_us, capacity, inserted;
	struct telling telling;
	float spared_back, refused_back;
	float own_hits, lru_hits;
	bool by_age;
	uint64_t by_age_until; /* `inserted` */
	uint32_t trials;
};

static uint32_t pair_of(uint32_t class, uint32_t bucket)
{
	return class * SURVIVAL_BUCKETS + bucket;
}

static float worth_of(const struct policy *p, uint32_t pair)
{
	return p->memory.survival.worth[pair / SURVIVAL_BUCKETS][pair % SURVIVAL_BUCKETS];
}

static void filled_set(struct policy *p, uint32_t pair, bool filled)
{
	uint64_t bit = (uint64_t)1 << p->rank_of[pair] % 64;

	if (filled)
		p->filled[p->rank_of[pair] / 64] |= bit;
	else
		p->filled[p->rank_of[pair] / 64] &= ~bit;
}

static bool list_empty(const struct queue *q)
{
	return q->head.next == &q->head;
}

static void push(struct policy *p, struct policy_node *n, uint32_t pair)
{
	n->queue = pair;
	queue_push(&p->lists[pair], n);
	filled_set(p, pair, true);
}

static void pull(struct policy *p, struct policy_node *n)
{
	queue_unlink(n);
	if (list_empty(&p->lists[n->queue]))
		filled_set(p, n->queue, false);
}

/* ---- every tick ---- */

/* A float's exponent and first mantissa bits are its logarithm in eighths of an octave, near enough. */
static uint32_t level_of(const struct policy *p, uint32_t pair)
{
	float worth = worth_of(p, pair);
	uint32_t bits;

	if (p->by_age)
		return SURVIVAL_BUCKETS - 1 - pair % SURVIVAL_BUCKETS;
	memcpy(&bits, &worth, sizeof(bits));
	bits >>= 23 - 3;
	return bits < LEVEL_LEAST ? 0 : bits - LEVEL_LEAST < LEVELS ? bits - LEVEL_LEAST : LEVELS - 1;
}

/* A counting sort by level; of equals the older first. */
static void rank(struct policy *p)
{
	uint32_t start[LEVELS + 1] = { 0 };
	uint8_t level[PAIRS];

	for (uint32_t i = 0; i < PAIRS; i++) {
		level[i] = (uint8_t)level_of(p, i);
		start[level[i] + 1]++;
	}
	for (uint32_t l = 0; l < LEVELS; l++)
		start[l + 1] += start[l];
	memset(p->filled, 0, sizeof(p->filled));
	for (uint32_t b = SURVIVAL_BUCKETS; b-- > 0;)
		for (uint32_t c = 0; c < CLASSES; c++) {
			uint32_t i = pair_of(c, b), at = start[level[i]]++;

			p->rank_of[i] = (uint16_t)at;
			p->pair_at[at] = (uint16_t)i;
			if (!list_empty(&p->lists[i]))
				filled_set(p, i, true);
		}
}

/* Moves every node that has outgrown its bucket on. */
static void grow_older(struct policy *p, uint64_t now_us)
{
	for (uint32_t i = 0; i < PAIRS; i++) {
		struct policy_node *head = &p->lists[i].head;
		uint64_t end = survival_end_us(i % SURVIVAL_BUCKETS);

		while (head->next != head && now_us - head->next->last_use_us >= end) {
			struct policy_node *n = head->next;

			pull(p, n);
			push(p, n, i + 1);
		}
	}
}

/* By age while LRU did better: for one turnover of the cache first, twice as long each time that it
 * does again. */
static void duel(struct policy *p)
{
	if (p->by_age) {
		p->by_age = p->inserted < p->by_age_until;
		p->own_hits = p->lru_hits = 0;
		return;
	}
	if (p->lru_hits < DUEL_EVENTS)
		return;
	if (p->lru_hits > p->own_hits) {
		p->by_age = true;
		p->by_age_until = p->inserted + (p->capacity << p->trials);
		p->trials += p->trials < TRIALS_MAX;
	} else {
		p->trials = 0;
	}
	p->own_hits /= 2;
	p->lru_hits /= 2;
}

static void tick(struct policy *p, uint64_t now_us)
{
	if (now_us - p->ticked_us < TICK_US)
		return;
	p->ticked_us = now_us;
	memory_advance(&p->memory, now_us);
	survival_update(&p->memory.survival);
	grow_older(p, now_us);
	duel(p);
	rank(p);
}

/* ---- accesses ---- */

static uint8_t log_of(uint64_t n)
{
	return (uint8_t)(63 - __builtin_clzll(n + 1));
}

static uint8_t gap_of(const struct record *r, uint64_t now_us)
{
	uint32_t ms = (uint32_t)(now_us / 1000) - r->last_ms;

	return (uint8_t)(survival_bucket((uint64_t)ms * 1000) + 1);
}

static bool is_told(const struct policy *p, uint64_t now_us)
{
	return p->telling.known && p->telling.now_us == now_us;
}

static struct class_features features_of(const struct policy *p, const struct record *r, uint64_t now_us)
{
	struct class_features f = { 0 };

	if (is_told(p, now_us))
		f = p->telling.features;
	else if (r->uses)
		f.gap = gap_of(r, now_us);
	f.uses = r->uses < UINT8_MAX ? r->uses + 1 : UINT8_MAX;
	f.children = r->children;
	return f;
}

static uint32_t class_in_chain(struct policy *p, uint32_t class, uint32_t position, uint64_t now_us)
{
	struct telling *t = &p->telling;

	if (t->deeper_us == now_us && t->deeper == position + 1 &&
	    worth_of(p, pair_of(t->deeper_class, 0)) > worth_of(p, pair_of(class, 0)))
		class = t->deeper_class;
	t->deeper_us = now_us;
	t->deeper = position;
	t->deeper_class = class;
	return class;
}

/* What bypass and LRU would have been better at is told by blocks that come back. */
static void judge(struct policy *p, struct record *r, struct memory_access a, bool hit)
{
	p->spared_back += (r->flags & RECORD_SPARED) != 0;
	p->refused_back += (r->flags & RECORD_REFUSED) != 0;
	r->flags &= (uint8_t)~(RECORD_SPARED | RECORD_REFUSED);
	if (p->spared_back + p->refused_back > BYPASS_MEMORY) {
		p->spared_back /= 2;
		p->refused_back /= 2;
	}
	p->own_hits += a.sampled && hit;
	p->lru_hits += a.sampled && a.lru_hit;
}

/* An access to a block, whether it is there or not. */
static struct record *note(struct policy *p, uint64_t id, uint32_t position, uint64_t now_us)
{
	struct record *r = memory_find(&p->memory, id);
	struct class_features f;
	uint32_t class;
	bool hit;

	if (!r)
		r = memory_make(&p->memory, id);
	f = features_of(p, r, now_us);
	if (r->uses == 0)
		r->turn = f.turn;
	class = class_in_chain(p, class_of(&f), position, now_us);
	hit = (r->flags & RECORD_LIVE) && (!is_told(p, now_us) || position < p->telling.there);
	judge(p, r, memory_access(&p->memory, r, class, now_us), hit);
	r->uses = f.uses;
	return r;
}

/* The chain goes on from its deepest block that is remembered; if something followed that one before,
 * it branches: a new chain. */
static void request(struct policy *p, const struct policy_request *r)
{
	struct class_features *f = &p->telling.features;
	struct record *deepest = NULL;
	uint32_t fresh = 0, there = 0;

	tick(p, r->now_us);
	for (uint32_t i = 0; i < r->count; i++) {
		struct record *known = memory_find(&p->memory, r->ids[i]);

		fresh += !known;
		if (known)
			deepest = known;
		if (known && (known->flags & RECORD_LIVE) && there == i)
			there++;
	}
	p->telling.there = there;
	*f = (struct class_features){ .fresh_log = log_of(fresh), .turn = 1, .hint = r->hint };
	if (deepest) {
		f->gap = gap_of(deepest, r->now_us);
		if (deepest->children == 0 && deepest->turn < UINT8_MAX)
			f->turn = deepest->turn + 1;
		if (fresh && deepest->children < UINT8_MAX)
			deepest->children++;
	}
	if (r->turn)
		f->turn = r->turn < UINT8_MAX ? (uint8_t)r->turn : UINT8_MAX;
	p->telling.now_us = r->now_us;
	p->telling.known = true;
	for (uint32_t i = r->count; i-- > 0;)
		note(p, r->ids[i], i, r->now_us);
}

/* What request() has noted is not noted again. */
static struct record *record_of(struct policy *p, const struct policy_event *e)
{
	struct record *r = is_told(p, e->now_us) ? memory_find(&p->memory, e->id) : NULL;

	return r ? r : note(p, e->id, e->position, e->now_us);
}

static uint32_t class_now(struct policy *p, const struct policy_event *e)
{
	struct record *r;

	tick(p, e->now_us);
	if (e->id == 0)
		return class_of(&(struct class_features){ .uses = 1 });
	r = record_of(p, e);
	r->flags |= RECORD_LIVE;
	return r->class;
}

static void insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_node_init(n, e);
	p->inserted++;
	push(p, n, pair_of(class_now(p, e), 0));
}

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_note_use(n, e);
	pull(p, n);
	push(p, n, pair_of(class_now(p, e), 0));
}

static void take_out(struct policy *p, struct policy_node *n)
{
	struct record *r = n->id ? memory_find(&p->memory, n->id) : NULL;

	pull(p, n);
	if (r)
		r->flags &= (uint8_t)~RECORD_LIVE;
}

/* The front of a list that may go. */
static struct policy_node *front(struct policy *p, uint32_t pair,
				 bool (*may)(const struct policy_node *, void *), void *arg, uint32_t *scan)
{
	struct policy_node *head = &p->lists[pair].head;

	for (struct policy_node *n = head->next; n != head && *scan > 0; n = n->next) {
		--*scan;
		if (may(n, arg))
			return n;
	}
	return NULL;
}

/* Of two nodes of one bucket of age. Equally old ones are of one request: its end, of less worth, goes
 * first. */
static bool older(const struct policy *p, const struct policy_node *a, const struct policy_node *b)
{
	if (a->last_use_us != b->last_use_us)
		return a->last_use_us < b->last_use_us;
	return worth_of(p, a->queue) < worth_of(p, b->queue);
}

/* By rank; by age, pairs of one bucket rank one after the other, and the oldest of the bucket's fronts
 * is taken. */
static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	struct policy_node *best = NULL, *n;

	for (uint32_t word = 0; word < PAIRS / 64; word++)
		for (uint64_t left = p->filled[word]; left; left &= left - 1) {
			uint32_t pair = p->pair_at[word * 64 + (uint32_t)__builtin_ctzll(left)];

			if (best && best->queue % SURVIVAL_BUCKETS != pair % SURVIVAL_BUCKETS)
				return best;
			n = front(p, pair, may, arg, &scan_max);
			if (n && !p->by_age)
				return n;
			if (n && (!best || older(p, n, best)))
				best = n;
		}
	return best;
}

/* Both are marked whatever is decided, so that it is seen what refusing would earn while it is off. */
static bool admit(struct policy *p, const struct policy_event *e, const struct policy_node *v)
{
	struct record *r, *rival;

	if (e->id == 0 || p->by_age)
		return true;
	r = record_of(p, e);
	if (p->rank_of[pair_of(r->class, 0)] >= p->rank_of[v->queue])
		return true;
	r->flags |= RECORD_REFUSED;
	rival = memory_find(&p->memory, v->id);
	if (rival)
		rival->flags |= RECORD_SPARED;
	return p->spared_back * BYPASS_BENEFIT < p->refused_back;
}

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->capacity = capacity ? capacity : 1;
	if (!memory_init(&p->memory, p->capacity)) {
		free(p);
		return NULL;
	}
	for (uint32_t i = 0; i < PAIRS; i++)
		queue_init(&p->lists[i]);
	survival_update(&p->memory.survival);
	p->by_age = true; /* until something is known */
	p->by_age_until = p->capacity + p->capacity / 2;
	rank(p);
	return p;
}

static void destroy(struct policy *p)
{
	if (!p)
		return;
	memory_fini(&p->memory);
	free(p);
}

const struct policy_ops policy_graph = {
	.name = "graph",
	.help = "what is expected to be worth least goes first, by what the graph knows of it",
	.create = create,
	.destroy = destroy,
	.request = request,
	.insert = insert,
	.use = use,
	.remove = take_out,
	.victim = victim,
	.admit = admit,
};
