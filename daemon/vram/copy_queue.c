/* The submission thread: each GPU has one. It makes copy batches from the transfers in the GPU's queues and gives them
 * to the device. It does not take the cache's lock, which calls hold while they still fill the queue. It alone gives
 * batches to the device, so that those of one direction run in the order of their queue. The completion thread runs the
 * ends (vram/batch_end.h).
 *
 * An enqueued transfer belongs to the cache until the lock is left, then to the submission thread, under the lock of
 * the GPU's queues.
 *
 * A call that will have work announces it: the submission thread wakes up while the call still works, and polls some
 * counts until a transfer comes or the call ends (vram_find, vram_call_ended). The counts do not replace the queues,
 * which are read with their lock. */
#include "daemon/vram/copy_queue.h"

#include "daemon/block/block.h"
#include "daemon/block/ends.h"
#include "daemon/block/gpu_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/vram/checksum.h"
#include "daemon/vram/commit_sums.h"
#include "daemon/vram/gpu_ends.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/scratch.h"
#include "daemon/vram/state.h"
#include "daemon/vram/stats.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	LIST_MAX = 8192,               /* blocks */
	/* the bytes of an upload batch whose layers no lease waits for: the completion of one batch overlaps the copies
	 * of the next */
	BYTES_MAX = 8 << 20,
	/* of downloads: larger, since each batch wakes the checksum threads once; twice as much if that is only a few
	 * blocks */
	DOWN_BYTES_MAX = 16 << 20, DOWN_BLOCKS = 128,
	DOWN_BYTES_MIN = 2 << 20,      /* the last downloads are small, as no copies run beside the last checksums */
	/* batches under way in each direction, checksums included: the next is prepared while the first runs */
	COPY_BATCHES_MAX = 4,
	RETRY_NS = 1000 * 1000,
	RETRIES_MAX = 10 * 1000,       /* a driver that has no memory for so long counts as lost */
	FENCE_BYTES = DEVICE_COPY_ALIGN,
	/* how long uploads that no lease waits for layer by layer may be overtaken by a lease's */
	OVERTAKE_US = 100 * 1000,
	/* blocks from a disk, without a lease, are gathered to batches of so many while as many are still read; */
	GATHERED = 8,
	GATHERED_BYTES = 4 << 20,      /* or so many of their bytes */
	EXPECT_US = 300,               /* announced work arrives within this time, or is not waited for */
	ANNOUNCED_US = 150,            /* from a lease's packet until it is known whether it needs copies */
};

static uint64_t host_address(const struct span_map *s, uint32_t index, const struct gpu *g)
{
	return s->memory->device[g->number] + s->offset + index * s->stride + SLOT_HEADER_BYTES;
}

uint32_t gpu_copy_batches(const struct gpu *g, enum device_way way)
{
	return atomic_load_explicit(&g->queue[way].copy_batches, memory_order_acquire);
}

bool gpu_has_copy_batches(const struct gpu *g)
{
	return gpu_copy_batches(g, DEVICE_UP) || gpu_copy_batches(g, DEVICE_DOWN) || gpu_copy_batches(g, DEVICE_ACROSS);
}

static struct device_pair pair_of(const struct vram_transfer *m)
{
	const struct gpu *g = m->gpu;

	switch (m->way) {
	case DEVICE_UP:
		return (struct device_pair){ host_address(m->block->span, m->block->index, g), vram_address(m->slot) };
	case DEVICE_DOWN:
		return (struct device_pair){ vram_address(m->slot), host_address(m->span, m->host.index, g) };
	default:
		return (struct device_pair){ vram_address(m->from), vram_address(m->slot) };
	}
}

/* So that the submission thread has asked for it by the time that it is at it. Only of what is staged with it: that is
 * still there. */
static void foretell(struct vram_queue *q, struct vram_transfer *m)
{
	struct vram_transfer **before = &q->lately[q->put % VRAM_HINT_DISTANCE];

	if (q->put++ >= VRAM_HINT_DISTANCE)
		(*before)->next_hint = m;
	*before = m;
}

