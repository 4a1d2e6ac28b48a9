/* Loads: blocks that are on a disk alone come to memory.
 *
 * A load reads into a slot that its caller has reserved (a piece of a source's fetch, block/source.h), or takes one
 * itself (the tier's fetch). Either way it is the block's one transfer: other calls that want the block join it.
 *
 * Header and checksums are checked without the lock before any call can use the block. A load that finds no memory
 * waits for the chores to make room. If a call that waits joins a prefetch, the prefetch moves up in the disk's queue,
 * before transfers that no call waits for.
 */
#include "daemon/disk/load.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/ends.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/block/rate.h"
#include "daemon/block/source.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/disk/disk_transfer.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "daemon/threads/checksum_pool.h"
#include "eviction/policy.h"
#include "store/clock.h"
#include "store/crash_point.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void load_done(struct disk_request *q);

/* Begins to read the block into the transfer's slot. */
static enum status load_read(struct disk_transfer *m)
{
	const uint32_t bytes = (uint32_t)m->block->pool->geometry.need_bytes;
	enum status s;

	CRASH_POINT("load_begin");
	m->io.done = load_done;
	s = disk_read(m->unit->disk, tier_transfer_place(m), m->slot.at, bytes,
		      tier_transfer_buffer(m, m->span->memory), m->priority, &m->io);
	if (s)
		return s;
	m->unit->loading++;
	rate_begun(&m->unit->reads, bytes, m->begun_us);
	return STATUS_OK;
}

/* Takes a read that has ended off what the disk has to do. With the lock. */
static void load_was_read(struct disk_transfer *m)
{
	const uint64_t bytes = m->block->pool->geometry.need_bytes;
	struct rate *reads = &m->unit->reads;

	m->unit->loading--;
	if (!m->io.ring.status) {
		rate_came(reads, bytes, m->io.ring.started_us, m->ended_us);
		atomic_store_explicit(&m->cache->load_bytes_s, rate_bytes_s(reads), memory_order_relaxed);
	}
	rate_over(reads, bytes);
}

/* Judges what the disk gave: its status, header and checksums. Without the lock. */
static enum status load_judge(struct disk_transfer *m)
{
	enum status s = m->io.ring.status;
	struct slot_ident ident;
	struct slot_header h;

	if (s)
		return s;
	block_slot_ident(m->block->pool, block_key(m->block), block_key_bytes(m->block), &ident);
	memcpy(&h, m->slot.at, sizeof(h));
	if (h.version != SLOT_VERSION) {
		slot_header_renew(&h);
		memcpy(m->slot.at, &h, sizeof(h));
	}
	m->position = h.position;
	s = slot_header_match(&h, &ident, m->block->generation);
	if (!s && m->known && h.header_crc != m->header_crc)
		s = STATUS_CORRUPT; /* sound, but not the one that was written */
	if (s)
		return s;
	m->header_crc = h.header_crc;
	return m->for_gpu ? slot_block_check_leave(&h, (const uint8_t *)m->slot.at + SLOT_HEADER_BYTES)
			  : slot_block_check(&h, (const uint8_t *)m->slot.at + SLOT_HEADER_BYTES);
}

static void load_give_slot(struct disk_transfer *m)
{
	span_held(m->span, -1);
	memory_slot_give(&m->slot);
}

/* Removes the block if its bytes are gone or wrong. With the lock. */
static void load_lost(struct cache *c, struct disk_transfer *m, enum status s)
{
	if (s == STATUS_CORRUPT || s == STATUS_STALE) {
		/* If the block was deleted meanwhile, its slot may be another block's by now. */
		if (!block_live(m->block))
			return;
		cache_count(c, COUNTER_LOAD_CORRUPT, 1);
		cache_count(c, COUNTER_CORRUPT, 1);
		disk_note_corrupt(m->unit->disk, 1);
		block_remove(c, m->block, CACHE_REASON_CORRUPT);
	} else {
		cache_count(c, s == STATUS_BUSY || s == STATUS_EXHAUSTED || s == STATUS_CANCELLED ? COUNTER_LOAD_SHED : COUNTER_LOAD_FAILED, 1);
		tier_transfer_judge(m, s);
	}
}

