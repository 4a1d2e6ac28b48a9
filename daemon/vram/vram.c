/* The VRAM tier as a whole: GPUs are opened before anything else runs, and closed after everything else has stopped
 * (vram/stop.c).
 *
 * Each GPU has two threads. The *submission thread* (vram/copy_queue.c) gives copy batches to the device. The
 * *completion thread*, here, does the rest, and all that takes long: it runs the GPU's queue of ends
 * (vram/batch_end.h), makes extents, asks the device whether it is lost, and sweeps up after a loss.
 */
#include "daemon/vram/vram.h"

#include "daemon/block/block.h"
#include "daemon/block/ends.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/options.h"
#include "daemon/block/quota.h"
#include "daemon/block/tier.h"
#include "daemon/threads/deadline.h"
#include "daemon/vram/batch_end.h"
#include "daemon/vram/commit_sums.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/gpu_ends.h"
#include "daemon/vram/lost.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/scratch.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/source.h"
#include "daemon/vram/state.h"
#include "daemon/vram/trade.h"
#include "daemon/vram/transfer.h"
#include "store/arena/arena.h"
#include "store/device.h"
#include "store/host/extent.h"
#include "store/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ASK_EVERY_US = 50 * 1000 };

/* ---- birth ---- */

static void gpu_refuse(struct gpu *g, const char *why)
{
	g->lost = g->swept = true;
	snprintf(g->why, sizeof(g->why), "%s", why && *why ? why : "it cannot be opened");
}

/* Makes the memory that fences without a list of their own write to, and zeroes to copy from. */
static enum status scratch_make(struct gpu *g, const struct device_ops *ops, const char **why)
{
	const uint64_t bytes = g->info.granularity;
	enum status s = extent_open(&g->scratch->page, 0, ZERO_BYTES, false);
	int fd = -1;

	*why = "no memory";
	if (!s)
		s = ops->host_register(g->device, g->scratch->page.base, g->scratch->page.bytes, true,
				       &g->scratch->from, why);
	if (s) {
		extent_close(&g->scratch->page);
		return s;
	}
	s = ops->range_reserve(g->device, bytes, &g->scratch->range, why);
	if (!s)
		s = ops->extent_make(g->device, g->scratch->range, bytes, &g->scratch->to, &fd, why);
	if (!s)
		close(fd);
	if (!s)
		gpu_zero_init(&g->scratch->zero, ops, g->device, g->scratch->page.base, g->scratch->from);
	return s;
}

/* Tells the arena what each tenant may take, and fills the accounting. */
static enum status tenants_bound(struct gpu *g)
{
	const struct cache *c = g->cache;
	enum status s = STATUS_OK;

	for (uint32_t i = 0; i < c->tenant_count && !s; i++) {
		const struct tenant *t = &c->tenants[i];
		struct gpu_accounting *a = gpu_accounting_of(g, t);

		a->bytes_max = t->gpu_most < g->budget ? t->gpu_most : g->budget;
		if (c->options.tenant_count)
			s = arena_tenant_bounds(g->arena, t->number, t->gpu_own, a->bytes_max ? a->bytes_max : 1);
	}
	return s;
}

static bool holds_tenants(const struct gpu *g)
{
	const struct cache *c = g->cache;
	uint64_t own = 0;

	for (uint32_t i = 0; i < c->tenant_count; i++)
		own += c->tenants[i].gpu_own;
	return own <= g->budget;
}

static enum status arena_make(struct gpu *g, const struct cache_options *o, const char **why)
{
	const struct arena_options arena = {
		.budget_bytes = g->budget, .extent_bytes = o->extent_bytes, .ops = o->device_ops, .device = g->device,
		.first_extent_id = (g->number + 1) << VRAM_EXTENT_BITS, .tenants = o->tenant_count,
	};
	enum status s;

