/* A GPU that is lost: transfers that have not begun end at once, others when the device ends them. The completion
 * thread then sweeps up the GPU's copies.
 *
 * A batch that reads such a copy may have succeeded: the device says so, or the copy's checksum shows it. So a copy
 * without another one, which a batch is reading, stays until that batch ends.
 */
#include "daemon/vram/lost.h"

#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/vram/checksum.h"
#include "daemon/vram/commit_sums.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "store/device.h"
#include "store/status.h"

#include <pthread.h>
#include <stdio.h>

enum { SWEEP_SLOTS = 1024 };

bool gpu_asks(struct cache *c, struct gpu *g)
{
	bool lost;

	if (g->lost || c->vram->stopping)
		return g->lost;
	cache_unlock(c);
	lost = c->vram->ops->lost(g->device);
	vram_came_back(c);
	cache_lock(c);
	return lost;
}

void gpu_lost(struct gpu *g, const char *why)
{
	if (g->lost)
		return;
	g->lost = true;
	for (uint32_t i = 0; i < POOLS_MAX; i++)
		if (g->pools[i])
			g->pools[i]->lost = true;
	snprintf(g->why, sizeof(g->why), "%s", why && *why ? why : "the driver says so");
	while (g->write_through)
		vram_unqueue_write_through(g->write_through);
	vram_submission_halt(g, false);
	vram_fences_fail(g); /* those of lists under way, too, which the device may take its time to end */
	vram_transfers_fail(g->cache, g);
	vram_completion_wake(g);
	pthread_cond_broadcast(&g->cache->vram->room);
}

/* ---- moves ---- */

static void fail_each(struct cache *c, struct vram_transfer *doomed)
{
	for (struct vram_transfer *m; (m = doomed);) {
		doomed = m->next;
		vram_transfer_fail(c, m);
	}
}

/* Fails the transfers of a list that wait for the lost GPU. Transfers to other GPUs that would have come from it look
 * for another copy when they go on. */
static void fail_waiting(struct cache *c, struct vram_transfer **first, struct vram_transfer ***end,
			 const struct gpu *g)
{
	struct vram_transfer *doomed = NULL, **doomed_end = &doomed, **at = first, *m;

	while ((m = *at)) {
		if (m->gpu != g) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		m->next = NULL;
		*doomed_end = m;
		doomed_end = &m->next;
	}
	*end = at;
	fail_each(c, doomed);
}

void vram_transfers_fail(struct cache *c, struct gpu *g)
{
	struct vram *v = c->vram;

	fail_waiting(c, &g->waiting, &g->waiting_end, g);
	fail_waiting(c, &v->waiting_host, &v->waiting_host_end, g);
	vram_sums_fail(c, g);
	vram_summed_end(c, g);
	for (int way = 0; way < 3; way++)
		fail_each(c, vram_queue_take(g, (enum device_way)way, g));
	for (uint32_t i = 0; i < v->count; i++)
		fail_each(c, vram_queue_take(v->gpu[i], DEVICE_ACROSS, g));
	for (uint32_t i = 0; i < VRAM_TRANSFER_BUCKETS; i++)
		for (struct vram_transfer *m = v->transfers[i], *next; m; m = next) {
			next = m->hash_next;
			if (m->gpu != g || m->step != STEP_HOST || m->way == DEVICE_DOWN || m->slot)
				continue;
			vram_transfer_fail(c, m);
		}
}

/* ---- copies ---- */

/* Whether a list that has begun reads the block. */
static bool is_read(const struct cache *c, const struct block *b)
{
	const struct vram_transfer *m = *vram_transfers_of(c, b);

	while (m && (m->block != b || m->way == DEVICE_UP || m->step != STEP_QUEUED))
		m = m->hash_next;
	return m;
}

static bool is_left(const struct cache *c, const struct vram_slot *s)
{
	return !vram_clean(s) && is_read(c, s->block);
}

void vram_sweep(struct cache *c, struct gpu *g)
{
	uint32_t budget = SWEEP_SLOTS;

	for (; g->sweep_pool < c->pool_count; g->sweep_pool++, g->sweep_extent = g->sweep_slot = 0) {
		struct vram_pool *vp = g->pools[g->sweep_pool];
		struct vram_slot *s;

		while (vp && (s = vram_next(vp, &g->sweep_extent, &g->sweep_slot, &budget)))
			if (!is_left(c, s))
				vram_evict(c, s, COUNTER_EVICTED_GPU_LOST);
		if (!budget)
			return;
	}
	g->swept = true;
}

static struct vram_slot *lost_copy(const struct block *b)
{
	struct vram_slot *s = b->vram;

	while (s && (s->state != VRAM_READY || !s->pool->gpu->lost))
		s = s->next;
	return s;
}

void vram_read_ended(struct cache *c, struct vram_transfer *m, enum status s)
{
	struct block *b = m->way != DEVICE_UP && block_live(m->block) && lost_copy(m->block) ? m->block : NULL;
	struct vram_slot *lost;

	if (b)
		block_pin(b);
	vram_transfer_end(c, m, s);
	while (b && block_live(b) && (lost = lost_copy(b)) && !is_left(c, lost))
		vram_evict(c, lost, COUNTER_EVICTED_GPU_LOST);
	if (b)
		block_unpin(b);
}