/* Ends the load's use of its slot: hands it to its fetch, to the block if the load went well, or back to memory. */
static void load_slot_over(struct cache *c, struct disk_transfer *m, enum status s)
{
	struct fetch *f = m->fetch;

	if (f) {
		f->piece[m->piece].position = m->position;
		f->piece_ended(c, f, m->piece, s);
	} else if (!s && block_live(m->block)) {
		span_held(m->span, -1);
		block_arrive(c, m->block, &m->slot, m->position);
	} else if (m->span) {
		load_give_slot(m);
	}
}

/* Frees the transfer. s: how the load went, in the end. */
static void load_end(struct cache *c, struct disk_transfer *m, enum status s)
{
	struct fetch *f = m->fetch;
	struct block *b = m->block;

	tier_transfer_leave(m);
	if (!s && block_live(b)) {
		CRASH_POINT("load_arrive");
		slab_map_unverified(b, false);
		block_header_keep(b, m->header_crc);
		b->slab_map_known = b->slab_map != NULL;
		load_slot_over(c, m, s);
		cache_count(c, COUNTER_LOADED, 1);
		cache_count(c, COUNTER_MOVED_IN, b->pool->geometry.block_bytes);
	} else {
		load_slot_over(c, m, s);
		if (s)
			load_lost(c, m, s);
		observe_prefetch_ended(c, b, COUNTER_PREFETCH_WASTED);
	}
	if (b->awaited)
		observe_load_ended(c, b, s);
	tier_transfer_tell(m, s);
	block_unpin(b);
	free(m);
	if (f && --f->outstanding == 0)
		f->ended(c, f);
}

/* A call now waits for this prefetch: it goes before transfers that no call waits for, unless the kernel has it
 * already. If the disk has not been asked yet, it is asked with the new priority. */
static void load_hurry(struct disk_transfer *m, enum ring_priority priority)
{
	if (m->kind != TRANSFER_LOAD || priority >= m->priority || m->cache->tier->stopping)
		return;
	m->priority = priority;
	disk_promote(m->unit->disk, &m->io, priority);
}

/* Ends a load when the disk has answered. */
static void load_over(struct cache *c, struct end *e)
{
	struct disk_transfer *m = transfer_of_end(e);

	load_was_read(m);
	load_end(c, m, m->judged);
}

/* Ends a load that has waited for memory in vain; the disk was never asked. */
static void load_dropped(struct cache *c, struct end *e)
{
	struct disk_transfer *m = transfer_of_end(e);

	load_end(c, m, m->judged);
}

static void load_check(struct work *w)
{
	struct disk_transfer *m = (struct disk_transfer *)((char *)w - offsetof(struct disk_transfer, check));

	m->judged = load_judge(m);
	CRASH_POINT("load_read");
	m->end.run = load_over;
	ends_arrive(m->cache, &m->end);
}

/* Has checksum threads check the bytes, as long as these keep up. The disk's own thread must serve its ring. */
static void load_done(struct disk_request *q)
{
	struct disk_transfer *m = (struct disk_transfer *)q;

	m->ended_us = clock_us();
	m->check.run = load_check;
	if (m->io.ring.status || !sums_submit(m->cache->sums, &m->check))
		load_check(&m->check);
}

/* Takes a slot of memory and begins the read. awaited: a call waits for it. EXHAUSTED with c->grow set: memory can be
 * had, but not now. */
static enum status load_start(struct cache *c, struct disk_transfer *m, bool awaited)
{
	const struct tier_ops *memory = c->tiers[TIER_MEMORY];
	struct block *b = m->block;
	struct memory_class *k = b->pool->class;
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role };
	enum status s;

	b->not_admitted = memory->refuses(c, b->pool, &e);
	s = memory->take(c, k, (m->priority == RING_URGENT && !m->spare) || awaited ? TAKE_ANY : TAKE_SPARE, &m->slot);
	if (s)
		return s;
	m->span = m->slot.span;
	m->begun_us = clock_us();
	return load_read(m);
}

