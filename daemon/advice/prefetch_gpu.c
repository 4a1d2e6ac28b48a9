/* Prefetch to GPUs: if a session works on one GPU, blocks in host memory that it will want are copied there before
 * they are leased, behind all transfers that calls wait for, and no more than gpu_prefetch_bytes a second. Off unless
 * that is set.
 *
 * A few *wishes* (advice/wish.h) hold the blocks to copy, as for disks (advice/prefetch.c). A block on a disk alone is
 * loaded first. A slot is taken only if it is free, or has a clean copy that was not used for a while. Few copies are
 * begun at a time, since a lease's own copies queue behind them.
 *
 * A prefetched copy is *used* when a lease has it, *late* if that lease found it still coming, *wasted* if it was
 * evicted before, or not used in half a minute. If more than a quarter was wasted lately, one wish in eight is
 * granted. */
#include "daemon/advice/prefetch_gpu.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/prefetch.h"
#include "daemon/advice/prefetch_outcome.h"
#include "daemon/advice/request.h"
#include "daemon/advice/wish.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/counters.h"
#include "daemon/block/lock.h"
#include "daemon/session/session.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <stdlib.h>

enum {
	WISHES = 16,
	EXPECTED_US = 5 * 1000 * 1000,
	LIFE_US = 30 * 1000 * 1000,
	COLD_US = 10 * 1000 * 1000,    /* what may go for it has not been used for so long */
	SHARE = 8,                     /* of a tenant's GPU memory, one part of so many may hold what came ahead and is
					* not used yet */
	AT_ONCE_BYTES = 8 << 20,
};

struct vram_prefetch {
	struct wish wish[WISHES];
	struct wish_queue queue;       /* of these */
	struct prefetch_outcome outcome;
};

bool vram_prefetch_create(struct cache *c)
{
	if (!c->options.gpu_prefetch_bytes)
		return true;
	c->vram->prefetch = calloc(1, sizeof(*c->vram->prefetch));
	if (!c->vram->prefetch)
		return false;
	c->vram->prefetch->queue = (struct wish_queue){
		.wish = c->vram->prefetch->wish,
		.size = WISHES,
		.too_late = COUNTER_GPU_PREFETCH_TOO_LATE,
		.expected_us = EXPECTED_US,
	};
	return true;
}

void vram_prefetch_destroy(struct vram *v)
{
	free(v->prefetch);
	v->prefetch = NULL;
}

/* ---- what became of them ---- */

static void prefetch_link(struct cache *c, struct vram_slot *s)
{
	struct gpu *g = s->pool->gpu;

	s->prefetched = true;
	s->prefetched_us = c->now_us;
	s->prefetched_next = NULL;
	s->prefetched_prev = g->prefetched_last;
	if (g->prefetched_last)
		g->prefetched_last->prefetched_next = s;
	else
		g->prefetched_first = s;
	g->prefetched_last = s;
	s->span->class->accounting->prefetched_bytes += s->pool->pool->geometry.block_bytes;
	c->vram->prefetch->outcome.open++;
}

void vram_prefetch_end(struct vram_slot *s, enum counter how)
{
	struct gpu *g = s->pool->gpu;
	const uint64_t bytes = s->pool->pool->geometry.block_bytes;

	*(s->prefetched_prev ? &s->prefetched_prev->prefetched_next : &g->prefetched_first) = s->prefetched_next;
	*(s->prefetched_next ? &s->prefetched_next->prefetched_prev : &g->prefetched_last) = s->prefetched_prev;
	s->prefetched = false;
	s->span->class->accounting->prefetched_bytes -= bytes;
	cache_count(g->cache, how, bytes);
	prefetch_outcome_ended(&g->cache->vram->prefetch->outcome, how == COUNTER_GPU_PREFETCH_WASTED);
}

static void expire(struct cache *c, struct gpu *g)
{
	while (g->prefetched_first && c->now_us - g->prefetched_first->prefetched_us > LIFE_US)
		vram_prefetch_end(g->prefetched_first, COUNTER_GPU_PREFETCH_WASTED);
}

/* ---- wishes ---- */

static void wish_add(struct cache *c, struct wish *w, struct block *b)
{
	const struct gpu *g = c->vram->gpu[w->gpu];

	if (b && (b->span || b->slab_map) && !vram_slot_on(b, g) && w->count < WISH_BLOCKS)
		w->id[w->count++] = b->node.id;
}

/* Makes a wish for the GPU. If the kind of wish is in doubt, all of the wish is granted or nothing. */
static void wish_for(struct cache *c, const struct request *r, uint32_t gpu, enum prefetch_kind kind)
{
	struct vram_prefetch *a = c->vram->prefetch;
	struct wish *w = wish_begin(c, &a->queue, r, kind);

	w->gpu = gpu;
	wish_fill(c, r, w, wish_add);
	wish_grant(c, w, &a->outcome, w->count, COUNTER_GPU_PREFETCH_UNVERIFIED);
}

