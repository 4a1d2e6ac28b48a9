/* The graph's policy: evicts the block with the least worth. Worth is the expected number of hits per second of keeping
 * a block, by its class and the time since its last use. If costs are given (weigh), it is multiplied by what a hit
 * saves (recompute.h).
 *
 * At an access the features of the block, and of the request, go through the model of reuse (hazard.c). The model's
 * answer gives a class (survival.c); class and age give the worth. Every TICK_US the worth of all pairs of class and
 * age is computed anew, and the pairs are ranked; between ticks only the ranks are used. Live nodes are in one line a
 * class, oldest first (lines.c). At its access a block is never worth less than the block behind it in the chain, which
 * is of no use without it.
 *
 * Two rules hold only while they pay. First: a newcomer that is worth less than the victim is refused, unless refused
 * blocks come back much more often than the blocks that were spared by it. Second: shadows of fixed policies run on a
 * share of the blocks (duel.c); while one of them hits more, it chooses the victims. Victims also go by age alone when
 * an LRU cache would miss next to nothing.
 *
 * With lru the nodes stay in their lines. s3fifo and sieve have queues of their own: a node goes into such a queue when
 * it is inserted or used. Nodes that are still where they were before have not been used since, and go first. But
 * demoted nodes, which have a queue of their own too, go before all others.
 */
#include "eviction/graph.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/again.h"
#include "eviction/duel.h"
#include "eviction/graph_explain.h"
#include "eviction/graph_keep.h"
#include "eviction/hash.h"
#include "eviction/memory.h"
#include "eviction/queue.h"
#include "eviction/ranks.h"
#include "eviction/recompute.h"
#include "eviction/s3fifo.h"
#include "eviction/sieve.h"

enum {
	TICK_US = 500 * 1000,
	BYPASS_MEMORY = 500,   /* blocks that come back, after which their counts are halved */
	LRU_EVENTS = 2000,     /* samples that come back, after which the misses of an LRU cache are looked at */
	BEGIN_TURNOVERS = 3,
	SAYINGS = 2048,        /* the cache of the model's answers, by features: a power of two */
	SAYING_TICKS = 8,      /* how long an answer is used */
};

/* Blocks are refused until the refused ones come back this many times as often as the spared ones. A refused block is
 * the rest of a chain, which may come back in part only. */
#define BYPASS_BENEFIT 2.0f

/* If an LRU cache misses at most this share of the blocks that come back, nothing can be gained over it. */
#define LRU_MISSES 0.03f

/* The request whose blocks are being noted. */
struct telling {
	uint64_t now_us;
	struct features features;
	bool known;            /* request() was called */
	uint32_t deepest;      /* position of the deepest remembered block */
	uint8_t pace[2];       /* of the chain, as in a record */
	uint64_t deeper_us;    /* the block noted last: when, its position, its class */
	uint32_t deeper, deeper_class;
};

struct saying {
	uint32_t features, cost; /* recompute_step() */
	uint16_t class;
	uint16_t tick;         /* 0: none */
};

/* The nodes that one policy of the duel orders. */
struct order {
	const struct policy_ops *ops;
	struct policy *policy;
	uint64_t nodes;
};

struct policy {
	struct memory memory;
	struct survival survival;
	struct ranks by_worth, by_age; /* by_age: only while victims are chosen by it */
	struct ranked live;
	struct ranked shadow;          /* the graph's own shadow in the duel */
	struct order orders[DUEL_ROWS]; /* for s3fifo and sieve; of the first, `live` has the nodes */
	struct queue demoted;
	struct duel *duel;
	enum duel_row row;             /* in force */
	uint16_t used[CLASSES];      /* the classes that ever had a block */
	uint32_t used_count;
	bool is_used[CLASSES];
	struct saying sayings[SAYINGS];
	uint64_t ticked_us, capacity, inserted;
	uint32_t growth;             /* recompute.h; 0: all blocks cost the same */
	uint16_t ticks;
	struct telling telling;
	float spared_back, refused_back;
	float lru_misses, returns;   /* counts of samples */
	bool misses_little, begins;
	uint64_t begins_until;       /* a value of `inserted` */
	struct again again;
	uint64_t recalled_us;        /* when records of an earlier run were recalled, if they were */
	bool recalled;
	struct graph_model model;
	bool model_told;             /* the replaced model answered at the last access */
};