static void waiting_for_memory_add(struct cache *c, struct disk_transfer *m)
{
	m->waiting_next = NULL;
	*c->tier->waiting_for_memory_end = m;
	c->tier->waiting_for_memory_end = &m->waiting_next;
	c->loads_wait = true;
}

/* Joins the transfer of the block that is under way: a load or a spill. */
static enum status join(struct cache *c, struct disk_transfer *m, const struct fetch_how *how, struct cache_wait *w)
{
	enum status s = tier_transfer_join(m, w);

	cache_count(c, COUNTER_LOAD_JOINED, 1);
	m->spare &= how->effort != TAKE_ANY;
	if (s)
		return s;
	load_hurry(m, how->priority);
	wait_links_join(&m->links, how->links);
	return s;
}

/* Makes the transfer of a load. NULL: no memory. */
static struct disk_transfer *load_create(struct cache *c, struct block *b, enum ring_priority priority, bool for_gpu)
{
	struct disk_transfer *m = tier_transfer_create(c, TRANSFER_LOAD, b->slab_map->class->unit, priority);

	if (!m)
		return NULL;
	m->for_gpu = for_gpu;
	m->slab_map = b->slab_map;
	m->slab_map_slot = b->slab_map_slot;
	m->known = b->slab_map_known;
	m->header_crc = block_header_crc(b);
	tier_transfer_enter(m, b);
	return m;
}

/* Frees the transfer of a load that could not be begun. It has no links and no end. */
static void load_undo(struct cache *c, struct disk_transfer *m, enum status s)
{
	struct block *b = m->block;

	tier_transfer_leave(m);
	if (m->span)
		load_give_slot(m);
	load_lost(c, m, s);
	observe_prefetch_ended(c, b, COUNTER_PREFETCH_WASTED);
	block_unpin(b);
	free(m);
}

/* Why the block cannot be loaded: a status; OK: it can be. */
static enum status load_problem(const struct cache *c, const struct block *b)
{
	if (!slab_map_serves(b) || c->tier->stopping)
		return STATUS_UNAVAILABLE;
	return b->slab_map->sealed ? STATUS_CANCELLED : STATUS_OK;
}

enum status load_begin(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w)
{
	struct disk_transfer *m;
	enum status s;

	if (b->moving)
		return join(c, transfer_of(c, b), how, w);
	s = load_problem(c, b);
	if (s)
		return s;
	m = load_create(c, b, how->priority, how->for_gpu);
	if (!m)
		return STATUS_EXHAUSTED;
	m->spare = how->effort != TAKE_ANY;
	s = load_start(c, m, w != NULL);
	if (s == STATUS_EXHAUSTED && room_wants(c)) {
		waiting_for_memory_add(c, m);
		tier_wake(c);
		s = STATUS_OK;
	}
	/* Its slab is being deleted: that is no damage. */
	if (s == STATUS_STALE)
		s = STATUS_CANCELLED;
	if (s) {
		load_undo(c, m, s);
		return s;
	}
	s = tier_transfer_join(m, w);
	if (!s) /* else it goes on, without a waiter */
		wait_links_join(&m->links, how->links);
	return s;
}

void loads_feed(struct cache *c)
{
	struct tier *t = c->tier;

	while (t->waiting_for_memory) {
		struct disk_transfer *m = t->waiting_for_memory;
		enum status s = t->stopping ? STATUS_CANCELLED : STATUS_STALE;

		if (!t->stopping && block_live(m->block))
			s = load_start(c, m, m->links != NULL);

		if (s == STATUS_EXHAUSTED && !m->span && room_wants(c)) {
			tier_wake(c);
			return;
		}
		t->waiting_for_memory = m->waiting_next;
		if (!t->waiting_for_memory)
			t->waiting_for_memory_end = &t->waiting_for_memory;
		c->loads_wait = t->waiting_for_memory;
		if (!s)
			continue;
		m->judged = s == STATUS_STALE ? STATUS_CANCELLED : s;
		m->end.run = load_dropped;
		ends_append(c, &m->end);
	}
}

