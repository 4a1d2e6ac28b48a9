/* The mover: a thread of each GPU that makes lists of copies from what stands in its queues, and hands them to the device, without the cache's
 * lock, since a list of thousands of pieces takes its time to begin. It alone hands lists over, so that those of one way run in the
 * order of their queue. Ends are the keeper's (cache_vram.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/cache_vram.h"

enum {
	LIST_MAX = 2048,               /* blocks */
	DOWN_BYTES_MAX = 8 << 20,      /* of a list down: it is summed while the next is copied, */
	DOWN_BYTES_MIN = 2 << 20,      /* and the last ones are short, as nothing is copied beside the last's sums */
	FLIGHTS_MAX = 4,               /* lists under way, each way: the next is being prepared while the first runs */
	RETRY_NS = 1000 * 1000,
	RETRIES_MAX = 10 * 1000,       /* a driver without memory for so long is as good as lost */
	MARK_BYTES = DEVICE_COPY_ALIGN,
};

void vram_enqueue(struct gpu *g, struct vram_move *m)
{
	struct vram_queue *q = &g->queue[m->way];

	m->next = NULL;
	*q->end = m;
	q->end = &m->next;
	pthread_cond_signal(&g->mover_work);
}

static bool same_shape(const struct vram_move *a, const struct vram_move *b)
{
	const struct pool *p = a->block->pool, *q = b->block->pool;

	return p == q || (p->layout.layers == q->layout.layers && p->geometry.layer_bytes == q->geometry.layer_bytes);
}

static uint32_t list_max(const struct vram_move *first)
{
	const uint64_t bytes = first->block->pool->geometry.block_bytes, most = DOWN_BYTES_MAX / bytes, least = DOWN_BYTES_MIN / bytes;
	uint64_t queued = 0;

	if (first->way != DEVICE_DOWN)
		return LIST_MAX;
	for (const struct vram_move *m = first; m && queued < 2 * most && queued < 2 * LIST_MAX; m = m->next)
		queued++;
	queued /= 2;
	queued = queued > most ? most : queued < least ? least : queued;
	return queued > LIST_MAX ? LIST_MAX : queued ? (uint32_t)queued : 1;
}

static uint64_t host_address(const struct shelf *s, uint32_t index, const struct gpu *g)
{
	return s->device[g->number] + index * s->pool->geometry.slot_bytes + SLOT_HEADER_BYTES;
}

static struct device_pair pair_of(const struct vram_move *m)
{
	const struct gpu *g = m->gpu;

	switch (m->way) {
	case DEVICE_UP:
		return (struct device_pair){ host_address(m->block->shelf, m->block->index, g), vram_address(m->slot) };
	case DEVICE_DOWN:
		return (struct device_pair){ vram_address(m->slot), host_address(m->shelf, m->host.index, g) };
	default:
		return (struct device_pair){ vram_address(m->from), vram_address(m->slot) };
	}
}

/* The rest is the keeper's. */
static void flight_ended(void *flight)
{
	struct flight *f = flight;
	struct gpu *g = f->gpu;

	cache_lock(g->cache);
	f->next = NULL;
	*g->ended_end = f;
	g->ended_end = &f->next;
	pthread_cond_signal(&g->keeper_work);
	cache_unlock(g->cache);
}

static void flight_done(struct device_copy *copy, enum status s)
{
	struct flight *f = (struct flight *)copy;

	f->status = s;
	if (s || !vram_flight_seal(f, flight_ended))
		flight_ended(f);
}

/* How far the list is, if the mark behind it asks: else the mark gets a list of its own, that copies next to nothing. */
static void flight_mark(struct flight *f, struct vram_move *mark)
{
	struct gpu *g = f->gpu;

	f->mark = mark;
	f->copy.progress = mark->board->address[g->number] + sizeof(uint32_t) * g->number;
	f->copy.progress_base = mark->base + mark->layers - f->copy.parts;
}

static struct flight *flight_of(struct gpu *g, enum device_way way, struct vram_move *first, uint32_t count)
{
	struct flight *f = calloc(1, sizeof(*f) + (count ? count : 1) * sizeof(f->pairs[0]));

