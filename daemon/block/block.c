/* A block's life: a slot is taken for it (unpublished); it enters index, policy and span (published); it gets a copy on
 * disk, leaves memory, comes back; in the end it is removed: evicted, deleted or found damaged. If it is pinned then,
 * it is dead, but keeps its slot of memory until the last pin is gone. Its struct is freed after a grace period, since
 * lookups may still be comparing its key.
 */
#include "daemon/block/block.h"

#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/gpu_class.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/tier.h"
#include "daemon/block/unwritten.h"
#include "daemon/block/values.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

struct block *block_alloc(uint32_t key_bytes)
{
	return calloc(1, index_record_bytes(sizeof(struct block), key_bytes));
}

void block_name_set(struct block *b, const struct index_ident *ident)
{
	index_name_set(&b->record, sizeof(*b), ident);
}

enum status block_create(struct cache *c, struct layout_pool *p, const struct policy_event *e, uint32_t key_bytes,
			 struct block **out)
{
	const struct tier_ops *memory = c->tiers[TIER_MEMORY];
	struct memory_slot slot;
	struct block *b = block_alloc(key_bytes);
	enum status s;

	if (!b)
		return STATUS_EXHAUSTED;
	b->not_admitted = e && memory->refuses(c, p, e);
	s = memory->take(c, p->class, TAKE_ANY, &slot);
	if (s) {
		free(b);
		return s;
	}
	b->span = slot.span;
	b->pool = p;
	b->index = slot.index;
	b->take = (uint32_t)slot.generation;
	b->generation = slot.generation + c->generation_lift;
	cache_count(c, COUNTER_REFUSED_HOST, b->not_admitted);
	*out = b;
	return STATUS_OK;
}

void block_slot_give(struct block *b)
{
	const struct memory_slot slot = { .span = b->span, .index = b->index, .at = block_slot_at(b), .generation = b->take };

	memory_slot_give(&slot);
}

void block_discard(struct cache *c, struct block *b)
{
	if (b->span) {
		span_held(b->span, -1);
		block_slot_give(b);
		b->span = NULL; /* the span may be freed */
	}
	if (b->vram)
		c->tiers[TIER_GPU]->release(b);
	free(b);
}

enum status block_publish(struct cache *c, struct block *b, uint64_t now_us)
{
	const struct index_ident name = block_name(b);
	struct layout_pool *p = block_pool(b);
	enum status s;

	b->stored_us = now_us;
	b->node.id = block_id(&name);
	where_set(b, b->span ? BLOCK_IN_MEMORY : BLOCK_ON_GPU, true); /* before others can find it */
	s = index_insert(c->index, &b->record, NULL);
	if (s)
		return s;
	by_id_add(c, b);
	observe_came_back(c, b->node.id, false);
	unwritten_set(b, true);
	if (b->span) {
		span_held(b->span, -1);
		span_used(b->span, c->now_us);
		b->span->at[b->index] = b;
		p->blocks++;
		p->class->evictable += block_pins(b) == 0;
		p->dirty += c->tier != NULL;
	}
	cache_count(c, COUNTER_STORED_BLOCKS, 1);
	observe_stored(c, b);
	return STATUS_OK;
}

void block_enter_policy(struct cache *c, struct block *b, uint64_t position)
{
	if (b->span)
		c->tiers[TIER_MEMORY]->enter(c, b, position);
	else
		c->tiers[TIER_GPU]->enter(c, b, position);
}

void block_no_spill(struct block *b, bool is)
{
	if (b->no_spill != is)
		b->pool->no_spill += is ? 1 : -1;
	b->no_spill = is;
}

void block_unusable(struct cache *c, struct block *b, bool is)
{
	if (b->unusable == is)
		return;
	b->unusable = is;
	c->unusable_blocks += is ? 1 : -1ull;
	cache_count(c, COUNTER_UNUSABLE, is);
	if (!is)
		block_no_spill(b, false);
	for (int i = 0; i < TIER_KINDS; i++)
		if (c->tiers[i])
			c->tiers[i]->unusable(c, b, is);
}

