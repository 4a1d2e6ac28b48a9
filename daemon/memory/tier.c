/* Memory as a tier: what becomes of a block's copy there with its policy, and the table. A copy that was loaded ahead,
 * or that admission has refused, is on probation (memory/probation.h) until it is used: it hangs in a list, and the
 * policy does not know it.
 */
#include "daemon/memory/tier.h"

#include "daemon/block/block.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/block/tier.h"
#include "daemon/memory/evict.h"
#include "daemon/memory/probation.h"
#include "eviction/policy.h"

enum { VICTIM_LOOKS = 256 };

/* ---- copies on probation ---- */

void probation_refused_enter(struct cache *c, struct block *b)
{
	struct memory_class *k = b->pool->class;

	b->node.last_use_us = c->now_us;
	b->node.uses = 0;
	b->node.next = NULL;
	b->node.prev = k->refused_last;
	if (k->refused_last)
		k->refused_last->next = &b->node;
	else
		k->refused = &b->node;
	k->refused_last = &b->node;
}

void probation_refused_leave(struct block *b)
{
	struct policy_node *n = &b->node;
	struct memory_class *k = b->pool->class;

	if (n->prev)
		n->prev->next = n->next;
	else
		k->refused = n->next;
	if (n->next)
		n->next->prev = n->prev;
	else
		k->refused_last = n->prev;
	n->prev = n->next = NULL;
	b->refused = false;
}

static uint64_t life_us(enum ahead_kind kind)
{
	return kind == AHEAD_ASKED ? AHEAD_ASKED_US : AHEAD_EXPECTED_US;
}

void probation_ahead_enter(struct cache *c, struct block *b)
{
	struct memory_class *k = b->pool->class;

	b->refused = false; /* it is asked again when it is used */
	k->ahead_blocks++;
	b->node.last_use_us = c->now_us;
	b->node.uses = 0;
	b->node.next = NULL;
	b->node.prev = k->ahead_last;
	if (k->ahead_last)
		k->ahead_last->next = &b->node;
	else
		k->ahead = &b->node;
	k->ahead_last = &b->node;
}

void probation_ahead_leave(struct block *b)
{
	struct memory_class *k = b->pool->class;
	struct policy_node *n = &b->node;

	k->ahead_blocks--;
	if (n->prev)
		n->prev->next = n->next;
	else
		k->ahead = n->next;
	if (n->next)
		n->next->prev = n->prev;
	else
		k->ahead_last = n->prev;
	n->prev = n->next = NULL;
}

struct block *probation_ahead_victim(const struct cache *c, const struct memory_class *k, bool any)
{
	uint32_t looked = 0;

	for (struct policy_node *n = k->ahead; n && looked < VICTIM_LOOKS; n = n->next, looked++) {
		struct block *b = (struct block *)block_of_node(n);

		if (!any && c->now_us - n->last_use_us <= life_us((enum ahead_kind)b->ahead))
			continue;
		if (block_memory_pins(b) == 0)
			return b;
	}
	return NULL;
}

/* ---- a block's copy ---- */

static void enter(struct cache *c, struct block *b, uint64_t position)
{
	const struct pool *p = block_pool(b);
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.position = position / p->layout.block_tokens, .moved = b->rack || b->vram,
	};

	if (b->ahead)
		probation_ahead_enter(c, b);
	else if (b->refused)
		probation_refused_enter(c, b);
	else
		c->policy->insert(p->class->policy, &b->node, &e);
}

static void leave(struct cache *c, struct block *b, enum cache_reason reason)
{
	(void)reason;
	if (b->ahead)
		observe_ahead_ended(c, b, COUNTER_AHEAD_WASTED);
	else if (b->refused)
		probation_refused_leave(b);
	else
		c->policy->remove(b->pool->class->policy, &b->node);
	block_unworthy(b, false);
	b->span->at[b->index] = NULL;
	b->pool->blocks--;
	where_set(b, BLOCK_IN_MEMORY, false);
	if (c->tiers[TIER_DISK] && !b->rack && !b->moving)
		b->pool->dirty--;
}

/* Its use may be what the policy wanted to see; else it is only the last to go of those that were refused. */
static void refused_use(struct cache *c, struct block *b, const struct policy_event *e)
{
	uint32_t uses = b->node.uses + 1;

	probation_refused_leave(b);
	b->refused = room_keeps_out(c, b->pool->class, e);
	if (b->refused) {
		probation_refused_enter(c, b);
		b->node.uses = uses;
	} else {
		c->policy->insert(b->pool->class->policy, &b->node, e);
	}
}

static void use_first(struct cache *c, struct block *b, const struct policy_event *e)
{
	observe_ahead_ended(c, b, COUNTER_AHEAD_USED);
	b->refused = room_refuses(c, b->pool, e);
	if (b->refused)
		probation_refused_enter(c, b);
	else
		c->policy->insert(b->pool->class->policy, &b->node, e);
}

static void use(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e)
{
	(void)gpu;
	span_used(b->span, c->now_us);
	if (b->ahead)
		use_first(c, b, e);
	else if (b->refused)
		refused_use(c, b, e);
	else
		c->policy->use(b->pool->class->policy, &b->node, e);
}

const struct tier_ops memory_tier = {
	.name = "host",
	.use = use,
	.enter = enter,
	.leave = leave,
	.take = room_take,
	.spares = room_spares,
	.refuses = room_refuses,
	.grow = room_grow,
	.room_changed = room_changed,
};
