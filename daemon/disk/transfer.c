/* Transfers: what all have in common, and spills and tombstones, from their beginning under the lock to their end in
 * the queue of ends (block/ends.h). Loads are in disk/load.c.
 *
 * An end does the accounting, tells the catalog's queue, and tells the waiting links. The tier's pump (disk/tier.c)
 * begins new work, once after all ends of a hold of the lock.
 *
 * A write reads memory that engines may write to. So when it has completed, and before its end is reported, the block
 * is compared with the commit's checksums. This finds a stray write to the block before or while the disk read it. If
 * the stray write was undone in time, the copy on disk fails its checksums later: a miss when it is read.
 */
#include "daemon/disk/transfer.h"

#include "daemon/block/block.h"
#include "daemon/block/check.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/ends.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/disk_transfer.h"
#include "daemon/disk/place.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/threads/checksum_pool.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALONE_BYTES = 512 << 10 }; /* slots of more are checked one by one, by several threads */

/* ---- the table of transfers ---- */

static struct disk_transfer **block_bucket(struct cache *c, const struct block *b)
{
	return &c->tier->transfers[((uintptr_t)b >> 6) % TRANSFER_BUCKETS];
}

static struct disk_transfer **tombstone_bucket(struct cache *c, const struct index_ident *ident)
{
	return &c->tier->tombstones[ident_hash(ident, 0) % TRANSFER_BUCKETS];
}

struct disk_transfer *transfer_of(struct cache *c, const struct block *b)
{
	struct disk_transfer *m = *block_bucket(c, b);

	while (m && m->block != b)
		m = m->block_next;
	return m;
}

struct disk_transfer *tombstone_of(struct cache *c, const struct index_ident *ident, struct disk_transfer *after)
{
	struct disk_transfer *m = after ? after->tombstone_next : *tombstone_bucket(c, ident);

	while (m && !ident_equal(&m->dead, ident))
		m = m->tombstone_next;
	return m;
}

struct disk_transfer *tier_transfer_create(struct cache *c, enum transfer_kind kind, struct unit *u,
					   enum ring_priority priority)
{
	struct disk_transfer *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->end.tiers = 1u << TIER_DISK;
	m->cache = c;
	m->kind = kind;
	m->unit = u;
	m->priority = priority;
	return m;
}

void tier_transfer_enter(struct disk_transfer *m, struct block *b)
{
	struct disk_transfer **bucket = block_bucket(m->cache, b);

	if (m->block != b) /* of a spill it is known, and the disk's thread may be reading it */
		m->block = b;
	m->block_next = *bucket;
	*bucket = m;
	b->moving = true;
	block_pin(b);
	m->cache->moving_bytes += b->pool->geometry.need_bytes;
	m->cache->tier->transfer_count++;
}

void tier_transfer_leave(struct disk_transfer *m)
{
	struct disk_transfer **at = block_bucket(m->cache, m->block);

	while (*at != m)
		at = &(*at)->block_next;
	*at = m->block_next;
	m->block->moving = false;
	m->cache->moving_bytes -= m->block->pool->geometry.need_bytes;
	m->cache->tier->transfer_count--;
}

static void tombstone_enter(struct disk_transfer *m, struct layout_pool *p, const struct index_ident *ident,
			    uint64_t generation)
{
	struct disk_transfer **bucket = tombstone_bucket(m->cache, ident);

	m->tombstone = true;
	m->dead = *ident;
	memcpy(m->dead_key, ident->key, ident->key_bytes);
	m->dead.key = m->dead_key;
	m->dead_generation = generation;
	m->dead_pool = p;
	m->tombstone_next = *bucket;
	*bucket = m;
}

static void tombstone_leave(struct disk_transfer *m)
{
	struct disk_transfer **at;

	if (!m->tombstone)
		return;
	at = tombstone_bucket(m->cache, &m->dead);
	while (*at != m)
		at = &(*at)->tombstone_next;
	*at = m->tombstone_next;
	m->tombstone = false;
	unit_wrote(m->unit, &m->dead);
}

enum status tier_transfer_join(struct disk_transfer *m, struct cache_wait *w)
{
	struct cache_wait_link *l;

