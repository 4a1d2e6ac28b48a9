/* Transfers to, from and between GPUs: what each waits for, one after the other, and its end.
 *
 *     up:     copy in host memory (a load, a down) -> slot on the GPU -> queue -> copied -> ready
 *     across: slot on the GPU -> queue -> copied -> ready
 *     down:   slot of host memory -> queue -> copied -> checksums, header -> span, policy
 *
 * An upload that gets its slot tells the links that wait for its *place*: from then on it is in the upload queue. A
 * download is checked and gets its header without the lock, before any call can use it, by the GPU's completion thread
 * and the checksum threads (vram/checksum.c). If the bytes are wrong, the transfer ends, and the copy that they came
 * from is removed: calls that wait get the block from another copy, or a miss.
 *
 * A transfer that a call begins ends later. A transfer that cannot be begun is undone, and the caller gets its status.
 * When a load ends, uploads that wait for it go on; a transfer that waits for room may fail. Both are queued ends
 * (block/ends.h), and run when the lock is left.
 */
#include "daemon/vram/transfer.h"

#include "daemon/block/block.h"
#include "daemon/block/ends.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/vram/checksum.h"
#include "daemon/vram/commit_sums.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/fetch.h"
#include "daemon/vram/gpu_ends.h"
#include "daemon/vram/transfer_table.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/progress.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/source.h"
#include "daemon/vram/state.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WRITE_THROUGH_AGAIN_US = 100 * 1000 };

/* ---- the table of transfers ---- */

struct vram_transfer *vram_up_of(const struct cache *c, const struct block *b, const struct gpu *g)
{
	struct vram_transfer *m = *vram_transfers_of(c, b);

	while (m && (m->block != b || m->gpu != g || m->way == DEVICE_DOWN))
		m = m->hash_next;
	return m;
}

/* Takes a transfer from the spare ones, or new memory. Transfers are made by one thread and ended by another, thousands
 * at a time, so they are kept rather than freed. NULL: no memory. */
static struct vram_transfer *transfer_alloc(struct vram *v)
{
	struct vram_transfer *m = v->spare;

	if (!m)
		return aligned_alloc(VRAM_LINE, (sizeof(*m) + VRAM_LINE - 1) / VRAM_LINE * VRAM_LINE);
	v->spare = m->next;
	v->spare_count--;
	__builtin_prefetch(v->spare, 1);
	return m;
}

static void transfer_free(struct vram *v, struct vram_transfer *m)
{
	if (v->spare_count == VRAM_SPARES_MAX) {
		free(m);
		return;
	}
	m->next = v->spare;
	v->spare = m;
	v->spare_count++;
}

void vram_spares_free(struct vram *v)
{
	struct vram_transfer *m;

	while ((m = v->spare)) {
		v->spare = m->next;
		free(m);
	}
}

static struct vram_transfer *transfer_create(struct cache *c, struct gpu *g, struct block *b, enum device_way way)
{
	struct vram_transfer *m = transfer_alloc(c->vram), **bucket = vram_transfers_of(c, b);

	if (!m)
		return NULL;
	*m = (struct vram_transfer){ .way = way, .gpu = g, .block = b, .pool = b->pool, .hash_next = *bucket };
	*bucket = m;
	block_pin(b);
	c->moving_bytes += b->pool->geometry.need_bytes;
	c->vram->transfer_count++;
	if (way == DEVICE_DOWN)
		vram_down_begun(g, b);
	return m;
}

/* Has the call wait for the transfer's end, or for its place in the queue. An upload in its place already has its end
 * alone to come: its copy has come to nothing. */
static enum status transfer_join(struct cache *c, struct vram_transfer *m, struct cache_wait *w, bool wait_end)
{
	struct cache_wait_link *l, **list = wait_end || m->way != DEVICE_UP || m->step == STEP_QUEUED ? &m->done : &m->placed;

	if (!w)
		return STATUS_OK;
	l = wait_link(c, w, m->block);
	if (!l)
		return STATUS_EXHAUSTED;
	l->transfer_next = *list;
	*list = l;
	return STATUS_OK;
}

