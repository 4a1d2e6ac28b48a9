/* See ../tests/daemon/fill.h. Each call makes one span of an extent that does not exist. */
#include "tests/daemon/fill.h"

#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/values.h"
#include "daemon/session/session.h"
#include "store/arena/arena.h"
#include "store/index.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>

#define SEED_EXTENT_FIRST 0x80000000u

/* Its span stands behind it, and is in no arena. */
static struct span_map *seed_span(struct memory_class *k, uint32_t slots)
{
	static uint32_t extent = SEED_EXTENT_FIRST;
	struct span_map *s = calloc(1, sizeof(*s) + slots * sizeof(s->at[0]) + sizeof(struct arena_span));

	if (!s)
		return NULL;
	s->class = k;
	s->place = (struct arena_span *)&s->at[slots];
	s->extent = extent++;
	s->stride = k->stride;
	s->slots = s->taken = slots;
	span_held(s, (int)slots);
	s->prev = k->spans_last;
	if (s->prev)
		s->prev->next = s;
	else
		k->spans = s;
	k->spans_last = s;
	return s;
}

static enum status seed_one(struct cache *c, struct layout_pool *p, struct span_map *span, uint32_t index,
			    const uint8_t *key,
			    uint32_t key_bytes)
{
	struct block *b = block_alloc(key_bytes);
	struct index_ident ident;
	enum status s;

	if (!b)
		return STATUS_EXHAUSTED;
	block_ident(p, key, key_bytes, &ident);
	block_name_set(b, &ident);
	atomic_init(&b->record.pins, 1);
	b->span = span;
	b->index = index;
	b->generation = 1;
	b->pool = p;
	b->tokens = p->layout.block_tokens;
	index_read_lock();
	s = block_publish(c, b, c->now_us);
	index_read_unlock();
	if (s)
		free(b);
	else
		block_enter_policy(c, b, 0);
	return s;
}

enum status cache_seed(struct cache *c, uint64_t session, uint32_t layout, const struct cache_keys *k,
		       uint64_t now_us)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	enum status s = STATUS_EXHAUSTED;
	struct span_map *span;

	if (layout >= session_pools(c, session, pools))
		return STATUS_NOT_FOUND;
	cache_lock(c);
	cache_time(c, now_us);
	span = seed_span(pools[layout]->class, k->count);
	if (span)
		s = STATUS_OK;
	for (uint32_t i = 0; i < k->count && !s; i++)
		s = seed_one(c, pools[layout], span, i, k->bytes + (size_t)i * k->key_bytes, k->key_bytes);
	cache_unlock(c);
	return s;
}

size_t cache_seed_block_struct_bytes(void)
{
	return sizeof(struct block);
}
