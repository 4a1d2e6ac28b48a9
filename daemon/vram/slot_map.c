/* Slots of GPU memory, and the copies of blocks in them: the books. Nothing here waits or copies. */
#include "daemon/vram/slot_map.h"

#include "daemon/advice/policy_store.h"
#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/values.h"
#include "daemon/disk/state.h"
#include "daemon/session/session.h"
#include "daemon/vram/checksum.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "eviction/policy.h"
#include "store/host/host.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STRIDE_ALIGN = 256 };

/* ---- pools and shelves ---- */

struct vram_pool *vram_pool_get(struct cache *c, struct gpu *g, struct pool *p)
{
	struct vram_pool *vp = g->pools[p->number];

	if (vp || !g->arena) /* a GPU that could not be opened has no memory to divide */
		return vp;
	vp = calloc(1, sizeof(*vp));
	if (!vp)
		return NULL;
	vp->gpu = g;
	vp->pool = p;
	vp->stride = (p->geometry.block_bytes + STRIDE_ALIGN - 1) / STRIDE_ALIGN * STRIDE_ALIGN;
	vp->policy_room = g->budget / vp->stride;
	vp->policy = policy_create(c->policy, vp->policy_room, c->options.recompute_growth);
	if (!vp->policy || host_pool_get(g->arena, p->tenant->number, p->layout_id, vp->stride, &vp->arena)) {
		c->policy->destroy(vp->policy);
		free(vp);
		return NULL;
	}
	learned_recall(c, &(struct learner){ 'g', g->number, p->layout_id, c->policy, vp->policy });
	g->pools[p->number] = vp;
	return vp;
}

struct vram_shelf *vram_shelf_find(const struct gpu *g, uint32_t extent)
{
	struct vram_shelf *s = g->shelf_hash[extent % VRAM_SHELF_BUCKETS];

	while (s && s->extent != extent)
		s = s->hash_next;
	return s;
}

static void shelf_link_in(struct vram_pool *vp, struct vram_shelf *s)
{
	struct vram_shelf **at = &vp->shelves, **bucket = &vp->gpu->shelf_hash[s->extent % VRAM_SHELF_BUCKETS];

	while (*at && (*at)->extent < s->extent)
		at = &(*at)->next;
	s->next = *at;
	*at = s;
	s->hash_next = *bucket;
	*bucket = s;
}

struct vram_shelf *vram_shelf_get(struct vram_pool *vp, uint32_t extent)
{
	struct vram_shelf *s = vram_shelf_find(vp->gpu, extent);
	struct host_device_extent e;
	uint32_t slots;

	if (s || host_extent_device(vp->gpu->arena, extent, &e))
		return s;
	close(e.fd);
	slots = (uint32_t)(e.bytes / vp->stride);
	s = calloc(1, sizeof(*s) + slots * sizeof(s->at[0]));
	if (!s)
		return NULL;
	s->pool = vp;
	s->extent = extent;
	s->slots = slots;
	s->address = e.address;
	for (uint32_t i = 0; i < slots; i++) {
		s->at[i].shelf = s;
		s->at[i].index = i;
	}
	shelf_link_in(vp, s);
	if (extent > vp->newest)
		vp->newest = extent;
	observe_extent_added(vp->gpu->cache);
	vp->slots += slots;
	vp->free_slots += slots;
	return s;
}

void vram_shelf_free(struct vram_shelf *s)
{
	struct vram_shelf **at = &s->pool->shelves;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	at = &s->pool->gpu->shelf_hash[s->extent % VRAM_SHELF_BUCKETS];
	while (*at != s)
		at = &(*at)->hash_next;
	*at = s->hash_next;
	free(s);
}

struct vram_slot *vram_next(struct vram_pool *vp, uint32_t *extent, uint32_t *slot, uint32_t *budget)
{
	struct vram_shelf *s = vp->shelves;

