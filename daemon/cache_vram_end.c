/* The end of the VRAM tier: first its threads, each by a deadline, then its memory.
 *
 * A driver that does not return has a thread of the tier's in it, which nobody can end. Such a GPU is left behind, and with it the whole
 * cache, to the end of the process: when the driver returns after all, the thread finds everything as it was, and ends.
 */
#include "daemon/cache_vram.h"

#include <stdlib.h>
#include <time.h>

enum { STOP_MS = 10 * 1000, CLOSE_MS = 12 * 1000, THREAD_MS = 5 * 1000 };

/* Reachable for those who look for lost memory. */
static struct cache *left_behind;

static struct timespec time_in(clockid_t clock, uint64_t ms)
{
	struct timespec t;

	clock_gettime(clock, &t);
	t.tv_sec += (time_t)(ms / 1000);
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}

/* A gpu_close_ms that is set is each wait's. */
static uint64_t wait_ms(const struct cache *c, uint64_t usual)
{
	return c->options.gpu_close_ms ? c->options.gpu_close_ms : usual;
}

/* True: it runs no more. */
static bool thread_ends(const struct cache *c, pthread_t thread, uint64_t usual_ms)
{
	const struct timespec until = time_in(CLOCK_REALTIME, wait_ms(c, usual_ms));

	if (!pthread_timedjoin_np(thread, NULL, &until))
		return true;
	pthread_detach(thread);
	return false;
}

static void nothing_dropped(struct device *d, const struct device_extent *e)
{
	(void)d;
	(void)e;
}

static void nothing_freed(struct device *d, uint64_t address, uint64_t bytes)
{
	(void)d;
	(void)address;
	(void)bytes;
}

static void *device_close(void *gpu)
{
	struct gpu *g = gpu;
	struct cache *c = g->cache;

	c->vram->ops->close(g->device);
	cache_lock(c);
	g->device = NULL;
	g->arena_ops.extent_drop = nothing_dropped;
	g->arena_ops.range_free = nothing_freed;
	cache_unlock(c);
	return NULL;
}

static bool any_in_driver(const struct vram *v)
{
	bool any = false;

	for (uint32_t i = 0; i < v->count; i++)
		any = any || v->gpu[i]->in_driver;
	return any;
}

/* A device that does not end what it began is closed, which ends it: but not while anybody asks it something. */
static bool flights_end(struct cache *c, struct gpu *g)
{
	struct timespec until = time_in(CLOCK_MONOTONIC, wait_ms(c, STOP_MS));
	pthread_t closer;
	bool hangs, busy;

	cache_lock(c);
	while (gpu_has_flights(g) && !pthread_cond_timedwait(&c->vram->room, &c->lock, &until))
		continue;
	hangs = gpu_has_flights(g);
	until = time_in(CLOCK_MONOTONIC, wait_ms(c, THREAD_MS));
	while (hangs && any_in_driver(c->vram) && !pthread_cond_timedwait(&c->vram->room, &c->lock, &until))
		continue;
	busy = any_in_driver(c->vram);
	cache_unlock(c);
	if (!hangs)
		return true;
	return !busy && !pthread_create(&closer, NULL, device_close, g) && thread_ends(c, closer, CLOSE_MS);
}

static bool keeper_ends(struct cache *c, struct gpu *g)
{
	if (!flights_end(c, g)) {
		pthread_detach(g->keeper);
		return false;
	}
	cache_lock(c);
	pthread_cond_signal(&g->keeper_work);
	cache_unlock(c);
	return thread_ends(c, g->keeper, THREAD_MS);
}

bool vram_stop(struct cache *c)
{
	struct vram *v = c->vram;
	bool ended = true;

	cache_lock(c);
	v->stopping = true;
	for (uint32_t i = 0; i < v->count; i++) {
		vram_moves_fail(c, v->gpu[i]);
		pthread_cond_signal(&v->gpu[i]->mover_work);
	}
	pthread_cond_broadcast(&v->room);
	cache_unlock(c);
	for (uint32_t i = 0; i < v->count; i++) /* one may be trying to begin a list for as long as STOP_MS */
		if (v->gpu[i]->mover_started)
			ended = thread_ends(c, v->gpu[i]->mover, STOP_MS + THREAD_MS) && ended;
	for (uint32_t i = 0; i < v->count; i++)
		if (v->gpu[i]->keeper_started)
			ended = keeper_ends(c, v->gpu[i]) && ended;
	if (!ended) {
		v->left_next = left_behind;
		left_behind = c;
	}
	return ended;
}

/* ---- memory ---- */

static void pools_destroy(struct cache *c, struct gpu *g)
{
	for (uint32_t i = 0; i < POOLS_MAX; i++) {
		struct vram_pool *vp = g->pools[i];

		if (!vp)
			continue;
		while (vp->shelves)
			vram_shelf_free(vp->shelves);
		c->policy->destroy(vp->policy);
		free(vp);
	}
}

static void gpu_destroy(struct cache *c, struct gpu *g)
{
	const struct device_ops *ops = c->vram->ops;

	pools_destroy(c, g);
	host_destroy(g->arena);
	/* What a device that was closed before had is freed with it. */
	if (g->device && g->scratch_to.handle)
		ops->extent_drop(g->device, &g->scratch_to);
	if (g->device && g->scratch_range)
		ops->range_free(g->device, g->scratch_range, g->info.granularity);
	if (g->device && g->scratch_from)
		ops->host_unregister(g->device, g->scratch.base);
	if (g->device)
		ops->close(g->device);
	extent_close(&g->scratch);
	pthread_cond_destroy(&g->mover_work);
	pthread_cond_destroy(&g->keeper_work);
	free(g);
}

static void shelves_unregister(struct cache *c)
{
	for (uint32_t i = 0; i < c->pool_count; i++)
		for (struct shelf *s = c->pools[i]->shelves; s; s = s->next) {
			if (s->device)
				vram_unregister(c, s->base, s->device);
			free(s->device);
			s->device = NULL;
		}
}

void vram_destroy(struct cache *c)
{
	struct vram *v = c->vram;

	for (struct board *b; (b = v->dead_boards);) {
		v->dead_boards = b->dead_next;
		board_destroy(c, b);
	}
	shelves_unregister(c);
	for (uint32_t i = 0; i < v->count; i++)
		gpu_destroy(c, v->gpu[i]);
	vram_spares_free(v);
	vram_ahead_destroy(v);
	pthread_cond_destroy(&v->room);
	free(v);
	c->vram = NULL;
}