	*why = "it has less memory than the tenants' gpu_bytes together: lower those in the table, or raise gpu_bytes";
	if (!holds_tenants(g))
		return STATUS_EXHAUSTED;
	*why = "its memory cannot be managed: gpu_bytes is too small, or there is no memory";
	s = arena_create(&arena, &g->arena);
	return s ? s : tenants_bound(g);
}

static void gpu_open(struct gpu *g, const struct cache_options *o)
{
	const struct device_ops *ops = o->device_ops;
	const char *why = NULL;
	enum status s = ops->open(o->gpus[g->number], &g->device, &why);

	if (s) {
		g->device = NULL;
		gpu_refuse(g, why);
		return;
	}
	s = ops->info(g->device, &g->info, &why);
	if (!ops->sums)
		snprintf(g->unsummed_why, sizeof(g->unsummed_why), "the GPU plugin has no code for sums");
	g->budget = o->gpu_bytes ? o->gpu_bytes : g->info.free_bytes / 2;
	quota_bound(g->cache->quota, QUOTA_GPU_PINNED + g->number, g->budget / 1000 * o->gpu_pinned_milli);
	if (!s)
		s = arena_make(g, o, &why);
	if (!s)
		s = scratch_make(g, ops, &why);
	if (s)
		gpu_refuse(g, why);
}

static void gpu_discard(struct gpu *g)
{
	free(g->times);
	free(g->queue);
	free(g->commit_sums);
	free(g->ends);
	free(g->down_rate);
	free(g->scratch);
	free(g->accounting);
	free(g);
}

static struct gpu *gpu_create(struct cache *c, uint32_t number)
{
	struct gpu *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->scratch = calloc(1, sizeof(*g->scratch));
	g->accounting = calloc(c->tenant_count, sizeof(*g->accounting));
	g->queue = calloc(3, sizeof(*g->queue));
	g->times = calloc(LIST_KINDS, sizeof(*g->times));
	g->commit_sums = vram_sums_create();
	g->ends = gpu_ends_create();
	g->down_rate = gpu_rate_create();
	if (!g->scratch || !g->accounting || !g->queue || !g->times || !g->commit_sums || !g->ends || !g->down_rate) {
		gpu_discard(g);
		return NULL;
	}
	g->ends->batch = copy_batch_end_run;
	g->ends->sums = sum_list_end_run;
	g->cache = c;
	g->number = number;
	g->passed = UINT32_MAX; /* no call has been waited for */
	for (int way = 0; way < 3; way++) {
		g->queue[way].end = g->queue[way].tail = &g->queue[way].first;
		g->queue[way].staged_end = &g->queue[way].staged;
	}
	g->waiting_end = &g->waiting;
	pthread_cond_init(&g->submission_work, NULL);
	pthread_mutex_init(&g->queue_lock, NULL);
	pthread_mutex_init(&g->summing_lock, NULL);
	g->summing_end = &g->summing;
	deadline_cond_init(&g->completion_work);
	gpu_open(g, &c->options);
	return g;
}

static void reach_look(const struct vram *v, struct gpu *g, const struct gpu *other)
{
	if (g != other && g->device && other->device && v->ops->reaches(g->device, other->device))
		g->reaches |= 1u << other->number;
}

enum status vram_create(struct cache *c, const char **why)
{
	const struct cache_options *o = &c->options;
	struct vram *v;

	*why = "gpu_count must be at most 16";
	if (o->gpu_count > DEVICES_MAX)
		return STATUS_INVALID;
	*why = "the GPU plugin is of another version";
	if (o->device_ops->version != DEVICE_OPS_VERSION || o->device_ops->bytes != sizeof(*o->device_ops))
		return STATUS_INVALID;
	*why = "no memory for the VRAM tier";
	v = c->vram = calloc(1, sizeof(*v));
	if (!v)
		return STATUS_EXHAUSTED;
	c->publish = vram_publish;
	c->on_call = vram_called;
	c->spare_links_max = VRAM_SPARES_MAX;
	v->ops = o->device_ops;
	v->waiting_host_end = &v->waiting_host;
	deadline_cond_init(&v->room);
	for (; v->count < o->gpu_count; v->count++) {
		v->gpu[v->count] = gpu_create(c, v->count);
		if (!v->gpu[v->count])
			return STATUS_EXHAUSTED;
	}
	for (uint32_t i = 0; i < v->count * v->count; i++)
		reach_look(v, v->gpu[i / v->count], v->gpu[i % v->count]);
	return STATUS_OK;
}