	while (s && s->extent < *extent)
		s = s->next;
	if (s && s->extent != *extent)
		*slot = 0;
	for (; s; s = s->next, *slot = 0) {
		*extent = s->extent;
		for (; *slot < s->slots; ++*slot) {
			if (*budget == 0)
				return NULL;
			--*budget;
			if (s->at[*slot].state == VRAM_READY)
				return &s->at[(*slot)++];
		}
	}
	return NULL;
}

bool vram_has_alone(const struct block *b)
{
	return b->vram && !b->shelf && !b->rack && vram_ready(b);
}

uint64_t vram_only_blocks(const struct cache *c, const struct pool *p)
{
	uint64_t n = 0;

	for (uint32_t i = 0; c->vram && i < c->vram->count; i++)
		if (c->vram->gpu[i]->pools[p->number])
			n += c->vram->gpu[i]->pools[p->number]->dirty;
	return n;
}

/* ---- a block's copies ---- */

struct vram_slot *vram_slot_on(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = b->vram;

	while (s && s->shelf->pool->gpu != g)
		s = s->next;
	return s && !g->lost ? s : NULL;
}

struct vram_slot *vram_ready(const struct block *b)
{
	struct vram_slot *s = b->vram;

	while (s && (s->state != VRAM_READY || s->shelf->pool->gpu->lost))
		s = s->next;
	return s;
}

struct vram_slot *vram_near(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = b->vram;

	while (s && (s->state != VRAM_READY || s->shelf->pool->gpu->lost || !(g->reaches & 1u << s->shelf->pool->gpu->number)))
		s = s->next;
	return s;
}

struct vram_slot *vram_slot_of(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = b->vram;

	while (s && s->shelf->pool->gpu != g)
		s = s->next;
	return s;
}

uint32_t vram_pins(const struct block *b)
{
	uint32_t n = 0;

	for (const struct vram_slot *s = b->vram; s; s = s->next)
		n += s->pins;
	return n;
}

uint32_t vram_slot_pins(const struct vram_slot *s)
{
	const struct block *b = s->block;

	return (block_memory_pins(b) & ~INDEX_DEAD) - b->memory_pins + s->pins;
}

static void hold(struct vram_slot *s, bool on)
{
	struct vram_pool *vp = s->shelf->pool;

	s->shelf->held += on ? 1 : -1;
	vp->gpu->held_bytes += on ? vp->stride : -vp->stride;
}

void vram_books(struct block *b, uint32_t all, bool on)
{
	for (struct vram_slot *s = b->vram; s; s = s->next) {
		const bool held = all + s->pins;

		if (held || s->state == VRAM_RESERVED)
			hold(s, on);
		if (!held && s->state == VRAM_READY)
			s->shelf->pool->evictable += on ? 1 : -1ull;
	}
}

static void set_dirty(struct vram_slot *s, bool is)
{
	if (s->dirty != is)
		s->shelf->pool->dirty += is ? 1 : -1;
	s->dirty = is;
	if (!is)
		vram_unqueue_through(s);
}

void vram_sync(struct block *b)
{
	struct vram_slot *only = b->shelf || b->rack ? NULL : vram_ready(b);

	if (only && (!block_live(b) || vram_falling(only->shelf->pool->gpu->cache, b)))
		only = NULL;
	for (struct vram_slot *s = b->vram; s; s = s->next)
		set_dirty(s, s == only);
}

struct vram_slot *vram_attach(struct block *b, struct vram_pool *vp, const struct host_slot *from, enum vram_state state)
{
	struct vram_shelf *shelf = vram_shelf_get(vp, from->extent);
	struct vram_slot *s;

	if (!shelf)
		return NULL;
	/* What is held whole, and in memory: the rest of the books is as it was. */
	const bool plain = state == VRAM_COMING && b->shelf && block_held_beyond(b, 0);