static uint32_t pair_of(uint32_t class, uint32_t bucket)
{
	return ranks_pair(class, bucket);
}

static float worth_of(const struct policy *p, uint32_t pair)
{
	return ranks_worth(&p->survival, pair);
}

/* ---- every tick ---- */

static void rank(struct policy *p)
{
	ranks_make(&p->by_worth, &p->survival, p->used, p->used_count, false);
	if (p->row == DUEL_LRU && p->by_age.count != p->used_count * SURVIVAL_BUCKETS) /* an order by age does not
										        * depend on worth */
		ranks_make(&p->by_age, &p->survival, p->used, p->used_count, true);
	p->live.ranks = p->row == DUEL_LRU ? &p->by_age : &p->by_worth;
	ranked_refill(&p->live);
	ranked_refill(&p->shadow);
}

/* Decides whether an LRU cache misses next to nothing; as long as it does, victims go by age. */
static void look_at_lru(struct policy *p)
{
	const bool little = p->lru_misses <= LRU_MISSES * p->returns;

	if (p->misses_little ? little && p->returns <= 2 * LRU_EVENTS : p->returns - p->lru_misses < LRU_EVENTS)
		return;
	if (p->misses_little && !little)
		p->lru_misses = p->returns = 0;
	p->misses_little = little;
	p->lru_misses /= 2;
	p->returns /= 2;
}

/* Chooses the policy: a fixed one at first, until the model is good or for some turnovers; then the graph's own, unless
 * a fixed one is better. */
static void choose(struct policy *p)
{
	const bool knows = p->model_told || hazard_is_good(&p->memory.hazard);

	if (p->misses_little) {
		p->row = DUEL_LRU;
	} else if (p->begins && (knows || p->inserted >= p->begins_until)) {
		p->begins = false;
		p->row = DUEL_OWN;
	} else {
		p->row = duel_choose(p->duel, p->row, p->begins ? DUEL_LRU : DUEL_OWN);
	}
}

/* Chooses between ticks too: a small cache turns over many times in one tick. */
static void duel(struct policy *p)
{
	const enum duel_row before = p->row;

	look_at_lru(p);
	choose(p);
	if (p->row != before)
		rank(p);
}

static void tick(struct policy *p, uint64_t now_us)
{
	if (p->memory.recalled)
		memory_settle(&p->memory, now_us);
	if (now_us - p->ticked_us < TICK_US) {
		if (duel_is_due(p->duel))
			duel(p);
		return;
	}
	p->ticked_us = now_us;
	p->ticks = p->ticks < UINT16_MAX ? p->ticks + 1 : 1;
	memory_advance(&p->memory, now_us);
	survival_update(&p->survival);
	lines_advance(&p->live.lines, now_us);
	lines_advance(&p->shadow.lines, now_us);
	look_at_lru(p);
	choose(p);
	rank(p);
}

/* ---- accesses ---- */

static bool is_told(const struct policy *p, uint64_t now_us)
{
	return p->telling.known && p->telling.now_us == now_us;
}

/* The features: those of the request, or of the event if there is no request, and those that are remembered of the
 * block. */
static struct features features_of(const struct policy *p, const struct record *r, struct features f, uint64_t now_us)
{
	if (!is_told(p, now_us) && r->uses)
		f.gap = memory_gap(r, now_us);
	f.uses = r->uses < UINT8_MAX ? r->uses + 1 : UINT8_MAX;
	f.children = r->children;
	return f;
}

/* Ranks a class at its first use. */
static void class_begin(struct policy *p, uint32_t class)
{
	p->is_used[class] = true;
	p->used[p->used_count++] = (uint16_t)class;
	survival_update(&p->survival);
	rank(p);
}