/* ---- the completion thread ---- */

/* Leaves the lock before the completion thread makes a call that a driver may take long over. */
static void driver_enter(struct cache *c)
{
	cache_unlock(c);
}

static void driver_leave(struct cache *c)
{
	vram_came_back(c);
	cache_lock(c);
}

static struct vram_class *class_wanting(const struct gpu *g)
{
	struct vram_class *k = g->lost ? NULL : g->classes;

	while (k && !k->wanted)
		k = k->next;
	return k;
}

/* Does one piece of the completion thread's work besides ends, by which it may leave the lock. False: there is nothing
 * to do. With the lock. */
static bool keep_once(struct cache *c, struct gpu *g)
{
	struct vram_transfer *host = c->vram->waiting_host;
	struct vram_class *k = class_wanting(g);

	if (k) {
		g->making = true;
		driver_enter(c);
		vram_room_grow(c, k);
		driver_leave(c);
		g->making = false;
		vram_feed(c, g);
	} else if (g->preallocate && !g->lost) {
		g->making = true;
		driver_enter(c);
		vram_preallocate(c, g);
		driver_leave(c);
		g->making = false;
	} else if (host) {
		struct memory_class *memory = host->block->pool->class;

		driver_enter(c);
		c->tiers[TIER_MEMORY]->grow(c, memory, false); /* which registers it with all GPUs */
		driver_leave(c);
		vram_feed_host(c);
	} else if (g->freed && g->waiting) {
		vram_feed(c, g);
	} else if (g->lost && !g->swept) {
		vram_sweep(c, g);
		cache_unlock(c);
		cache_lock(c);
	} else {
		return false;
	}
	return true;
}

/* Asks the device whether it is lost. False: it was asked a moment ago. With the lock. */
static bool loss_look(struct cache *c, struct gpu *g)
{
	const uint64_t now = vram_clock_us();

	if (g->lost || now - g->asked_us < ASK_EVERY_US)
		return false;
	g->asked_us = now;
	if (gpu_asks(c, g))
		gpu_lost(g, NULL);
	return true;
}

/* Waits until there is something to do, or the device is to be asked. With the lock, which it leaves. */
static void completion_wait(struct cache *c, struct gpu *g)
{
	const uint64_t until = vram_clock_us() + ASK_EVERY_US;
	const struct timespec t = { .tv_sec = (time_t)(until / 1000000), .tv_nsec = (long)(until % 1000000 * 1000) };
	const bool lost = g->lost;
	int waited = 0;

	cache_unlock(c);
	pthread_mutex_lock(&g->queue_lock);
	while (!g->completion_due && !waited)
		waited = lost ? pthread_cond_wait(&g->completion_work, &g->queue_lock)
			      : pthread_cond_timedwait(&g->completion_work, &g->queue_lock, &t);
	g->completion_due = false;
	pthread_mutex_unlock(&g->queue_lock);
	cache_lock(c);
}

/* Does all that there is to do. True: the tier stops, and nothing is under way. With the lock, which it leaves. */
static bool is_over(struct cache *c, struct gpu *g)
{
	while (gpu_ends_run(c, g) || (!c->vram->stopping && (loss_look(c, g) || keep_once(c, g))))
		continue;
	return c->vram->stopping && !gpu_has_copy_batches(g) && !vram_sums_under_way(g);
}