static void transfer_tell(struct cache *c, struct cache_wait_link **list, enum status s)
{
	struct cache_wait_link *l = *list, *next;

	*list = NULL;
	for (; l; l = next) {
		next = l->transfer_next;
		wait_link_done(c, l, s);
	}
}

/* The waiting calls need the copy on this GPU from now on, and none in memory. */
static void links_apart(struct cache_wait_link *l, struct gpu *g)
{
	for (; l; l = l->transfer_next)
		wait_link_apart(l, g);
}

/* Ends a transfer whose accounting is done: tells the waiting calls, frees the transfer, and may free the block. */
static void transfer_leave(struct cache *c, struct vram_transfer *m, enum status s)
{
	struct vram_transfer **at = vram_transfers_of(c, m->block);
	struct block *b = m->block;

	while (*at != m)
		at = &(*at)->hash_next;
	*at = m->hash_next;
	c->moving_bytes -= b->pool->geometry.need_bytes;
	c->vram->transfer_count--;
	if (m->way == DEVICE_DOWN)
		vram_down_over(m->gpu, b);
	if (block_live(b))
		vram_sync(b);
	transfer_tell(c, &m->placed, s);
	transfer_tell(c, &m->done, s);
	block_unpin(b);
	transfer_free(c->vram, m);
	c->vram->room_due = true;
}

static void wait_in(struct vram_transfer ***end, struct vram_transfer *m, enum transfer_step step)
{
	m->step = step;
	m->next = NULL;
	**end = m;
	*end = &m->next;
}

static const struct vram_transfer *last_waiting(const struct gpu *g)
{
	return g->waiting ? (const struct vram_transfer *)((char *)g->waiting_end - offsetof(struct vram_transfer,
	    next)) : NULL;
}

/* Queues a transfer that waits for a slot on its GPU, or for memory on the way there: before transfers for which no
 * call waits, and behind earlier ones. */
static void wait_for_room(struct vram_transfer *m)
{
	struct gpu *g = m->gpu;
	const struct vram_transfer *last = last_waiting(g);
	struct vram_transfer **at = &g->waiting;

	m->waits_us = m->waits_us ? m->waits_us : vram_clock_us();
	if (!last || last->priority <= m->priority) {
		wait_in(&g->waiting_end, m, STEP_ROOM);
		return;
	}
	while ((*at)->priority <= m->priority)
		at = &(*at)->next;
	m->step = STEP_ROOM;
	m->next = *at;
	*at = m;
}

/* Has `run` called with the transfer when the lock is left; `run` goes on with it or ends it with status s. */
static void transfer_due(struct cache *c, struct vram_transfer *m, void (*run)(struct cache *, struct end *),
			 enum status s)
{
	m->step = STEP_DUE;
	m->ended = s;
	m->end = (struct end){ .run = run };
	ends_append(c, &m->end);
}

/* ---- up and across ---- */

static uint64_t host_address(const struct block *b, const struct gpu *g)
{
	const struct span_map *s = b->span;

	return s && s->memory->device ? s->memory->device[g->number] : 0;
}

/* The slot from which the bytes come, if they do not come from host memory; NULL. */
static struct vram_slot *source_across(const struct vram_transfer *m)
{
	struct vram_slot *s = m->way == DEVICE_ACROSS ? vram_near(m->block, m->gpu) : NULL;

	return s || m->way != DEVICE_ACROSS || m->block->span ? s : vram_ready(m->block);
}

/* The direction for a block. A copy from another GPU is faster than one from memory, but does not report layers: it is
 * used when the call waits for the end. */
static enum device_way way_of(const struct gpu *g, const struct block *b, bool wait_end)
{
	return b->vram && (b->span ? wait_end && vram_near(b, g) : vram_ready(b) != NULL) ? DEVICE_ACROSS : DEVICE_UP;
}

/* Copies to the new slot what the header said, from the slot that the bytes come from. The header of a block in memory
 * is read by the submission thread, beside the copies. */