/* The mean cost of the blocks of a chain up to there. A chain comes back as a whole, and the class of its end holds for
 * all of it (class_in_chain). */
static uint32_t cost_step(const struct policy *p, uint32_t position, uint32_t block_tokens)
{
	return recompute_step((double)position * block_tokens / 2, p->growth);
}

static uint32_t class_that(struct policy *p, const float hazard[SURVIVAL_BUCKETS], uint32_t cost)
{
	uint32_t class = survival_class(&p->survival, hazard, recompute_step_cost(cost));

	if (!p->is_used[class])
		class_begin(p, class);
	return class;
}

/* The class for these features. The model's answer for the same features is kept for a few ticks. */
static uint32_t class_of(struct policy *p, uint32_t features, uint32_t cost)
{
	struct saying *s = &p->sayings[hash_mix((uint64_t)(cost - RECOMPUTE_FIRST) << 32 | features) & (SAYINGS - 1)];
	float hazard[SURVIVAL_BUCKETS];

	if (s->features == features && s->cost == cost && s->tick && (uint16_t)(p->ticks - s->tick) < SAYING_TICKS)
		return s->class;
	hazard_predict(&p->memory.hazard, features, hazard);
	*s = (struct saying){ features, cost, (uint16_t)class_that(p, hazard, cost), p->ticks };
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

/* Counts blocks that come back, from which follows how refusing and an LRU cache would have done. */
static void judge(struct policy *p, struct record *r, struct memory_access a)
{
	p->spared_back += r->spared;
	p->refused_back += r->refused;
	r->spared = r->refused = false;
	if (p->spared_back + p->refused_back > BYPASS_MEMORY) {
		p->spared_back /= 2;
		p->refused_back /= 2;
	}
	p->returns += a.sampled;
	p->lru_misses += a.sampled && !a.lru_hit;
}

/* The weight of a block for learning: the new blocks of a request come back together, and so do its known ones. */
static float weight_of(bool fresh, const struct features *request)
{
	uint32_t sharing = fresh ? request->fresh : request->count - request->fresh;

	return request->count && sharing > 1 ? 1 / sqrtf((float)sharing) : 1;
}

static uint32_t class_at(struct policy *p, uint64_t id, uint32_t features, uint32_t cost, float weight, uint64_t now_us)
{
	float hazard[SURVIVAL_BUCKETS];

	p->model_told = p->model.tell && p->model.tell(p->model.arg, id, features, weight, now_us, hazard);
	return p->model_told ? class_that(p, hazard, cost) : class_of(p, features, cost);
}

/* A chain takes over the pace of its deepest remembered block. So it keeps its pace when it is begun again from its
 * middle with other words. Blocks that many chains share have no pace. */
static void pace_go_on(struct telling *t, const struct record *deepest, uint64_t now_us)
{
	uint8_t *pace = features_pace_after(t->pace, deepest->hint);

	memcpy(t->pace, deepest->pace, sizeof(t->pace));
	if (pace)
		*pace = features_pace(*pace, (uint32_t)(now_us / 1000) - deepest->last_ms);
}

/* Writes the chain's pace to all its blocks: some may be forgotten when the chain goes on. */
static void note_pace(const struct telling *t, struct record *r)
{
	r->hint = t->features.hint < POLICY_HINTS ? t->features.hint : POLICY_HINT_NONE;
	memcpy(r->pace, t->pace, sizeof(r->pace));
}

/* Notes an access to a block, whether the cache has the block or not. */
static struct record *note(struct policy *p, uint64_t id, uint32_t position, uint32_t tokens, struct features known, uint64_t now_us)
{
	struct record *r = memory_find(&p->memory, id);
	const bool fresh = !r;
	struct features f;
	uint32_t packed;
	float weight;

	if (fresh)
		r = memory_make(&p->memory, id);
	f = features_of(p, r, known, now_us);
	if (r->uses == 0 || position >= p->telling.deepest)
		r->turn = f.turn < RECORD_TURN_MAX ? f.turn : RECORD_TURN_MAX;
	if (is_told(p, now_us))
		note_pace(&p->telling, r);
	packed = features_pack(&f);
	weight = weight_of(fresh, &known);
	r->again = again_note(&p->again, r, p->capacity, s3fifo_new(p->orders[DUEL_S3FIFO].policy), now_us);
	judge(p, r, memory_access(&p->memory, r, id, packed, weight, now_us));
	r->class = class_in_chain(p, class_at(p, id, packed, cost_step(p, position, tokens), weight, now_us), position, now_us);
	r->uses = f.uses;
	if (duel_follows(p->duel, id))
		duel_access(p->duel, &(struct policy_event){ .now_us = now_us, .id = id, .position = position, .tokens = tokens },
			    recompute_cost_bounded((double)position * tokens, p->growth), r->live);
	return r;
}

/* The chain goes on from its deepest remembered block. If another block has followed that one before, the chain
 * branches there: it is a new chain. */
static void go_on(struct policy *p, struct record *deepest, const struct policy_request *r)
{
	struct features *f = &p->telling.features;

	f->gap = memory_gap(deepest, r->now_us);
	if (deepest->children == 0)
		f->turn = deepest->turn + 1;
	if (deepest->children <= 1)
		pace_go_on(&p->telling, deepest, r->now_us);
	if (f->fresh && deepest->children < RECORD_CHILDREN_MAX)
		deepest->children++;
}

static void request(struct policy *p, const struct policy_request *r)
{
	struct telling *t = &p->telling;
	struct record *deepest = NULL;
	uint32_t fresh = 0;

	duel_request_end(p->duel);
	tick(p, r->now_us);
	memory_prefetch(&p->memory, r->ids, r->count);
	t->deepest = 0;
	for (uint32_t i = 0; i < r->count; i++) {
		struct record *known = memory_find(&p->memory, r->ids[i]);

		fresh += !known;
		if (known) {
			deepest = known;
			t->deepest = i;
		}
	}
	t->features = (struct features){ .fresh = fresh, .count = r->count, .turn = 1, .hint = r->hint,
					 .priority = r->priority, .ttl_s = r->ttl_s };
	memset(t->pace, 0, sizeof(t->pace));
	if (deepest)
		go_on(p, deepest, r);
	if (features_pace_after(t->pace, r->hint))
		t->features.pace = *features_pace_after(t->pace, r->hint);
	if (r->turn)
		t->features.turn = r->turn < UINT8_MAX ? (uint8_t)r->turn : UINT8_MAX;
	t->now_us = r->now_us;
	t->known = true;
	for (uint32_t i = r->count; i-- > 0;) {
		t->features.role = r->roles ? r->roles[i] : 0;
		note(p, r->ids[i], i, r->block_tokens, t->features, r->now_us);
	}
}

/* Makes a record of a block that came from another tier and has none: it has no use yet, and teaches nothing. */
static struct record *note_moved(struct policy *p, const struct policy_event *e, struct features f)
{
	struct record *r = memory_make(&p->memory, e->id);

	f.uses = 1;
	r->last_ms = (uint32_t)(e->now_us / 1000);
	r->class = class_in_chain(p, class_of(p, features_pack(&f), cost_step(p, e->position, e->tokens)), e->position, e->now_us);
	return r;
}

/* The block's record. An access that request() or admit() has noted is not noted again when the block is inserted or
 * used, even if that comes later. */
static struct record *record_of(struct policy *p, const struct policy_event *e)
{
	const struct features f = { .hint = e->hint, .role = e->role, .priority = e->priority, .ttl_s = e->ttl_s };
	struct record *r = memory_find(&p->memory, e->id);

	if (r && (e->moved || is_told(p, e->now_us) || memory_is_pending(r, e->now_us)))
		return r;
	return e->moved ? note_moved(p, e, f) : note(p, e->id, e->position, e->tokens, f, e->now_us);
}

static uint32_t class_now(struct policy *p, const struct policy_event *e)
{
	struct record *r;

	tick(p, e->now_us);
	if (e->id == 0)
		return class_of(p, features_pack(&(struct features){ .uses = 1 }), cost_step(p, e->position, e->tokens));
	r = record_of(p, e);
	r->live = true;
	r->pending &= e->moved; /* after a move the noted access may still follow */
	return r->class;
}

/* policy_ops.last_use; known only of uses in an earlier run. */
static bool last_use(const struct policy *p, uint64_t now_us, uint64_t id, uint64_t *ago_us)
{
	const struct record *r = id && p->recalled ? memory_find(&p->memory, id) : NULL;

	if (!r || (int32_t)((uint32_t)(p->recalled_us / 1000) - r->last_ms) <= 0)
		return false;
	*ago_us = (uint64_t)((uint32_t)(now_us / 1000) - r->last_ms) * 1000;
	return true;
}

/* ---- nodes, by the order that has them ---- */

/* No node is of lru's order, as it has none of its own: the number stands for demoted nodes. The other bits of the
 * node's `queue` say then in which order it was, and whether it would return there as proven (s3fifo_insert). */
#define DEMOTED DUEL_LRU
#define DEMOTED_PROVEN (1u << 2)

static enum duel_row order_of(const struct policy_node *n)
{
	return (enum duel_row)(n->queue >> QUEUE_ORDER_SHIFT);
}

static bool is_of_lines(enum duel_row row)
{
	return row == DUEL_OWN || row == DUEL_LRU;
}

/* Puts a node that is in no order into the one in force. */
static void put(struct policy *p, struct policy_node *n, const struct policy_event *e, bool again)
{
	struct order *o = &p->orders[p->row];

	if (p->row == DUEL_S3FIFO)
		s3fifo_insert(o->policy, n, e, again);
	else
		o->ops->insert(o->policy, n, e);
	n->queue |= (uint32_t)p->row << QUEUE_ORDER_SHIFT;
	o->nodes++;
}

static void pull(struct policy *p, struct policy_node *n)
{
	const enum duel_row row = order_of(n);

	if (row == DEMOTED) {
		queue_unlink(n);
		return;
	}
	p->orders[row].nodes--;
	if (row == DUEL_OWN)
		lines_pull(&p->live.lines, n);
	else
		p->orders[row].ops->remove(p->orders[row].policy, n);
}

static void push(struct policy *p, struct policy_node *n, uint32_t class)
{
	ranked_push(&p->live, n, class);
	p->orders[DUEL_OWN].nodes++;
}

static void insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	const struct record *r;
	uint64_t ago_us;
	uint32_t class;

	queue_node_init(n, e);
	p->inserted++;
	class = class_now(p, e);
	if (!is_of_lines(p->row)) {
		r = e->id ? memory_find(&p->memory, e->id) : NULL;
		put(p, n, e, r && r->again);
	} else if (e->moved && last_use(p, e->now_us, e->id, &ago_us)) {
		ranked_insert(&p->live, n, class, e->now_us - ago_us);
		p->orders[DUEL_OWN].nodes++;
	} else {
		push(p, n, class);
	}
}

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	uint32_t class, uses;

	__builtin_prefetch(n->prev, 1);
	__builtin_prefetch(n->next, 1);
	class = class_now(p, e); /* before the node's last use changes: searches in lines read the ages of the nodes
				  * there */
	queue_note_use(n, e);
	uses = n->uses;
	if (!is_of_lines(p->row) && order_of(n) == p->row) {
		p->orders[p->row].ops->use(p->orders[p->row].policy, n, e);
	} else {
		pull(p, n);
		if (is_of_lines(p->row))
			push(p, n, class);
		else
			put(p, n, e, true);
	}
	n->uses = uses;
}

