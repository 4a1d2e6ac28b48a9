/* The graph's policy: what is worth least goes first, where worth is the expected hits per second of
 * keeping a block, by its class and the time since its last use.
 *
 * At an access the features of the block in the graph, and of the request, go through the model of reuse
 * (hazard.c), whose answer gives a class (survival.c); class and age give the worth. Every TICK_US the worth of all
 * pairs of class and age is computed anew and the pairs are ranked; between, only the ranks are used. Live
 * nodes stand in one line a class, oldest first (lines.c). A block is never of less worth at its
 * access than the block behind it in the chain: without it that one is of no use.
 *
 * Two things are done only while they pay. A newcomer of less worth than what would go for it is
 * refused unless what was refused comes back much more often than what was spared by that. And when an
 * LRU cache, followed on the samples, would have missed less or next to nothing, victims are taken by age alone for a while,
 * longer each time.
 */
#include "eviction/graph.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/graph_keep.h"
#include "eviction/hash.h"
#include "eviction/lines.h"
#include "eviction/memory.h"
#include "eviction/queue.h"

enum {
	TICK_US = 500 * 1000,
	PAIRS = CLASSES * SURVIVAL_BUCKETS,
	LEVELS = 256,          /* of worth, eight an octave */
	LEVEL_LEAST = (127 - 26) << 3, /* 2^-26 hits per second */
	BYPASS_MEMORY = 500,   /* blocks come back, then what they told is halved */
	DUEL_EVENTS = 2000,    /* samples come back to an LRU cache, then it is compared */
	BEGIN_TURNOVERS = 3,
	TRIALS_MAX = 6,        /* doublings of the time by age */
	SAYINGS = 2048,        /* what the model said, by features: a power of two */
	SAYING_TICKS = 8,      /* for so long */
};

/* Refusing goes on until what was refused comes back this many times as often as what was spared: what
 * is refused is the rest of a chain, which may come back in part only. */
#define BYPASS_BENEFIT 2.0f

/* The share of what comes back that LRU must miss: of less there is nothing to win, and each trial costs some. */
#define DUEL_MISSES 0.03f

/* Of the request that is being told. */
struct telling {
	uint64_t now_us;
	struct features features;
	bool known;            /* request() was called */
	uint32_t there;        /* blocks that hit */
	uint32_t deepest;      /* remembered */
	uint64_t deeper_us;    /* the block told last: when, where, which class */
	uint32_t deeper, deeper_class;
};

struct saying {
	uint32_t features;
	uint16_t class;
	uint16_t tick;         /* 0: none */
};

struct policy {
	struct memory memory;
	struct survival survival;
	struct lines lines;
	uint16_t rank_of[PAIRS], pair_at[PAIRS];
	uint64_t filled[PAIRS / 64]; /* by rank: the pair may have nodes */
	uint16_t used[CLASSES];      /* the classes that ever had a block */
	uint32_t used_count;
	bool is_used[CLASSES];
	struct saying sayings[SAYINGS];
	uint64_t ticked_us, capacity, inserted;
	uint16_t ticks;
	struct telling telling;
	float spared_back, refused_back;
	float own_misses, lru_misses, returns; /* of samples */
	bool by_age, begins;
	uint64_t by_age_until; /* `inserted` */
	uint32_t trials;
	uint64_t recalled_us;        /* what an earlier run remembered, if it did */
	bool recalled;
	struct graph_model model;
	bool model_told;             /* at the last access */
};

static uint32_t pair_of(uint32_t class, uint32_t bucket)
{
	return class * SURVIVAL_BUCKETS + bucket;
}

static float worth_of(const struct policy *p, uint32_t pair)
{
	return p->survival.worth[pair / SURVIVAL_BUCKETS][pair % SURVIVAL_BUCKETS];
}

static uint32_t pair_of_node(const struct policy *p, const struct policy_node *n)
{
	return pair_of(lines_class(n), lines_bucket(&p->lines, n));
}

static void filled_set(struct policy *p, uint32_t pair, bool filled)
{
	uint64_t bit = (uint64_t)1 << p->rank_of[pair] % 64;

	if (filled)
		p->filled[p->rank_of[pair] / 64] |= bit;
	else
		p->filled[p->rank_of[pair] / 64] &= ~bit;
}

