/* Where a lease finds its blocks, with GPUs; the marks that tell how far copies are that it need not wait for, and
 * the boards on which they tell it. */
#include "daemon/vram/placement.h"

#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/wait.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/move_table.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "proto/fdsock.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>

struct vram_slot *vram_place_slot(const struct block *b, const struct vram_want *want)
{
	struct vram_slot *s = want->gpu && b->vram ? vram_slot_on(b, want->gpu) : NULL;

	if (s && (s->state == VRAM_READY || (s->state == VRAM_COMING && !s->across && !s->failed && want->board)))
		return s;
	return NULL;
}

bool vram_placed(const struct block *b, const struct vram_want *want)
{
	if (!want->gpu)
		return b->span;
	return vram_place_slot(b, want) || (want->or_host && b->span);
}

struct gpu *vram_place_gpu(const struct block *b, const struct vram_want *want)
{
	return vram_place_slot(b, want) ? want->gpu : NULL;
}

uint64_t vram_pin_bytes(const struct block *b, const struct gpu *g)
{
	const struct vram_slot *s = b->vram ? vram_slot_on(b, g) : NULL;

	return s && s->pins ? 0 : b->pool->geometry.need_bytes;
}

uint64_t pins_free_gpu(const struct cache *c, const struct gpu *g)
{
	const uint64_t max = g->budget / 1000 * c->options.gpu_pinned_milli;

	return max > g->books.lent_bytes ? max - g->books.lent_bytes : 0;
}

struct vram_slot *vram_leasable(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = g && b->vram ? vram_slot_on(b, g) : NULL;

	return s && s->state == VRAM_READY ? s : NULL;
}

void vram_order(struct pool *const *pools, uint32_t layouts, uint32_t *order)
{
	for (uint32_t i = 0; i < layouts; i++) {
		uint32_t at = i;

		for (; at && pools[order[at - 1]]->geometry.steps > pools[i]->geometry.steps; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
}

uint32_t vram_layers_most(struct pool *const *pools, uint32_t layouts)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < layouts; i++)
		if (pools[i]->geometry.steps > most)
			most = pools[i]->geometry.steps;
	return most;
}

/* ---- marks ---- */

static struct vram_move *mark_create(struct gpu *g, struct board *board, uint32_t layers)
{
	struct vram_move *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->way = DEVICE_UP;
	m->step = STEP_QUEUED;
	m->gpu = g;
	m->board = board;
	m->layers = layers;
	board->marks++;
	return m;
}

static uint32_t mark_enqueue(struct vram_move *m)
{
	m->base = m->board->next[m->gpu->number];
	m->board->next[m->gpu->number] += m->layers;
	m->enqueued_us = vram_clock_us();
	m->hash_next = m->gpu->marks;
	m->gpu->marks = m;
	vram_enqueue(m->gpu, m);
	return m->base;
}

bool vram_mark(struct gpu *g, struct board *board, uint32_t layers, bool overtakes, uint32_t *base)
{
	struct vram_move *m = mark_create(g, board, layers);

	if (!m)
		return false;
	m->overtakes = overtakes;
	*base = mark_enqueue(m);
	return true;
}

void vram_mark_ahead(struct gpu *g, struct board *board, uint32_t layers, struct cache_wait *w)
{
	w->marked = 0;
	if (!w->mark)
		w->mark = mark_create(g, board, layers);
}

void vram_mark_drop(struct cache_wait *w)
{
	if (w->mark)
		w->mark->board->marks--;
	free(w->mark);
	w->mark = NULL;
}

void vram_mark_place(struct cache_wait *w)
{
	struct vram_move *m = w->mark;

	if (m->gpu->lost || m->gpu->cache->vram->stopping || !m->gpu->ups) {
		vram_mark_drop(w);
		return;
	}
	w->mark = NULL;
	w->marked = m->gpu->ups;
	w->mark_base = mark_enqueue(m);
}

