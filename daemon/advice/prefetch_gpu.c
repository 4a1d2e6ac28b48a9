/* Bringing up ahead: blocks in host memory that a session which works on one GPU will want there are copied to it before they are leased,
 * behind all that somebody waits for, and no more than gpu_prefetch_bytes a second. Off unless that is set.
 *
 * What is to come up hangs in a few *wishes*, as of what is read from disks (advice/prefetch.c), which go before these where a block
 * is on a disk alone: what a Lookup found, until its Lease has come, and what the graph leads to from there. A slot is taken only if one is
 * free, or has a copy that nobody has used for a while and that is elsewhere too. Few are begun at a time, since a lease's own copies stand
 * behind them.
 *
 * A copy that came ahead is *used* when a lease has it, *late* if that lease found it still coming, *wasted* if it is gone before, or not
 * used in half a minute. When more than a quarter is wasted lately, one wish in eight is granted. */
#include "daemon/advice/prefetch_gpu.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/graph.h"
#include "daemon/advice/prefetch.h"
#include "daemon/advice/prefetch_outcome.h"
#include "daemon/advice/request.h"
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
	ASKED_US = 30 * 1000 * 1000,
	EXPECTED_US = 5 * 1000 * 1000,
	LIFE_US = 30 * 1000 * 1000,
	COLD_US = 10 * 1000 * 1000,    /* what may go for it has not been used for so long */
	SHARE = 8,                     /* of a GPU, one part of so many may hold what came ahead and is not used yet */
	AT_ONCE_BYTES = 8 << 20,
};

struct up_wish {
	uint64_t whole, part, until_us; /* as of an ahead_wish */
	bool asked;
	uint32_t gpu, count, begun;    /* blocks; count 0: free */
	uint64_t id[AHEAD_BLOCKS];
};

struct vram_ahead {
	struct up_wish wish[WISHES];
	struct ahead_tried tried;
	uint64_t budget_bytes, budget_us;
};

bool vram_ahead_create(struct cache *c)
{
	if (!c->options.gpu_prefetch_bytes)
		return true;
	c->vram->ahead = calloc(1, sizeof(*c->vram->ahead));
	return c->vram->ahead;
}

void vram_ahead_destroy(struct vram *v)
{
	free(v->ahead);
	v->ahead = NULL;
}

/* ---- what became of them ---- */

static void ahead_link(struct cache *c, struct vram_slot *s)
{
	struct gpu *g = s->pool->gpu;

	s->ahead = true;
	s->ahead_us = c->now_us;
	s->ahead_next = NULL;
	s->ahead_prev = g->ahead_last;
	if (g->ahead_last)
		g->ahead_last->ahead_next = s;
	else
		g->ahead_first = s;
	g->ahead_last = s;
	g->ahead_bytes += s->pool->pool->geometry.block_bytes;
	c->vram->ahead->tried.open++;
}

void vram_ahead_end(struct vram_slot *s, enum counter how)
{
	struct gpu *g = s->pool->gpu;
	const uint64_t bytes = s->pool->pool->geometry.block_bytes;

	*(s->ahead_prev ? &s->ahead_prev->ahead_next : &g->ahead_first) = s->ahead_next;
	*(s->ahead_next ? &s->ahead_next->ahead_prev : &g->ahead_last) = s->ahead_prev;
	s->ahead = false;
	g->ahead_bytes -= bytes;
	cache_count(g->cache, how, bytes);
	tried_ended(&g->cache->vram->ahead->tried, how == COUNTER_GPU_AHEAD_WASTED);
}

static void expire(struct cache *c, struct gpu *g)
{
	while (g->ahead_first && c->now_us - g->ahead_first->ahead_us > LIFE_US)
		vram_ahead_end(g->ahead_first, COUNTER_GPU_AHEAD_WASTED);
}

/* ---- wishes ---- */

static void wish_late(struct cache *c, struct up_wish *w)
{
	cache_count(c, COUNTER_GPU_AHEAD_TOO_LATE, w->count - w->begun);
	w->count = w->begun = 0;
}

/* A free one, or the one that is the first to expire. */
static struct up_wish *wish_take(struct cache *c)
{
	struct up_wish *w = c->vram->ahead->wish;

	for (uint32_t i = 0; i < WISHES; i++) {
		struct up_wish *other = &c->vram->ahead->wish[i];

		if (!other->count)
			return other;
		w = other->until_us < w->until_us ? other : w;
	}
	wish_late(c, w);
	return w;
}

static void wish_add(struct cache *c, const struct request *r, struct up_wish *w, uint64_t name)
{
	const struct gpu *g = c->vram->gpu[w->gpu];

	for (uint32_t p = 0; p < r->layouts && w->count < AHEAD_BLOCKS; p++) {
		const struct block *b = by_id_find(c, policy_id(name, r->pool[p]->layout_id));

		if (b && (b->span || b->rack) && !vram_slot_on(b, g))
			w->id[w->count++] = b->node.id;
	}
}

static bool asked_for(const struct request *r, uint64_t name)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->name[i] == name)
			return true;
	return false;
}

static void wish_expected(struct cache *c, const struct request *r, struct up_wish *w)
{
	const struct advice_list *l = c->advice->advisor ? advisor_list(c, r) : NULL;

	for (uint32_t i = 0; l && i < l->count; i++)
		if (!asked_for(r, l->name[i]))
			wish_add(c, r, w, l->name[i]);
}

