/* The end of the VRAM tier: first its threads end, by a deadline; then, when disks and catalog are closed, its memory
 * is freed, each driver call by a deadline of its own.
 *
 * A thread inside a driver that does not return cannot be ended. Such a GPU is left behind, and with it the whole
 * cache, until the process ends. If the thread returns after all while the rest is being closed, it would use freed
 * things: so it stops where it is (vram_came_back).
 */
#include "daemon/vram/stop.h"

#include "daemon/block/ends.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/wait.h"
#include "daemon/threads/deadline.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/lost.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/scratch.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "store/host/extent.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { CLOSE_MS = 10 * 1000 };

/* A list that keeps the memory reachable for leak checkers. */
static struct cache *left_behind;

static bool is_left(struct cache *c)
{
	c->vram->left_next = left_behind;
	left_behind = c;
	return false;
}

static struct timespec close_deadline(const struct cache *c)
{
	return deadline_in((c->options.gpu_close_ms ? c->options.gpu_close_ms : CLOSE_MS) * 1000ull);
}

/* ---- threads ---- */

/* Stops the GPUs' threads: copies under way end, and those that have not begun fail. With the lock. */
static void halt(struct cache *c)
{
	struct vram *v = c->vram;

	v->stopping = true;
	for (uint32_t i = 0; i < v->count; i++) {
		vram_submission_halt(v->gpu[i], true);
		vram_transfers_fail(c, v->gpu[i]);
		vram_completion_wake(v->gpu[i]);
	}
	pthread_cond_broadcast(&v->room);
}

static void threads_join(const struct vram *v)
{
	for (uint32_t i = 0; i < v->count; i++) {
		if (v->gpu[i]->submission_started)
			pthread_join(v->gpu[i]->submission, NULL);
		if (v->gpu[i]->completion_started)
			pthread_join(v->gpu[i]->completion, NULL);
	}
}

static void threads_detach(const struct vram *v)
{
	for (uint32_t i = 0; i < v->count; i++) {
		if (v->gpu[i]->submission_started)
			pthread_detach(v->gpu[i]->submission);
		if (v->gpu[i]->completion_started)
			pthread_detach(v->gpu[i]->completion);
	}
}

bool vram_stop(struct cache *c, bool wait)
{
	const struct timespec until = close_deadline(c);
	struct vram *v = c->vram;
	bool ended;

	cache_lock(c);
	halt(c);
	cache_unlock(c);
	ends_run(c);
	cache_lock(c);
	while (wait && v->threads && !pthread_cond_timedwait(&v->room, &c->lock, &until))
		continue;
	ended = wait && !v->threads;
	atomic_store_explicit(&v->left, !ended, memory_order_relaxed);
	cache_unlock(c);
	if (ended) {
		threads_join(v);
		return true;
	}
	threads_detach(v);
	return is_left(c);
}

/* ---- memory ---- */

/* Counts one thing more that a driver has let go. */
static void gave_back(struct cache *c)
{
	cache_lock(c);
	c->vram->given_back++;
	pthread_cond_broadcast(&c->vram->room);
	cache_unlock(c);
}

static void gpu_close(struct cache *c, struct gpu *g)
{
	const struct device_ops *ops = c->vram->ops;

	vram_memory_free(c, g);
	gave_back(c);
	if (g->scratch->to.handle)
		ops->extent_drop(g->device, &g->scratch->to);
	if (g->scratch->range)
		ops->range_free(g->device, g->scratch->range, g->info.granularity);
	if (g->scratch->from)
		ops->host_unregister(g->device, g->scratch->page.base);
	gave_back(c);
	if (g->device)
		ops->close(g->device);
	gave_back(c);
}

static void extents_unregister(struct cache *c)
{
	for (struct memory_extent *e = c->memory_extents; e; e = e->next) {
		if (e->device)
			vram_unregister(c, e->base, e->device);
		free(e->device);
		e->device = NULL;
		gave_back(c);
	}
}

/* Does all that a driver may take long over, on a thread that can be left in it. */
static void *closer_main(void *cache)
{
	struct cache *c = cache;
	struct vram *v = c->vram;

	for (struct progress_page *b; (b = v->dead_progress_pages);) {
		v->dead_progress_pages = b->dead_next;
		progress_page_destroy(c, b);
		gave_back(c);
	}
	extents_unregister(c);
	for (uint32_t i = 0; i < v->count; i++)
		gpu_close(c, v->gpu[i]);
	cache_lock(c);
	v->closed = true;
	pthread_cond_broadcast(&v->room);
	cache_unlock(c);
	return NULL;
}

/* Waits for the thread that closes the GPUs. False: for gpu_close_ms nothing was given back. */
static bool closer_ends(struct cache *c)
{
	struct vram *v = c->vram;
	struct timespec until = close_deadline(c);
	uint32_t given_back = 0;
	bool ended;

	cache_lock(c);
	while (!v->closed && !pthread_cond_timedwait(&v->room, &c->lock, &until)) {
		if (v->given_back == given_back)
			continue;
		given_back = v->given_back;
		until = close_deadline(c);
	}
	ended = v->closed;
	cache_unlock(c);
	return ended;
}

static void gpu_free(struct gpu *g)
{
	gpu_zero_fini(&g->scratch->zero);
	extent_close(&g->scratch->page);
	pthread_cond_destroy(&g->submission_work);
	pthread_mutex_destroy(&g->summing_lock);
	pthread_mutex_destroy(&g->queue_lock);
	pthread_cond_destroy(&g->completion_work);
	free(g->times);
	free(g->queue);
	free(g->commit_sums);
	free(g->ends);
	free(g->down_rate);
	free(g->accounting);
	free(g->scratch);
	free(g);
}

bool vram_destroy(struct cache *c)
{
	struct vram *v = c->vram;
	pthread_t closer;

	if (pthread_create(&closer, NULL, closer_main, c))
		return is_left(c);
	if (!closer_ends(c)) {
		pthread_detach(closer);
		return is_left(c);
	}
	pthread_join(closer, NULL);
	for (uint32_t i = 0; i < v->count; i++)
		gpu_free(v->gpu[i]);
	vram_spares_free(v);
	wait_spares_free(c);
	pthread_cond_destroy(&v->room);
	free(v);
	c->publish = c->on_call = NULL;
	c->vram = NULL;
	return true;
}