static void take_along(const struct vram_transfer *m)
{
	struct vram_slot *s = m->slot;
	const struct vram_slot *from = m->from;

	s->position = from->position;
	s->stored_unix_ms = from->stored_unix_ms;
	s->turn = from->turn;
	s->role = from->role;
	s->parent_bytes = from->parent_bytes;
	memcpy(s->parent, from->parent, sizeof(s->parent));
	s->sums = from->sums;
	s->summed = from->summed;
}

static enum vram_need need_of(const struct cache *c, const struct vram_transfer *m)
{
	if (m->priority == RING_URGENT)
		return vram_only_spare(c, m) ? NEED_SOON : NEED_NOW;
	return c->tier ? NEED_SPARE : NEED_OPTIONAL;
}

static enum status slot_take(struct cache *c, struct vram_transfer *m)
{
	struct vram_pool *vp = vram_pool_get(c, m->gpu, m->block->pool);
	const struct vram_slot_want want = { .block = m->block, .need = need_of(c, m) };
	enum status s = vp ? vram_slot_take(c, vp, &want, &m->slot) : STATUS_EXHAUSTED;

	if (s)
		return s;
	m->slot->across = m->way == DEVICE_ACROSS;
	vp->class->coming++;
	return STATUS_OK;
}

/* Counts the transfer's slot, if it has one, as no longer coming: its copy has come, or will not. */
static void slot_leave(const struct vram_transfer *m)
{
	if (m->slot)
		m->gpu->pools[m->block->pool->number]->class->coming--;
}

/* Whether an upload needs a slot in host memory first: the block is on a disk only, or on a GPU that cannot copy it
 * across. */
static bool needs_memory(const struct vram_transfer *m)
{
	return !m->block->span && !source_across(m);
}

/* Whether the last transfer in the queue for room is at least as urgent, of the same layout, and waits for host memory,
 * too. */
static bool stands_behind(const struct vram_transfer *m)
{
	const struct vram_transfer *last = last_waiting(m->gpu);

	return last && last->priority <= m->priority && last->pool == m->pool && needs_memory(last);
}

/* Whether the upload has to wait before it may take host memory for its load. */
static bool fetch_waits(struct cache *c, const struct vram_transfer *m)
{
	const struct block *b = m->block;

	return !b->moving && !vram_ready(b) && (stands_behind(m) || vram_fetched_enough(c, m) || vram_memory_short(c, m));
}

static enum status fetch(struct cache *c, const struct vram_transfer *m)
{
	if (fetch_waits(c, m))
		return STATUS_EXHAUSTED;
	return vram_load(c, m);
}

static enum status fetch_begin(struct cache *c, struct vram_transfer *m)
{
	enum status s = fetch(c, m);

	if ((s == STATUS_EXHAUSTED || (s == STATUS_BUSY && vram_memory_short(c, m))) && (stands_behind(m) || vram_memory_comes(c, m))) {
		wait_for_room(m);
		return STATUS_OK;
	}
	if ((s == STATUS_EXHAUSTED || s == STATUS_BUSY) && !m->hasty && m->priority == RING_URGENT) {
		m->hasty = true; /* there is nothing to be waited for */
		s = fetch(c, m);
	}
	if (s)
		return s;
	vram_fetched(m, true);
	m->step = STEP_HOST;
	m->gpu->fetching++;
	m->block->awaited = true;
	return STATUS_OK;
}

/* Takes an upload as far as it gets without waiting. more: other transfers wait for room on its GPU. OK: the transfer
 * waits or is in the GPU's queue. Otherwise the caller has to end it. */
static enum status up_go_on(struct cache *c, struct vram_transfer *m, bool more)
{
	struct block *b = m->block;
	enum status s;