	if (!w)
		return STATUS_OK;
	l = wait_link(m->cache, w, m->block);
	if (!l)
		return STATUS_EXHAUSTED;
	l->transfer_next = m->links;
	m->links = l;
	return STATUS_OK;
}

void tier_transfer_tell(struct disk_transfer *m, enum status s)
{
	struct cache_wait_link *l = m->links, *next;

	m->links = NULL;
	for (; l; l = next) {
		next = l->transfer_next;
		wait_link_done(m->cache, l, s);
	}
}

void tier_transfer_judge(struct disk_transfer *m, enum status s)
{
	if ((s == STATUS_IO || s == STATUS_UNAVAILABLE) && !m->cache->tier->stopping)
		unit_failed(m->cache, m->unit);
}

struct disk_place tier_transfer_place(const struct disk_transfer *m)
{
	return (struct disk_place){ .slab = m->slab_map->slab, .slot = m->slab_map_slot };
}

uint32_t tier_transfer_buffer(const struct disk_transfer *m, const struct memory_extent *e)
{
	return e->buffer ? e->buffer[m->unit->number] : RING_NONE;
}

/* ---- tombstones ---- */

/* Frees the transfer, and with it the second name that the header may have had. */
static void tombstone_end(struct cache *c, struct disk_transfer *m, enum status s)
{
	cache_count(c, s ? COUNTER_TOMBSTONES_FAILED : COUNTER_TOMBSTONES, 1);
	m->slab_map->transfers--;
	c->tier->transfer_count--;
	if (!s)
		disk_slot_give(m->unit->disk, tier_transfer_place(m));
	CRASH_POINT("tombstone_end");
	for (struct disk_transfer *next; m; m = next) {
		next = m->also;
		tombstone_leave(m);
		tier_transfer_tell(m, s);
		free(m->page);
		free(m);
	}
}

static void waiting_tombstones_add(struct cache *c, struct disk_transfer *m)
{
	m->waiting_next = NULL;
	*c->tier->waiting_tombstones_end = m;
	c->tier->waiting_tombstones_end = &m->waiting_next;
}

/* The disk has answered. */
static void tombstone_over(struct cache *c, struct end *e)
{
	struct disk_transfer *m = transfer_of_end(e);
	const enum status s = m->io.ring.status;

	tier_transfer_judge(m, s);
	/* While the disk is sound the header must be overwritten, or a later delete of the name would miss it: again at
	 * the next tick. */
	if (s && !m->unit->failed && !c->tier->stopping) {
		waiting_tombstones_add(c, m);
		return;
	}
	tombstone_end(c, m, s);
	c->tier->burials_due = true;
}

static void tombstone_done(struct disk_request *q)
{
	struct disk_transfer *m = (struct disk_transfer *)q;

	CRASH_POINT("tombstone_done");
	m->end.run = tombstone_over;
	ends_arrive(m->cache, &m->end);
}

/* It could not be begun, or need not be. */
static void tombstone_dropped(struct cache *c, struct end *e)
{
	struct disk_transfer *m = transfer_of_end(e);

	tombstone_end(c, m, m->judged);
}

/* The fields of the slot's header that a tombstone repeats. */
static void dead_header(const struct disk_transfer *m, struct slot_header *h)
{
	const struct layout_pool *p = m->dead_pool;

	*h = (struct slot_header){
		.magic = SLOT_MAGIC, .version = SLOT_VERSION, .generation = m->dead_generation,
		.layout_id = m->dead.layout_id, .block_bytes = p->geometry.block_bytes,
		.layer_bytes = p->geometry.piece_bytes, .layers = p->geometry.pieces,
		.tokens = p->layout.block_tokens, .key_bytes = m->dead.key_bytes,
	};
	memcpy(h->key, m->dead.key, m->dead.key_bytes);
	strncpy(h->tenant, p->tenant->name, SLOT_TENANT_MAX);
}

static uint64_t unix_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static enum status tombstone_submit(struct cache *c, struct disk_transfer *m)
{
	struct slot_header h;

	if (c->tier->stopping)
		return STATUS_CANCELLED;
	if (!m->page) {
		m->page = aligned_alloc(SLOT_HEADER_BYTES, SLOT_HEADER_BYTES);
		if (!m->page)
			return STATUS_EXHAUSTED;
		dead_header(m, &h);
		slot_tombstone(m->page, &h, unix_now_ms());
	}
	m->io.done = tombstone_done;
	return disk_tombstone(m->unit->disk, tier_transfer_place(m), m->page, &m->io);
}