void block_arrive(struct cache *c, struct block *b, const struct memory_slot *slot, uint64_t position)
{
	block_accounting(b, false);
	b->span = slot->span;
	b->index = slot->index;
	b->take = (uint32_t)slot->generation;
	b->span->at[b->index] = b;
	b->pool->blocks++;
	block_accounting(b, true);
	b->pool->dirty += c->tier && !b->slab_map;
	observe_came_back(c, b->node.id, false);
	block_enter_policy(c, b, position);
	where_set(b, BLOCK_IN_MEMORY, true);
	tiers_copies_changed(c, b, TIER_MEMORY, true);
	observe_moved(c, b);
}

void block_depart(struct cache *c, struct block *b)
{
	CRASH_POINT("block_depart");
	c->tiers[TIER_MEMORY]->leave(c, b, CACHE_REASON_EVICTED);
	b->pool->class->evictable--;
	block_slot_give(b);
	b->span = NULL;
	tiers_copies_changed(c, b, TIER_MEMORY, false);
	observe_moved(c, b);
}

uint64_t block_pin_bytes(const struct block *b)
{
	return block_memory_pins(b) == 0 ? block_pool(b)->geometry.need_bytes : 0;
}

/* A block with copies on GPUs has pins of all copies and pins of single ones: its whole share is subtracted, and
 * counted anew. Most blocks are in memory alone: there only the first and the last pin change anything. */
void block_accounting(struct block *b, bool on)
{
	const uint32_t memory = block_memory_pins(b), held = memory & ~INDEX_DEAD, pins = block_pins(b) & ~INDEX_DEAD;
	const uint64_t bytes = b->pool->geometry.need_bytes, one = on ? 1 : -1ull;
	struct tenant *t = b->pool->tenant;

	t->pinned_bytes += pins ? one * bytes : 0;
	t->beside_bytes += pins && b->vram && !(b->span && held) ? one * bytes : 0;
	if (b->span) {
		span_held(b->span, !held ? 0 : on ? 1 : -1);
		b->pool->class->evictable += memory == 0 ? one : 0;
	}
	if (b->vram)
		vram_accounting(b, held - b->memory_pins, on);
}

static void pin(struct block *b)
{
	bool first = false;

	index_pin(&b->record, &first);
	if (!first || b->vram)
		return;
	b->pool->tenant->pinned_bytes += b->pool->geometry.need_bytes;
	if (b->span) {
		b->pool->class->evictable--;
		span_held(b->span, 1);
	}
}

bool block_held_beyond(const struct block *b, uint32_t pins)
{
	return (block_memory_pins(b) & ~INDEX_DEAD) - b->memory_pins > pins;
}

void block_pin(struct block *b)
{
	const bool changes = b->vram && !block_held_beyond(b, 0);

	if (changes)
		block_accounting(b, false);
	pin(b);
	if (changes)
		block_accounting(b, true);
}

void block_pin_on(struct block *b, struct vram_slot *copy)
{
	const bool changes = b->vram && !block_held_beyond(b, 0);

	if (changes)
		block_accounting(b, false);
	if (copy)
		vram_slot_pin(copy);
	else
		b->memory_pins++;
	pin(b);
	if (changes)
		block_accounting(b, true);
}

void block_pin_apart(struct block *b, struct vram_slot *copy)
{
	if (!b->vram || !block_held_beyond(b, 1)) {
		block_pin_on(b, copy);
		block_unpin(b);
	} else if (copy) {
		vram_slot_pin(copy);
	} else {
		b->memory_pins++;
	}
}

void block_free_record(struct index_record *r)
{
	free(block_of(r));
}

/* Gives back the block's GPU slots that have no pin. */
static void release(struct block *b)
{
	b->pool->cache->tiers[TIER_GPU]->release(b);
}

/* Gives back the unpinned copies of a dead block, and frees the block with its last pin. */
static void dead_give(struct block *b)
{
	if (b->span && !(block_memory_pins(b) & ~INDEX_DEAD)) {
		block_slot_give(b);
		b->span = NULL;
	}
	if (b->vram)
		release(b);
	if (!(block_pins(b) & ~INDEX_DEAD))
		index_reclaim(&b->record, block_free_record);
}

