/* Loads: blocks that are on a disk alone come to memory.
 *
 * What the disk gave is checked without the lock, header and checksums, before anybody can see the block. A load that finds no memory waits
 * for the chores to make some. Whoever wants what is being loaded joins; if he waits for it and it was begun ahead, it moves up in the disk's
 * queue, before what nobody waits for.
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
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/disk/move.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "daemon/threads/checksum_pool.h"
#include "eviction/policy.h"
#include "store/crash_point.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

static enum status load_read(struct move *m)
{
	enum status s = disk_read(m->unit->disk, tier_move_place(m), m->slot.at,
				  (uint32_t)m->block->pool->geometry.need_bytes,
				  m->span->memory->buffer[m->unit->number], m->priority, &m->io);

	if (!s)
		m->unit->loading++;
	return s;
}

/* Without the lock: what the disk gave, judged. */
static enum status load_judge(struct move *m)
{
	enum status s = m->io.ring.status;
	struct slot_ident ident;
	struct slot_header h;

	if (s)
		return s;
	block_slot_ident(m->block->pool, m->cache->tenant.name, block_key(m->block), block_key_bytes(m->block), &ident);
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

static void load_give_slot(struct move *m)
{
	span_held(m->span, -1);
	memory_slot_give(&m->slot);
}

/* With the lock. The block's bytes are gone or wrong: so is the block. */
static void load_lost(struct cache *c, struct move *m, enum status s)
{
	if (s == STATUS_CORRUPT || s == STATUS_STALE) {
		/* Of one that was deleted meanwhile the slot may be another's by now. */
		if (!block_live(m->block))
			return;
		cache_count(c, COUNTER_LOAD_CORRUPT, 1);
		cache_count(c, COUNTER_CORRUPT, 1);
		disk_note_corrupt(m->unit->disk, 1);
		block_remove(c, m->block, CACHE_REASON_CORRUPT);
	} else {
		cache_count(c, s == STATUS_BUSY || s == STATUS_EXHAUSTED || s == STATUS_CANCELLED ? COUNTER_LOAD_SHED : COUNTER_LOAD_FAILED, 1);
		tier_move_judge(m, s);
	}
}

/* Frees the move. s: how the load went, in the end. */
static void load_end(struct cache *c, struct move *m, enum status s)
{
	struct block *b = m->block;

	tier_move_leave(m);
	if (!s && block_live(b)) {
		CRASH_POINT("load_arrive");
		span_held(m->span, -1);
		rack_doubt(b, false);
		block_header_keep(b, m->header_crc);
		b->rack_known = b->rack != NULL;
		block_arrive(c, b, &m->slot, m->position);
		cache_count(c, COUNTER_LOADED, 1);
		cache_count(c, COUNTER_MOVED_IN, b->pool->geometry.block_bytes);
	} else {
		if (m->span)
			load_give_slot(m);
		if (s)
			load_lost(c, m, s);
		observe_ahead_ended(c, b, COUNTER_AHEAD_WASTED);
	}
	if (b->awaited)
		observe_load_ended(c, b, s);
	tier_move_tell(m, s);
	block_unpin(b);
	free(m);
}

/* Begun ahead, and somebody waits for it now: it goes before what nobody waits for, unless the kernel has it already. One that the disk
 * has not been asked for yet is asked for at the new priority. */
static void load_hurry(struct move *m, enum ring_priority priority)
{
	if (m->kind != MOVE_LOAD || priority >= m->priority || m->cache->tier->stopping)
		return;
	m->priority = priority;
	disk_promote(m->unit->disk, &m->io, priority);
}

/* The disk has answered. */
static void load_over(struct cache *c, struct end *e)
{
	struct move *m = move_of_end(e);

	m->unit->loading--;
	load_end(c, m, m->judged);
}

/* One that has waited for memory comes to nothing: the disk was never asked. */
static void load_dropped(struct cache *c, struct end *e)
{
	struct move *m = move_of_end(e);

	load_end(c, m, m->judged);
}

static void load_check(struct work *w)
{
	struct move *m = (struct move *)((char *)w - offsetof(struct move, check));

	m->judged = load_judge(m);
	CRASH_POINT("load_read");
	m->end.run = load_over;
	ends_arrive(m->cache, &m->end);
}

/* A disk's thread has its ring to look after: others sum the bytes, as far as they keep up. */
static void load_done(struct disk_request *q)
{
	struct move *m = (struct move *)q;

	m->check.run = load_check;
	if (m->io.ring.status || !sums_submit(m->cache->sums, &m->check))
		load_check(&m->check);
}

/* A slot of memory, and the read. awaited: a call waits for it. EXHAUSTED with c->grow set: memory is to be had, but
 * not now. */
static enum status load_start(struct cache *c, struct move *m, bool awaited)
{
	const struct tier_ops *memory = c->tiers[TIER_MEMORY];
	struct block *b = m->block;
	struct memory_class *k = b->pool->class;
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .role = b->role };
	enum status s;