	if (m->gpu->lost || c->vram->stopping)
		return STATUS_UNAVAILABLE;
	if (!block_live(b))
		return STATUS_CANCELLED;
	m->from = source_across(m);
	if (!m->from)
		m->way = DEVICE_UP;
	if (needs_memory(m))
		return fetch_begin(c, m);
	if (!m->from && !host_address(b, m->gpu))
		return STATUS_EXHAUSTED; /* memory that this GPU cannot see */
	s = slot_take(c, m);
	if (s == STATUS_BUSY) {
		wait_for_room(m);
		return STATUS_OK;
	}
	if (s)
		return s;
	if (m->from)
		take_along(m);
	vram_fetched(m, false);
	if (more)
		m->slot->span->class->placed_us = vram_clock_us();
	m->step = STEP_QUEUED;
	if (m->way == DEVICE_UP)
		m->slot->order = ++m->gpu->ups;
	vram_enqueue(m->gpu, m);
	links_apart(m->placed, m->gpu);
	transfer_tell(c, &m->placed, STATUS_OK);
	return STATUS_OK;
}

static void up_end(struct cache *c, struct vram_transfer *m, enum status s)
{
	struct block *b = m->block;

	if (!block_live(b) && !m->bad) /* it was removed meanwhile, and may have been put anew: the call that waits looks again */
		s = STATUS_OK;
	vram_fetched(m, false);
	slot_leave(m);
	if (m->slot && !s && block_live(b) && !m->gpu->lost) {
		cache_count(c, m->way == DEVICE_UP ? COUNTER_MOVED_UP : COUNTER_MOVED_ACROSS, b->pool->geometry.block_bytes);
		vram_ready_now(c, m->slot);
		links_apart(m->done, m->gpu);
		observe_moved(c, b);
	} else if (m->slot && block_live(b)) {
		vram_detach(m->slot); /* of a dead one it goes with the last pin */
	}
	if (s && s != STATUS_BUSY)
		cache_count(c, COUNTER_GPU_UP_FAILED, 1);
	transfer_leave(c, m, s);
}

/* Begins a copy between GPUs that has failed again, by way of host memory. False: the transfer ends. */
static bool again_by_host(struct cache *c, struct vram_transfer *m, enum status s)
{
	if (m->way != DEVICE_ACROSS || s == STATUS_OK || !block_live(m->block) || m->gpu->lost || c->vram->stopping)
		return false;
	slot_leave(m);
	vram_detach(m->slot);
	m->slot = NULL;
	m->from = NULL;
	m->way = DEVICE_UP;
	return up_go_on(c, m, m->gpu->waiting) == STATUS_OK;
}

/* Gives a transfer the priority of a more urgent caller that has joined it. */
static void up_hurry(struct cache *c, struct vram_transfer *m, enum ring_priority priority)
{
	if (priority >= m->priority)
		return;
	m->priority = priority;
	m->waits_us = 0;
	if (m->step == STEP_HOST && m->block->moving)
		vram_load(c, m);
}

/* Whether the upload has its place in the order of uploads: it is copied, or will be. */
static bool is_placed(const struct vram_transfer *m)
{
	return m->step >= STEP_QUEUED && m->way == DEVICE_UP && !m->slot->failed;
}

enum status vram_up(struct cache *c, struct gpu *g, struct block *b, enum ring_priority priority, struct cache_wait *w, bool wait_end,
		    bool now)
{
	struct vram_slot *there = vram_slot_on(b, g);
	struct vram_transfer *m;
	enum status s;

	if (there && there->state == VRAM_READY)
		return STATUS_OK;
	if (there && there->state == VRAM_DEAD)
		return STATUS_UNAVAILABLE; /* the copy was wrong, and is still pinned */
	m = vram_up_of(c, b, g);
	if (m)
		up_hurry(c, m, priority);
	if (m && now)
		return is_placed(m) ? STATUS_OK : STATUS_BUSY;
	if (m)
		return is_placed(m) && !wait_end ? STATUS_OK : transfer_join(c, m, w, wait_end);
	if (now && !b->span)
		return STATUS_BUSY;
	m = transfer_create(c, g, b, way_of(g, b, wait_end));
	if (!m)
		return STATUS_EXHAUSTED;
	m->priority = priority;
	m->hasty = now;
	s = up_go_on(c, m, g->waiting);
	if (!s && (m->step < STEP_QUEUED || m->way == DEVICE_ACROSS || wait_end)) {
		if (now) { /* nothing of it was begun but to make room */
			struct vram_transfer **at = &g->waiting;

			while (*at != m)
				at = &(*at)->next;
			*at = m->next;
			if (!*at)
				g->waiting_end = at;
			s = STATUS_BUSY;
		} else {
			return transfer_join(c, m, w, wait_end);
		}
	}
	if (s)
		up_end(c, m, s); /* it has no waiter yet */
	return s;
}

