/* Where a lease finds its blocks, with GPUs; and the fences that show the progress of copies that a lease need not wait
 * for. */
#include "daemon/vram/placement.h"

#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/wait.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <stdlib.h>

struct vram_slot *vram_place_slot(const struct block *b, const struct vram_want *want)
{
	struct vram_slot *s = want->gpu && b->vram ? vram_slot_on(b, want->gpu) : NULL;

	if (s && (s->state == VRAM_READY || (s->state == VRAM_COMING && !s->across && !s->failed &&
	    want->progress_page)))
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

uint64_t pins_max_gpu(const struct cache *c, const struct tenant *t, const struct gpu *g)
{
	return gpu_accounting_of(g, t)->bytes_max / 1000 * c->options.gpu_pinned_milli;
}

uint64_t pins_free_gpu(const struct cache *c, const struct tenant *t, const struct gpu *g)
{
	const uint64_t max = pins_max_gpu(c, t, g), lent = gpu_accounting_of(g, t)->lent_bytes;

	return max > lent ? max - lent : 0;
}

struct vram_slot *vram_leasable(const struct block *b, const struct gpu *g)
{
	struct vram_slot *s = g && b->vram ? vram_slot_on(b, g) : NULL;

	return s && s->state == VRAM_READY ? s : NULL;
}

void vram_order(struct layout_pool *const *pools, uint32_t layouts, uint32_t *order)
{
	for (uint32_t i = 0; i < layouts; i++) {
		uint32_t at = i;

		for (; at && pools[order[at - 1]]->geometry.steps > pools[i]->geometry.steps; at--)
			order[at] = order[at - 1];
		order[at] = i;
	}
}

uint32_t vram_layers_most(struct layout_pool *const *pools, uint32_t layouts)
{
	uint32_t most = 0;

	for (uint32_t i = 0; i < layouts; i++)
		if (pools[i]->geometry.steps > most)
			most = pools[i]->geometry.steps;
	return most;
}

/* ---- fences ---- */

static struct vram_transfer *fence_create(struct gpu *g, struct progress_page *progress_page, uint32_t layers)
{
	struct vram_transfer *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->way = DEVICE_UP;
	m->step = STEP_QUEUED;
	m->gpu = g;
	m->progress_page = progress_page;
	m->layers = layers;
	progress_page->fences++;
	return m;
}

static uint32_t fence_enqueue(struct vram_transfer *m)
{
	m->base = m->progress_page->next[m->gpu->number];
	m->progress_page->next[m->gpu->number] += m->layers;
	m->enqueued_us = vram_clock_us();
	m->hash_next = m->gpu->fences;
	m->gpu->fences = m;
	vram_enqueue(m->gpu, m);
	return m->base;
}

bool vram_fence(struct gpu *g, struct progress_page *progress_page, uint32_t layers, bool overtakes, uint32_t *base)
{
	struct vram_transfer *m = fence_create(g, progress_page, layers);

	if (!m)
		return false;
	m->overtakes = overtakes;
	*base = fence_enqueue(m);
	return true;
}

void vram_fence_early(struct gpu *g, struct progress_page *progress_page, uint32_t layers, struct cache_wait *w)
{
	w->marked = 0;
	if (!w->fence)
		w->fence = fence_create(g, progress_page, layers);
}

void vram_fence_drop(struct cache_wait *w)
{
	if (w->fence)
		w->fence->progress_page->fences--;
	free(w->fence);
	w->fence = NULL;
}

void vram_fence_place(struct cache_wait *w)
{
	struct vram_transfer *m = w->fence;

	if (m->gpu->lost || m->gpu->cache->vram->stopping || !m->gpu->ups) {
		vram_fence_drop(w);
		return;
	}
	w->fence = NULL;
	w->marked = m->gpu->ups;
	w->fence_base = fence_enqueue(m);
}

void vram_fence_end(struct vram_transfer *m, enum status s)
{
	struct vram_transfer **at = &m->gpu->fences;

	while (*at != m)
		at = &(*at)->hash_next;
	*at = m->hash_next;
	if (s || m->gpu->lost)
		progress_page_fail(m->progress_page, m->gpu);
	m->progress_page->fences--;
	free(m);
}
