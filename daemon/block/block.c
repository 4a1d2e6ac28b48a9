/* A block's life: a slot is taken for it (unpublished), it is put in index, policy and span (published),
 * it gets a copy on disk, leaves memory, comes back, and is taken out in the end: evicted, deleted or found
 * damaged. One that is pinned at that moment is dead but keeps its slot of memory until the last pin is gone.
 * Its struct is freed after a grace period, since lookups may still be comparing its key.
 */
#include "daemon/block/block.h"

#include "daemon/advice/prefetch.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/unwritten.h"
#include "daemon/block/values.h"
#include "daemon/disk/restore.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "daemon/memory/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

enum status block_create(struct cache *c, struct pool *p, const struct policy_event *e, struct block **out)
{
	struct memory_slot slot;
	struct block *b = calloc(1, sizeof(*b));
	enum status s;

	if (!b)
		return STATUS_EXHAUSTED;
	b->refused = e && room_refuses(c, p, e);
	s = room_take(c, p->class, &slot);
	if (s) {
		free(b);
		return s;
	}
	b->span = slot.span;
	b->pool = p;
	b->index = slot.index;
	b->take = (uint32_t)slot.generation;
	b->generation = slot.generation + (c->tier ? c->tier->generation_lift : 0);
	cache_count(c, COUNTER_REFUSED_HOST, b->refused);
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
	(void)c;
	if (b->span) {
		span_held(b->span, -1);
		block_slot_give(b);
		b->span = NULL; /* the span may be no more */
	}
	vram_give(b);
	free(b);
}

enum status block_publish(struct cache *c, struct block *b, uint64_t now_us)
{
	struct pool *p = block_pool(b);
	enum status s;

	b->stored_us = now_us;
	b->node.id = block_id(&b->record.ident);
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

/* Refused blocks hang in a list of the class by the links that the policy would use. */
static void refused_add(struct cache *c, struct block *b)
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

static void refused_remove(struct block *b)
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

void block_enter_policy(struct cache *c, struct block *b, uint64_t position)
{
	const struct pool *p = block_pool(b);
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.position = position / p->layout.block_tokens, .moved = b->rack || b->vram,
	};

	if (!b->span)
		vram_published(c, b, position);
	else if (b->ahead)
		ahead_arrive(c, b);
	else if (b->refused)
		refused_add(c, b);
	else
		c->policy->insert(p->class->policy, &b->node, &e);
}

void block_unworthy(struct block *b, bool is)
{
	if (b->unworthy != is)
		b->pool->unworthy += is ? 1 : -1;
	b->unworthy = is;
}

void block_arrive(struct cache *c, struct block *b, const struct memory_slot *slot, uint64_t position)
{
	block_books(b, false);
	b->span = slot->span;
	b->index = slot->index;
	b->take = (uint32_t)slot->generation;
	b->span->at[b->index] = b;
	b->pool->blocks++;
	block_books(b, true);
	b->pool->dirty += c->tier && !b->rack;
	observe_came_back(c, b->node.id, false);
	block_enter_policy(c, b, position);
	where_set(b, BLOCK_IN_MEMORY, true);
	if (b->vram)
		vram_sync(b);
	observe_moved(c, b);
}

/* Out of memory's books; the slot stays taken. */
static void leave_span(struct cache *c, struct block *b)
{
	if (b->ahead)
		observe_ahead_ended(c, b, COUNTER_AHEAD_WASTED);
	else if (b->refused)
		refused_remove(b);
	else
		c->policy->remove(b->pool->class->policy, &b->node);
	block_unworthy(b, false);
	b->span->at[b->index] = NULL;
	b->pool->blocks--;
	where_set(b, BLOCK_IN_MEMORY, false);
	if (c->tier && !b->rack && !b->moving)
		b->pool->dirty--;
}

void block_depart(struct cache *c, struct block *b)
{
	CRASH_POINT("block_depart");
	leave_span(c, b);
	b->pool->class->evictable--;
	block_slot_give(b);
	b->span = NULL;
	/* What left memory first is to leave the disk first, whether it was written there long before that or for it. */
	if (b->rack)
		rack_renew(c, b, 0);
	if (b->vram)
		vram_sync(b);
	observe_moved(c, b);
}

enum status block_adopt(struct cache *c, struct block *b, struct rack *rack, uint32_t slot, uint64_t position)
{
	enum status s;

	b->node.id = block_id(&b->record.ident);
	where_set(b, BLOCK_ON_DISK, true);
	s = index_insert(c->index, &b->record, NULL);
	if (s)
		return s;
	by_id_add(c, b);
	CRASH_POINT("block_adopt");
	rack_attach(c, rack, slot, b, position);
	observe_stored(c, b);
	return STATUS_OK;
}

uint64_t block_pin_bytes(const struct block *b)
{
	return block_memory_pins(b) == 0 ? block_pool(b)->geometry.need_bytes : 0;
}

/* With copies on GPUs, pins of all of them, and of one alone, hold each differently: all is taken out, and counted anew. Most blocks are
 * in memory alone: there only the first pin and the last change anything. */
void block_books(struct block *b, bool on)
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
		vram_books(b, held - b->memory_pins, on);
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
		block_books(b, false);
	pin(b);
	if (changes)
		block_books(b, true);
}