void vram_mark_end(struct vram_move *m, enum status s)
{
	struct vram_move **at = &m->gpu->marks;

	while (*at != m)
		at = &(*at)->hash_next;
	*at = m->hash_next;
	if (s || m->gpu->lost)
		board_fail(m->board, m->gpu);
	m->board->marks--;
	free(m);
}

void vram_marks_fail(struct gpu *g)
{
	for (struct vram_move *m = g->marks; m; m = m->hash_next)
		board_fail(m->board, g);
}

/* ---- boards, and what is registered with the GPUs ---- */

static uint64_t register_with(struct cache *c, const struct gpu *g, void *memory, uint64_t bytes)
{
	const char *why = "";
	uint64_t address = 0;

	if (g->device && !c->vram->ops->lost(g->device) &&
	    c->vram->ops->host_register(g->device, memory, bytes, true, &address, &why))
		address = 0;
	vram_came_back(c);
	return address;
}

void vram_register(struct cache *c, const struct extent *e, uint64_t *address)
{
	for (uint32_t i = 0; i < DEVICES_MAX; i++)
		address[i] = 0;
	for (uint32_t i = 0; e && i < c->vram->count; i++)
		address[i] = register_with(c, c->vram->gpu[i], e->base, e->bytes);
}

void vram_unregister(struct cache *c, void *memory, const uint64_t *address)
{
	for (uint32_t i = 0; i < c->vram->count; i++)
		if (address[i] && c->vram->gpu[i]->device)
			c->vram->ops->host_unregister(c->vram->gpu[i]->device, memory);
	vram_came_back(c);
}

struct board *board_create(struct cache *c)
{
	struct board *b = calloc(1, sizeof(*b));

	if (b && extent_open(&b->page, 0, EXTENT_PAGE_BYTES, false)) {
		free(b);
		b = NULL;
	}
	if (b)
		vram_register(c, &b->page, b->address);
	return b;
}

void board_destroy(struct cache *c, struct board *b)
{
	vram_unregister(c, b->page.base, b->address);
	extent_close(&b->page);
	free(b);
}

void board_let_go(struct cache *c, struct board *b)
{
	b->dead_next = c->vram->dead_boards;
	c->vram->dead_boards = b;
}

/* A list that still ends well may have set its word back: so the last mark that ends on a lost GPU does this once
 * more. */
void board_fail(struct board *b, const struct gpu *g)
{
	_Atomic uint32_t *word = (_Atomic uint32_t *)b->page.base;

	atomic_store_explicit(word + FDSOCK_BOARD_FAILED + g->number, 1, memory_order_release);
	atomic_store_explicit(word + FDSOCK_BOARD_SUMMED + g->number, b->next[g->number], memory_order_release);
	atomic_store_explicit(word + g->number, b->next[g->number], memory_order_release);
}

bool board_copied(const struct board *b, const struct gpu *g, uint32_t value)
{
	const _Atomic uint32_t *word = (const _Atomic uint32_t *)b->page.base + g->number;

	return (int32_t)(atomic_load_explicit(word, memory_order_relaxed) - value) >= 0;
}

void board_summed(struct board *b, const struct gpu *g, uint32_t value)
{
	_Atomic uint32_t *word = (_Atomic uint32_t *)b->page.base + FDSOCK_BOARD_SUMMED + g->number;
	uint32_t now = atomic_load_explicit(word, memory_order_relaxed);

	while ((int32_t)(value - now) > 0 && !atomic_compare_exchange_weak_explicit(word, &now, value, memory_order_release, memory_order_relaxed))
		continue;
}

bool board_tells(const struct board *b, const struct gpu *g)
{
	const _Atomic uint32_t *word = (const _Atomic uint32_t *)b->page.base;

	return b->address[g->number] && !atomic_load_explicit(word + FDSOCK_BOARD_FAILED + g->number, memory_order_acquire);
}