static void push(struct policy *p, struct policy_node *n, uint32_t class)
{
	lines_push(&p->lines, n, class);
	filled_set(p, pair_of(class, 0), true);
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

	for (uint32_t u = 0; u < p->used_count; u++)
		for (uint32_t i = pair_of(p->used[u], 0); i < pair_of(p->used[u] + 1u, 0); i++) {
			level[i] = (uint8_t)level_of(p, i);
			start[level[i] + 1]++;
		}
	for (uint32_t l = 0; l < LEVELS; l++)
		start[l + 1] += start[l];
	memset(p->filled, 0, sizeof(p->filled));
	for (uint32_t b = SURVIVAL_BUCKETS; b-- > 0;)
		for (uint32_t u = 0; u < p->used_count; u++) {
			uint32_t i = pair_of(p->used[u], b), at = start[level[i]]++;

			p->rank_of[i] = (uint16_t)at;
			p->pair_at[at] = (uint16_t)i;
			if (p->lines.line[p->used[u]].filled >> b & 1)
				filled_set(p, i, true);
		}
}

static bool lru_misses_little(const struct policy *p)
{
	return p->lru_misses <= DUEL_MISSES * p->returns;
}

/* By age at first, until the model is good, or for some turnovers. And while LRU did better: for one turnover of the
 * cache first, twice as long each time that it does again. And as long as LRU misses next to nothing. */
static void duel_by_age(struct policy *p)
{
	p->by_age = lru_misses_little(p) || (p->inserted < p->by_age_until &&
		    !(p->begins && (p->model_told || hazard_is_good(&p->memory.hazard))));
	p->begins &= p->by_age;
	if (!p->by_age) {
		p->own_misses = p->lru_misses = p->returns = 0;
	} else if (p->returns > 2 * DUEL_EVENTS) {
		p->lru_misses /= 2;
		p->returns /= 2;
	}
}

static void duel(struct policy *p)
{
	if (p->by_age) {
		duel_by_age(p);
		return;
	}
	if (p->returns - p->lru_misses < DUEL_EVENTS)
		return;
	if (lru_misses_little(p)) {
		p->by_age = true;
	} else if (p->own_misses > p->lru_misses) {
		p->by_age = true;
		p->by_age_until = p->inserted + (p->capacity << p->trials);
		p->trials += p->trials < TRIALS_MAX;
	} else {
		p->trials = 0;
	}
	p->own_misses /= 2;
	p->lru_misses /= 2;
	p->returns /= 2;
}

static void tick(struct policy *p, uint64_t now_us)
{
	if (now_us - p->ticked_us < TICK_US)
		return;
	p->ticked_us = now_us;
	p->ticks = p->ticks < UINT16_MAX ? p->ticks + 1 : 1;
	memory_advance(&p->memory, now_us);
	survival_update(&p->survival);
	lines_advance(&p->lines, now_us);
	duel(p);
	rank(p);
}

/* ---- accesses ---- */

static uint8_t gap_of(const struct record *r, uint64_t now_us)
{
	uint32_t ms = (uint32_t)(now_us / 1000) - r->last_ms;

	return (uint8_t)(survival_bucket((uint64_t)ms * 1000) + 1);
}

static bool is_told(const struct policy *p, uint64_t now_us)
{
	return p->telling.known && p->telling.now_us == now_us;
}

/* What is known of the request, or of the event if there is none, and what is remembered of the block. */
static struct features features_of(const struct policy *p, const struct record *r, struct features f, uint64_t now_us)
{
	if (!is_told(p, now_us) && r->uses)
		f.gap = gap_of(r, now_us);
	f.uses = r->uses < UINT8_MAX ? r->uses + 1 : UINT8_MAX;
	f.children = r->children;
	return f;
}

/* A class that comes up for the first time is ranked at once. */
static void class_begin(struct policy *p, uint32_t class)
{
	p->is_used[class] = true;
	p->used[p->used_count++] = (uint16_t)class;
	survival_update(&p->survival);
	rank(p);
}

