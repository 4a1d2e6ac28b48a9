/* How much memory and GPU memory an upload from a disk may take.
 *
 * With disks, a patient upload drops no block that has no other copy: on a GPU such a block is downloaded first, in
 * memory it is spilled first. Downloads and loads use the same memory. So blocks that wait in memory for a full GPU
 * take half of the memory at most. A Warm is patient as long as disks write. A Lease has a waiting caller: it is
 * patient only while uploads of its class keep getting places on the GPU, and not for ever. After that it evicts any
 * block that it must.
 */
#include "daemon/vram/fetch.h"

#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/tier.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/status.h"

enum { PATIENCE_MS = 100, PATIENCES = 7 };

static bool is_patient(const struct cache *c, const struct vram_transfer *m)
{
	const uint64_t patience_us = 1000ull * (c->options.gpu_patience_ms ? c->options.gpu_patience_ms : PATIENCE_MS);
	const struct vram_pool *vp = m->gpu->pools[m->pool->number];
	const uint64_t since = vp && vp->class->placed_us > m->waits_us ? vp->class->placed_us : m->waits_us;

	if (m->hasty || !m->waits_us)
		return !m->hasty;
	const uint64_t now = vram_clock_us();

	return now < since + patience_us && now < m->waits_us + PATIENCES * patience_us;
}

bool vram_only_spare(const struct cache *c, const struct vram_transfer *m)
{
	return c->tier && (m->priority != RING_URGENT || is_patient(c, m));
}

enum status vram_load(struct cache *c, const struct vram_transfer *m)
{
	const enum take_effort effort = vram_only_spare(c, m) ? TAKE_SPARE : TAKE_ANY;
	const struct fetch_how how = { .priority = m->priority, .effort = effort, .for_gpu = true };

	return tiers_fetch(c, m->block, &how, NULL);
}

bool vram_memory_comes_free(struct gpu *g)
{
	return g->fetching || vram_queued(g, DEVICE_UP) || gpu_copy_batches(g, DEVICE_UP);
}

void vram_memory_spares(struct cache *c)
{
	for (uint32_t i = 0; c->vram && i < c->vram->count; i++) {
		struct gpu *g = c->vram->gpu[i];

		if (!g->waiting)
			continue;
		g->freed = true;
		vram_completion_wake(g);
	}
}

void vram_fetched(struct vram_transfer *m, bool is)
{
	if (m->fetched != is)
		m->pool->tenant->fetched_bytes += is ? m->pool->geometry.need_bytes : -m->pool->geometry.need_bytes;
	m->fetched = is;
}

bool vram_fetched_enough(struct cache *c, const struct vram_transfer *m)
{
	const struct tenant *t = m->pool->tenant;
	const uint64_t need = m->pool->geometry.need_bytes, bytes = t->fetched_bytes + need;
	const struct vram_pool *vp = vram_pool_get(c, m->gpu, m->block->pool);
	const uint64_t room = vp ? vram_room_free(vp->class) * need : 0;

	return vram_only_spare(c, m) && t->fetched_bytes && bytes > room && bytes > t->host_most / 2;
}

bool vram_memory_short(struct cache *c, const struct vram_transfer *m)
{
	struct memory_class *k = m->block->pool->class;

	return vram_only_spare(c, m) && k->grow_refused == c->room_epoch && !c->tiers[TIER_MEMORY]->spares(c, k);
}

bool vram_memory_comes(struct cache *c, const struct vram_transfer *m)
{
	const struct tenant *t = m->pool->tenant;

	return vram_memory_comes_free(m->gpu) ||
	       (vram_only_spare(c, m) && (t->fetched_bytes || gpu_accounting_of(m->gpu, t)->downs ||
					  tiers_hurry(c, m->block->pool)));
}