static void unpin(struct block *b, bool changes)
{
	uint32_t left = index_unpin(&b->record);

	if (changes)
		block_accounting(b, true);
	else if (!b->vram && !(left & ~INDEX_DEAD)) {
		b->pool->tenant->pinned_bytes -= b->pool->geometry.need_bytes;
		if (b->span)
			span_held(b->span, -1);
		if (b->span && !(left & INDEX_DEAD))
			b->pool->class->evictable++;
	}
	if (left & INDEX_DEAD)
		dead_give(b);
	else if (b->corrupt)
		release(b);
}

void block_unpin(struct block *b)
{
	const bool changes = b->vram && !block_held_beyond(b, 1);

	if (changes)
		block_accounting(b, false);
	unpin(b, changes);
}

/* When a GPU is lost it may have taken the slot with its pins: these then count as pins of all copies. */
void block_unpin_on(struct block *b, const struct gpu *gpu)
{
	struct vram_slot *s = gpu ? vram_slot_of(b, gpu) : NULL;
	const bool changes = b->vram && !block_held_beyond(b, gpu && !(s && s->pins));

	if (changes)
		block_accounting(b, false);
	if (s && s->pins)
		vram_slot_unpin(s, 1);
	else if (!gpu)
		b->memory_pins--;
	unpin(b, changes);
}

void block_remove(struct cache *c, struct block *b, enum cache_reason reason)
{
	c->pinned_lost += block_pins(b) != 0;
	block_accounting(b, false);
	index_kill(&b->record);
	by_id_remove(c, b);
	c->unusable_blocks -= b->unusable;
	b->unusable = false;
	CRASH_POINT("block_remove");
	index_remove(c->index, &b->record);
	unwritten_set(b, false);
	if (b->span)
		c->tiers[TIER_MEMORY]->leave(c, b, reason);
	if (b->slab_map || b->moving)
		c->tiers[TIER_DISK]->leave(c, b, reason);
	if (b->vram)
		c->tiers[TIER_GPU]->leave(c, b, reason);
	block_accounting(b, true);
	observe_removed(c, b, reason);
	dead_give(b);
}

static void use(struct cache *c, struct block *b, const struct gpu *gpu, bool on_gpus)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role };

	block_unusable(c, b, false);
	where_set(b, BLOCK_AT_PEER | BLOCK_UNWANTED, false); /* it may be offered again when it is cold again */
	if (b->span)
		c->tiers[TIER_MEMORY]->use(c, b, gpu, &e);
	block_no_spill(b, false);
	if (b->slab_map)
		c->tiers[TIER_DISK]->use(c, b, gpu, &e);
	if (on_gpus && b->vram)
		c->tiers[TIER_GPU]->use(c, b, gpu, &e);
}

void block_use(struct cache *c, struct block *b)
{
	use(c, b, NULL, true);
}

void block_use_on(struct cache *c, struct block *b, const struct gpu *gpu)
{
	use(c, b, gpu, gpu != NULL);
}

const struct policy_node *block_node(const struct block *b)
{
	const struct vram_slot *s = b->vram ? vram_ready(b) : NULL;

	if (b->span || (!s && !b->slab_map))
		return &b->node;
	return s ? &s->node : &b->slab_map->at[b->slab_map_slot].node;
}

const char *block_tiers(uint8_t where)
{
	static const char *const words[] = { "", "host", "disk", "host+disk", "gpu", "gpu+host", "gpu+disk", "gpu+host+disk" };

	_Static_assert(BLOCK_IN_MEMORY == 1 && BLOCK_ON_DISK == 2 && BLOCK_ON_GPU == 4, "the words' order");
	return words[where & BLOCK_TIERS];
}

void block_place_on(const struct block *b, const struct vram_slot *copy, struct cache_place *out)
{
	if (copy)
		*out = (struct cache_place){ .extent = copy->span->place->extent, .tokens = b->tokens,
					     .offset = vram_offset(copy), .generation = b->generation };
	else
		block_place(b, out);
}

void block_place(const struct block *b, struct cache_place *out)
{
	*out = (struct cache_place){ .extent = b->span->extent, .tokens = b->tokens,
				     .offset = b->span->offset + b->index * b->span->stride,
				     .generation = b->generation };
}
