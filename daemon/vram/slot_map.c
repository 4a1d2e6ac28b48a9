/* Slots of GPU memory, and the copies of blocks in them: the accounting. Nothing here waits or copies. */
#include "daemon/vram/slot_map.h"

#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/tier.h"
#include "daemon/vram/checksum.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/scratch.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- classes and layouts ---- */

static struct vram_class *class_make(struct cache *c, struct gpu *g, const struct layout_pool *p,
				     struct arena_class *arena)
{
	struct vram_class *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->gpu = g;
	k->accounting = gpu_accounting_of(g, p->tenant);
	k->arena = arena;
	k->stride = arena_class_stride(arena);
	k->policy_room = k->accounting->bytes_max / k->stride;
	k->policy = policy_create(c->policy, k->policy_room, c->options.recompute_growth);
	if (!k->policy) {
		free(k);
		return NULL;
	}
	observe_policy_made(c, &(struct learner){ 'g', g->number, k->stride, c->policy, k->policy });
	k->next = g->classes;
	g->classes = k;
	return k;
}

/* The class for the layout's blocks, made if new. NULL: no memory, or a block is larger than an extent. */
static struct vram_class *class_of_layout(struct cache *c, struct gpu *g, const struct layout_pool *p)
{
	struct arena_class *arena;
	struct vram_class *k;

	if (arena_class_for(g->arena, p->tenant->number, p->geometry.block_bytes, &arena))
		return NULL;
	for (k = g->classes; k; k = k->next)
		if (k->arena == arena)
			return k;
	return class_make(c, g, p, arena);
}

struct vram_pool *vram_pool_get(struct cache *c, struct gpu *g, struct layout_pool *p)
{
	struct vram_pool *vp = g->pools[p->number];

	if (vp || !g->arena) /* a GPU that could not be opened has no memory to divide */
		return vp;
	vp = calloc(1, sizeof(*vp));
	if (!vp)
		return NULL;
	vp->gpu = g;
	vp->pool = p;
	vp->lost = g->lost;
	vp->class = class_of_layout(c, g, p);
	if (!vp->class) {
		free(vp);
		return NULL;
	}
	g->pools[p->number] = vp;
	return vp;
}

uint64_t vram_room_free(const struct vram_class *k)
{
	struct arena_class_usage u;

	arena_class_usage(k->arena, &u);
	return u.free;
}

/* ---- spans ---- */

static struct vram_span *span_make(struct vram_class *k, struct arena_span *place)
{
	struct vram_span *s = calloc(1, sizeof(*s) + place->slots * sizeof(s->at[0]));

	if (!s)
		return NULL;
	s->class = k;
	s->place = place;
	for (uint32_t i = 0; i < place->slots; i++) {
		s->at[i].span = s;
		s->at[i].index = i;
	}
	s->next = k->spans;
	if (s->next)
		s->next->prev = s;
	k->spans = s;
	k->slots += place->slots;
	place->owner = s;
	return s;
}

/* The span is no more; its place is not looked at. Of a lost GPU its record stays: copies that are under way look at
 * their slots, without the lock too, and the sweep waits for none of them. */
static void span_end(struct vram_span *s, uint32_t slots)
{
	struct vram_class *k = s->class;

	*(s->prev ? &s->prev->next : &k->spans) = s->next;
	if (s->next)
		s->next->prev = s->prev;
	k->slots -= slots;
	if (k->gpu->lost) {
		s->next = k->ended;
		k->ended = s;
	} else {
		free(s);
	}
}

static void spans_free(struct vram_span *s)
{
	while (s) {
		struct vram_span *next = s->next;

		free(s);
		s = next;
	}
}

void vram_memory_free(struct cache *c, struct gpu *g)
{
	for (uint32_t i = 0; i < POOLS_MAX; i++)
		free(g->pools[i]);
	while (g->classes) {
		struct vram_class *k = g->classes;

		spans_free(k->spans);
		spans_free(k->ended);
		g->classes = k->next;
		c->policy->destroy(k->policy);
		free(k);
	}
	arena_destroy(g->arena);
}

/* ---- walks by place ---- */

/* The next ready copy of the layout in that span, from *offset on. *offset moves behind what was looked at. */
static struct vram_slot *next_in_span(const struct vram_pool *vp, struct vram_span *s, uint64_t *offset, uint32_t *budget)
{
	const uint64_t stride = s->place->stride, from = s->place->offset;
	uint64_t i = *offset > from ? (*offset - from + stride - 1) / stride : 0;

