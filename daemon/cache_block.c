/* A block's life: a slot is taken for it (unpublished), it is put in index, policy and shelf (published),
 * and taken out again: evicted, deleted or found damaged. One that is pinned at that moment is dead but
 * keeps its slot until the last pin is gone. Its struct is freed after a grace period, since lookups may
 * still be comparing its key.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/cache_private.h"

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
	b->shelf->taken++;
	b->shelf->held++;
	p->free_slots--;
	p->taken_lately = true;
	b->offset = slot.offset;
	b->index = slot.index;
	b->generation = slot.generation;
	*out = b;
	return STATUS_OK;
fail:
	free(b);
	return s;
}

static void slot_give(struct block *b)
{
	const struct host_slot slot = {
		.pool = block_pool(b)->host, .extent = b->shelf->extent, .index = b->index,
		.at = block_slot_at(b), .offset = b->offset, .generation = b->generation,
	};

	b->shelf->taken--;
	if (!b->shelf->draining)
		block_pool(b)->free_slots++;
	host_slot_give(&slot);
}

void block_discard(struct cache *c, struct block *b)
{
	(void)c;
	b->shelf->held--;
	slot_give(b);
	free(b);
}

enum status block_publish(struct cache *c, struct block *b, uint64_t now_us)
{
	struct pool *p = block_pool(b);
	enum status s;

	b->stored_us = now_us;
	s = index_insert(c->index, &b->record, NULL);
	if (s)
		return s;
	b->shelf->held--;
	b->shelf->at[b->index] = b;
	p->blocks++;
	p->evictable += block_pins(b) == 0;
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
		.now_us = b->stored_us, .id = ident_hash(&b->record.ident, 0), .tokens = b->tokens,
		.position = position / p->layout.block_tokens,
	};

	c->policy->insert(p->policy, &b->node, &e);
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
		block_pool(b)->tenant->pinned_bytes += block_pool(b)->geometry.slot_bytes;
		block_pool(b)->evictable--;
		b->shelf->held++;
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
	block_pool(b)->tenant->pinned_bytes -= block_pool(b)->geometry.slot_bytes;
	b->shelf->held--;
	if (left & INDEX_DEAD) {
		slot_give(b);
		index_reclaim(&b->record, block_free_record);
	} else {
		block_pool(b)->evictable++;
	}
}

void block_remove(struct cache *c, struct block *b, enum cache_reason reason)
{
	struct pool *p = block_pool(b);
	uint32_t before = index_kill(&b->record);

	index_remove(c->index, &b->record);
	c->policy->remove(p->policy, &b->node);
	b->shelf->at[b->index] = NULL;
	p->blocks--;
	p->evictable -= before == 0;
	watch_event(c, b, CACHE_REMOVED, reason);
	if (before == 0) {
		slot_give(b);
		index_reclaim(&b->record, block_free_record);
	}
}

void block_use(struct cache *c, struct block *b)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens };

	c->policy->use(block_pool(b)->policy, &b->node, &e);
}

void block_place(const struct block *b, struct cache_place *out)
{
	*out = (struct cache_place){ .extent = b->shelf->extent, .tokens = b->tokens,
				     .offset = b->offset, .generation = b->generation };
}