/* ---- the disks as a source (block/source.h) ---- */

static void disks_known(struct cache *c, struct source *s, const struct key_run *run, uint8_t *word)
{
	(void)s;
	for (uint32_t i = 0; i < run->count; i++)
		word[i] = run->key[i].block && !load_problem(c, run->key[i].block) ? SOURCE_HAS : SOURCE_NOT;
}

/* The disks read side by side: the last block is there when the slowest of them has read its own. */
static bool disks_estimate(struct cache *c, struct source *s, const struct key_run *run, struct source_cost *out)
{
	const uint64_t now_us = clock_us();
	uint64_t bytes[CACHE_DISKS_MAX] = { 0 }, us;

	(void)s;
	*out = (struct source_cost){ .first_us = 0 };
	for (uint32_t i = 0; i < run->count; i++) {
		const struct block *b = run->key[i].block;
		const struct unit *u;

		if (!b || load_problem(c, b))
			return false;
		u = b->slab_map->class->unit;
		bytes[u->number] += b->pool->geometry.need_bytes;
		us = rate_us(&u->reads, bytes[u->number], now_us);
		out->first_us = i ? out->first_us : us;
		out->last_us = us > out->last_us ? us : out->last_us;
	}
	return true;
}

static enum status piece_begin(struct cache *c, struct fetch *f, uint32_t i, uint64_t now_us)
{
	struct fetch_piece *p = &f->piece[i];
	struct block *b = p->key.block;
	enum status s = b->moving ? STATUS_BUSY : load_problem(c, b);
	struct disk_transfer *m = s ? NULL : load_create(c, b, f->priority, f->for_gpu);

	if (!m)
		return s ? s : STATUS_EXHAUSTED;
	m->slot = p->slot;
	m->span = p->slot.span;
	m->begun_us = now_us;
	s = load_read(m);
	if (s == STATUS_STALE)
		s = STATUS_CANCELLED;
	if (s) {
		m->span = NULL; /* the slot is not its own */
		load_undo(c, m, s);
		return s;
	}
	m->fetch = f;
	m->piece = i;
	m->links = p->links;
	return STATUS_OK;
}

/* An end needs the lock, so it comes after the last piece has begun. */
static enum status disks_fetch(struct cache *c, struct source *s, struct fetch *f)
{
	const uint64_t now_us = clock_us();
	enum status first = STATUS_OK;

	(void)s;
	f->outstanding = 0;
	for (uint32_t i = 0; i < f->count; i++) {
		struct fetch_piece *p = &f->piece[i];

		p->begun = piece_begin(c, f, i, now_us);
		f->outstanding += !p->begun;
		first = first ? first : p->begun;
	}
	return f->outstanding ? STATUS_OK : first;
}

/* Requests that the kernel does not have yet end CANCELLED; the others end soon. */
static void disks_cancel(struct cache *c, struct source *s, struct fetch *f)
{
	(void)s;
	if (f->cancelled)
		return;
	f->cancelled = true;
	for (uint32_t i = 0; i < f->count; i++) {
		struct block *b = f->piece[i].key.block;
		struct disk_transfer *m = !f->piece[i].begun && b->moving ? transfer_of(c, b) : NULL;

		if (m && m->fetch == f && !m->links && !b->awaited)
			disk_withdraw(m->unit->disk, &m->io);
	}
}

/* A disk that has failed says so itself (disk/lost.c). */
static const struct source_ops disks_ops = {
	.name = "disk",
	.known = disks_known,
	.estimate = disks_estimate,
	.fetch = disks_fetch,
	.cancel = disks_cancel,
};

struct source disks_source = { .ops = &disks_ops, .tier = TIER_DISK };