	if (!plain)
		block_books(b, false);
	s = &shelf->at[from->index];
	*s = (struct vram_slot){ .block = b, .next = b->vram, .shelf = shelf, .index = from->index,
				 .take = (uint32_t)from->generation, .state = state };
	b->vram = s;
	shelf->taken++;
	vp->free_slots--;
	vp->gpu->lent_bytes += state == VRAM_RESERVED ? vp->stride : 0;
	if (plain)
		hold(s, true);
	else
		block_books(b, true);
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

static void slot_free(struct vram_slot *s)
{
	struct vram_pool *vp = s->shelf->pool;
	const struct host_slot slot = {
		.pool = vp->arena, .extent = s->shelf->extent, .index = s->index, .offset = s->index * vp->stride,
		.generation = s->take,
	};

	if (s->ahead)
		observe_gpu_ahead_ended(vp->gpu->cache, s, COUNTER_GPU_AHEAD_WASTED);
	s->shelf->taken--;
	if (!s->shelf->draining)
		vp->free_slots++;
	vp->gpu->lent_bytes -= is_lent(s) ? vp->stride : 0;
	s->state = VRAM_FREE;
	s->block = NULL;
	host_slot_give(&slot);
	vp->gpu->freed = true;
	if (vp->gpu->waiting)
		vram_keeper_wake(vp->gpu);
	vp->gpu->cache->vram->room_due = true;
}

/* From the books of what is ready. */
static void unready(struct vram_slot *s)
{
	struct vram_pool *vp = s->shelf->pool;

	set_dirty(s, false);
	vp->gpu->cache->policy->remove(vp->policy, &s->node);
	vp->blocks--;
}

void vram_detach(struct vram_slot *s)
{
	struct block *b = s->block;
	/* Nobody holds any of it: the rest of the books is as it was. */
	const bool plain = !block_pins(b) && s->state == VRAM_READY;

	if (plain)
		s->shelf->pool->evictable--;
	else
		block_books(b, false);
	if (s->state == VRAM_READY)
		unready(s);
	vram_unchain(s);
	if (!plain)
		block_books(b, true);
	slot_free(s);
	where_set(b, BLOCK_ON_GPU, vram_ready(b));
	vram_sync(b);
}

void vram_ready_now(struct cache *c, struct vram_slot *s)
{
	struct vram_pool *vp = s->shelf->pool;
	struct block *b = s->block;
	const struct policy_event e = {
		.now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role,
		.position = s->position / vp->pool->layout.block_tokens, .moved = (b->shelf || b->rack) && !s->used,
	};

	/* What is held is counted alike, coming and ready. */
	const bool held = s->state == VRAM_COMING && vram_slot_pins(s);

	if (!held)
		block_books(b, false);
	vp->gpu->lent_bytes -= s->state == VRAM_RESERVED ? vp->stride : 0;
	s->state = VRAM_READY;
	if (!held)
		block_books(b, true);
	s->across = false;
	s->used = false;
	vp->blocks++;
	c->policy->insert(vp->policy, &s->node, &e);
	observe_came_back(c, b->node.id, true);
	where_set(b, BLOCK_ON_GPU, true);
	vram_sync(b);
}

void vram_remember(struct vram_slot *s, const struct slot_header *h)
{
	s->position = h->position;
	s->stored_unix_ms = h->stored_unix_ms;
	s->turn = h->turn;
	s->role = h->role;
	s->parent_bytes = h->parent_bytes;
	memcpy(s->parent, h->parent, sizeof(s->parent));
	s->sums = vram_sums_of(h, h->layers);
	s->summed = true;
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
		if (gpu && s->shelf->pool->gpu != gpu)
			continue;
		if (s->state == VRAM_READY)
			c->policy->use(s->shelf->pool->policy, &s->node, e);
		if (s->ahead && gpu)
			observe_gpu_ahead_ended(c, s, s->state == VRAM_READY ? COUNTER_GPU_AHEAD_USED
									     : COUNTER_GPU_AHEAD_LATE);
		s->used |= s->state == VRAM_COMING;
	}
}