/* The GPU that the session works on. False: it works on none, or on several. */
static bool gpu_of(struct cache *c, uint64_t session, uint32_t *gpu)
{
	const uint32_t gpus = session_gpus(c, session);

	if (!gpus || gpus & (gpus - 1))
		return false;
	*gpu = (uint32_t)__builtin_ctz(gpus);
	return !c->vram->gpu[*gpu]->lost;
}

void vram_prefetch_request(struct cache *c, const struct request *r)
{
	uint32_t gpu;

	if (r->kind == REQUEST_REPORT || !gpu_of(c, r->session, &gpu))
		return;
	if (r->kind == REQUEST_LOOKUP && r->present)
		wish_for(c, r, gpu, PREFETCH_ASKED);
	wish_for(c, r, gpu, PREFETCH_EXPECTED);
}

void vram_prefetch_leased(struct cache *c, const struct request *r)
{
	wish_leased(c, &c->vram->prefetch->queue, r);
}

/* ---- copies ---- */

/* Begins a prefetch to the GPU. OK: it has begun, or is not to be. BUSY: no more of this wish now. EXHAUSTED: no more
 * of any wish on this GPU. */
static enum status up_prefetch(struct cache *c, struct gpu *g, struct block *b)
{
	const uint64_t bytes = b->pool->geometry.block_bytes;
	const struct gpu_accounting *has = gpu_accounting_of(g, b->pool->tenant);
	struct vram_pool *vp = vram_pool_get(c, g, b->pool);

	if (has->prefetched_bytes + bytes > has->bytes_max / SHARE || !vp || !vram_room_spare(c, vp->class, COLD_US)) {
		cache_count(c, COUNTER_GPU_PREFETCH_NO_ROOM, 1);
		return STATUS_BUSY;
	}
	if (!wish_affords(c, &c->vram->prefetch->queue, c->options.gpu_prefetch_bytes, bytes)) {
		cache_count(c, COUNTER_GPU_PREFETCH_NO_BUDGET, 1);
		return STATUS_EXHAUSTED;
	}
	if (vram_up(c, g, b, RING_PREFETCH, NULL, false, true))
		return STATUS_BUSY;
	prefetch_link(c, vram_slot_on(b, g));
	c->vram->prefetch->queue.budget_bytes -= bytes;
	cache_count(c, COUNTER_GPU_PREFETCH_BYTES, bytes);
	return STATUS_OK;
}

/* Whether the block is being read for the same request, or will be. */
static bool comes(const struct cache *c, const struct wish *w, const struct block *b)
{
	return b->moving || b->awaited || (w->kind == PREFETCH_ASKED && b->slab_map && c->options.prefetch_bytes);
}

static enum status wish_pump(struct cache *c, struct gpu *g, struct wish *w, uint64_t *left)
{
	enum status s = STATUS_OK;

	while (w->begun < w->count && !s) {
		struct block *b = by_id_find(c, w->id[w->begun]);

		if (b && !b->span && !vram_slot_on(b, g) && comes(c, w, b))
			return STATUS_BUSY;
		if (b && b->span && !vram_slot_on(b, g)) {
			if (*left < b->pool->geometry.block_bytes)
				return STATUS_EXHAUSTED;
			*left -= b->pool->geometry.block_bytes;
			s = up_prefetch(c, g, b);
		}
		w->begun += !s;
	}
	if (w->begun == w->count)
		wish_end(c, w);
	return s;
}

static void pump(struct cache *c, struct gpu *g)
{
	enum status s = STATUS_OK;
	uint64_t left = AT_ONCE_BYTES;

	expire(c, g);
	if (g->waiting || vram_queued(g, DEVICE_UP) || gpu_copy_batches(g, DEVICE_UP) > 1)
		return;
	for (enum prefetch_kind kind = PREFETCH_ASKED; kind < PREFETCH_KINDS; kind++)
		for (uint32_t i = 0; i < WISHES && s != STATUS_EXHAUSTED; i++) {
			struct wish *w = &c->vram->prefetch->wish[i];

			if (!w->count || w->gpu != g->number || w->kind != kind)
				continue;
			if (w->until_us < c->now_us)
				wish_drop(c, &c->vram->prefetch->queue, w);
			else
				s = wish_pump(c, g, w, &left);
		}
}

void vram_prefetch_pump(struct cache *c)
{
	for (uint32_t i = 0; c->vram->prefetch && !c->vram->stopping && i < c->vram->count; i++)
		if (!c->vram->gpu[i]->lost)
			pump(c, c->vram->gpu[i]);
}