	for (; i < s->place->slots && *budget; i++) {
		--*budget;
		*offset = from + (i + 1) * stride;
		if (s->at[i].state == VRAM_READY && s->at[i].pool == vp)
			return &s->at[i];
	}
	return NULL;
}

/* The next ready copy of the layout in that extent, from *offset on. *offset moves behind what was looked at. */
static struct vram_slot *next_in_extent(const struct vram_pool *vp, uint32_t extent, uint64_t *offset, uint32_t *budget)
{
	struct arena *a = vp->gpu->arena;
	const uint64_t granule = arena_granule_bytes(a), bytes = arena_extent_size(a, extent);

	while (*offset < bytes && *budget) {
		const struct arena_span *place = arena_span_at(a, extent, (uint32_t)(*offset / granule));
		struct vram_slot *s = NULL;

		--*budget;
		if (place && place->class == vp->class->arena)
			s = next_in_span(vp, place->owner, offset, budget);
		if (s || !*budget)
			return s;
		*offset = place ? (place->granule + place->granules) * granule : (*offset / granule + 1) * granule;
	}
	return NULL;
}

struct vram_slot *vram_next(struct vram_pool *vp, uint32_t *extent, uint32_t *slot, uint32_t *budget)
{
	const uint32_t tenant = vp->pool->tenant->number;
	uint32_t id;

	for (; arena_extents(vp->gpu->arena, tenant, *extent, &id, 1); *extent = id + 1, *slot = 0) {
		uint64_t offset = id == *extent ? (uint64_t)*slot * ARENA_DEVICE_UNIT : 0;
		struct vram_slot *s = next_in_extent(vp, id, &offset, budget);

		*extent = id;
		*slot = (uint32_t)(offset / ARENA_DEVICE_UNIT);
		if (s || !*budget)
			return s;
	}
	return NULL;
}

uint64_t vram_only_blocks(const struct cache *c, const struct layout_pool *p)
{
	uint64_t n = 0;

	for (uint32_t i = 0; c->vram && i < c->vram->count; i++)
		if (c->vram->gpu[i]->pools[p->number])
			n += c->vram->gpu[i]->pools[p->number]->dirty;
	return n;
}

/* ---- a block's copies ---- */

struct vram_slot *vram_sum_due(const struct block *b)
{
	struct vram_slot *s = b->vram;

	while (s && !s->sum_due)
		s = s->next;
	return s;
}

struct vram_slot *vram_near(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = b->vram;

	while (s && (s->state != VRAM_READY || s->pool->gpu->lost || !(g->reaches & 1u << s->pool->gpu->number)))
		s = s->next;
	return s;
}

struct vram_transfer *vram_down_of(const struct cache *c, const struct block *b)
{
	struct vram_transfer *m = *vram_transfers_of(c, b);

	while (m && (m->block != b || m->way != DEVICE_DOWN))
		m = m->hash_next;
	return m;
}

bool vram_downloading(struct cache *c, const struct block *b)
{
	return c->vram && vram_down_of(c, b);
}

static void set_dirty(struct vram_slot *s, bool is)
{
	if (s->dirty != is) {
		s->pool->dirty += is ? 1 : -1;
		s->span->class->dirty += is ? 1 : -1;
	}
	s->dirty = is;
	if (!is)
		vram_unqueue_write_through(s);
}

void vram_sync(struct block *b)
{
	struct vram_slot *only = b->span || b->slab_map ? NULL : vram_ready(b);

	if (only && (!block_live(b) || vram_downloading(only->pool->gpu->cache, b)))
		only = NULL;
	for (struct vram_slot *s = b->vram; s; s = s->next)
		set_dirty(s, s == only);
}

struct vram_slot *vram_attach(struct block *b, struct vram_pool *vp, const struct arena_slot *from, enum vram_state state)
{
	struct vram_span *span = from->span->owner ? from->span->owner : span_make(vp->class, from->span);
	struct vram_slot *s;

	if (!span)
		return NULL;
	/* What is held whole, and in memory: the rest of the accounting is as it was. */
	const bool plain = state == VRAM_COMING && b->span && block_held_beyond(b, 0);

	if (!plain)
		block_accounting(b, false);
	s = &span->at[from->index];
	*s = (struct vram_slot){ .block = b, .next = b->vram, .span = span, .pool = vp, .index = from->index,
				 .take = (uint32_t)from->generation, .state = state };
	b->vram = s;
	span->taken++;
	span->class->taken++;
	arena_span_use(span->place, vp->gpu->cache->now_us);
	span->class->accounting->lent_bytes += state == VRAM_RESERVED ? span->class->stride : 0;
	if (plain)
		vram_slot_hold(s, true);
	else
		block_accounting(b, true);
	return s;
}