static void demote_now(struct policy *p, struct policy_node *n)
{
	const enum duel_row from = order_of(n);
	const bool proven = from != DUEL_S3FIFO || !s3fifo_is_new(n);

	pull(p, n);
	n->queue = (uint32_t)DEMOTED << QUEUE_ORDER_SHIFT | from | (proven ? DEMOTED_PROVEN : 0);
	queue_push_before(p->demoted.head.next, n);
}

/* Back to its line, by its age. */
static void to_lines(struct policy *p, struct policy_node *n)
{
	const struct record *r = n->id ? memory_find(&p->memory, n->id) : NULL;

	ranked_insert(&p->live, n, r && p->is_used[r->class] ? r->class : p->used[0], n->last_use_us);
	p->orders[DUEL_OWN].nodes++;
}

/* A node that came from an order which is no longer in force goes to the lines, too: its age counts there, if they are
 * in force. */
static void restore(struct policy *p, struct policy_node *n)
{
	const struct policy_event e = { .now_us = n->last_use_us, .id = n->id };
	const enum duel_row from = (enum duel_row)(n->queue & (DEMOTED_PROVEN - 1));
	const bool proven = n->queue & DEMOTED_PROVEN;
	const uint32_t uses = n->uses;

	pull(p, n);
	if (is_of_lines(p->row) || from != p->row)
		to_lines(p, n);
	else
		put(p, n, &e, proven);
	n->uses = uses;
}