/* The one behind it, in a queue or a list. */
static struct vram_transfer *following(const struct vram_transfer *m)
{
	__builtin_prefetch(m->next_hint);
	return m->next;
}

void vram_enqueue(struct gpu *g, struct vram_transfer *m)
{
	struct vram_queue *q = &g->queue[m->way];

	if (m->block)
		m->pair = pair_of(m);
	foretell(q, m);
	m->next = NULL;
	*q->staged_end = m;
	q->staged_end = &m->next;
	if (!m->block)
		q->staged_fence = m;
	q->staged_fences += !m->block;
	q->staged_count++;
	g->cache->vram->staged = true;
}

static struct copy_batch *copy_batch_take(struct gpu *g, enum device_way way);

/* Its layers are summed as they come. */
static bool is_summed_watched(const struct copy_batch *f)
{
	return f->fence && f->gpu->cache->options.gpu_verify_up;
}

/* With the lock of the queues: there may be something to be begun. The submission thread may be asleep, or look on
 * without the lock. */
static void submission_ring(struct gpu *g)
{
	atomic_fetch_add_explicit(&g->rung, 1, memory_order_relaxed);
	pthread_cond_signal(&g->submission_work);
}

static bool is_staged(const struct gpu *g)
{
	return g->queue[DEVICE_UP].staged || g->queue[DEVICE_DOWN].staged || g->queue[DEVICE_ACROSS].staged ||
	       vram_sums_staged(g);
}

/* Whether the staged lease waits for nothing in the tail, and does not delay the tail too long. Fences keep their
 * order. */
static bool overtakes(const struct vram_queue *q)
{
	return q->staged_fences == 1 && q->staged_fence->overtakes && q->staged_end == &q->staged_fence->next &&
	       *q->tail &&
	       vram_clock_us() - q->tail_us < OVERTAKE_US;
}

/* With the lock of the queues. */
static void publish_one(struct vram_queue *q)
{
	if (overtakes(q)) {
		q->staged_fence->next = *q->tail;
		*q->tail = q->staged;
		q->tail = &q->staged_fence->next;
	} else {
		if (!*q->tail || q->staged_fences)
			q->tail_us = vram_clock_us();
		*q->end = q->staged;
		q->end = q->staged_end;
		if (q->staged_fences)
			q->tail = &q->staged_fence->next;
	}
	q->fences += q->staged_fences;
	q->count += q->staged_count;
	q->staged_fences = q->staged_count = 0;
	q->put = 0;
	q->staged = NULL;
	q->staged_end = &q->staged;
}

/* With the lock of the queues. */
static void to_look_put(struct gpu *g, struct copy_batch *f)
{
	f->next = atomic_load_explicit(&g->to_look, memory_order_relaxed);
	atomic_store_explicit(&g->to_look, f, memory_order_relaxed);
}

/* Takes the batch that was put last. NULL: there is none. With the lock of the queues. */
static struct copy_batch *to_look_take(struct gpu *g)
{
	struct copy_batch *f = atomic_load_explicit(&g->to_look, memory_order_relaxed);

	if (f)
		atomic_store_explicit(&g->to_look, f->next, memory_order_relaxed);
	return f;
}

/* If the submission thread can begin a lease's uploads at once, the batch is made here, as its transfers are in this
 * CPU's cache. The submission thread then has it copied; the caller wakes the checksum threads after its reply, which
 * takes as long as the first copies. */
static void publish_up(struct gpu *g)
{
	struct vram_queue *q = &g->queue[DEVICE_UP];
	const bool at_once = q->staged_fences && !q->first && !g->taken && !g->halted;

	publish_one(q);
	if (!at_once)
		return;
	g->taken = copy_batch_take(g, DEVICE_UP);
	if (!g->taken || !is_summed_watched(g->taken))
		return;
	g->taken->elsewhere = true;
	to_look_put(g, g->taken);
}