/* False: the disk does not take it now. A slab that is being deleted takes no tombstone, and its headers are there until it is gone. */
static bool tombstone_try(struct cache *c, struct disk_transfer *m)
{
	enum status s = tombstone_submit(c, m);

	if (!s)
		return true;
	if (s == STATUS_EXHAUSTED || s == STATUS_BUSY || (s == STATUS_STALE && !m->slab_map->gone && !m->unit->failed))
		return false;
	tier_transfer_judge(m, s);
	m->judged = s == STATUS_STALE && m->slab_map->gone ? STATUS_OK : s;
	m->end.run = tombstone_dropped;
	ends_append(c, &m->end);
	return true;
}

void burials_feed(struct cache *c)
{
	struct tier *t = c->tier;
	struct disk_transfer *m = t->waiting_tombstones, *next;

	t->burials_due = false;
	t->waiting_tombstones = NULL;
	t->waiting_tombstones_end = &t->waiting_tombstones;
	for (; m; m = next) {
		next = m->waiting_next;
		if (!tombstone_try(c, m))
			waiting_tombstones_add(c, m);
	}
}

/* Tombstones that wait already go first. */
static void tombstone_offer(struct cache *c, struct disk_transfer *m)
{
	if (c->tier->waiting_tombstones || !tombstone_try(c, m))
		waiting_tombstones_add(c, m);
}

/* m has the slab map, the slot and the tombstone. On a disk that has failed nothing can be written: the slot stays
 * taken, and the disk is wiped before it is used again (store/slab/disk.h). */
static void tombstone_start(struct cache *c, struct disk_transfer *m)
{
	CRASH_POINT("tombstone_begin");
	m->kind = TRANSFER_TOMBSTONE;
	m->slab_map->transfers++;
	c->tier->transfer_count++;
	tombstone_offer(c, m);
}

void burials_release(struct cache *c, struct slab_map *r)
{
	struct disk_transfer *m = r->left, *next;

	CRASH_POINT("burials_release");
	r->left = NULL;
	r->left_count = 0;
	for (; m; m = next) {
		next = m->waiting_next;
		tombstone_offer(c, m);
	}
}

void tombstone_begin(struct cache *c, struct slab_map *r, uint32_t slot, struct layout_pool *p,
		const struct index_ident *ident,
		uint64_t generation)
{
	struct disk_transfer *m = tier_transfer_create(c, TRANSFER_TOMBSTONE, r->class->unit, RING_URGENT);

	if (!m) {
		cache_count(c, COUNTER_TOMBSTONES_FAILED, 1);
		c->tier->tombstones_lost = true;
		return;
	}
	m->slab_map = r;
	m->slab_map_slot = slot;
	CRASH_POINT("tombstone_enter");
	tombstone_enter(m, p, ident, generation);
	tombstone_start(c, m);
}

/* ---- spills ---- */

void spill_abandon(struct cache *c, const struct block *b)
{
	struct disk_transfer *m = transfer_of(c, b);

	if (m->kind != TRANSFER_SPILL)
		return;
	m->abandoned_next = c->tier->abandoned_spills;
	c->tier->abandoned_spills = m;
}

static void abandoned_leave(const struct disk_transfer *m)
{
	struct disk_transfer **at = &m->cache->tier->abandoned_spills;

	while (*at && *at != m)
		at = &(*at)->abandoned_next;
	if (*at)
		*at = m->abandoned_next;
}

/* With the lock. The block has a durable copy elsewhere: it leaves its slab map. The header there names it until the
 * slab is deleted. */
static void leave_behind(struct cache *c, struct disk_transfer *m)
{
	struct block *b = m->block;
	const struct index_ident name = block_name(b);
	struct disk_transfer *old = m->old;
	struct slab_map *r = old->slab_map;

	/* The old copy may have been lost meanwhile. */
	if (b->slab_map != r || b->slab_map_slot != old->slab_map_slot)
		return;
	CRASH_POINT("spill_leave_behind");
	slab_map_detach(c, b);
	b->pool->dirty--;
	tombstone_enter(old, b->pool, &name, b->generation);
	r->transfers++;
	c->tier->transfer_count++;
	old->waiting_next = r->left;
	r->left = old;
	r->left_count++;
	m->old = NULL;
}