/* The next upload of the block that waits for it in host memory. */
static struct vram_transfer *awaiting(const struct cache *c, const struct block *b)
{
	struct vram_transfer *m = *vram_transfers_of(c, b);

	while (m && (m->block != b || m->way == DEVICE_DOWN || m->step != STEP_HOST || m->slot))
		m = m->hash_next;
	return m;
}

/* Goes on with an upload whose block has come to host memory, or has not come. */
static void up_came(struct cache *c, struct end *e)
{
	struct vram_transfer *m = vram_transfer_of_end(e);
	enum status s = m->ended ? m->ended : m->block->span ? STATUS_OK : STATUS_EXHAUSTED;

	m->step = STEP_ROOM;
	m->gpu->fetching--;
	vram_fetched(m, !s);
	if ((s == STATUS_EXHAUSTED || (s == STATUS_BUSY && vram_memory_short(c, m))) && vram_memory_comes(c, m)) {
		wait_for_room(m);
		return;
	}
	if (s == STATUS_BUSY && m->priority == RING_URGENT && !m->hasty) {
		m->hasty = true; /* it takes the place which it was spared */
		s = STATUS_OK;
	}
	m->checked = !m->ended;
	if (!s)
		s = up_go_on(c, m, m->gpu->waiting);
	if (s)
		up_end(c, m, s);
}

void vram_host_came(struct cache *c, struct block *b, enum status s)
{
	struct vram_transfer *m;

	b->awaited = false;
	while ((m = awaiting(c, b)))
		transfer_due(c, m, up_came, s);
}

/* Ends an upload that waited for room and gets none. */
static void up_over(struct cache *c, struct end *e)
{
	struct vram_transfer *m = vram_transfer_of_end(e);

	up_end(c, m, m->ended);
}

/* Takes the transfers that wait for room as far as they get. If host memory is full for one, it is so for all of
 * its tenant's behind it that need it. If the GPU is full for one, it is so for all blocks of its class, unless
 * more of that has begun to go down; several classes may be full, and their blocks stand in turn. */
void vram_feed(struct cache *c, struct gpu *g)
{
	struct vram_transfer *m = g->waiting, *next;

	g->feeds++;
	g->freed = false;
	g->waiting = NULL;
	g->waiting_end = &g->waiting;
	for (; m; m = next) {
		struct gpu_accounting *of = gpu_accounting_of(g, m->pool->tenant);
		const uint32_t downs = of->downs, layout = m->block->pool->number;
		struct vram_class *k = g->pools[layout] ? g->pools[layout]->class : NULL;
		enum status s;

		next = m->next;
		if (!g->lost && (needs_memory(m) ? of->memory_full_at == g->feeds : k && k->full_at == g->feeds)) {
			wait_for_room(m);
			continue;
		}
		s = up_go_on(c, m, next || g->waiting);
		if (s)
			transfer_due(c, m, up_over, s);
		else if (m->step == STEP_ROOM && needs_memory(m))
			of->memory_full_at = g->feeds;
		else if (m->step == STEP_ROOM && of->downs == downs)
			g->pools[layout]->class->full_at = g->feeds;
	}
}

/* ---- down ---- */

static void host_slot_back(struct vram_transfer *m)
{
	if (!m->span)
		return;
	span_held(m->span, -1);
	memory_slot_give(&m->host);
	m->span = NULL;
}