/* With the lock of the queues. Whether blocks that came one by one should wait for more; the tick rings in any case.
 * Not if a lease waits for them, nor while another transfer waits for the memory that they hold. */
static bool gathers(const struct gpu *g)
{
	const struct cache *c = g->cache;
	const struct vram_queue *q = &g->queue[DEVICE_UP];
	const struct vram_transfer *m = q->first;
	uint64_t blocks = 0, bytes = 0;

	if (!c->tier || g->fetching < GATHERED || g->waiting || c->vram->waiting_host || c->loads_wait || q->fences ||
	    g->queue[DEVICE_DOWN].first || g->queue[DEVICE_ACROSS].first)
		return false;
	for (; m && m->priority != RING_URGENT && blocks < GATHERED && bytes < GATHERED_BYTES; m = m->next, blocks++)
		bytes += m->pool->geometry.block_bytes;
	return !m && blocks < GATHERED && bytes < GATHERED_BYTES;
}

static void publish(struct gpu *g)
{
	const bool sums = vram_sums_staged(g);

	pthread_mutex_lock(&g->queue_lock);
	vram_sums_publish(g);
	if (g->queue[DEVICE_UP].staged)
		publish_up(g);
	for (int way = DEVICE_UP + 1; way < 3; way++)
		if (g->queue[way].staged)
			publish_one(&g->queue[way]);
	if (sums || !gathers(g))
		submission_ring(g);
	pthread_mutex_unlock(&g->queue_lock);
}

void vram_publish(struct cache *c)
{
	struct vram *v = c->vram;

	if (v->room_due)
		pthread_cond_broadcast(&v->room);
	v->room_due = false;
	if (!v->staged)
		return;
	v->staged = false;
	for (uint32_t i = 0; i < v->count; i++)
		if (is_staged(v->gpu[i]))
			publish(v->gpu[i]);
}

void vram_tail(struct gpu *g, uint64_t *from, uint64_t *to)
{
	const struct vram_queue *q = &g->queue[DEVICE_UP];
	const struct vram_transfer *m = q->staged;

	while (m && !m->block)
		m = m->next;
	*to = m ? m->slot->order : g->ups + 1;
	pthread_mutex_lock(&g->queue_lock);
	*from = *q->tail ? (*q->tail)->slot->order : *to;
	pthread_mutex_unlock(&g->queue_lock);
}

bool vram_queued(struct gpu *g, enum device_way way)
{
	bool is = g->queue[way].staged;

	pthread_mutex_lock(&g->queue_lock);
	is |= g->queue[way].first != NULL;
	pthread_mutex_unlock(&g->queue_lock);
	return is;
}

static bool is_of(const struct vram_transfer *m, const struct gpu *g)
{
	return m->gpu == g || (m->from && m->from->pool->gpu == g);
}

struct vram_transfer *vram_queue_take(struct gpu *g, enum device_way way, const struct gpu *of)
{
	struct vram_queue *q = &g->queue[way];
	struct vram_transfer *taken = NULL, **end = &taken, **at, *m;

	vram_publish(g->cache);
	pthread_mutex_lock(&g->queue_lock);
	q->tail = &q->first;
	for (at = &q->first; (m = *at);) {
		if (!is_of(m, of)) {
			at = &m->next;
			q->tail = m->block ? q->tail : at;
			continue;
		}
		*at = m->next;
		q->fences -= !m->block;
		q->count--;
		m->next = NULL;
		*end = m;
		end = &m->next;
	}
	q->end = at;
	pthread_mutex_unlock(&g->queue_lock);
	return taken;
}

void vram_submission_halt(struct gpu *g, bool over)
{
	pthread_mutex_lock(&g->queue_lock);
	g->halted = true;
	g->over |= over;
	submission_ring(g);
	pthread_mutex_unlock(&g->queue_lock);
}