	b->refused = memory->refuses(c, b->pool, &e);
	s = memory->take(c, k, (m->priority == RING_URGENT && !m->spare) || awaited ? TAKE_ANY : TAKE_SPARE, &m->slot);
	if (s)
		return s;
	m->span = m->slot.span;
	CRASH_POINT("load_begin");
	m->io.done = load_done;
	return load_read(m);
}

static void hungry_add(struct cache *c, struct move *m)
{
	m->hungry_next = NULL;
	*c->tier->hungry_end = m;
	c->tier->hungry_end = &m->hungry_next;
	c->loads_wait = true;
}

/* There is a move of the block: a load, or a spill. */
static enum status join(struct cache *c, struct move *m, const struct fetch_how *how, struct cache_wait *w)
{
	enum status s = tier_move_join(m, w);

	cache_count(c, COUNTER_LOAD_JOINED, 1);
	m->spare &= how->effort != TAKE_ANY;
	if (s)
		return s;
	load_hurry(m, how->priority);
	wait_links_join(&m->links, how->links);
	return s;
}

/* NULL: no memory. */
static struct move *load_create(struct cache *c, struct block *b, const struct fetch_how *how)
{
	struct move *m = tier_move_create(c, MOVE_LOAD, b->rack->class->unit, how->priority);

	if (!m)
		return NULL;
	m->for_gpu = how->for_gpu;
	m->spare = how->effort != TAKE_ANY;
	m->rack = b->rack;
	m->rack_slot = b->rack_slot;
	m->known = b->rack_known;
	m->header_crc = block_header_crc(b);
	tier_move_enter(m, b);
	return m;
}

/* It could not be begun, and has no end: frees the move, which has no links. */
static void load_undo(struct cache *c, struct move *m, enum status s)
{
	struct block *b = m->block;

	tier_move_leave(m);
	if (m->span)
		load_give_slot(m);
	load_lost(c, m, s);
	observe_ahead_ended(c, b, COUNTER_AHEAD_WASTED);
	block_unpin(b);
	free(m);
}

enum status load_begin(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w)
{
	struct move *m;
	enum status s;

	if (b->moving)
		return join(c, move_of(c, b), how, w);
	if (!b->rack || c->tier->stopping)
		return STATUS_UNAVAILABLE;
	if (b->rack->sealed)
		return STATUS_CANCELLED;
	if (b->rack->class->failed)
		return STATUS_UNAVAILABLE;
	m = load_create(c, b, how);
	if (!m)
		return STATUS_EXHAUSTED;
	s = load_start(c, m, w != NULL);
	if (s == STATUS_EXHAUSTED && room_wants(c)) {
		hungry_add(c, m);
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
	s = tier_move_join(m, w);
	if (!s) /* else it goes on, without a waiter */
		wait_links_join(&m->links, how->links);
	return s;
}

void loads_feed(struct cache *c)
{
	struct tier *t = c->tier;

	while (t->hungry) {
		struct move *m = t->hungry;
		enum status s = t->stopping ? STATUS_CANCELLED : STATUS_STALE;

		if (!t->stopping && block_live(m->block))
			s = load_start(c, m, m->links != NULL);

		if (s == STATUS_EXHAUSTED && !m->span && room_wants(c)) {
			tier_wake(c);
			return;
		}
		t->hungry = m->hungry_next;
		if (!t->hungry)
			t->hungry_end = &t->hungry;
		c->loads_wait = t->hungry;
		if (!s)
			continue;
		m->judged = s == STATUS_STALE ? STATUS_CANCELLED : s;
		m->end.run = load_dropped;
		ends_append(c, &m->end);
	}
}