static void wish_for(struct cache *c, const struct request *r, uint32_t gpu, bool asked)
{
	struct up_wish *w = wish_take(c);

	w->gpu = gpu;
	w->asked = asked;
	w->whole = request_whole(r, r->count);
	w->part = r->present ? request_whole(r, r->present) : w->whole;
	w->until_us = c->now_us + (asked ? ASKED_US : EXPECTED_US);
	for (uint32_t i = 0; asked && i < r->present; i++)
		wish_add(c, r, w, r->name[i]);
	if (!asked)
		wish_expected(c, r, w);
	if (!w->count || tried_grants(&c->vram->ahead->tried, w->count))
		return;
	cache_count(c, COUNTER_GPU_AHEAD_DOUBTED, w->count);
	w->count = 0;
}

/* The one that the session works on; none: of several nobody can tell which. */
static bool gpu_of(struct cache *c, uint64_t session, uint32_t *gpu)
{
	const uint32_t gpus = session_gpus(c, session);

	if (!gpus || gpus & (gpus - 1))
		return false;
	*gpu = (uint32_t)__builtin_ctz(gpus);
	return !c->vram->gpu[*gpu]->lost;
}

void vram_ahead_request(struct cache *c, const struct request *r)
{
	uint32_t gpu;

	if (r->kind == REQUEST_REPORT || !gpu_of(c, r->session, &gpu))
		return;
	if (r->kind == REQUEST_LOOKUP && r->present)
		wish_for(c, r, gpu, true);
	wish_for(c, r, gpu, false);
}

void vram_ahead_leased(struct cache *c, const struct request *r)
{
	const uint64_t whole = request_whole(r, r->count);

	for (uint32_t i = 0; i < WISHES; i++) {
		struct up_wish *w = &c->vram->ahead->wish[i];

		if (w->count && w->asked && (w->whole == whole || w->part == whole))
			wish_late(c, w);
	}
}

/* ---- copies ---- */

/* A quarter of a second's worth may be saved up, or one block. */
static bool budget_has(struct cache *c, uint64_t bytes)
{
	struct vram_ahead *a = c->vram->ahead;
	const uint64_t rate = c->options.gpu_prefetch_bytes, most = rate / 4 > bytes ? rate / 4 : bytes;
	const uint64_t passed = c->now_us - a->budget_us;

	a->budget_bytes += passed < 1000000 ? rate * passed / 1000000 : rate;
	a->budget_us = c->now_us;
	if (a->budget_bytes > most)
		a->budget_bytes = most;
	return a->budget_bytes >= bytes;
}

/* OK: begun, or not to be. BUSY: no more of this wish now. EXHAUSTED: of none on this GPU. */
static enum status up_ahead(struct cache *c, struct gpu *g, struct block *b)
{
	const uint64_t bytes = b->pool->geometry.block_bytes;
	struct vram_pool *vp = vram_pool_get(c, g, b->pool);

	if (g->ahead_bytes + bytes > g->budget / SHARE || !vp || !vram_room_spare(c, vp->class, COLD_US)) {
		cache_count(c, COUNTER_GPU_AHEAD_NO_ROOM, 1);
		return STATUS_BUSY;
	}
	if (!budget_has(c, bytes)) {
		cache_count(c, COUNTER_GPU_AHEAD_NO_BUDGET, 1);
		return STATUS_EXHAUSTED;
	}
	if (vram_up(c, g, b, RING_AHEAD, NULL, false, true))
		return STATUS_BUSY;
	ahead_link(c, vram_slot_on(b, g));
	c->vram->ahead->budget_bytes -= bytes;
	cache_count(c, COUNTER_GPU_AHEAD_BYTES, bytes);
	return STATUS_OK;
}

/* It is being read, or will be, for the same request. */
static bool comes(const struct cache *c, const struct up_wish *w, const struct block *b)
{
	return b->moving || b->awaited || (w->asked && b->rack && c->options.prefetch_bytes);
}

static enum status wish_pump(struct cache *c, struct gpu *g, struct up_wish *w, uint64_t *left)
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
			s = up_ahead(c, g, b);
		}
		w->begun += !s;
	}
	if (w->begun == w->count)
		w->count = w->begun = 0;
	return s;
}

static void pump(struct cache *c, struct gpu *g)
{
	enum status s = STATUS_OK;
	uint64_t left = AT_ONCE_BYTES;

	expire(c, g);
	if (g->waiting || vram_queued(g, DEVICE_UP) || gpu_flights(g, DEVICE_UP) > 1)
		return;
	for (int asked = 1; asked >= 0; asked--)
		for (uint32_t i = 0; i < WISHES && s != STATUS_EXHAUSTED; i++) {
			struct up_wish *w = &c->vram->ahead->wish[i];

			if (!w->count || w->gpu != g->number || w->asked != asked)
				continue;
			if (w->until_us < c->now_us)
				wish_late(c, w);
			else
				s = wish_pump(c, g, w, &left);
		}
}

void vram_ahead_pump(struct cache *c)
{
	for (uint32_t i = 0; c->vram->ahead && !c->vram->stopping && i < c->vram->count; i++)
		if (!c->vram->gpu[i]->lost)
			pump(c, c->vram->gpu[i]);
}