void vram_submission_wake(struct gpu *g)
{
	pthread_mutex_lock(&g->queue_lock);
	submission_ring(g);
	pthread_mutex_unlock(&g->queue_lock);
}

/* What lookups may know of a block does not say on which of several GPUs it is. */
bool vram_some_come(const struct cache *c, uint32_t count, struct block *const *found)
{
	const uint8_t mask = c->vram->count > 1 ? BLOCK_IN_MEMORY : BLOCK_IN_MEMORY | BLOCK_ON_GPU;

	for (uint32_t i = count; i > 0; i--)
		if (found[i - 1] && (atomic_load_explicit(&found[i - 1]->where, memory_order_relaxed) & mask) == BLOCK_IN_MEMORY)
			return true;
	return false;
}

/* The GPU, whose submission thread comes awake if some of these are to be copied there, as it seems. NULL: none. */
static struct gpu *expect(struct cache *c, int32_t gpu, uint32_t count, struct block *const *found)
{
	struct gpu *g = gpu < 0 ? NULL : vram_gpu(c, (uint32_t)gpu);

	if (!g || !vram_some_come(c, count, found))
		return NULL;
	atomic_fetch_add_explicit(&g->expected, 1, memory_order_relaxed);
	pthread_cond_signal(&g->submission_work);
	return g;
}

/* Of most calls whose blocks are to be copied the last one is. */
struct gpu *vram_find_last(struct cache *c, const struct vram_search *s)
{
	const struct cache_keys *k = s->keys;
	const struct cache_keys last = keys_slice(k, k->count - 1, 1);

	if (s->gpu < 0 || k->count < 2)
		return NULL;
	blocks_find(c, s->pools, s->layouts, &last, s->found);
	return expect(c, s->gpu, s->layouts, s->found);
}

struct gpu *vram_find_rest(struct cache *c, const struct vram_search *s, struct gpu *announced, uint32_t from)
{
	const struct cache_keys *k = s->keys;
	const struct cache_keys rest = keys_slice(k, from, k->count - from);

	blocks_find(c, s->pools, s->layouts, &rest, s->found + (size_t)from * s->layouts);
	return announced ? announced : expect(c, s->gpu, k->count * s->layouts, s->found);
}

struct gpu *vram_find(struct cache *c, const struct vram_search *s)
{
	return vram_find_rest(c, s, vram_find_last(c, s), 0);
}

void vram_call_ended(struct gpu *announced)
{
	if (announced)
		atomic_fetch_add_explicit(&announced->calls_ended, 1, memory_order_relaxed);
}

/* Once a call that is expected to have work. */
static void make_ready(struct gpu *g, uint32_t expected)
{
	if (g->readied == expected)
		return;
	g->readied = expected;
	g->cache->vram->ops->ready(g->device, DEVICE_UP);
	vram_came_back(g->cache);
}

/* Calls come one after the other, and the operator wants the submission thread awake for the next. */
static bool is_called(struct gpu *g, uint64_t now_us)
{
	const uint64_t called_us = atomic_load_explicit(&g->called_us, memory_order_relaxed);

	return called_us && now_us < called_us + g->cache->options.gpu_poll_us;
}

/* For what is expected until some has come, the call that was to bring it is over, or it has been waited for long enough; else for as long as calls
 * come. */
static bool looks_on(struct gpu *g, uint32_t calls_ended, uint64_t since_us)
{
	const uint64_t now_us = vram_clock_us();
	const bool announced = atomic_load_explicit(&g->expected, memory_order_relaxed) != calls_ended &&
	    g->passed != calls_ended;

	return (announced && now_us < since_us + EXPECT_US &&
	       atomic_load_explicit(&g->calls_ended, memory_order_relaxed) == calls_ended) ||
	       is_called(g, now_us) || now_us < atomic_load_explicit(&g->announced_until_us, memory_order_relaxed);
}

/* With the lock of the queues. Where work is expected the submission thread stays awake, without the lock, until some
 * has come or the next call has ended. This only tells it when to look. */
