/* The ends of copy batches and of lists of sums. See batch_end.h. */
#include "daemon/vram/batch_end.h"

#include "daemon/block/block.h"
#include "daemon/block/ends.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/vram/checksum.h"
#include "daemon/vram/commit_sums.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/gpu_ends.h"
#include "daemon/vram/lost.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/source.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "daemon/vram/transfer_table.h"
#include "store/device.h"
#include "store/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

enum { ENDS_HINT_DISTANCE = 4 };

/* ---- a copy batch ---- */

/* A transfer lies mostly in another processor's cache. The next few are prefetched while one is ended. */
static void prefetch(const struct cache *c, const struct copy_batch *f)
{
	const uint32_t transfers = f->mixed ? 0 : f->copy.count, at = f->ended;
	const struct vram_transfer *m;

	if (at + 2 * ENDS_HINT_DISTANCE < transfers) {
		m = f->each[at + 2 * ENDS_HINT_DISTANCE];
		__builtin_prefetch(m, 1);
		__builtin_prefetch(&m->step, 1);
		__builtin_prefetch(&m->done);
	}
	if (at + ENDS_HINT_DISTANCE >= transfers)
		return;
	m = f->each[at + ENDS_HINT_DISTANCE];
	block_hint(m->block);
	__builtin_prefetch(m->slot, 1);
	__builtin_prefetch(&m->slot->block, 1);
	__builtin_prefetch(m->done, 1);
	observe_soon(c, m->block->node.id, f->copy.way != DEVICE_DOWN);
}

/* With a GPU that is lost the device may not know what has come: the sums do. */
static enum status came(const struct copy_batch *f, const struct vram_transfer *m)
{
	return f->copy.way == DEVICE_DOWN && f->status == STATUS_UNAVAILABLE && !m->bad ? STATUS_OK : f->status;
}

/* All its transfers have ended. Only now does the batch stop to count: a caller that finds no memory waits for batches,
 * and what the last transfer held has just come free. */
static void copy_batch_over(struct cache *c, struct copy_batch *f)
{
	struct gpu *g = f->gpu;

	if (f->fence)
		vram_transfer_end(c, f->fence, f->status);
	atomic_fetch_sub_explicit(&g->queue[f->copy.way].copy_batches, 1, memory_order_relaxed);
	free(f);
	pthread_cond_broadcast(&c->vram->room); /* vram_stop waits for the last batch */
	g->ends->feed_due = g->ends->keep_due = true;
}

void copy_batch_end_run(struct cache *c, struct end *e)
{
	struct copy_batch *f = (struct copy_batch *)((char *)e - offsetof(struct copy_batch, end));
	struct vram_transfer *m = f->transfers;

	if (!f->ended) {
		observe_uses_due(c);
		vram_copy_batch_timed(f);
	}
	if (!m) {
		copy_batch_over(c, f);
		return;
	}
	f->transfers = m->next;
	prefetch(c, f);
	f->ended++;
	vram_read_ended(c, m, came(f, m));
	ends_again(c, e);
}

/* ---- a list of sums ---- */

void sum_list_end_run(struct cache *c, struct end *e)
{
	struct sum_list *l = (struct sum_list *)((char *)e - offsetof(struct sum_list, end));
	struct gpu *g = l->gpu;

	if (!l->ended)
		vram_sums_end_begun(l);
	if (l->ended < l->count) {
		vram_sum_end(c, l, l->ended++);
		ends_again(c, e);
		return;
	}
	vram_sums_ended(l);
	vram_summed_end(c, g);
	g->ends->feed_due = g->ends->keep_due = true;
}

/* ---- the completion thread ---- */

/* With the lock, which it leaves. */
static void make_ready(struct cache *c, struct copy_batch *f)
{
	struct gpu *g = f->gpu;

	if (vram_copy_batch_is_unsealed(f)) {
		cache_unlock(c);
		vram_copy_batch_seal_here(c, f);
		cache_lock(c);
	}
	if (f->status == STATUS_UNAVAILABLE && gpu_asks(c, g))
		gpu_lost(g, "a list of copies was lost with it");
}

/* With the lock, which it leaves. False: no batch waits for the completion thread. */
static bool unready_run(struct cache *c, struct gpu *g)
{
	struct copy_batch *f;

	pthread_mutex_lock(&g->queue_lock);
	f = gpu_ends_take_unready(g);
	pthread_mutex_unlock(&g->queue_lock);
	if (!f)
		return false;
	make_ready(c, f);
	pthread_mutex_lock(&g->queue_lock);
	gpu_ends_push(g, &f->end);
	pthread_mutex_unlock(&g->queue_lock);
	return true;
}

bool gpu_ends_run(struct cache *c, struct gpu *g)
{
	if (!ends_hold(c, &g->ends->queue))
		return unready_run(c, g);
	if (g->ends->keep_due) {
		g->ends->keep_due = false;
		vram_room_keep(c, g);
	}
	return true;
}

void gpu_ends_pump(struct cache *c)
{
	vram_feed_host(c);
	for (uint32_t i = 0; i < c->vram->count; i++) {
		struct gpu *g = c->vram->gpu[i];

		if (g->ends->feed_due && g->waiting) /* what has come down, or was pinned for its sum, may go */
			vram_feed(c, g);
		g->ends->feed_due = false;
	}
	vram_pump(c);
	observe_copies_ended(c);
}
