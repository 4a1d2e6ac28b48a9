/* Memory as a tier: how a block's copy there enters and leaves the policy, and the table. A copy that was prefetched or
 * not admitted is on probation (memory/probation.h) until it is used: it is in a list, and the policy does not know it.
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

/* Notes whether the block is of use to any call. Blocks on probation go before all that the policy knows, so they need
 * no note. */
static void unusable(struct cache *c, struct block *b, bool is)
{
	if (b->span && !b->prefetched && !b->not_admitted)
		policy_demote(c->policy, b->pool->class->policy, &b->node, is);
}

static void enter(struct cache *c, struct block *b, uint64_t position)
{
	const struct layout_pool *p = block_pool(b);
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.position = position / p->layout.block_tokens, .moved = b->slab_map || b->vram,
	};

	if (b->prefetched)
		probation_prefetch_enter(c, b);
	else if (b->not_admitted)
		probation_not_admitted_enter(c, b);
	else
		c->policy->insert(p->class->policy, &b->node, &e);
	if (b->unusable)
		unusable(c, b, true);
}

/* The memory counts as the local users' own from now on, or is given back. */
static void for_peer_end(struct cache *c, struct block *b)
{
	if (!block_is(b, BLOCK_FOR_PEER))
		return;
	where_set(b, BLOCK_FOR_PEER, false);
	c->for_peer_bytes -= b->pool->geometry.need_bytes;
}

static void leave(struct cache *c, struct block *b, enum cache_reason reason)
{
	(void)reason;
	for_peer_end(c, b);
	if (b->prefetched)
		observe_prefetch_ended(c, b, COUNTER_PREFETCH_WASTED);
	else if (b->not_admitted)
		probation_not_admitted_leave(b);
	else
		c->policy->remove(b->pool->class->policy, &b->node);
	block_no_spill(b, false);
	b->span->at[b->index] = NULL;
	b->pool->blocks--;
	where_set(b, BLOCK_IN_MEMORY, false);
	if (c->tiers[TIER_DISK] && !b->slab_map && !b->moving)
		b->pool->dirty--;
}

/* A use may be what the policy waited for to admit the block. If not, the block becomes the last to go of those not
 * admitted. */
static void not_admitted_use(struct cache *c, struct block *b, const struct policy_event *e)
{
	uint32_t uses = b->node.uses + 1;

	probation_not_admitted_leave(b);
	b->not_admitted = room_keeps_out(c, b->pool->class, e);
	if (b->not_admitted) {
		probation_not_admitted_enter(c, b);
		b->node.uses = uses;
	} else {
		c->policy->insert(b->pool->class->policy, &b->node, e);
	}
}

static void use_first(struct cache *c, struct block *b, const struct policy_event *e)
{
	observe_prefetch_ended(c, b, COUNTER_PREFETCH_USED);
	b->not_admitted = room_refuses(c, b->pool, e);
	if (b->not_admitted)
		probation_not_admitted_enter(c, b);
	else
		c->policy->insert(b->pool->class->policy, &b->node, e);
}

static void use(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e)
{
	(void)gpu;
	for_peer_end(c, b);
	span_used(b->span, c->now_us);
	if (b->prefetched)
		use_first(c, b, e);
	else if (b->not_admitted)
		not_admitted_use(c, b, e);
	else
		c->policy->use(b->pool->class->policy, &b->node, e);
}

const struct tier_ops memory_tier = {
	.name = "host",
	.use = use,
	.unusable = unusable,
	.enter = enter,
	.leave = leave,
	.take = room_take,
	.spares = room_spares,
	.refuses = room_refuses,
	.grow = room_grow,
	.room_changed = room_changed,
	.leaving = room_leaving,
};