static void submission_wait(struct gpu *g)
{
	const uint32_t calls_ended = atomic_load_explicit(&g->calls_ended, memory_order_relaxed),
		       rung = atomic_load_explicit(&g->rung, memory_order_relaxed);
	uint64_t since_us = vram_clock_us();
	uint32_t seen = atomic_load_explicit(&g->expected, memory_order_relaxed);

	if (g->halted || !looks_on(g, calls_ended, since_us)) {
		atomic_store_explicit(&g->sleeps, !g->halted, memory_order_relaxed); /* else each call would wake it for nothing */
		pthread_cond_wait(&g->submission_work, &g->queue_lock);
		atomic_store_explicit(&g->sleeps, false, memory_order_relaxed);
		return;
	}
	pthread_mutex_unlock(&g->queue_lock);
	do {
		const uint32_t expected = atomic_load_explicit(&g->expected, memory_order_relaxed);

		if (expected != seen)
			since_us = vram_clock_us();
		seen = expected;
		if (expected != atomic_load_explicit(&g->calls_ended, memory_order_relaxed))
			make_ready(g, expected);
		sched_yield();
	} while (atomic_load_explicit(&g->rung, memory_order_relaxed) == rung && looks_on(g, calls_ended, since_us));
	pthread_mutex_lock(&g->queue_lock);
	if (seen != calls_ended && atomic_load_explicit(&g->calls_ended, memory_order_relaxed) == calls_ended &&
	    atomic_load_explicit(&g->rung, memory_order_relaxed) == rung && vram_clock_us() >= since_us + EXPECT_US)
		g->passed = calls_ended;
}

void vram_called(struct cache *c)
{
	const uint64_t now_us = c->vram && c->options.gpu_poll_us ? vram_clock_us() : 0;

	for (uint32_t i = 0; now_us && i < c->vram->count; i++) {
		struct gpu *g = c->vram->gpu[i];

		atomic_store_explicit(&g->called_us, now_us, memory_order_relaxed);
		if (atomic_load_explicit(&g->sleeps, memory_order_relaxed))
			pthread_cond_signal(&g->submission_work);
	}
}

void vram_lease_brings(struct cache *c, int32_t gpu, const struct gpu *announced)
{
	struct gpu *g = gpu < 0 ? NULL : vram_gpu(c, (uint32_t)gpu);

	if (g)
		atomic_store_explicit(&g->brings, announced != NULL, memory_order_relaxed);
}

void vram_lease_announce(struct cache *c)
{
	for (uint32_t i = 0; c->vram && i < c->vram->count; i++) {
		struct gpu *g = c->vram->gpu[i];

		if (!atomic_load_explicit(&g->brings, memory_order_relaxed) || !atomic_load_explicit(&g->sleeps, memory_order_relaxed))
			continue;
		atomic_store_explicit(&g->announced_until_us, vram_clock_us() + ANNOUNCED_US, memory_order_relaxed);
		pthread_cond_signal(&g->submission_work);
	}
}

static bool same_shape(const struct vram_transfer *a, const struct vram_transfer *b)
{
	const struct layout_pool *p = a->pool, *q = b->pool;

	return p == q || kv_same_shape(&p->geometry, &q->geometry);
}

static uint32_t within(uint64_t n, uint64_t least, uint64_t most)
{
	return (uint32_t)(n < least ? least : n > most ? most : n);
}

/* Whether a fence stands behind blocks of the first one's shape. */
static bool is_watched(const struct vram_queue *q, const struct vram_transfer *first)
{
	const struct vram_transfer *m = first;

	for (uint32_t i = 0; q->fences && m && m->block && i < LIST_MAX && same_shape(m, first); i++)
		m = following(m);
	return q->fences && m && !m->block;
}

uint32_t vram_list_blocks(const struct layout_pool *p, uint32_t most)
{
	return within(BYTES_MAX / p->geometry.block_bytes, 1, most);
}

