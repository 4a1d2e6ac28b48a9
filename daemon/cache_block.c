/* A block's life: a slot is taken for it (unpublished), it is put in index, policy and shelf (published),
 * it gets a copy on disk, leaves memory, comes back, and is taken out in the end: evicted, deleted or found
 * damaged. One that is pinned at that moment is dead but keeps its slot of memory until the last pin is gone.
 * Its struct is freed after a grace period, since lookups may still be comparing its key.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/cache_tier.h"

void block_ident(const struct pool *p, const uint8_t *key, uint32_t key_bytes, struct index_ident *out)
{
	*out = (struct index_ident){
		.layout_id = p->layout_id, .tenant = p->tenant->number, .key_bytes = key_bytes
	};
	memcpy(out->key, key, key_bytes);
}

enum status block_create(struct cache *c, struct pool *p, struct block **out)
{
	struct host_slot slot;
	struct block *b = calloc(1, sizeof(*b));
	enum status s;

	if (!b)
		return STATUS_EXHAUSTED;
	s = room_take(c, p, &slot);
	if (s)
		goto fail;
	b->shelf = shelf_get(c, p, slot.extent);
	if (!b->shelf) {
		host_slot_give(&slot);
		s = STATUS_EXHAUSTED;
		goto fail;
	}
	b->pool = p;
	b->shelf->taken++;
	b->shelf->held++;
	p->free_slots--;
	p->taken_lately = true;
	b->index = slot.index;
	b->take = (uint32_t)slot.generation;
	b->generation = slot.generation;
	*out = b;
	return STATUS_OK;
fail:
	free(b);
	return s;
}

void block_slot_give(struct block *b)
{
	const struct pool *p = b->pool;
	const struct host_slot slot = {
		.pool = p->host, .extent = b->shelf->extent, .index = b->index, .at = block_slot_at(b),
		.offset = b->index * p->geometry.slot_bytes, .generation = b->take,
	};

	b->shelf->taken--;
	if (!b->shelf->draining)
		b->pool->free_slots++;
	host_slot_give(&slot);
}

void block_discard(struct cache *c, struct block *b)
{
	(void)c;
	b->shelf->held--;
	block_slot_give(b);
	free(b);
}

static void where_set(struct block *b, uint8_t bits, bool on)
{
	uint8_t now = atomic_load_explicit(&b->where, memory_order_relaxed);

	atomic_store_explicit(&b->where, on ? now | bits : now & ~bits, memory_order_relaxed);
}

enum status block_publish(struct cache *c, struct block *b, uint64_t now_us)
{
	struct pool *p = block_pool(b);
	enum status s;

	b->stored_us = now_us;
	where_set(b, BLOCK_IN_MEMORY, true); /* before others can find it */
	s = index_insert(c->index, &b->record, NULL);
	if (s)
		return s;
	b->shelf->held--;
	b->shelf->at[b->index] = b;
	p->blocks++;
	p->evictable += block_pins(b) == 0;
	p->dirty += c->tier != NULL;
	cache_count(c, COUNTER_STORED_BLOCKS, 1);
	watch_event(c, b, CACHE_STORED, CACHE_REASON_NONE);
	return STATUS_OK;
}