/* With the lock. The header was looked at beside the block, but an engine may have written to it since: then the catalog is told less. */
static void spill_keep(struct disk_transfer *m)
{
	struct cache *c = m->cache;
	struct block *b = m->block;
	struct slot_header h;

	if (m->old)
		leave_behind(c, m);
	if (!memory_header(b, &h))
		h = (struct slot_header){ .magic = 0 };
	slab_map_attach(c, m->slab_map, m->slab_map_slot, b, h.position);
	b->slab_map_known = true;
	catalog_tell(c, b, &h);
	cache_count(c, COUNTER_SPILLED, 1);
	cache_count(c, COUNTER_MOVED_OUT, b->pool->geometry.block_bytes);
}

/* The catalog forgets the displaced block only now: until now a restart should have found it. It may have been put or
 * spilled anew meanwhile. */
static void displaced(struct cache *c, const struct disk_transfer *m)
{
	struct index_record *r;

	CRASH_POINT("spill_displaced");
	index_read_lock();
	r = index_find(c->index, &m->dead);
	if (!r || !block_of(r)->slab_map)
		catalog_untell(c, &m->dead);
	index_read_unlock();
}

/* The slot must not stay as it is: its header names the block, or, after a failed write, the displaced block, or it is
 * torn. The transfer's waiters then wait for a tombstone. */
static void spill_undo(struct disk_transfer *m, const struct block *b, enum status s)
{
	const struct index_ident name = block_name(b);
	struct cache *c = m->cache;
	struct disk_transfer *tombstone, *also = NULL;

	CRASH_POINT("spill_undo");
	if (s && !m->io.ring.started_us && !m->tombstone) {
		disk_slot_give(m->unit->disk, tier_transfer_place(m));
		return;
	}
	tombstone = tier_transfer_create(c, TRANSFER_TOMBSTONE, m->unit, RING_URGENT);
	if (s && m->tombstone)
		also = tier_transfer_create(c, TRANSFER_TOMBSTONE, m->unit, RING_URGENT);
	if (!tombstone || (s && m->tombstone && !also)) {
		free(tombstone);
		c->tier->tombstones_lost = true;
		return; /* the slot stays taken until the next start */
	}
	tombstone->slab_map = m->slab_map;
	tombstone->slab_map_slot = m->slab_map_slot;
	tombstone->links = m->links;
	m->links = NULL;
	tombstone_enter(tombstone, b->pool, &name, b->generation);
	if (also) {
		const struct index_ident old = m->dead;

		displaced(c, m);
		tombstone_leave(m);
		tombstone_enter(also, m->dead_pool, &old, m->dead_generation);
		tombstone->also = also;
	}
	tombstone_start(c, tombstone);
}

/* What lies in the slot that a spill is about to overwrite leaves the accounting; its name stays in the tombstones
 * until it is overwritten. */
static void displace(struct cache *c, struct disk_transfer *m, struct block *old)
{
	const struct index_ident name = block_name(old);

	CRASH_POINT("spill_displace");
	tombstone_enter(m, old->pool, &name, old->generation);
	cache_count(c, COUNTER_EVICTED_DISK, 1);
	if (old->span) {
		slab_map_detach(c, old); /* memory has it: it is dirty from now on, and comes back */
		return;
	}
	cache_count(c, COUNTER_DROPPED, 1);
	block_remove(c, old, CACHE_REASON_EVICTED);
}

/* With the lock. What was written is not, or need not be, what was committed. The slot gets a tombstone, by a block
 * that is dead or has no such copy. */
static void spill_damaged(struct cache *c, struct block *b)
{
	cache_count(c, COUNTER_SPILL_FAILED, 1);
	if (!block_live(b))
		return;
	b->pool->dirty += !b->slab_map; /* as leave_span wants it */
	memory_damaged(c, b, COUNTER_MEMORY_WRONG_SPILL);
}