/* Blocks of the list that begins with this one, at most. */
static uint32_t list_max(const struct vram_queue *q, const struct vram_transfer *first)
{
	const uint64_t bytes = first->pool->geometry.block_bytes;
	uint32_t most = vram_list_blocks(first->pool, LIST_MAX);

	if (first->way == DEVICE_UP)
		return is_watched(q, first) ? LIST_MAX : most;
	if (first->way == DEVICE_ACROSS)
		return LIST_MAX;
	if (most < DOWN_BLOCKS)
		most = within(DOWN_BYTES_MAX / bytes, 1, DOWN_BLOCKS);
	return within(q->count / 2, within(DOWN_BYTES_MIN / bytes, 1, most), most);
}

/* What is leased from now on may not rely on these: a fence behind them would be reached without them. */
static void transfers_fail(const struct copy_batch *f)
{
	for (const struct vram_transfer *m = f->transfers; m; m = m->next)
		m->slot->failed = true;
	vram_fences_fail(f->gpu);
}

/* Its end needs what takes long: its bytes are to be checked, or the device is to be asked whether it is lost. */
static bool is_unready(const struct copy_batch *f)
{
	return f->status == STATUS_UNAVAILABLE || vram_copy_batch_is_unsealed(f);
}

void vram_copy_batch_ended(void *copy_batch)
{
	struct copy_batch *f = copy_batch;
	struct gpu *g = f->gpu;

	vram_times_add(f);
	pthread_mutex_lock(&g->queue_lock);
	g->queue[f->copy.way].under_way--;
	submission_ring(g);
	if (is_unready(f))
		gpu_ends_push_unready(g, f);
	else
		gpu_ends_push(g, &f->end);
	pthread_mutex_unlock(&g->queue_lock);
}

static void copy_batch_done(struct device_copy *copy, enum status s)
{
	struct copy_batch *f = (struct copy_batch *)copy;

	f->status = s;
	f->copied_us = vram_clock_us();
	if (s && f->copy.way == DEVICE_UP) {
		cache_lock(f->gpu->cache);
		transfers_fail(f);
		cache_unlock(f->gpu->cache);
	}
	if (f->copy.way == DEVICE_UP)
		vram_copy_batch_copied(f);
	if (!vram_copy_batch_sum_across(f) && !vram_copy_batch_seal(f, vram_copy_batch_ended))
		vram_copy_batch_part_ended(f);
}

/* How far the list is, if the fence behind it asks: else the fence gets a list of its own, that copies next to nothing. */
static void copy_batch_fence(struct copy_batch *f, struct vram_transfer *fence)
{
	struct gpu *g = f->gpu;

	f->fence = fence;
	f->copy.progress = fence->progress_page->address[g->number] + sizeof(uint32_t) * g->number;
	f->copy.progress_base = fence->base + fence->layers - f->copy.parts;
}

static struct copy_batch *copy_batch_of(struct gpu *g, enum device_way way, const struct vram_transfer *first,
					uint32_t count)
{
	const struct layout_pool *p = count ? first->pool : NULL;
	const uint32_t pairs = count ? count : 1, parts = count ? p->geometry.steps : 1;
	const uint32_t left = way == DEVICE_DOWN ? pairs : parts;
	struct copy_batch *f =
	    malloc(sizeof(*f) + pairs * (sizeof(f->pairs[0]) + sizeof(f->each[0])) + left * sizeof(f->left[0]));

	if (!f)
		return NULL;
	*f = (struct copy_batch){ .gpu = g };
	f->end = (struct end){ .run = g->ends->batch, .tiers = 1u << TIER_GPU | 1u << TIER_DISK };
	f->copy = (struct device_copy){ .pairs = f->pairs, .count = pairs, .parts = parts, .way = way,
					.done = copy_batch_done,
					.part_bytes = count ? p->geometry.layer_bytes : FENCE_BYTES };
	f->each = (struct vram_transfer **)&f->pairs[pairs];
	f->left = (_Atomic uint32_t *)&f->each[pairs];
	f->pairs[0] = (struct device_pair){ g->scratch->from, g->scratch->to.address };
	atomic_init(&f->parts, 1);
	return f;
}