void block_pin_on(struct block *b, struct vram_slot *copy)
{
	const bool changes = b->vram && !block_held_beyond(b, 0);

	if (changes)
		block_books(b, false);
	if (copy)
		vram_slot_pin(copy);
	else
		b->memory_pins++;
	pin(b);
	if (changes)
		block_books(b, true);
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

/* Of a dead one: the copies that nobody holds. With the last pin the block goes, too. */
static void dead_give(struct block *b)
{
	if (b->span && !(block_memory_pins(b) & ~INDEX_DEAD)) {
		block_slot_give(b);
		b->span = NULL;
	}
	if (b->vram)
		vram_give(b);
	if (!(block_pins(b) & ~INDEX_DEAD))
		index_reclaim(&b->record, block_free_record);
}

static void unpin(struct block *b, bool changes)
{
	uint32_t left = index_unpin(&b->record);

	if (changes)
		block_books(b, true);
	else if (!b->vram && !(left & ~INDEX_DEAD)) {
		b->pool->tenant->pinned_bytes -= b->pool->geometry.need_bytes;
		if (b->span)
			span_held(b->span, -1);
		if (b->span && !(left & INDEX_DEAD))
			b->pool->class->evictable++;
	}
	if (left & INDEX_DEAD)
		dead_give(b);
	else if (b->condemned)
		vram_give(b);
}

void block_unpin(struct block *b)
{
	const bool changes = b->vram && !block_held_beyond(b, 1);

	if (changes)
		block_books(b, false);
	unpin(b, changes);
}

/* A GPU that was lost may have taken the slot, with its pins: they were all copies' from then on. */
void block_unpin_on(struct block *b, const struct gpu *gpu)
{
	struct vram_slot *s = gpu ? vram_slot_of(b, gpu) : NULL;
	const bool changes = b->vram && !block_held_beyond(b, gpu && !(s && s->pins));

	if (changes)
		block_books(b, false);
	if (s && s->pins)
		vram_slot_unpin(s, 1);
	else if (!gpu)
		b->memory_pins--;
	unpin(b, changes);
}

/* What was on disk needs no tombstone if it was evicted: whoever evicts it overwrites its header, or drops its slab, and
 * tells the catalog then. */
static void leave_rack(struct cache *c, struct block *b, enum cache_reason reason)
{
	struct rack *r = b->rack;
	uint32_t slot = b->rack_slot;

	if (reason == CACHE_REASON_EVICTED && !b->span)
		observe_left(c, b->node.id, &r->at[slot].node, GONE_DISK,
			     r->class->unit->failed ? GONE_LOST : GONE_FULL);
	rack_detach(c, b);
	if (reason == CACHE_REASON_EVICTED)
		return;
	catalog_untell(c, &b->record.ident);
	bury_begin(c, r, slot, b->pool, &b->record.ident, b->generation);
}

void block_remove(struct cache *c, struct block *b, enum cache_reason reason)
{
	c->pinned_lost += block_pins(b) != 0;
	block_books(b, false);
	index_kill(&b->record);
	by_id_remove(c, b);
	if (b->moving)
		spill_orphan(c, b);
	CRASH_POINT("block_remove");
	index_remove(c->index, &b->record);
	unwritten_set(b, false);
	if (b->span)
		leave_span(c, b);
	if (b->rack)
		leave_rack(c, b, reason);
	if (b->vram)
		vram_removed(c, b);
	block_books(b, true);
	observe_removed(c, b, reason);
	dead_give(b);
}

/* Its use may be what the policy wanted to see; else it is only the last to go of those that were refused. */
static void refused_use(struct cache *c, struct block *b, const struct policy_event *e)
{
	uint32_t uses = b->node.uses + 1;

	refused_remove(b);
	b->refused = room_keeps_out(c, b->pool->class, e);
	if (b->refused) {
		refused_add(c, b);
		b->node.uses = uses;
	} else {
		c->policy->insert(b->pool->class->policy, &b->node, e);
	}
}

/* In memory and on disk. */
static void use_below(struct cache *c, struct block *b, const struct policy_event *e)
{
	if (b->span)
		span_used(b->span, c->now_us);
	if (b->span && b->ahead) {
		observe_ahead_ended(c, b, COUNTER_AHEAD_USED);
		b->refused = room_refuses(c, b->pool, e);
		if (b->refused)
			refused_add(c, b);
		else
			c->policy->insert(b->pool->class->policy, &b->node, e);
	} else if (b->span && b->refused) {
		refused_use(c, b, e);
	} else if (b->span) {
		c->policy->use(b->pool->class->policy, &b->node, e);
	}
	block_unworthy(b, false);
	if (b->rack)
		rack_use(c, b);
}

void block_use(struct cache *c, struct block *b)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role };

	use_below(c, b, &e);
	if (b->vram)
		vram_used(c, b, NULL, &e);
}

void block_use_on(struct cache *c, struct block *b, const struct gpu *gpu)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role };

	use_below(c, b, &e);
	if (gpu && b->vram)
		vram_used(c, b, gpu, &e);
}

const struct policy_node *block_node(const struct block *b)
{
	const struct vram_slot *s = b->vram ? vram_ready(b) : NULL;

	if (b->span || (!s && !b->rack))
		return &b->node;
	return s ? &s->node : &b->rack->at[b->rack_slot].node;
}

const char *block_tiers(uint8_t where)
{
	static const char *const words[] = { "", "host", "disk", "host+disk", "gpu", "gpu+host", "gpu+disk", "gpu+host+disk" };

	_Static_assert(BLOCK_IN_MEMORY == 1 && BLOCK_ON_DISK == 2 && BLOCK_ON_GPU == 4, "the words' order");
	return words[where & 7];
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