static void *gpu_completion(void *arg)
{
	struct gpu *g = arg;
	struct cache *c = g->cache;

	cache_thread_enter();
	cache_lock(c);
	while (!is_over(c, g))
		completion_wait(c, g);
	vram_thread_ended(c);
	cache_unlock(c);
	cache_thread_leave();
	return NULL;
}

static bool thread_start(struct cache *c, pthread_t *thread, void *(*main)(void *gpu), struct gpu *g)
{
	bool started;

	cache_lock(c);
	started = !pthread_create(thread, NULL, main, g);
	c->vram->threads += started;
	cache_unlock(c);
	return started;
}

enum status vram_start(struct cache *c, const char **why)
{
	*why = "cannot start the threads of a GPU";
	for (uint32_t i = 0; i < c->vram->count; i++) {
		struct gpu *g = c->vram->gpu[i];

		if (!g->arena)
			continue;
		g->submission_started = thread_start(c, &g->submission, gpu_submission, g);
		g->completion_started = g->submission_started && thread_start(c, &g->completion, gpu_completion, g);
		if (!g->completion_started)
			return STATUS_INTERNAL;
	}
	return STATUS_OK;
}

/* ---- the tick, chores ---- */

void vram_tick(struct cache *c)
{
	for (uint32_t i = 0; i < c->vram->count; i++) {
		struct gpu *g = c->vram->gpu[i];

		if (g->lost)
			continue;
		vram_trades_step(c, g);
		if (g->waiting)
			vram_feed(c, g);
		/* For lack of memory they may have left something undone. */
		vram_submission_wake(g);
		vram_completion_wake(g);
	}
	vram_pump(c);
}

static struct progress_page *progress_page_unused(const struct vram *v)
{
	struct progress_page *b = v->dead_progress_pages;

	while (b && b->fences)
		b = b->dead_next;
	return b;
}

bool vram_wants(struct cache *c)
{
	return progress_page_unused(c->vram);
}

void vram_chores(struct cache *c)
{
	struct vram *v = c->vram;
	struct progress_page *b;

	cache_lock(c);
	while ((b = progress_page_unused(v))) {
		struct progress_page **at = &v->dead_progress_pages;

		while (*at != b)
			at = &(*at)->dead_next;
		*at = b->dead_next;
		cache_unlock(c);
		progress_page_destroy(c, b);
		cache_lock(c);
	}
	cache_unlock(c);
}

/* ---- the table ---- */

static void leave(struct cache *c, struct block *b, enum cache_reason reason)
{
	(void)reason;
	vram_removed(c, b);
}

static void copies_changed(struct cache *c, struct block *b, enum tier_kind which, bool came)
{
	(void)c;
	(void)which;
	(void)came;
	if (b->vram)
		vram_sync(b);
}

/* Without memory for its addresses no GPU knows the extent. */
static void extent_made(struct cache *c, struct memory_extent *m, const struct extent *e)
{
	m->device = malloc(DEVICES_MAX * sizeof(*m->device));
	if (m->device)
		vram_register(c, e, m->device);
}

static void extent_gone(struct cache *c, const struct memory_extent *m)
{
	if (m->device)
		vram_unregister(c, m->base, m->device);
}

static void lost(struct cache *c, uint32_t place, const char *why)
{
	gpu_lost(c->vram->gpu[place], why);
}

const struct tier_ops gpu_tier = {
	.name = "gpu",
	.use = vram_used,
	.unusable = vram_unusable,
	.enter = vram_published,
	.leave = leave,
	.release = vram_give,
	.copies_changed = copies_changed,
	.fetch = vram_fetch,
	.in_flight = vram_downloading,
	.pump = gpu_ends_pump,
	.room_changed = vram_rooms_tell,
	.extent_made = extent_made,
	.extent_gone = extent_gone,
	.lost = lost,
	.wait_placed = vram_fence_place,
	.wait_dropped = vram_fence_drop,
};