static void demote(struct policy *p, struct policy_node *n, bool is)
{
	const bool was = order_of(n) == DEMOTED;

	if (is && !was)
		demote_now(p, n);
	if (!is && was)
		restore(p, n);
}

/* Prefetches for the next evictions, since the nodes behind a front leave after it: the record of the next node, the
 * bucket of the second's record, and the third node. */
static void look_ahead(const struct policy *p, const struct policy_node *n)
{
	const struct policy_node *first = n->next, *second = first->next;

	if (order_of(n) != DUEL_OWN || !lines_is_front(n))
		return;
	__builtin_prefetch(second->next);
	memory_prefetch_bucket(&p->memory, second->id);
	memory_prefetch_record(&p->memory, first->id);
}

static void take_out(struct policy *p, struct policy_node *n)
{
	struct record *r = n->id ? memory_find(&p->memory, n->id) : NULL;

	look_ahead(p, n);
	if (r) {
		r->live = false;
		r->again = order_of(n) != DUEL_S3FIFO || s3fifo_is_new(n);
	}
	pull(p, n);
}

static struct policy_node *victim_of(struct policy *p, enum duel_row row, bool (*may)(const struct policy_node *, void *), void *arg,
				     uint32_t scan_max)
{
	if (!p->orders[row].nodes)
		return NULL;
	if (row == DUEL_OWN)
		return ranked_victim(&p->live, &p->survival, may, arg, scan_max);
	return p->orders[row].ops->victim(p->orders[row].policy, may, arg, scan_max);
}