/* Frees the transfer. s: of the write, and of the sync of a copy out of a slab map. */
static void spill_end(struct disk_transfer *m, enum status s)
{
	struct cache *c = m->cache;
	struct block *b = m->block;
	const bool damaged = !s && m->judged;
	const struct index_ident name = block_name(b);

	m->slab_map->transfers--;
	if (m->old)
		m->old->slab_map->transfers--;
	else
		b->pool->tenant->disk_coming -= m->slab_map->class->slot_bytes;
	CRASH_POINT("spill_leave");
	tier_transfer_leave(m);
	abandoned_leave(m);
	unit_wrote(m->unit, &name);
	if (!s && m->tombstone)
		displaced(c, m);
	if (!s && !damaged && block_live(b) && !m->unit->failed) {
		spill_keep(m);
		CRASH_POINT("spill_kept");
	} else {
		if (damaged)
			spill_damaged(c, b);
		if (s && s != STATUS_CANCELLED)
			cache_count(c, COUNTER_SPILL_FAILED, 1);
		if (!damaged && block_live(b) && !b->slab_map)
			b->pool->dirty++;
		if (!m->unit->failed && !c->tier->stopping)
			spill_undo(m, b, s);
	}
	tombstone_leave(m);
	tier_transfer_tell(m, damaged ? m->judged : s);
	block_unpin(b);
	c->tier->spared = c->tier->burials_due = true;
	free(m->old);
	free(m);
}

/* It was a copy out of a slab map, which is not written again: its check's word was OK. */
static void spill_landed(struct cache *c, struct end *e)
{
	struct disk_transfer *m = transfer_of_end(e);

	(void)c;
	spill_end(m, m->landed);
}

static struct end *landed(struct disk_transfer *m, enum status s)
{
	m->landed = s;
	m->end.run = spill_landed;
	return &m->end;
}

void spills_land(struct cache *c, struct disk_transfer *copied, enum status s)
{
	CRASH_POINT("spills_land");
	for (struct disk_transfer *next; copied; copied = next) {
		next = copied->waiting_next;
		ends_push(c, landed(copied, s));
	}
	ends_run(c);
}

void spills_drop(struct cache *c, struct disk_transfer *copied)
{
	for (struct disk_transfer *next; copied; copied = next) {
		next = copied->waiting_next;
		ends_append(c, landed(copied, STATUS_CANCELLED));
	}
}

/* Without the lock: whether memory still has what was committed, now that the disk has read it. */
static void spill_judge(struct disk_transfer *m)
{
	struct slot_header h;

	if (!m->io.ring.status && !memory_sound(m->block, &h))
		m->judged = STATUS_CORRUPT;
}

/* It has been written, or not, and checked. */
static void spill_over(struct cache *c, struct end *e)
{
	struct disk_transfer *m = transfer_of_end(e);
	const enum status s = m->io.ring.status;

	(void)c;
	tier_transfer_judge(m, s);
	m->unit->spilling--;
	if (!s && !m->judged && m->old && m->old->slab_map->leaving) {
		struct slab_map *r = m->old->slab_map;

		CRASH_POINT("spill_copied");
		m->written = true;
		m->waiting_next = r->copied;
		r->copied = m;
		return;
	}
	/* A copy out of a slab map that stays after all is not wanted. */
	spill_end(m, !s && !m->judged && m->old ? STATUS_CANCELLED : s);
}

/* True: there was one before it, so that another thread is about to check both. */
static bool written_push(struct disk_transfer *m)
{
	struct disk_transfer *_Atomic *list = &m->cache->tier->written;
	struct disk_transfer *before = atomic_load_explicit(list, memory_order_relaxed);

	do
		m->written_next = before;
	while (!atomic_compare_exchange_weak_explicit(list, &before, m, memory_order_acq_rel, memory_order_relaxed));
	return before;
}

/* All, in the order in which they came. */
static struct disk_transfer *written_take(struct cache *c)
{
	struct disk_transfer *m = atomic_exchange_explicit(&c->tier->written, NULL, memory_order_acquire),
	    *first = NULL, *next;

	for (; m; m = next) {
		next = m->written_next;
		m->written_next = first;
		first = m;
	}
	return first;
}

/* Checks these, by written_next, and ends them together. */
static void spills_over(struct cache *c, struct disk_transfer *first)
{
	bool mine = false;

	for (struct disk_transfer *m = first; m; m = m->written_next)
		spill_judge(m);
	CRASH_POINT("spill_checked");
	for (struct disk_transfer *m = first, *next; m; m = next) {
		next = m->written_next; /* another thread may end it now */
		m->end.run = spill_over;
		mine |= ends_push(c, &m->end);
	}
	if (mine)
		ends_run(c);
}