	if (!f)
		return NULL;
	f->gpu = g;
	f->copy = (struct device_copy){ .pairs = f->pairs, .count = count ? count : 1, .parts = 1, .part_bytes = MARK_BYTES, .way = way,
					.done = flight_done };
	f->pairs[0] = (struct device_pair){ g->scratch_from, g->scratch_to.address };
	f->described = way != DEVICE_UP;
	if (way == DEVICE_DOWN && count > 1)
		f->each = calloc(count, sizeof(f->each[0]));
	if (count) {
		f->copy.parts = first->block->pool->layout.layers;
		f->copy.part_bytes = first->block->pool->geometry.layer_bytes;
	}
	return f;
}

/* From the queue: blocks of one shape, with the mark behind them; or a mark. NULL: nothing, or not now. */
static struct flight *flight_take(struct gpu *g, enum device_way way)
{
	struct vram_queue *q = &g->queue[way];
	struct vram_move *first = q->first, *m = first, *last = NULL;
	struct flight *f;
	uint32_t count = 0;

	if (!first || q->flights >= FLIGHTS_MAX)
		return NULL;
	for (; m && m->block && count < list_max(first) && same_shape(m, first); m = m->next, count++)
		last = m;
	f = flight_of(g, way, first, count);
	if (!f)
		return NULL;
	m = first;
	for (uint32_t i = 0; i < count; i++, m = m->next) {
		f->pairs[i] = pair_of(m);
		if (f->each)
			f->each[i] = m;
	}
	if (m && !m->block && (!count || m->layers == f->copy.parts)) {
		flight_mark(f, m);
		m = m->next;
	}
	if (count) {
		f->moves = first;
		last->next = NULL;
	}
	if (f->mark)
		f->mark->next = NULL;
	q->first = m;
	if (!m)
		q->end = &q->first;
	q->flights++;
	return f;
}

/* Without the lock. */
static void flight_begin(struct gpu *g, struct flight *f)
{
	const struct timespec pause = { .tv_nsec = RETRY_NS };
	const char *why = "";
	enum status s = STATUS_EXHAUSTED;

	for (int i = 0; i < RETRIES_MAX && s == STATUS_EXHAUSTED; i++) {
		if (i)
			nanosleep(&pause, NULL);
		s = g->cache->vram->ops->copy(g->device, &f->copy, &why);
	}
	if (!s)
		return;
	cache_lock(g->cache);
	if (s == STATUS_EXHAUSTED || (s != STATUS_UNAVAILABLE && f->copy.way != DEVICE_ACROSS))
		gpu_lost(g, why);
	cache_unlock(g->cache);
	flight_done(&f->copy, s == STATUS_EXHAUSTED ? STATUS_UNAVAILABLE : s);
}

/* Without the lock, while they are copied: the headers of blocks on their way up. Each is pinned in memory by its move, and nobody looks
 * at what is kept of it before the list has ended. */
static void flight_describe(const struct flight *f)
{
	struct slot_header h;

	for (const struct vram_move *m = f->moves; m; m = m->next) {
		memcpy(&h, block_slot_at(m->block), sizeof(h));
		vram_remember(m->slot, &h);
	}
}

/* Begins a list, without the lock; then, with it, its end may be told. */
static void flight_send(struct cache *c, struct gpu *g, struct flight *f)
{
	const bool up = f->copy.way == DEVICE_UP;

	cache_unlock(c);
	flight_begin(g, f);
	if (up)
		flight_describe(f); /* it stays until it is described */
	cache_lock(c);
	if (up) {
		f->described = true;
		pthread_cond_signal(&g->keeper_work);
	}
}

void *gpu_mover(void *arg)
{
	struct gpu *g = arg;
	struct cache *c = g->cache;

	cache_thread_enter();
	cache_lock(c);
	while (!c->vram->stopping) {
		bool idle = true;

		for (int way = 0; way < 3 && !c->vram->stopping; way++) {
			struct flight *f = g->lost ? NULL : flight_take(g, (enum device_way)way);

			if (!f)
				continue;
			idle = false;
			flight_send(c, g, f);
		}
		if (idle)
			pthread_cond_wait(&g->mover_work, &c->lock);
	}
	cache_unlock(c);
	cache_thread_leave();
	return NULL;
}