static enum status host_slot_get(struct cache *c, struct vram_transfer *m)
{
	static const enum take_effort efforts[2][2] = { { TAKE_ANY, TAKE_SPARE }, { TAKE_BELOW, TAKE_BELOW_SPARE } };
	const enum take_effort effort = efforts[m->idle][m->spare];
	const enum status s = c->tiers[TIER_MEMORY]->take(c, m->block->pool->class, effort, &m->host);

	if (s)
		return s;
	m->span = m->host.span;
	if (m->span->memory->device && m->span->memory->device[m->gpu->number])
		return STATUS_OK;
	host_slot_back(m); /* memory that this GPU cannot see */
	return STATUS_EXHAUSTED;
}

static enum status down_go_on(struct cache *c, struct vram_transfer *m)
{
	enum status s;

	if (m->gpu->lost || c->vram->stopping)
		return STATUS_UNAVAILABLE;
	if (!block_live(m->block))
		return STATUS_CANCELLED;
	s = host_slot_get(c, m);
	if (s == STATUS_EXHAUSTED && room_wants(c)) {
		wait_in(&c->vram->waiting_host_end, m, STEP_ROOM);
		vram_completion_wake(m->gpu);
		return STATUS_OK;
	}
	if (s)
		return s;
	m->early = vram_sum_due(m->block);
	m->step = STEP_QUEUED;
	vram_enqueue(m->gpu, m);
	return STATUS_OK;
}

/* Ends the download with status s. Calls that wait for the block in memory get it from another copy, if there is
 * one. */
static void down_from_another(struct cache *c, struct vram_transfer *m, enum status s)
{
	const bool gone = s == STATUS_CORRUPT || m->gpu->lost; /* else the next try would be of the same copy, or come back to it */
	const struct fetch_how how = { .priority = RING_URGENT, .not_gpu = !gone, .links = m->done };
	struct cache_wait_link *waiting = m->done;
	struct block *b = m->block;

	block_pin(b);
	m->done = NULL;
	transfer_leave(c, m, s);
	if (!b->slab_map && !vram_ready(b) && s == STATUS_CORRUPT)
		block_remove(c, b, CACHE_REASON_CORRUPT);
	else if ((waiting || b->awaited) && (b->slab_map || (gone && vram_ready(b))))
		s = tiers_fetch(c, b, &how, NULL);
	if (s) {
		transfer_tell(c, &waiting, s);
		if (b->awaited)
			vram_host_came(c, b, s);
	}
	block_unpin(b);
}

/* Ends a download whose bytes are not the block's any more: the GPU's copy is marked corrupt, and another source is
 * tried. */
static void down_corrupt(struct cache *c, struct vram_transfer *m)
{
	cache_count(c, COUNTER_CORRUPT, 1);
	cache_count(c, COUNTER_GPU_DOWN_CORRUPT, 1);
	cache_count(c, COUNTER_GPU_DOWN_FAILED, 1);
	m->gpu->corrupt_down++;
	if (m->slot->block == m->block) /* else the GPU is lost, and was swept meanwhile */
		vram_corrupt(c, m->slot);
	host_slot_back(m);
	down_from_another(c, m, STATUS_CORRUPT);
}

/* Queues the copy for another download. It begins when memory can spare a place; if the driver failed, after a
 * while. */
static void write_through_again(struct vram_slot *s, enum status why)
{
	if (why != STATUS_BUSY)
		s->pool->gpu->write_through_us = vram_clock_us() + WRITE_THROUGH_AGAIN_US;
	vram_queue_write_through(s);
}

/* Whether bytes that came before the checksum of the block's commit differ from it. */
static bool is_wrong_early(const struct vram_transfer *m)
{
	return m->early && m->slot->block == m->block && m->slot->summed && m->slot->sums != m->sums;
}

