/* The scrub of the disks: each copy is read into memory of its own and checked like a load. Waits for the disk, so it
 * runs on a worker, one block at a time; the pin keeps the copy from being displaced meanwhile. Blocks that a crash
 * left unverified are checked without being asked for.
 */
#include "daemon/disk/durable.h"
#include "daemon/block/disk_class.h"
#include "daemon/disk/scrub.h"

#include "daemon/block/block.h"
#include "daemon/block/ends.h"
#include "daemon/block/gpu_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/disk/scrub_target.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/disk/transfer.h"
#include "daemon/threads/await.h"
#include "daemon/threads/checksum_pool.h"
#include "daemon/threads/pool.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

enum {
	SCRUB_BLOCKS = 64,
	SCRUB_LOOKS = 2048,
	READ_US_MAX = 10 * 1000 * 1000,
	LOOKS = 2,                     /* of a disk at a time */
	LOOKS_HURRIED = 16,
	LOOK_SLOTS = 2048,             /* searched for one, in a hold of the lock */
	LOOK_BYTES_US = 256,           /* of a disk, a microsecond: 256 MB/s */
	LOOK_US_MAX = 100 * 1000,      /* of which as many are saved up */
	HURRY_US = 100 * 1000,
};

/* A read and its memory: a disk that hangs keeps that, not the worker. */
struct scrub_read {
	struct disk_request io;        /* first */
	struct await done;
	void *at;                      /* aligned */
};

struct scrub_target scrub_target_of(const struct block *b)
{
	return (struct scrub_target){ b->slab_map->class->unit->disk, { b->slab_map->slab, b->slab_map_slot },
				      b->slab_map_known,
				      block_header_crc(b) };
}

static void scrub_let_go(struct scrub_read *r)
{
	if (!await_let_go(&r->done))
		return;
	free(r->at);
	free(r);
}

static void scrub_done(struct disk_request *q)
{
	struct scrub_read *r = (struct scrub_read *)q;

	await_answer(&r->done);
	scrub_let_go(r);
}

static struct scrub_read *scrub_read_create(uint64_t bytes)
{
	struct scrub_read *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->at = aligned_alloc(SLOT_HEADER_BYTES, bytes);
	if (!r->at) {
		free(r);
		return NULL;
	}
	r->io.done = scrub_done;
	await_init(&r->done);
	return r;
}

/* Reads a copy and waits for it. DEADLINE: the disk has not answered in time. Without the lock. */
static enum status read_wait(const struct scrub_target *t, struct scrub_read *r, uint32_t bytes)
{
	enum status s = disk_read(t->disk, t->place, r->at, bytes, RING_NONE, RING_IDLE, &r->io);

	if (s) {
		scrub_let_go(r); /* the disk's hold */
		return s;
	}
	return await_came(&r->done, READ_US_MAX) ? r->io.ring.status : STATUS_DEADLINE;
}

enum status scrub_copy(const struct block *b, const struct scrub_target *t, struct slot_header *h)
{
	const struct layout_pool *p = b->pool;
	struct slot_ident ident;
	struct scrub_read *r = scrub_read_create(p->geometry.need_bytes);
	enum status s;

	if (!r)
		return STATUS_EXHAUSTED;
	CRASH_POINT("scrub_read");
	s = read_wait(t, r, (uint32_t)p->geometry.need_bytes);
	if (!s) {
		block_slot_ident(p, block_key(b), block_key_bytes(b), &ident);
		slot_header_renew(r->at);
		memcpy(h, r->at, sizeof(*h));
		s = slot_header_match(h, &ident, b->generation);
	}
	if (!s && t->known && h->header_crc != t->header_crc)
		s = STATUS_CORRUPT;
	if (!s)
		s = slot_layers_check(r->at, 0, p->geometry.pieces);
	scrub_let_go(r);
	return s;
}

/* Takes a lost copy off its block. A block that memory or a GPU has goes on without it, and is spilled anew. With the
 * lock. */
static void copy_lost(struct cache *c, struct block *b)
{
	const struct index_ident name = block_name(b);
	struct slab_map *r = b->slab_map;
	uint32_t slot = b->slab_map_slot;

	cache_count(c, COUNTER_CORRUPT, 1);
	disk_note_corrupt(r->class->unit->disk, 1);
	if (!b->span && !vram_ready(b)) {
		block_remove(c, b, CACHE_REASON_CORRUPT);
		return;
	}
	slab_map_detach(c, b);
	catalog_untell(c, &name);
	tombstone_begin(c, r, slot, b->pool, &name, b->generation);
}

static bool same_target(const struct block *b, const struct scrub_target *t)
{
	const struct scrub_target now = scrub_target_of(b);

	return now.disk == t->disk && now.place.slab == t->place.slab && now.place.slot == t->place.slot;
}

/* ---- looks ----
 *
 * After a crash the header of a slot is there, but the bytes that it describes may be missing. Such blocks are
 * unverified until they have been read: in the background, a bounded number of bytes a second, or as fast as the disks
 * read while a Flush of everything waits. A look pins nothing, so that it keeps no lease from memory: if the block is
 * displaced meanwhile, the result is ignored. */