/* A search over several orders. */
struct looks {
	bool (*may)(const struct policy_node *, void *);
	void *arg;
	uint32_t left;
	bool found;
};

static bool look(const struct policy_node *n, void *arg)
{
	struct looks *l = arg;

	l->left--;
	return l->found = l->may(n, l->arg);
}

/* Demoted nodes go first, then those that are left in other orders. */
static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t scan_max)
{
	const enum duel_row now = is_of_lines(p->row) ? DUEL_OWN : p->row;
	struct policy_node *n = queue_coldest(&p->demoted, may, arg, &scan_max);
	struct looks l = { may, arg, scan_max, false };

	for (enum duel_row row = DUEL_OWN; row < DUEL_ROWS && !n; row++)
		if (row != now)
			n = victim_of(p, row, look, &l, l.left);
	return n ? n : victim_of(p, now, may, arg, l.left);
}

/* False while s3fifo has nodes, because it moves nodes to find a victim. */
static bool walk(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	struct looks l = { visit, arg, max, false };
	struct order *sieve = &p->orders[DUEL_SIEVE];

	if (p->orders[DUEL_S3FIFO].nodes)
		return false;
	queue_coldest(&p->demoted, look, &l, &max);
	for (int i = 0; i < 2 && !l.found; i++)
		if ((i == 0) != is_of_lines(p->row))
			ranked_walk(&p->live, &p->survival, look, &l, l.left);
		else if (sieve->nodes)
			sieve->ops->walk(sieve->policy, look, &l, l.left);
	return true;
}

static bool refuses(const struct policy *p)
{
	return p->spared_back * BYPASS_BENEFIT >= p->refused_back;
}