static void down_ended(struct cache *c, struct vram_transfer *m, enum status s)
{
	struct block *b = m->block;
	struct vram_slot *from = m->slot;
	const uint64_t position = from->position;
	const bool refused = s == STATUS_BUSY || (s && m->write_through && !from->write_through);
	const bool again = refused && block_live(b); /* else the slot may be gone with the transfer's pin */

	m->bad |= !s && is_wrong_early(m);
	if (!s && m->bad && block_live(b)) {
		down_corrupt(c, m);
		return;
	}
	if (!s && block_live(b) && m->span) {
		cache_count(c, COUNTER_MOVED_DOWN, b->pool->geometry.block_bytes);
		span_held(m->span, -1);
		vram_sums_keep(b, m->sums);
		b->slab_map_known = b->slab_map_known && m->header_crc == block_header_crc(b);
		block_header_keep(b, m->header_crc);
		block_arrive(c, b, &m->host, position);
	} else {
		host_slot_back(m);
		if (s && s != STATUS_BUSY)
			cache_count(c, COUNTER_GPU_DOWN_FAILED, 1);
	}
	if (s && (m->gpu->lost || b->slab_map) && block_live(b) && !c->vram->stopping) {
		down_from_another(c, m, s);
		return;
	}
	if (b->awaited)
		vram_host_came(c, b, s);
	transfer_leave(c, m, s);
	if (again && from->dirty)
		write_through_again(from, s);
}

/* Whether the download was to be compared with a checksum of a commit that is lost with its GPU. */
static bool has_lost_sum(const struct vram_transfer *m)
{
	return m->early && vram_sums_lost(m->gpu) && !(m->slot->block == m->block && m->slot->summed);
}

/* Ends a download. If the checksum of the block's commit is still due, the end waits for it: the GPU copies and sums
 * side by side. */
static void down_end(struct cache *c, struct vram_transfer *m, enum status s)
{
	if (!s && m->early && vram_sum_due(m->block))
		vram_sum_wait(m, vram_sum_due(m->block)->pool->gpu);
	else
		down_ended(c, m, !s && has_lost_sum(m) ? STATUS_UNAVAILABLE : s);
}

static void down_over(struct cache *c, struct end *e)
{
	struct vram_transfer *m = vram_transfer_of_end(e);

	down_end(c, m, m->ended);
}

/* Ends a download that could not be begun. No call waits for it. */
static void down_undo(struct cache *c, struct vram_transfer *m, enum status s)
{
	struct vram_slot *from = m->slot;

	if (s != STATUS_BUSY)
		cache_count(c, COUNTER_GPU_DOWN_FAILED, 1);
	transfer_leave(c, m, s);
	if (s == STATUS_BUSY && from->dirty)
		write_through_again(from, s);
}

static enum status down(struct cache *c, struct block *b, bool spare, bool idle, struct cache_wait *w)
{
	struct vram_slot *from = vram_ready(b);
	struct vram_transfer *m;
	enum status s;

	if (b->span)
		return STATUS_OK;
	m = vram_down_of(c, b);
	if (m) {
		m->spare &= spare;
		m->idle &= idle;
		return transfer_join(c, m, w, true);
	}
	if (b->moving) /* a load: it comes from its disk */
		return tiers_fetch(c, b, &(struct fetch_how){ .priority = RING_URGENT }, w);
	if (!from)
		return STATUS_UNAVAILABLE;
	m = transfer_create(c, from->pool->gpu, b, DEVICE_DOWN);
	if (!m)
		return STATUS_EXHAUSTED;
	m->slot = from;
	m->write_through = from->write_through;
	m->spare = spare || c->settles; /* before a stop all is to be written */
	m->idle = idle;
	s = down_go_on(c, m);
	if (!s) {
		vram_sync(b);
		return transfer_join(c, m, w, true);
	}
	down_undo(c, m, s);
	return s;
}

enum status vram_fetch(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w)
{
	const bool spare = how->effort == TAKE_SPARE || how->effort == TAKE_BELOW_SPARE;
	const bool idle = how->effort == TAKE_BELOW || how->effort == TAKE_BELOW_SPARE;
	const enum status s = how->effort == TAKE_SOON ? vram_down_soon(c, b, w) : down(c, b, spare, idle, w);