static uint32_t class_that(struct policy *p, const float hazard[SURVIVAL_BUCKETS])
{
	uint32_t class = survival_class(&p->survival, hazard);

	if (!p->is_used[class])
		class_begin(p, class);
	return class;
}

/* The model is asked once in a while only for the same features. */
static uint32_t class_of(struct policy *p, uint32_t features)
{
	struct saying *s = &p->sayings[hash_mix(features) & (SAYINGS - 1)];
	float hazard[SURVIVAL_BUCKETS];

	if (s->features == features && s->tick && (uint16_t)(p->ticks - s->tick) < SAYING_TICKS)
		return s->class;
	hazard_predict(&p->memory.hazard, features, hazard);
	*s = (struct saying){ features, (uint16_t)class_that(p, hazard), p->ticks };
	return s->class;
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
	p->spared_back += r->spared;
	p->refused_back += r->refused;
	r->spared = r->refused = false;
	if (p->spared_back + p->refused_back > BYPASS_MEMORY) {
		p->spared_back /= 2;
		p->refused_back /= 2;
	}
	p->returns += a.sampled;
	p->own_misses += a.sampled && !hit;
	p->lru_misses += a.sampled && !a.lru_hit;
}

/* The blocks of a request share a fate, those that are new and those that are not. */
static float weight_of(const struct record *r, const struct features *request)
{
	uint32_t sharing = r->uses == 0 ? request->fresh : request->count - request->fresh;

	return request->count && sharing > 1 ? 1 / sqrtf((float)sharing) : 1;
}

static uint32_t class_at(struct policy *p, uint64_t id, uint32_t features, float weight, uint64_t now_us)
{
	float hazard[SURVIVAL_BUCKETS];

	p->model_told = p->model.tell && p->model.tell(p->model.arg, id, features, weight, now_us, hazard);
	return p->model_told ? class_that(p, hazard) : class_of(p, features);
}

/* An access to a block, whether it is there or not. */
static struct record *note(struct policy *p, uint64_t id, uint32_t position, struct features known, uint64_t now_us)
{
	struct record *r = memory_find(&p->memory, id);
	struct features f;
	uint32_t packed;
	float weight;
	bool hit;

	if (!r)
		r = memory_make(&p->memory, id);
	f = features_of(p, r, known, now_us);
	if (r->uses == 0 || position >= p->telling.deepest)
		r->turn = f.turn;
	packed = features_pack(&f);
	weight = weight_of(r, &known);
	hit = r->live && (!is_told(p, now_us) || position < p->telling.there);
	judge(p, r, memory_access(&p->memory, r, id, packed, weight, now_us), hit);
	r->class = class_in_chain(p, class_at(p, id, packed, weight, now_us), position, now_us);
	r->uses = f.uses;
	return r;
}

/* The chain goes on from its deepest block that is remembered; if something followed that one before,
 * it branches: a new chain. */
static void go_on(struct policy *p, struct record *deepest, const struct policy_request *r)
{
	struct features *f = &p->telling.features;

	f->gap = gap_of(deepest, r->now_us);
	if (deepest->children == 0 && deepest->turn < UINT8_MAX)
		f->turn = deepest->turn + 1;
	if (f->fresh && deepest->children < UINT8_MAX)
		deepest->children++;
}

static void request(struct policy *p, const struct policy_request *r)
{
	struct telling *t = &p->telling;
	struct record *deepest = NULL;
	uint32_t fresh = 0;

	tick(p, r->now_us);
	memory_prefetch(&p->memory, r->ids, r->count);
	t->there = t->deepest = 0;
	for (uint32_t i = 0; i < r->count; i++) {
		struct record *known = memory_find(&p->memory, r->ids[i]);

		fresh += !known;
		if (known) {
			deepest = known;
			t->deepest = i;
		}
		t->there += known && known->live && t->there == i;
	}
	t->features = (struct features){ .fresh = fresh, .count = r->count, .turn = 1, .hint = r->hint,
					 .priority = r->priority, .ttl_s = r->ttl_s };
	if (deepest)
		go_on(p, deepest, r);
	if (r->turn)
		t->features.turn = r->turn < UINT8_MAX ? (uint8_t)r->turn : UINT8_MAX;
	t->now_us = r->now_us;
	t->known = true;
	for (uint32_t i = r->count; i-- > 0;) {
		t->features.role = r->roles ? r->roles[i] : 0;
		note(p, r->ids[i], i, t->features, r->now_us);
	}
}