static void spill_check(struct work *w)
{
	struct disk_transfer *m = (struct disk_transfer *)((char *)w - offsetof(struct disk_transfer, check));

	m->written_next = NULL;
	spills_over(m->cache, m);
}

static void spills_check(struct work *w)
{
	struct cache *c = ((struct disk_transfer *)((char *)w - offsetof(struct disk_transfer, check)))->cache;

	spills_over(c, written_take(c));
}

/* The disk's thread must serve its ring: checksum threads check the bytes, as long as they keep up. Waking one for a
 * small block costs more than the checksum: while one is on its way, it also takes the spills that follow. */
static void spill_done(struct disk_request *q)
{
	struct disk_transfer *m = (struct disk_transfer *)q;
	const bool small = m->block->pool->geometry.need_bytes <= ALONE_BYTES;

	CRASH_POINT("spill_written");
	m->check.run = small ? spills_check : spill_check;
	if (small && written_push(m))
		return;
	if (!sums_submit(m->cache->sums, &m->check))
		m->check.run(&m->check);
}

static enum status spill_submit(struct cache *c, struct disk_transfer *m, struct block *b, struct block *victim)
{
	const struct layout_pool *p = b->pool;
	enum status s;

	CRASH_POINT("spill_begin");
	m->io.done = spill_done;
	m->block = b; /* the check may come before it is entered, but not before the lock is let go */
	s = disk_write(m->unit->disk, tier_transfer_place(m), block_slot_at(b), (uint32_t)p->geometry.need_bytes,
		       tier_transfer_buffer(m, b->span->memory), m->priority, &m->io);
	if (s)
		return s;
	CRASH_POINT("spill_submitted");
	/* Its end waits for the lock. */
	if (victim)
		displace(c, m, victim);
	tier_transfer_enter(m, b);
	if (m->old) {
		m->old->slab_map->transfers++;
	} else {
		b->pool->dirty--;
		p->tenant->disk_coming += m->slab_map->class->slot_bytes;
	}
	m->unit->spilling++;
	m->slab_map->transfers++;
	return STATUS_OK;
}

/* The tombstone that a copy out of a slab map ends with: it must not fail for lack of memory then. */
static bool prepare_leaving(struct cache *c, struct disk_transfer *m, const struct block *b)
{
	m->old = tier_transfer_create(c, TRANSFER_TOMBSTONE, b->slab_map->class->unit, RING_URGENT);
	if (!m->old)
		return false;
	m->old->slab_map = b->slab_map;
	m->old->slab_map_slot = b->slab_map_slot;
	return true;
}

static enum status spill_to(struct cache *c, const struct spot *at, struct block *b, enum ring_priority priority,
			    struct disk_transfer **out)
{
	struct disk_transfer *m = tier_transfer_create(c, TRANSFER_SPILL, at->unit, priority);
	enum status s = STATUS_EXHAUSTED;

	if (m && (!b->slab_map || prepare_leaving(c, m, b))) {
		m->slab_map = at->slab_map;
		m->slab_map_slot = at->slot;
		s = spill_submit(c, m, b, at->victim);
		tier_transfer_judge(m, s);
	}
	if (!s) {
		at->unit->slow_us = 0;
		*out = m;
		return STATUS_OK;
	}
	if (!at->victim)
		disk_slot_give(at->unit->disk, (struct disk_place){ .slab = at->slab_map->slab, .slot = at->slot });
	if (m)
		free(m->old);
	free(m);
	return s;
}

enum status spill_begin(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w)
{
	struct spot_search search = { .block = b, .priority = priority, .grow = !b->slab_map };
	struct disk_transfer *m = b->moving ? transfer_of(c, b) : NULL;
	struct spot at;
	enum status s;

	if (m)
		return tier_transfer_join(m, w);
	if (!c->tier->restored)
		return STATUS_MISS;
	while (!(s = spot_find(c, &search, &at))) {
		s = spill_to(c, &at, b, priority, &m);
		if (!s)
			return tier_transfer_join(m, w);
		spot_refused(c, &search, at.unit, s);
	}
	return s;
}