	if (!s && how->links)
		wait_links_join(&vram_down_of(c, b)->done, how->links);
	return s;
}

static void downs_go_on(struct cache *c, struct vram_transfer *m)
{
	for (struct vram_transfer *next; m; m = next) {
		enum status s;

		next = m->next;
		s = down_go_on(c, m);
		if (s)
			transfer_due(c, m, down_over, s);
	}
}

void vram_feed_host(struct cache *c)
{
	struct vram *v = c->vram;
	struct vram_transfer *m = v->waiting_host;

	v->waiting_host = NULL;
	v->waiting_host_end = &v->waiting_host;
	downs_go_on(c, m);
}

/* Goes on with a download that waited for the checksum of its GPU's copy. The checksum has come, or will not, as the
 * GPU that would compute it is lost. */
static void down_summed(struct cache *c, struct end *e)
{
	struct vram_transfer *m = vram_transfer_of_end(e);

	m->gpu->ends->feed_due = true;
	down_end(c, m, vram_sums_lost(m->gpu) ? STATUS_UNAVAILABLE : STATUS_OK);
}

void vram_summed_end(struct cache *c, struct gpu *g)
{
	for (struct vram_transfer *m = vram_summed_take(g), *next; m; m = next) {
		next = m->next;
		transfer_due(c, m, down_summed, STATUS_OK);
		m->end.tiers = 1u << TIER_GPU;
	}
}

/* ---- ends ---- */

/* Whether the bytes that have come to another GPU differ from their checksum. Then the copy that they came from goes,
 * too, as with a download. */
static bool is_wrong_across(const struct vram_transfer *m)
{
	return m->way == DEVICE_ACROSS && m->arrived && m->slot->summed && m->slot->sums != m->sums &&
	       block_live(m->block);
}

static void across_corrupt(struct cache *c, struct vram_transfer *m)
{
	struct vram_slot *from = m->from;
	struct block *b = m->block;

	cache_count(c, COUNTER_CORRUPT, 1);
	cache_count(c, COUNTER_GPU_UP_CORRUPT, 1);
	block_pin(b);
	if (from->block == b && from->state == VRAM_READY) {
		from->pool->gpu->corrupt_down++;
		vram_corrupt(c, from);
	}
	if (!again_by_host(c, m, STATUS_CORRUPT))
		up_end(c, m, STATUS_CORRUPT);
	if (block_live(b) && !b->span && !b->slab_map && !vram_ready(b))
		block_remove(c, b, CACHE_REASON_CORRUPT);
	block_unpin(b);
}

/* Whether the slot that was copied from was found corrupt meanwhile. */
static bool from_corrupt(const struct vram_transfer *m)
{
	return m->from && m->from->state == VRAM_DEAD && block_live(m->block);
}

void vram_transfer_end(struct cache *c, struct vram_transfer *m, enum status s)
{
	if (!m->block) {
		vram_fence_end(m, s);
	} else if (m->way == DEVICE_DOWN) {
		down_end(c, m, s);
	} else if (m->bad) {
		up_end(c, m, STATUS_CORRUPT);
	} else if (!s && is_wrong_across(m)) {
		across_corrupt(c, m);
	} else if (!s && from_corrupt(m)) {
		if (!again_by_host(c, m, STATUS_CORRUPT))
			up_end(c, m, STATUS_CORRUPT);
	} else if (!again_by_host(c, m, s)) {
		up_end(c, m, s);
	}
}

static void transfer_over(struct cache *c, struct end *e)
{
	struct vram_transfer *m = vram_transfer_of_end(e);

	vram_transfer_end(c, m, m->ended);
}

void vram_transfer_fail(struct cache *c, struct vram_transfer *m)
{
	if (m->step == STEP_HOST)
		m->gpu->fetching--;
	if (m->slot && m->way != DEVICE_DOWN)
		m->slot->failed = true; /* no lease is to rely on it until then */
	transfer_due(c, m, transfer_over, STATUS_UNAVAILABLE);
}
