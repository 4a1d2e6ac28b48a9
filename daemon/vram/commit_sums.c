/* See commit_sums.h. A slot whose sum is due stands in one of three places: `staged` until the lock is left, `first`
 * until the submission thread takes it, a list until the completion thread is done with that. Lists are short, so that
 * none keeps the GPU from its engine for long.
 */
#include "daemon/vram/commit_sums.h"

#include "daemon/block/ends.h"
#include "daemon/block/lock.h"
#include "daemon/vram/gpu_ends.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	LISTS_MAX = 2,                 /* under way: the next is begun while the first runs */
	BLOCKS_MAX = 1024,             /* in a list, */
	LIST_BYTES = 256 << 20,        /* and bytes: some tenths of a millisecond of a GPU */
};

struct commit_sums {
	/* With the cache's lock: */
	struct vram_slot *staged, **staged_end;
	struct vram_transfer *waiting, **waiting_end; /* down */
	bool lost;                     /* a list has ended with the GPU */
	/* With the lock of the queues: */
	struct vram_slot *first, **end;
	_Atomic uint32_t lists;        /* that have begun, and are not done with */
};

struct commit_sums *vram_sums_create(void)
{
	struct commit_sums *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->staged_end = &q->staged;
	q->waiting_end = &q->waiting;
	q->end = &q->first;
	return q;
}

/* ---- what is due ---- */

void vram_sum_stage(struct vram_slot *s)
{
	struct commit_sums *q = s->pool->gpu->commit_sums;

	s->sum_due = true;
	s->sum_next = NULL;
	s->pool->class->sums_due++;
	*q->staged_end = s;
	q->staged_end = &s->sum_next;
}

bool vram_sums_staged(const struct gpu *g)
{
	return g->commit_sums->staged;
}

void vram_sums_publish(struct gpu *g)
{
	struct commit_sums *q = g->commit_sums;

	if (!q->staged)
		return;
	*q->end = q->staged;
	q->end = q->staged_end;
	q->staged = NULL;
	q->staged_end = &q->staged;
}

struct vram_slot *vram_sums_unsent(struct gpu *g)
{
	struct commit_sums *q = g->commit_sums;
	struct vram_slot *first;

	pthread_mutex_lock(&g->queue_lock);
	vram_sums_publish(g);
	first = q->first;
	q->first = NULL;
	q->end = &q->first;
	pthread_mutex_unlock(&g->queue_lock);
	return first;
}

/* ---- moves down that wait ---- */

void vram_sum_wait(struct vram_transfer *m, struct gpu *g)
{
	struct commit_sums *q = g->commit_sums;

	m->step = STEP_ROOM;
	m->next = NULL;
	*q->waiting_end = m;
	q->waiting_end = &m->next;
}

struct vram_transfer *vram_summed_take(struct gpu *g)
{
	struct commit_sums *q = g->commit_sums;
	struct vram_transfer *first = q->waiting;

	q->waiting = NULL;
	q->waiting_end = &q->waiting;
	return first;
}

/* ---- lists ---- */

static void list_done(struct piece_sums *sums, enum status s)
{
	struct sum_list *l = (struct sum_list *)sums;
	struct gpu *g = l->gpu;

	l->status = s;
	pthread_mutex_lock(&g->queue_lock);
	gpu_ends_push(g, &l->end);
	pthread_mutex_unlock(&g->queue_lock);
}

static bool is_alike(const struct vram_slot *a, const struct vram_slot *b)
{
	const struct layout_pool *p = a->pool->pool, *q = b->pool->pool;

	return p == q || kv_same_shape(&p->geometry, &q->geometry);
}

/* How many of the first slots in the queue go into one list. */
static uint32_t list_count(const struct vram_slot *first)
{
	const struct layout_pool *p = first->pool->pool;
	const uint64_t fit = LIST_BYTES / p->geometry.block_bytes;
	uint32_t most = DEVICE_SUMS_MAX / piece_sums_each(&p->geometry), count = 0;

	most = most < BLOCKS_MAX ? most : BLOCKS_MAX;
	most = fit < most ? (uint32_t)fit : most;
	for (const struct vram_slot *s = first; s && (count < most || !count) && is_alike(s, first); s = s->sum_next)
		count++;
	return count;
}

static struct sum_list *list_make(struct gpu *g, const struct vram_slot *first, uint32_t count)
{
	const struct layout_pool *p = first->pool->pool;
	const uint32_t each = piece_sums_each(&p->geometry);
	struct sum_list *l = malloc(sizeof(*l) + count * (sizeof(l->at[0]) + sizeof(l->slot[0]) + sizeof(l->block[0]) +
							  each * sizeof(uint32_t)));

	if (!l)
		return NULL;
	*l = (struct sum_list){ .gpu = g, .count = count };
	l->end = (struct end){ .run = g->ends->sums, .tiers = 1u << TIER_GPU };
	l->slot = (struct vram_slot **)&l->at[count];
	l->block = (struct block **)&l->slot[count];
	l->sums = (struct piece_sums){ .ops = g->cache->vram->ops, .device = g->device, .done = list_done };
	piece_sums_prepare(&l->sums, &p->geometry, l->at, count, (uint32_t *)&l->block[count]);
	return l;
}

/* Places are looked at with the lock of the queues, without which a loss may take them away. */
struct sum_list *vram_sums_take(struct gpu *g)
{
	struct commit_sums *q = g->commit_sums;
	struct vram_slot *s = q->first;
	struct sum_list *l;
	uint32_t count;

	if (!s || g->halted || atomic_load_explicit(&q->lists, memory_order_relaxed) >= LISTS_MAX)
		return NULL;
	count = list_count(s);
	l = list_make(g, s, count);
	if (!l)
		return NULL;
	for (uint32_t i = 0; i < count; i++, s = s->sum_next) {
		l->slot[i] = s;
		l->block[i] = s->block;
		l->at[i] = vram_address(s);
	}
	q->first = s;
	if (!s)
		q->end = &q->first;
	atomic_fetch_add_explicit(&q->lists, 1, memory_order_relaxed);
	return l;
}

void vram_sums_send(struct sum_list *l)
{
	const char *why = "";
	const enum status s = piece_sums_begin(&l->sums, &why);

	if (!s)
		return; /* it may be gone */
	snprintf(l->why, sizeof(l->why), "%s", *why ? why : status_text(s));
	list_done(&l->sums, s);
}

bool vram_sums_under_way(const struct gpu *g)
{
	return atomic_load_explicit(&g->commit_sums->lists, memory_order_acquire);
}

void vram_sums_end_begun(const struct sum_list *l)
{
	l->gpu->commit_sums->lost |= l->status == STATUS_UNAVAILABLE;
}

bool vram_sums_lost(const struct gpu *g)
{
	return g->lost || g->commit_sums->lost;
}

void vram_sums_ended(struct sum_list *l)
{
	struct gpu *g = l->gpu;

	free(l);
	pthread_mutex_lock(&g->queue_lock);
	atomic_fetch_sub_explicit(&g->commit_sums->lists, 1, memory_order_release);
	atomic_fetch_add_explicit(&g->rung, 1, memory_order_relaxed); /* the submission thread may begin another */
	pthread_cond_signal(&g->submission_work);
	pthread_mutex_unlock(&g->queue_lock);
}