/* Whether checksums of a batch of so many blocks will have other copies to run beside: at least half as many blocks
 * follow in the queue, or a call is still adding some. */
static bool is_much_announced(const struct gpu *g, const struct vram_transfer *m, uint32_t blocks)
{
	uint32_t come = 0;

	if (atomic_load_explicit(&g->more_announced, memory_order_relaxed))
		return true;
	for (; m && 2 * come < blocks; m = following(m))
		come += m->block != NULL;
	return come && 2 * come >= blocks;
}

/* With the lock of the queues: takes a batch from one of them. It has blocks of one shape, with the fence behind them,
 * or a fence alone. NULL: nothing, or not now. It is one function because the counts and pointers of the queue that it
 * changes belong together. */
static struct copy_batch *copy_batch_take(struct gpu *g, enum device_way way)
{
	struct vram_queue *q = &g->queue[way];
	struct vram_transfer *first = q->first, *m = first, *last = NULL;
	struct copy_batch *f;
	uint32_t count = 0, most;

	if (!first || q->under_way >= COPY_BATCHES_MAX)
		return NULL;
	most = first->block ? list_max(q, first) : 0;
	for (; m && m->block && count < most && same_shape(m, first); m = following(m), count++)
		last = m;
	f = copy_batch_of(g, way, first, count);
	if (!f)
		return NULL;
	m = first;
	for (uint32_t i = 0; i < count; i++, m = m->next) {
		f->pairs[i] = m->pair;
		f->each[i] = m;
	}
	if (m && !m->block && (!count || m->layers == f->copy.parts)) {
		copy_batch_fence(f, m);
		q->fences--;
		m = m->next;
	}
	q->count -= count + (f->fence != NULL);
	if (count) {
		f->transfers = first;
		last->next = NULL;
	}
	if (f->fence)
		f->fence->next = NULL;
	f->behind = way == DEVICE_UP && !f->fence && g->cache->options.gpu_verify_up && g->cache->sums &&
	    is_much_announced(g, m, count);
	q->first = m;
	if (!m)
		q->end = &q->first;
	if (q->tail == &q->first)
		q->tail_us = vram_clock_us();
	else if (!q->fences)
		q->tail = &q->first;
	q->under_way++;
	atomic_fetch_add_explicit(&q->copy_batches, 1, memory_order_release);
	if (way == DEVICE_UP)
		vram_copy_batch_enter(f);
	return f;
}

static bool is_stopping(struct cache *c)
{
	cache_lock(c);
	const bool is = c->vram->stopping;

	cache_unlock(c);
	return is;
}

/* Without the lock. */
static void copy_batch_begin(struct gpu *g, struct copy_batch *f)
{
	const struct timespec pause = { .tv_nsec = RETRY_NS };
	const char *why = "";
	enum status s = STATUS_EXHAUSTED;

	for (int i = 0; i < RETRIES_MAX && s == STATUS_EXHAUSTED && !(i && is_stopping(g->cache)); i++) {
		if (i)
			nanosleep(&pause, NULL);
		s = g->cache->vram->ops->copy(g->device, &f->copy, &why);
		vram_came_back(g->cache);
	}
	if (!s)
		return;
	cache_lock(g->cache);
	if (s == STATUS_EXHAUSTED || (s != STATUS_UNAVAILABLE && f->copy.way != DEVICE_ACROSS))
		g->cache->tiers[TIER_GPU]->lost(g->cache, g->number, why);
	cache_unlock(g->cache);
	copy_batch_done(&f->copy, s == STATUS_EXHAUSTED ? STATUS_UNAVAILABLE : s);
}

/* Checks a batch that no checksum thread has taken by the time that its copies have begun. Called with the queues'
 * lock, which it releases meanwhile. False: there is none. */