/* What request() has noted, or admit(), is not noted again when it is inserted or used, even if that comes later. */
static struct record *record_of(struct policy *p, const struct policy_event *e)
{
	struct record *r = memory_find(&p->memory, e->id);

	if (r && (e->moved || is_told(p, e->now_us) || memory_is_pending(r, e->now_us)))
		return r;
	return note(p, e->id, e->position, (struct features){ .hint = e->hint, .role = e->role,
		    .priority = e->priority, .ttl_s = e->ttl_s }, e->now_us);
}

static uint32_t class_now(struct policy *p, const struct policy_event *e)
{
	struct record *r;

	tick(p, e->now_us);
	if (e->id == 0)
		return class_of(p, features_pack(&(struct features){ .uses = 1 }));
	r = record_of(p, e);
	r->live = true;
	r->pending &= e->moved; /* the access that it was told of may be still to come */
	return r->class;
}

/* When what moved was used last, if that was in an earlier run. */
static bool used_before(const struct policy *p, const struct policy_event *e, uint64_t *used_us)
{
	const struct record *r = e->moved && p->recalled ? memory_find(&p->memory, e->id) : NULL;
	uint64_t age_us;

	if (!r || (int32_t)((uint32_t)(p->recalled_us / 1000) - r->last_ms) <= 0)
		return false;
	age_us = (uint64_t)((uint32_t)(e->now_us / 1000) - r->last_ms) * 1000;
	*used_us = age_us < e->now_us ? e->now_us - age_us : 0;
	return true;
}

static void insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	uint64_t used_us;
	uint32_t class;

	queue_node_init(n, e);
	p->inserted++;
	class = class_now(p, e);
	if (used_before(p, e, &used_us))
		filled_set(p, pair_of(class, lines_insert(&p->lines, n, class, used_us)), true);
	else
		push(p, n, class);
}

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	uint32_t class;

	queue_note_use(n, e);
	__builtin_prefetch(n->prev, 1);
	__builtin_prefetch(n->next, 1);
	class = class_now(p, e);
	lines_pull(&p->lines, n);
	push(p, n, class);
}

/* Who leaves from the front of a bucket is followed by those behind it: what will be read of them is brought near, of the third its
 * node, of the second its place in the index, of the first its record. */
static void look_ahead(const struct policy *p, const struct policy_node *n)
{
	const struct policy_node *first = n->next, *second = first->next;

	if (!lines_is_front(n))
		return;
	__builtin_prefetch(second->next);
	memory_prefetch_bucket(&p->memory, second->id);
	memory_prefetch_record(&p->memory, first->id);
}

static void take_out(struct policy *p, struct policy_node *n)
{
	struct record *r = n->id ? memory_find(&p->memory, n->id) : NULL;

	look_ahead(p, n);
	lines_pull(&p->lines, n);
	if (r)
		r->live = false;
}

/* The oldest node of a pair that may go. */
static struct policy_node *front(struct policy *p, uint32_t pair,
				 bool (*may)(const struct policy_node *, void *), void *arg, uint32_t *scan)
{
	struct policy_node *n = lines_front(&p->lines, pair / SURVIVAL_BUCKETS, pair % SURVIVAL_BUCKETS);

	if (!n)
		filled_set(p, pair, false);
	for (; n && *scan > 0; n = lines_next(&p->lines, n)) {
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
	return worth_of(p, pair_of_node(p, a)) < worth_of(p, pair_of_node(p, b));
}

/* By rank; by age, pairs of one bucket rank one after the other, and the oldest of the bucket's fronts
 * is taken. */
static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	struct policy_node *best = NULL, *n;

	for (uint32_t word = 0; word * 64 < p->used_count * SURVIVAL_BUCKETS; word++)
		for (uint64_t left = p->filled[word]; left; left &= left - 1) {
			uint32_t pair = p->pair_at[word * 64 + (uint32_t)__builtin_ctzll(left)];

			if (best && lines_bucket(&p->lines, best) != pair % SURVIVAL_BUCKETS)
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
	if (p->rank_of[pair_of(r->class, 0)] >= p->rank_of[pair_of_node(p, v)])
		return true;
	r->refused = true;
	rival = memory_find(&p->memory, v->id);
	if (rival)
		rival->spared = true;
	return p->spared_back * BYPASS_BENEFIT < p->refused_back;
}

static void destroy(struct policy *p)
{
	if (!p)
		return;
	memory_fini(&p->memory);
	lines_fini(&p->lines);
	free(p);
}

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->capacity = capacity ? capacity : 1;
	if (!memory_init(&p->memory, p->capacity) || !lines_init(&p->lines, p->capacity)) {
		destroy(p);
		return NULL;
	}
	survival_init(&p->survival);
	p->ticks = 1;
	p->by_age = true; /* until something is known */
	p->begins = true;
	p->by_age_until = BEGIN_TURNOVERS * p->capacity;
	rank(p);
	return p;
}

