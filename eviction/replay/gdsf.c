/* Greedy-Dual-Size-Frequency (Cherkasova, 1998): priority = age + uses x cost. The node with the least priority goes
 * first, and the age becomes its priority. All blocks have one size. The cost is that of computing the block again,
 * which grows with the tokens before it (recompute.h). By default, attention over COST_TOKENS of them costs as much as
 * the rest of the model (about an 8B model).
 *
 * uses x cost is rounded to a quarter of an octave. A level is a queue. The age only grows, so the coldest node of a
 * level has the level's least priority, and a victim is sought among the fronts of the levels: no heap, and nothing is
 * allocated for a block.
 */
#include "eviction/replay/gdsf.h"

#include <math.h>
#include <stdlib.h>

#include "eviction/queue.h"
#include "eviction/recompute.h"

enum {
	COST_TOKENS = 32768,
	COST_MAX = 8,
	USES_MAX = 255,
	LEVELS = 48,       /* 4 an octave, up to uses x cost = 4096 */
	UNIT = 16,         /* a priority of 1 */
	AGE_BITS = 26,
	AGE_MASK = (1 << AGE_BITS) - 1,
};

struct policy {
	struct queue levels[LEVELS];
	uint64_t filled;   /* a bit a level that is not empty */
	uint32_t age;      /* modulo 2^AGE_BITS, in units */
	uint16_t worth[LEVELS];
	uint32_t growth;   /* recompute.h */
};

static struct policy *create(uint64_t capacity)
{
	/* 2^(1/4) steps, in units */
	static const uint16_t quarter[4] = { 16, 19, 23, 27 };
	struct policy *p = calloc(1, sizeof(*p));

	(void)capacity;
	if (!p)
		return NULL;
	p->growth = COST_TOKENS;
	for (int i = 0; i < LEVELS; i++) {
		queue_init(&p->levels[i]);
		p->worth[i] = (uint16_t)(quarter[i % 4] << (i / 4));
	}
	return p;
}

static void weigh(struct policy *p, uint32_t growth)
{
	p->growth = growth;
}

static void destroy(struct policy *p)
{
	free(p);
}

static uint32_t level_of(const struct policy *p, const struct policy_node *n, const struct policy_event *e)
{
	uint64_t uses = n->uses < USES_MAX ? n->uses + 1 : USES_MAX;
	uint64_t cost = (uint64_t)(UNIT * fmin(recompute_cost((double)e->position * e->tokens, p->growth), COST_MAX));
	uint32_t level = 0;

	while (level + 1 < LEVELS && p->worth[level + 1] <= uses * cost)
		level++;
	return level;
}

static void push(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	uint32_t level = level_of(p, n, e);

	n->queue = level << AGE_BITS | p->age;
	p->filled |= (uint64_t)1 << level;
	queue_push(&p->levels[level], n);
}

static void pull(struct policy *p, struct policy_node *n)
{
	struct queue *q = &p->levels[n->queue >> AGE_BITS];

	queue_unlink(n);
	if (q->head.next == &q->head)
		p->filled &= ~((uint64_t)1 << (n->queue >> AGE_BITS));
}

static void insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_node_init(n, e);
	push(p, n, e);
}

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_note_use(n, e);
	pull(p, n);
	push(p, n, e);
}

/* How far a node's priority is above the age: below 0 if the age has overtaken it. */
static int32_t above(const struct policy *p, const struct policy_node *n)
{
	uint32_t gone = (p->age - n->queue) & AGE_MASK;

	return (int32_t)p->worth[n->queue >> AGE_BITS] - (int32_t)gone;
}

/* Only the age of what had the least priority counts, not that of what the owner took out for its own
 * reasons. */
static void take_out(struct policy *p, struct policy_node *n)
{
	int32_t ahead = above(p, n);
	bool least = ahead > 0;

	for (uint64_t left = p->filled; left && least; left &= left - 1)
		least = above(p, p->levels[__builtin_ctzll(left)].head.next) >= ahead;
	if (least)
		p->age = (p->age + (uint32_t)ahead) & AGE_MASK;
	pull(p, n);
}

static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	struct policy_node *at[LEVELS];
	uint64_t left = p->filled;

	for (uint64_t l = left; l; l &= l - 1)
		at[__builtin_ctzll(l)] = p->levels[__builtin_ctzll(l)].head.next;
	for (; left && scan_max > 0; scan_max--) {
		int least = __builtin_ctzll(left);

		for (uint64_t l = left & (left - 1); l; l &= l - 1)
			if (above(p, at[__builtin_ctzll(l)]) < above(p, at[least]))
				least = __builtin_ctzll(l);
		if (may(at[least], arg))
			return at[least];
		at[least] = at[least]->next;
		if (at[least] == &p->levels[least].head)
			left &= ~((uint64_t)1 << least);
	}
	return NULL;
}

static bool walk(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	victim(p, visit, arg, max);
	return true;
}

const struct policy_ops policy_gdsf = {
	.name = "gdsf",
	.help = "the least use count times recompute cost, aged, goes first",
	.create = create,
	.weigh = weigh,
	.destroy = destroy,
	.insert = insert,
	.use = use,
	.remove = take_out,
	.victim = victim,
	.walk = walk,
};