/* The check of one block, with memory of its own to read into. */
struct scrub_look {
	struct disk_request io;        /* first */
	struct work check;
	struct end end;
	enum status sound;             /* what the check found */
	struct cache *cache;
	struct unit *unit;
	struct layout_pool *pool;
	uint8_t key_bytes, key[SLOT_KEY_MAX];
	uint64_t generation;
	struct scrub_target target;
	struct cache_wait_link *link;  /* NULL: no call waits */
	void *at;                      /* aligned */
};

static void look_free(struct scrub_look *k)
{
	free(k->at);
	free(k);
}

/* Judges what the disk gave: its status, header and checksums. Without the lock. */
static enum status look_judge(const struct scrub_look *k)
{
	enum status s = k->io.ring.status;
	struct slot_ident ident;

	block_slot_ident(k->pool, k->key, k->key_bytes, &ident);
	if (!s) {
		slot_header_renew(k->at);
		s = slot_header_match(k->at, &ident, k->generation);
	}
	if (!s && k->target.known && ((const struct slot_header *)k->at)->header_crc != k->target.header_crc)
		s = STATUS_CORRUPT;
	return s ? s : slot_layers_check(k->at, 0, ident.layers);
}

/* The block, if it is still where it was read; else NULL. With the lock. */
static struct block *look_found(const struct scrub_look *k)
{
	const struct slab_map *r = slab_map_find(k->unit, k->target.place.slab);
	struct block *b = r && !r->sealed ? r->at[k->target.place.slot].block : NULL;

	return b && b->pool == k->pool && b->generation == k->generation ? b : NULL;
}

static void look_over(struct cache *c, struct end *e)
{
	struct scrub_look *k = (struct scrub_look *)((char *)e - offsetof(struct scrub_look, end));
	const enum status read = k->io.ring.status;
	struct block *b = read ? NULL : look_found(k);

	if (b && !k->sound)
		slab_map_unverified(b, false);
	else if (b)
		copy_lost(c, b);
	if (read && !c->tier->stopping)
		unit_failed(c, k->unit);
	if (k->link)
		wait_link_done(c, k->link, read);
	else
		k->unit->looks--;
	c->tier->looks_due = true;
	look_free(k);
}

static void look_check(struct work *w)
{
	struct scrub_look *k = (struct scrub_look *)((char *)w - offsetof(struct scrub_look, check));

	k->sound = look_judge(k);
	CRASH_POINT("scrub_looked");
	ends_arrive(k->cache, &k->end);
}

static void look_done(struct disk_request *q)
{
	struct scrub_look *k = (struct scrub_look *)q;

	k->check.run = look_check;
	if (q->ring.status || !sums_submit(k->cache->sums, &k->check))
		look_check(&k->check);
}

/* Makes a check of a block. NULL: no memory. */
static struct scrub_look *look_create(struct cache *c, const struct block *b)
{
	struct scrub_look *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	*k = (struct scrub_look){ .io = { .done = look_done },
				  .end = { .run = look_over, .tiers = 1u << TIER_DISK },
				  .cache = c,
				  .unit = b->slab_map->class->unit,
				  .pool = b->pool,
				  .key_bytes = block_key_bytes(b),
				  .generation = b->generation,
				  .target = scrub_target_of(b),
				  .at = aligned_alloc(SLOT_HEADER_BYTES, b->pool->geometry.need_bytes) };
	memcpy(k->key, block_key(b), k->key_bytes);
	if (k->at)
		return k;
	free(k);
	return NULL;
}

/* Begins to read the block. The read's end waits for the lock. */
static enum status look_read(struct scrub_look *k, enum ring_priority priority)
{
	return disk_read(k->target.disk, k->target.place, k->at, (uint32_t)k->pool->geometry.need_bytes,
				 RING_NONE, priority, &k->io);
}

enum status scrub_begin(struct cache *c, struct block *b, struct cache_wait *w)
{
	struct scrub_look *k = look_create(c, b);
	enum status s = STATUS_EXHAUSTED;

	if (!k)
		return s;
	k->link = wait_link(c, w, NULL);
	if (k->link)
		s = look_read(k, RING_PREFETCH);
	if (!s)
		return s;
	if (k->link) {
		k->link->done = true;
		w->outstanding--;
	}
	look_free(k);
	return s;
}

/* The next unverified block of the unit from its cursor on, looking at no more than *slots. Blocks in a transfer are
 * skipped, since the load checks the same bytes; so are blocks whose slab is to be deleted, as a read would delay
 * that. */
static struct block *look_next(struct unit *u, uint32_t *slots)
{
	struct block *b;

	while ((b = unit_next_block(u, &u->look, slots)) && (!b->unverified || b->moving || b->slab_map->leaving))
		;
	return b;
}