uint64_t ident_hash(const struct index_ident *ident, uint64_t seed)
{
	uint64_t h = seed ^ ident->layout_id ^ ident->key_bytes;

	for (uint32_t i = 0; i < SLOT_KEY_MAX; i += 8) {
		uint64_t word;

		memcpy(&word, ident->key + i, sizeof(word));
		h = (h ^ word) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	return h;
}

void block_enter_policy(struct cache *c, struct block *b, uint64_t position)
{
	const struct pool *p = block_pool(b);
	const struct policy_event e = {
		.now_us = c->now_us, .id = ident_hash(&b->record.ident, 0), .tokens = b->tokens,
		.position = position / p->layout.block_tokens,
	};

	c->policy->insert(p->policy, &b->node, &e);
}

void block_arrive(struct cache *c, struct block *b, const struct host_slot *slot, struct shelf *s, uint64_t position)
{
	b->shelf = s;
	b->index = slot->index;
	b->take = (uint32_t)slot->generation;
	s->at[b->index] = b;
	s->held += block_pins(b) != 0;
	b->pool->blocks++;
	b->pool->evictable += block_pins(b) == 0;
	block_enter_policy(c, b, position);
	where_set(b, BLOCK_IN_MEMORY, true);
	watch_event(c, b, CACHE_MOVED, CACHE_REASON_NONE);
}

/* Out of memory's books; the slot stays taken. */
static void leave_shelf(struct cache *c, struct block *b)
{
	c->policy->remove(b->pool->policy, &b->node);
	b->shelf->at[b->index] = NULL;
	b->pool->blocks--;
	where_set(b, BLOCK_IN_MEMORY, false);
	if (c->tier && !b->rack && !b->moving)
		b->pool->dirty--;
}

void block_depart(struct cache *c, struct block *b)
{
	leave_shelf(c, b);
	b->pool->evictable--;
	block_slot_give(b);
	b->shelf = NULL;
	watch_event(c, b, CACHE_MOVED, CACHE_REASON_NONE);
}

enum status block_adopt(struct cache *c, struct block *b, struct rack *rack, uint32_t slot, uint64_t position)
{
	enum status s;

	where_set(b, BLOCK_ON_DISK, true);
	s = index_insert(c->index, &b->record, NULL);
	if (s)
		return s;
	rack_attach(c, rack, slot, b, position);
	watch_event(c, b, CACHE_STORED, CACHE_REASON_NONE);
	return STATUS_OK;
}

uint64_t block_pin_bytes(const struct block *b)
{
	return block_pins(b) == 0 ? block_pool(b)->geometry.slot_bytes : 0;
}

void block_pin(struct block *b)
{
	bool first = false;

	index_pin(&b->record, &first);
	if (first) {
		b->pool->tenant->pinned_bytes += b->pool->geometry.slot_bytes;
		if (b->shelf) {
			b->pool->evictable--;
			b->shelf->held++;
		}
	}
}

void block_free_record(struct index_record *r)
{
	free(block_of(r));
}

void block_unpin(struct block *b)
{
	uint32_t left = index_unpin(&b->record);

	if (left & ~INDEX_DEAD)
		return;
	b->pool->tenant->pinned_bytes -= b->pool->geometry.slot_bytes;
	if (b->shelf)
		b->shelf->held--;
	if (left & INDEX_DEAD) {
		if (b->shelf)
			block_slot_give(b);
		index_reclaim(&b->record, block_free_record);
	} else if (b->shelf) {
		b->pool->evictable++;
	}
}

/* What was on disk needs no tombstone if it was evicted: whoever evicts it overwrites its header, or drops its slab, and
 * tells the catalog then. */
static void leave_rack(struct cache *c, struct block *b, enum cache_reason reason)
{
	struct rack *r = b->rack;
	uint32_t slot = b->rack_slot;

	rack_detach(c, b);
	if (reason == CACHE_REASON_EVICTED)
		return;
	catalog_untell(c, &b->record.ident);
	bury_begin(c, r, slot, b->pool, &b->record.ident, b->generation);
}

void block_remove(struct cache *c, struct block *b, enum cache_reason reason)
{
	uint32_t before = index_kill(&b->record);

	index_remove(c->index, &b->record);
	if (b->shelf) {
		leave_shelf(c, b);
		b->pool->evictable -= before == 0;
	}
	if (b->rack)
		leave_rack(c, b, reason);
	watch_event(c, b, CACHE_REMOVED, reason);
	if (before == 0) {
		if (b->shelf)
			block_slot_give(b);
		index_reclaim(&b->record, block_free_record);
	}
}

void block_use(struct cache *c, struct block *b)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens };

	if (b->shelf)
		c->policy->use(b->pool->policy, &b->node, &e);
	if (b->rack)
		rack_use(c, b);
}

void block_place(const struct block *b, struct cache_place *out)
{
	*out = (struct cache_place){ .extent = b->shelf->extent, .tokens = b->tokens,
				     .offset = b->index * b->pool->geometry.slot_bytes,
				     .generation = b->generation };
}