void vram_unchain(struct vram_slot *s)
{
	struct vram_slot **at = &s->block->vram;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	s->next = NULL;
}

static bool is_lent(const struct vram_slot *s)
{
	return s->pins || s->state == VRAM_RESERVED;
}

/* Frees a slot, and its span with the last slot: s is no more then. */
static void slot_free(struct vram_slot *s)
{
	struct vram_span *span = s->span;
	struct vram_class *k = span->class;
	struct gpu *g = k->gpu;
	const struct arena_slot slot = {
		.class = k->arena, .extent = span->place->extent, .granule = span->place->granule, .index = s->index,
		.generation = s->take,
	};
	const uint32_t slots = span->place->slots;

	if (s->prefetched)
		observe_gpu_prefetch_ended(g->cache, s, COUNTER_GPU_PREFETCH_WASTED);
	span->taken--;
	k->taken--;
	k->accounting->lent_bytes -= is_lent(s) ? k->stride : 0;
	s->state = VRAM_FREE;
	s->block = NULL;
	if (arena_give(&slot, NULL))
		span_end(span, slots);
	g->freed = true;
	if (g->waiting)
		vram_completion_wake(g);
	g->cache->vram->room_due = true;
}

/* Takes a copy off the accounting of ready copies. */
static void unready(struct vram_slot *s)
{
	struct vram_class *k = s->span->class;

	set_dirty(s, false);
	k->gpu->cache->policy->remove(k->policy, &s->node);
	k->blocks--;
	s->pool->blocks--;
}

void vram_detach(struct vram_slot *s)
{
	struct block *b = s->block;
	/* The block is not pinned: the rest of the accounting stays as it was. */
	const bool plain = !block_pins(b) && s->state == VRAM_READY;

	if (plain)
		s->span->class->evictable--;
	else
		block_accounting(b, false);
	if (s->state == VRAM_READY)
		unready(s);
	vram_unchain(s);
	if (!plain)
		block_accounting(b, true);
	slot_free(s);
	where_set(b, BLOCK_ON_GPU, vram_ready(b));
	vram_sync(b);
}

void vram_ready_now(struct cache *c, struct vram_slot *s)
{
	struct vram_class *k = s->span->class;
	struct block *b = s->block;
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.position = s->position / b->pool->layout.block_tokens, .moved = (b->span || b->slab_map) && !s->used,
	};

	/* What is held is counted alike, coming and ready. */
	const bool held = s->state == VRAM_COMING && vram_slot_pins(s);

	if (!held)
		block_accounting(b, false);
	k->accounting->lent_bytes -= s->state == VRAM_RESERVED ? k->stride : 0;
	s->state = VRAM_READY;
	if (!held)
		block_accounting(b, true);
	s->across = false;
	s->used = false;
	k->blocks++;
	s->pool->blocks++;
	c->policy->insert(k->policy, &s->node, &e);
	if (b->unusable)
		policy_demote(c->policy, k->policy, &s->node, true);
	arena_span_use(s->span->place, c->now_us);
	observe_came_back(c, b->node.id, true);
	where_set(b, BLOCK_ON_GPU, true);
	vram_sync(b);
}

void vram_remember_info(struct vram_slot *s, const struct slot_info *info, uint64_t unix_ms)
{
	s->position = info->position;
	s->stored_unix_ms = unix_ms;
	s->turn = info->turn;
	s->role = info->role;
	s->parent_bytes = info->parent_bytes;
	memcpy(s->parent, info->parent, sizeof(s->parent));
}

void vram_used(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e)
{
	for (struct vram_slot *s = b->vram; s; s = s->next) {
		if (gpu && s->pool->gpu != gpu)
			continue;
		if (s->state == VRAM_READY)
			c->policy->use(s->span->class->policy, &s->node, e);
		arena_span_use(s->span->place, e->now_us);
		if (s->prefetched && gpu)
			observe_gpu_prefetch_ended(c, s, s->state == VRAM_READY ? COUNTER_GPU_PREFETCH_USED
									     : COUNTER_GPU_PREFETCH_LATE);
		s->used |= s->state == VRAM_COMING;
	}
}