static bool goes(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

/* A victim, of use or not, goes only for a block that is worth more than the first victim that is of use: so a chain
 * that comes back need not store that block again. The block and its rival are marked whatever is decided: so the gain
 * of refusing is known even while it is off. */
static bool admit(struct policy *p, const struct policy_event *e, const struct policy_node *v)
{
	struct record *r, *rival;

	if (p->row == DUEL_OWN && order_of(v) == DEMOTED)
		v = victim_of(p, DUEL_OWN, goes, NULL, 1);
	if (e->id == 0 || p->row != DUEL_OWN || !v || order_of(v) != DUEL_OWN)
		return true;
	r = record_of(p, e);
	if (p->by_worth.rank_of[pair_of(r->class, 0)] >= p->by_worth.rank_of[ranked_pair(&p->live, v)])
		return true;
	r->refused = true;
	rival = memory_find(&p->memory, v->id);
	if (rival)
		rival->spared = true;
	return !refuses(p);
}

/* ---- the duel's shadow of the graph's own: p is the graph itself, which has just noted the request ---- */

static uint32_t shadow_class(const struct policy *p, const struct policy_event *e)
{
	const struct record *r = memory_find(&p->memory, e->id);

	return r && p->is_used[r->class] ? r->class : p->used[0];
}

static void shadow_insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_node_init(n, e);
	ranked_push(&p->shadow, n, shadow_class(p, e));
}

static void shadow_use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_note_use(n, e);
	lines_pull(&p->shadow.lines, n);
	ranked_push(&p->shadow, n, shadow_class(p, e));
}

static void shadow_remove(struct policy *p, struct policy_node *n)
{
	lines_pull(&p->shadow.lines, n);
}

static struct policy_node *shadow_victim(struct policy *p, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t scan_max)
{
	return ranked_victim(&p->shadow, &p->survival, may, arg, scan_max);
}

static bool shadow_admit(struct policy *p, const struct policy_event *e, const struct policy_node *v)
{
	const uint16_t *rank_of = p->by_worth.rank_of;

	return rank_of[pair_of(shadow_class(p, e), 0)] >= rank_of[ranked_pair(&p->shadow, v)] || !refuses(p);
}

static const struct policy_ops shadow_own = {
	.name = "own", .help = "", .insert = shadow_insert, .use = shadow_use, .remove = shadow_remove, .victim = shadow_victim, .admit = shadow_admit,
};

static void destroy(struct policy *p)
{
	if (!p)
		return;
	memory_fini(&p->memory);
	ranked_fini(&p->live);
	ranked_fini(&p->shadow);
	duel_destroy(p->duel);
	for (int row = DUEL_S3FIFO; row < DUEL_ROWS; row++)
		if (p->orders[row].policy)
			p->orders[row].ops->destroy(p->orders[row].policy);
	free(p);
}

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->capacity = capacity ? capacity : 1;
	p->duel = duel_create(p->capacity, &shadow_own, p);
	queue_init(&p->demoted);
	p->orders[DUEL_S3FIFO] = (struct order){ &policy_s3fifo, s3fifo_create_bare(), 0 };
	p->orders[DUEL_SIEVE] = (struct order){ &policy_sieve, policy_sieve.create(p->capacity), 0 };
	if (!p->duel || !p->orders[DUEL_S3FIFO].policy || !p->orders[DUEL_SIEVE].policy || !memory_init(&p->memory, p->capacity) ||
	    !ranked_init(&p->live, p->capacity, &p->by_age) || !ranked_init(&p->shadow, duel_capacity(p->duel), &p->by_worth)) {
		destroy(p);
		return NULL;
	}
	survival_init(&p->survival);
	p->ticks = 1;
	p->row = DUEL_LRU; /* until the duel and the model know something */
	p->begins = p->misses_little = true;
	p->begins_until = BEGIN_TURNOVERS * p->capacity;
	rank(p);
	return p;
}

static void weigh(struct policy *p, uint32_t growth)
{
	p->growth = growth;
}