static bool look_at_left(struct gpu *g)
{
	struct copy_batch *f = to_look_take(g);

	if (!f)
		return false;
	pthread_mutex_unlock(&g->queue_lock);
	if (!vram_copy_batch_look(f))
		vram_copy_batch_look_here(f);
	pthread_mutex_lock(&g->queue_lock);
	return true;
}

static void look_at_taken(struct gpu *g)
{
	struct copy_batch *f;

	pthread_mutex_lock(&g->queue_lock);
	f = to_look_take(g);
	pthread_mutex_unlock(&g->queue_lock);
	if (!f || vram_copy_batch_look(f))
		return;
	pthread_mutex_lock(&g->queue_lock); /* this is the submission thread: no thread needs a wake */
	to_look_put(g, f);
	submission_ring(g);
	pthread_mutex_unlock(&g->queue_lock);
}

void vram_call_replied(struct cache *c)
{
	for (uint32_t i = 0; c->vram && c->sums && i < c->vram->count; i++)
		if (atomic_load_explicit(&c->vram->gpu[i]->to_look, memory_order_relaxed))
			look_at_taken(c->vram->gpu[i]);
}

/* If a call waits for the batch layer by layer, its first layer is summed as soon as it is copied. Checksums of other
 * batches must not delay their copies. */
static void up_begin(struct gpu *g, struct copy_batch *f)
{
	const bool watched = is_summed_watched(f), elsewhere = f->elsewhere, behind = f->behind;
	bool looked = elsewhere || (watched && vram_copy_batch_look(f));

	copy_batch_begin(g, f); /* the list may be gone, if it was looked at */
	if (!looked && !behind && (watched || !vram_copy_batch_look(f)))
		vram_copy_batch_look_here(f);
}

/* With the lock of the queues. One that has been taken already begins in any case; else `way` is looked at first. NULL: there is none. */
static struct copy_batch *next_copy_batch(struct gpu *g, uint32_t way)
{
	struct copy_batch *f = g->taken;

	g->taken = NULL;
	for (uint32_t i = 0; i < 3 && !f && !g->halted; i++)
		f = copy_batch_take(g, (enum device_way)((way + i) % 3));
	return f;
}

/* With the lock of the queues, which it leaves: begins one list of those that may be. `way`: of these. False: there is none. */
static bool send_next(struct gpu *g, uint32_t *way)
{
	struct copy_batch *f = next_copy_batch(g, *way);

	if (!f)
		return false;
	*way = f->copy.way + 1;
	pthread_mutex_unlock(&g->queue_lock);
	f->begun_us = vram_clock_us();
	if (f->copy.way == DEVICE_UP)
		up_begin(g, f);
	else
		copy_batch_begin(g, f);
	pthread_mutex_lock(&g->queue_lock);
	return true;
}

/* Sends the next list of checksums of what was put on the GPU. False: there is none. With the lock of the queues, which
 * it leaves meanwhile. */
static bool send_sums(struct gpu *g)
{
	struct sum_list *l = vram_sums_take(g);

	if (!l)
		return false;
	pthread_mutex_unlock(&g->queue_lock);
	vram_sums_send(l);
	vram_came_back(g->cache);
	pthread_mutex_lock(&g->queue_lock);
	return true;
}

void *gpu_submission(void *arg)
{
	struct gpu *g = arg;
	struct cache *c = g->cache;
	uint32_t way = DEVICE_UP;

	cache_thread_enter();
	pthread_mutex_lock(&g->queue_lock);
	while (!g->over || g->taken || atomic_load_explicit(&g->to_look, memory_order_relaxed)) {
		const bool sent = send_next(g, &way), summed = send_sums(g);

		if (!look_at_left(g) && !sent && !summed)
			submission_wait(g);
	}
	pthread_mutex_unlock(&g->queue_lock);
	cache_lock(c);
	vram_thread_ended(c);
	cache_unlock(c);
	cache_thread_leave();
	return NULL;
}