void graph_set_model(struct policy *p, const struct graph_model *m)
{
	p->model = *m;
}

static void explain(const struct policy *p, const struct policy_node *n, struct policy_explained *out)
{
	const struct record *r = n->id ? memory_find(&p->memory, n->id) : NULL;
	const uint32_t pair = pair_of_node(p, n);

	*out = (struct policy_explained){ .score = (double)worth_of(p, pair), .unit = "expected hits a second" };
	out->feature[out->features].name = "by_age";
	out->feature[out->features++].value = p->by_age;
	out->feature[out->features].name = "class";
	out->feature[out->features++].value = pair / SURVIVAL_BUCKETS;
	out->feature[out->features].name = "age_bucket";
	out->feature[out->features++].value = pair % SURVIVAL_BUCKETS;
	if (!r)
		return;
	out->feature[out->features].name = "turn";
	out->feature[out->features++].value = r->turn;
	out->feature[out->features].name = "uses_remembered";
	out->feature[out->features++].value = r->uses;
	out->feature[out->features].name = "chains_on";
	out->feature[out->features++].value = r->children;
}

/* ---- over a restart: graph_keep.h ---- */

static size_t keep(const struct policy *p, uint64_t *cursor, uint8_t out[POLICY_PIECE_MAX])
{
	const struct graph_kept k = {
		.memory = &p->memory, .survival = &p->survival, .used = p->used, .used_count = p->used_count, .now_us = p->ticked_us,
		.duel = { .spared_back = p->spared_back, .refused_back = p->refused_back, .own_misses = p->own_misses,
			  .lru_misses = p->lru_misses, .returns = p->returns, .by_age = p->by_age, .begins = p->begins, .trials = p->trials,
			  .by_age_left = p->by_age_until > p->inserted ? p->by_age_until - p->inserted : 0 },
	};

	return graph_keep_piece(&k, cursor, out);
}

static void recall_duel(struct policy *p, const struct graph_duel *d)
{
	const uint64_t most = p->capacity << TRIALS_MAX;

	p->spared_back = d->spared_back;
	p->refused_back = d->refused_back;
	p->own_misses = d->own_misses;
	p->lru_misses = d->lru_misses;
	p->returns = d->returns;
	p->by_age = d->by_age;
	p->begins = d->begins;
	p->trials = d->trials < TRIALS_MAX ? d->trials : TRIALS_MAX;
	p->by_age_until = p->inserted + (d->by_age_left < most ? d->by_age_left : most);
}

static bool recall(struct policy *p, uint64_t now_us, uint64_t idle_us, const uint8_t *bytes, size_t size)
{
	struct graph_recalled r = { .memory = &p->memory, .survival = &p->survival, .is_used = p->is_used, .now_us = now_us, .idle_us = idle_us };

	if (!graph_recall_piece(&r, bytes, size))
		return false;
	p->recalled = true;
	p->recalled_us = now_us;
	if (r.has_duel)
		recall_duel(p, &r.duel);
	for (uint32_t i = 0; i < r.used_count; i++)
		p->used[p->used_count++] = r.used[i];
	if (r.has_duel || r.used_count) {
		survival_update(&p->survival);
		rank(p);
	}
	return true;
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
	.explain = explain,
	.keep = keep,
	.recall = recall,
};