static void resize(struct policy *p, uint64_t capacity)
{
	p->capacity = capacity ? capacity : 1;
	if (p->begins_until > p->inserted + BEGIN_TURNOVERS * p->capacity)
		p->begins_until = p->inserted + BEGIN_TURNOVERS * p->capacity;
	memory_resize(&p->memory, p->capacity);
	duel_resize(p->duel, p->capacity);
}

void graph_set_model(struct policy *p, const struct graph_model *m)
{
	p->model = *m;
}

/* A fixed policy's node is in no line, so its pair is computed. */
static uint32_t pair_of_node(const struct policy *p, const struct policy_node *n, const struct record *r)
{
	int64_t age_us;

	if (order_of(n) == DUEL_OWN)
		return ranked_pair(&p->live, n);
	age_us = (int64_t)(p->ticked_us - n->last_use_us);
	return pair_of(r ? r->class : 0, survival_bucket(age_us > 0 ? (uint64_t)age_us : 0));
}

static void explain(const struct policy *p, const struct policy_node *n, struct policy_explained *out)
{
	const struct record *r = n->id ? memory_find(&p->memory, n->id) : NULL;
	const uint32_t pair = pair_of_node(p, n, r);

	*out = graph_explained(&(struct graph_seen){
		.worth = worth_of(p, pair), .order_by = p->row, .pair = pair, .record = r,
		.cost = p->growth ? survival_cost(&p->survival, pair / SURVIVAL_BUCKETS) : 0,
	});
}

/* ---- over a restart: graph_keep.h ---- */

static size_t keep(const struct policy *p, uint64_t *cursor, uint8_t out[POLICY_PIECE_MAX])
{
	const struct graph_kept k = {
		.memory = &p->memory, .survival = &p->survival, .used = p->used, .used_count = p->used_count, .now_us = p->ticked_us,
		.choice = { .spared_back = p->spared_back, .refused_back = p->refused_back, .lru_misses = p->lru_misses, .returns = p->returns,
			    .standing = *duel_standing(p->duel), .row = (uint8_t)p->row, .misses_little = p->misses_little, .begins = p->begins,
			    .begins_left = p->begins_until > p->inserted ? p->begins_until - p->inserted : 0 },
	};

	return graph_keep_piece(&k, cursor, out);
}

static void recall_choice(struct policy *p, const struct graph_choice *c)
{
	const uint64_t most = BEGIN_TURNOVERS * p->capacity;

	p->spared_back = c->spared_back;
	p->refused_back = c->refused_back;
	p->lru_misses = c->lru_misses;
	p->returns = c->returns;
	duel_set_standing(p->duel, &c->standing);
	p->row = (enum duel_row)c->row;
	p->misses_little = c->misses_little;
	p->begins = c->begins;
	p->begins_until = p->inserted + (c->begins_left < most ? c->begins_left : most);
}

static bool recall(struct policy *p, uint64_t now_us, uint64_t idle_us, const uint8_t *bytes, size_t size)
{
	struct graph_recalled r = { .memory = &p->memory, .survival = &p->survival, .is_used = p->is_used, .now_us = now_us, .idle_us = idle_us };

	if (!graph_recall_piece(&r, bytes, size))
		return false;
	p->recalled = true;
	p->recalled_us = now_us;
	if (r.has_choice)
		recall_choice(p, &r.choice);
	for (uint32_t i = 0; i < r.used_count; i++)
		p->used[p->used_count++] = r.used[i];
	if (r.has_choice || r.used_count) {
		survival_update(&p->survival);
		rank(p);
	}
	return true;
}

const struct policy_ops policy_graph = {
	.name = "graph",
	.help = "what is expected to be worth least goes first, by what the graph knows of it",
	.create = create,
	.weigh = weigh,
	.resize = resize,
	.destroy = destroy,
	.request = request,
	.insert = insert,
	.use = use,
	.demote = demote,
	.remove = take_out,
	.victim = victim,
	.walk = walk,
	.admit = admit,
	.explain = explain,
	.keep = keep,
	.recall = recall,
	.last_use = last_use,
};