bool vram_used_coming(struct vram_slot *s)
{
	if (s->state != VRAM_COMING)
		return false;
	if (s->ahead)
		observe_gpu_ahead_ended(s->shelf->pool->gpu->cache, s, COUNTER_GPU_AHEAD_LATE);
	s->used = true;
	return true;
}

void vram_removed(struct cache *c, struct block *b)
{
	for (struct vram_slot *s = b->vram; s; s = s->next) {
		cache_count(c, COUNTER_EVICTED_GPU_LOST, s->state == VRAM_READY && s->shelf->pool->gpu->lost);
		if (s->state == VRAM_READY)
			unready(s);
		if (s->state == VRAM_READY || s->state == VRAM_COMING)
			s->state = VRAM_DEAD;
	}
	where_set(b, BLOCK_ON_GPU, false);
}

void vram_condemn(struct cache *c, struct vram_slot *s)
{
	struct block *b = s->block;

	s->shelf->pool->gpu->cache->pinned_lost++;
	block_books(b, false);
	if (s->state == VRAM_READY)
		unready(s);
	s->state = VRAM_DEAD;
	b->condemned = true;
	block_books(b, true);
	where_set(b, BLOCK_ON_GPU, vram_ready(b));
	vram_sync(b);
	observe_moved(c, b);
}

void vram_give(struct block *b)
{
	struct vram_slot *next;

	b->condemned = false;
	block_books(b, false);
	for (struct vram_slot *s = b->vram; s; s = next) {
		next = s->next;
		if (s->state == VRAM_READY || s->state == VRAM_COMING)
			continue;
		if (vram_slot_pins(s)) {
			b->condemned = true;
			continue;
		}
		vram_unchain(s);
		slot_free(s);
	}
	block_books(b, true);
}

/* ---- those that are to go down ---- */

void vram_queue_through(struct vram_slot *s)
{
	struct gpu *g = s->shelf->pool->gpu;

	if (s->through)
		return;
	s->through = true;
	s->shelf->pool->through++;
	s->through_next = NULL;
	s->through_prev = g->through_last;
	if (g->through_last)
		g->through_last->through_next = s;
	else
		g->through = s;
	g->through_last = s;
}

void vram_queue_down(struct block *b, const struct session *s)
{
	if (b->vram && b->vram->dirty && !s->write_back)
		vram_queue_through(b->vram);
}

void vram_unqueue_through(struct vram_slot *s)
{
	struct gpu *g = s->shelf->pool->gpu;

	if (!s->through)
		return;
	if (s->through_prev)
		s->through_prev->through_next = s->through_next;
	else
		g->through = s->through_next;
	if (s->through_next)
		s->through_next->through_prev = s->through_prev;
	else
		g->through_last = s->through_prev;
	s->through_prev = s->through_next = NULL;
	s->through = false;
	s->shelf->pool->through--;
}

/* ---- puts ---- */

enum status vram_block_create(struct cache *c, struct gpu *g, struct pool *p, struct block **out)
{
	struct vram_pool *vp = vram_pool_get(c, g, p);
	struct block *b = vp ? calloc(1, sizeof(*b)) : NULL;
	struct host_slot slot;
	enum status s;

	if (!b)
		return STATUS_EXHAUSTED;
	b->pool = p;
	s = vram_room_take(c, vp, NEED_NOW, &slot);
	if (!s && !vram_attach(b, vp, &slot, VRAM_RESERVED)) {
		host_slot_give(&slot);
		s = STATUS_EXHAUSTED;
	}
	if (s) {
		free(b);
		return s;
	}
	b->generation = arena_generation(c->host) + (c->tier ? c->tier->generation_lift : 0);
	*out = b;
	return STATUS_OK;
}

void vram_published(struct cache *c, struct block *b, uint64_t position)
{
	struct vram_slot *s = b->vram;

	s->position = position;
	vram_ready_now(c, s);
}