static enum status look_begin(struct cache *c, struct unit *u, const struct block *b)
{
	struct scrub_look *k = look_create(c, b);
	enum status s = k ? look_read(k, RING_IDLE) : STATUS_EXHAUSTED;

	if (s) {
		if (k)
			look_free(k);
		return s;
	}
	u->looks++;
	u->look_bytes -= (int64_t)b->pool->geometry.need_bytes;
	return s;
}

static void unit_look(struct cache *c, struct unit *u)
{
	const bool hurried = c->now_us < c->tier->hurry_until_us;
	uint32_t slots = LOOK_SLOTS;
	struct block *b;

	while (u->looks < (hurried ? LOOKS_HURRIED : LOOKS) && (hurried || u->look_bytes > 0)) {
		b = look_next(u, &slots);
		if (!b && slots && !u->looks)
			u->look = 0; /* those that were passed over, or that the disk did not give */
		if (!b || look_begin(c, u, b))
			return;
	}
}

void scrub_pump(struct cache *c)
{
	struct tier *t = c->tier;

	t->looks_due = false;
	if (!t->restored || t->stopping)
		return;
	for (uint32_t i = 0; i < t->unit_count; i++) {
		struct unit *u = &t->units[i];
		const uint64_t passed_us = c->now_us - u->look_us;

		u->look_us = c->now_us;
		u->look_bytes += (int64_t)((passed_us < LOOK_US_MAX ? passed_us : LOOK_US_MAX) * LOOK_BYTES_US);
		if (u->look_bytes > LOOK_US_MAX * LOOK_BYTES_US)
			u->look_bytes = LOOK_US_MAX * LOOK_BYTES_US;
		if (u->unverified && !u->failed)
			unit_look(c, u);
	}
}

void scrub_hurry(struct cache *c)
{
	c->tier->hurry_until_us = c->now_us + HURRY_US;
	scrub_pump(c);
}

static enum status scrub_block(struct cache *c, struct block *b, const struct scrub_target *t, struct cache_verified *sum)
{
	const struct slot_header unknown = { .magic = 0 };
	struct slot_header h;
	enum status s = scrub_copy(b, t, &h);
	bool bad = s == STATUS_CORRUPT || s == STATUS_STALE;

	cache_lock(c);
	/* A copy that was deleted or lost meanwhile proves nothing. */
	const bool there = block_live(b) && b->slab_map && !b->slab_map->sealed && same_target(b, t);

	bad = bad && there;
	if (there && !s)
		slab_map_unverified(b, false);
	if (there && !bad && c->tier->renewing)
		catalog_tell(c, b, s ? &unknown : &h);
	if (!s || bad) {
		sum->blocks++;
		sum->bytes += b->pool->geometry.block_bytes;
		sum->corrupt += bad;
	} else if (there) {
		sum->unread++;
	}
	if (bad)
		copy_lost(c, b);
	block_unpin(b);
	cache_unlock(c);
	return bad ? STATUS_OK : s;
}

/* Whether this block on a disk is to be read now. A block in a transfer is skipped, since a load checks the same bytes.
 * A block of a failed disk is skipped too, and counted. */
static bool scrub_wants(struct cache *c, struct block *b, uint64_t *unread)
{
	const struct slot_header unknown = { .magic = 0 };
	const bool failed = b->slab_map->class->unit->failed;

	if (!failed && !b->moving)
		return true;
	*unread += failed;
	if (c->tier->renewing && !failed)
		catalog_tell(c, b, &unknown);
	return false;
}

/* The next block on a disk, pinned; NULL at the end, or with *looks 0. With the lock. */
static struct block *scrub_next(struct cache *c, struct index_walk *w, uint32_t *looks, struct scrub_target *t,
				uint64_t *unread)
{
	struct block *b = NULL;
	struct index_record *r;

	index_read_lock();
	for (; *looks && !b && (r = index_walk_next(c->index, w)); --*looks)
		if (block_of(r)->slab_map && scrub_wants(c, block_of(r), unread))
			b = block_of(r);
	index_read_unlock();
	if (b) {
		block_pin(b);
		*t = scrub_target_of(b);
	} else if (*looks && c->tier) {
		c->tier->renewing = false;
	}
	return b;
}

enum status cache_verify_disk_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes, struct cache_verified *sum)
{
	struct index_walk w = { .place = *cursor };
	const uint64_t from = sum->bytes;
	uint32_t looks = SCRUB_LOOKS;
	enum status s = STATUS_OK;
	struct block *b = NULL;

	for (int i = 0; i < SCRUB_BLOCKS && looks; i++) {
		struct scrub_target t;

		cache_lock(c);
		b = scrub_next(c, &w, &looks, &t, &sum->unread);
		cache_unlock(c);
		if (b)
			s = scrub_block(c, b, &t, sum);
		if (!b || s == STATUS_BUSY || s == STATUS_DEADLINE || sum->bytes - from >= max_bytes)
			break;
	}
	*cursor = b || !looks ? index_walk_behind(&w) : UINT64_MAX;
	return STATUS_OK;
}