void vram_unusable(struct cache *c, struct block *b, bool is)
{
	for (struct vram_slot *s = b->vram; s; s = s->next)
		if (s->state == VRAM_READY)
			policy_demote(c->policy, s->span->class->policy, &s->node, is);
}

bool vram_used_coming(struct vram_slot *s)
{
	if (s->state != VRAM_COMING)
		return false;
	if (s->prefetched)
		observe_gpu_prefetch_ended(s->pool->gpu->cache, s, COUNTER_GPU_PREFETCH_LATE);
	s->used = true;
	return true;
}

void vram_removed(struct cache *c, struct block *b)
{
	for (struct vram_slot *s = b->vram; s; s = s->next) {
		cache_count(c, COUNTER_EVICTED_GPU_LOST, s->state == VRAM_READY && s->pool->gpu->lost);
		if (s->state == VRAM_READY)
			unready(s);
		if (s->state == VRAM_READY || s->state == VRAM_COMING)
			s->state = VRAM_DEAD;
	}
	where_set(b, BLOCK_ON_GPU, false);
}

void vram_corrupt(struct cache *c, struct vram_slot *s)
{
	struct block *b = s->block;

	s->pool->gpu->cache->pinned_lost++;
	block_accounting(b, false);
	if (s->state == VRAM_READY)
		unready(s);
	s->state = VRAM_DEAD;
	b->corrupt = true;
	block_accounting(b, true);
	where_set(b, BLOCK_ON_GPU, vram_ready(b));
	vram_sync(b);
	observe_moved(c, b);
}

void vram_give(struct block *b)
{
	struct vram_slot *next;

	b->corrupt = false;
	block_accounting(b, false);
	for (struct vram_slot *s = b->vram; s; s = next) {
		next = s->next;
		if (s->state == VRAM_READY || s->state == VRAM_COMING)
			continue;
		if (vram_slot_pins(s)) {
			b->corrupt = true;
			continue;
		}
		vram_unchain(s);
		slot_free(s);
	}
	block_accounting(b, true);
}

/* ---- those that are to go down ---- */

void vram_queue_write_through(struct vram_slot *s)
{
	struct gpu *g = s->pool->gpu;

	if (s->write_through)
		return;
	s->write_through = true;
	s->span->class->write_through++;
	s->write_through_next = NULL;
	s->write_through_prev = g->write_through_last;
	if (g->write_through_last)
		g->write_through_last->write_through_next = s;
	else
		g->write_through = s;
	g->write_through_last = s;
}

void vram_queue_down(struct block *b)
{
	if (b->vram && b->vram->dirty)
		vram_queue_write_through(b->vram);
}

void vram_unqueue_write_through(struct vram_slot *s)
{
	struct gpu *g = s->pool->gpu;

	if (!s->write_through)
		return;
	if (s->write_through_prev)
		s->write_through_prev->write_through_next = s->write_through_next;
	else
		g->write_through = s->write_through_next;
	if (s->write_through_next)
		s->write_through_next->write_through_prev = s->write_through_prev;
	else
		g->write_through_last = s->write_through_prev;
	s->write_through_prev = s->write_through_next = NULL;
	s->write_through = false;
	s->span->class->write_through--;
}

/* ---- puts ---- */

enum status vram_zero_behind(struct cache *c, struct block *b, uint32_t tokens)
{
	const struct kv_geometry *k = &b->pool->geometry;
	const struct vram_slot *slot = b->vram;
	struct gpu *g = slot->pool->gpu;
	enum status s = STATUS_UNAVAILABLE;
	uint64_t address;
	bool lost;

	_Static_assert((int)ZERO_UNIT == ARENA_DEVICE_UNIT, "of which strides are multiples");
	if (!gpu_zero_wants(&b->pool->layout, k, tokens))
		return STATUS_OK;
	cache_lock(c);
	lost = g->lost;
	address = vram_address(slot);
	cache_unlock(c);
	if (!lost)
		s = gpu_zero_behind(&g->scratch->zero, address, &b->pool->layout, k, tokens);
	if (s == STATUS_DEADLINE) {
		cache_lock(c);
		c->tiers[TIER_GPU]->lost(c, g->number, "a copy to it does not end");
		cache_unlock(c);
	}
	return !s || s == STATUS_EXHAUSTED ? s : STATUS_UNAVAILABLE;
}

void vram_published(struct cache *c, struct block *b, uint64_t position)
{
	struct vram_slot *s = b->vram;

	s->position = position;
	vram_ready_now(c, s);
	vram_sum_begin(c, s);
}
