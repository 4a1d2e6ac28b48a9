/* Gives up slabs: for compaction, or because slots of another size need their bytes.
 *
 * A block whose only copy is in the slab is evicted. A block that memory or a GPU has too is kept: a client that has
 * flushed it relies on it as durable while it is served. So such blocks are copied first, from memory to free slots or
 * in place of colder blocks, without a new slab. Then the copies' disks are synced. Then the blocks change slab maps.
 * Only then the file is deleted. A crash at any moment leaves one of the two copies whole. A block that finds no other
 * place on any disk is evicted from memory and GPUs as well. A block that, besides the slab, only a GPU has is
 * downloaded first. That begins after the copies of blocks in memory, so that it evicts none of these. While memory has
 * no room for it, the slab map stays.
 *
 *     leaving ----- copies under way ----- all written ----- synced ----- sealed ----- slab deleted ^
 *        (moves)            (copied)        (left)          | +---- no time, a disk that failed, a block was read or
 *        loaded ----+
 */
#include "daemon/disk/compact.h"

#include "daemon/block/block.h"
#include "daemon/block/counters.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/ends.h"
#include "daemon/block/lock.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/disk_transfer.h"
#include "daemon/disk/open.h"
#include "daemon/disk/place.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "daemon/threads/await.h"
#include "store/clock.h"
#include "store/crash_point.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"

#include <stdlib.h>
#include <time.h>

enum {
	LOOK_SLOTS = 4096,             /* slots looked at in one hold of the lock */
	GIVE_UP_US = 500 * 1000,
	NAP_NS = 1000 * 1000,
	SYNC_US_MAX = 10 * 1000 * 1000,
	GIVEN_MOST = 64,               /* slabs that are given up for a larger one, at most */
	VAIN_APART_US = 2 * 1000 * 1000, /* failures that are so far apart are not of one row (vain_us) */
};

/* ---- which ---- */

struct slab_map *slab_map_least(const struct disk_class *k, bool all)
{
	struct slab_map *least = NULL;

	for (; k; k = all ? k->next : NULL)
		for (struct slab_map *r = k->slab_maps; r; r = r->next)
			if ((!least || r->blocks < least->blocks) && !r->leaving && slab_map_idle(r))
				least = r;
	return least;
}

/* Whether the other slab maps of the class have room for this one's blocks. */
static bool slab_map_fits_elsewhere(const struct slab_map *r)
{
	uint64_t slots = 0;

	for (const struct slab_map *o = r->class->slab_maps; o; o = o->next)
		slots += o->slots;
	return slots - r->slots >= r->class->blocks;
}

void slab_map_leave(struct slab_map *r)
{
	r->leaving = true;
	disk_slab_close(r->class->unit->disk, r->slab, true);
}

/* ---- a sync that is waited for ---- */

struct sync_call {
	struct disk_request io;        /* first */
	struct await done;
};

static void sync_let_go(struct sync_call *y)
{
	if (await_let_go(&y->done))
		free(y);
}

static void sync_done(struct disk_request *q)
{
	struct sync_call *y = (struct sync_call *)q;

	await_answer(&y->done);
	sync_let_go(y);
}

static bool has_failed(struct cache *c, const struct unit *u)
{
	bool failed;

	cache_lock(c);
	failed = u->failed;
	cache_unlock(c);
	return failed;
}

enum status unit_sync(struct cache *c, struct unit *u, uint64_t wait_us)
{
	struct sync_call *y = NULL;
	enum status s;

	if (has_failed(c, u))
		return STATUS_OK;
	y = calloc(1, sizeof(*y));
	if (!y)
		return STATUS_EXHAUSTED;
	y->io.done = sync_done;
	await_init(&y->done);
	s = disk_sync(u->disk, &y->io);
	if (s)
		sync_let_go(y); /* the disk's hold */
	else
		s = await_came(&y->done, wait_us) ? y->io.ring.status : STATUS_DEADLINE;
	sync_let_go(y);
	return s;
}

/* ---- copies elsewhere ---- */

/* The place of the walk over the slab map, and what it has met in this round. */
struct leaving {
	struct slab_map *slab_map;
	uint32_t slot;
	bool busy;                     /* a transfer is under way, or must be begun later */
	bool stuck;                    /* no disk has another place for a block that memory has */
	bool refused;                  /* a block that memory has must still be begun */
	bool may_fall;                 /* in the round before, no block was refused: so blocks on GPUs may be
				        * downloaded */
	bool full;                     /* memory has no room for such a download */
};

/* Begins the download of a block that is on a GPU and in the slab map, but not in memory. */
static void fall_begin(struct cache *c, struct leaving *l, struct block *b)
{
	const struct fetch_how soon = { .priority = RING_IDLE, .effort = TAKE_SOON };
	const enum status s = l->may_fall && !l->full ? c->tiers[TIER_GPU]->fetch(c, b, &soon, NULL) : STATUS_OK;

	l->busy = true;
	l->full |= s == STATUS_EXHAUSTED || s == STATUS_BUSY;
}

static void copy_begin(struct cache *c, struct leaving *l, struct block *b)
{
	enum status s;

	if (b->moving) {
		l->busy |= !transfer_of(c, b)->written;
		return;
	}
	if (!b->span && b->vram && !l->stuck) {
		fall_begin(c, l, b);
		return;
	}
	if (!b->span) {
		l->busy |= block_pins(b) != 0;
		return;
	}
	s = spill_begin(c, b, RING_IDLE, NULL);
	l->refused |= s == STATUS_BUSY || s == STATUS_MISS;
	l->busy |= s == STATUS_OK || s == STATUS_BUSY || s == STATUS_MISS;
	l->stuck |= s == STATUS_EXHAUSTED || s == STATUS_UNAVAILABLE;
}

/* Looks at some slots of a round. True: the round is over. With the lock. */
static bool copies_look(struct cache *c, struct leaving *l)
{
	struct slab_map *r = l->slab_map;

	for (uint32_t i = 0; i < LOOK_SLOTS && l->slot < r->slots; i++, l->slot++)
		if (r->at[l->slot].block)
			copy_begin(c, l, r->at[l->slot].block);
	return l->slot == r->slots;
}

/* Without the lock. OK: every copy that could be begun has been written. BUSY: there was no time, or memory is full of
 * copies that have been written and must be synced first. */
static enum status copies_write(struct cache *c, struct leaving *l, uint64_t until_us)
{
	bool over, land;

	*l = (struct leaving){ .slab_map = l->slab_map };
	do {
		cache_lock(c);
		CRASH_POINT("compact_look");
		over = copies_look(c, l);
		if (over && l->busy)
			l->slot = 0;
		land = over && l->full && l->slab_map->copied;
		cache_unlock(c);
		if (!over)
			continue;
		if (!l->busy)
			return STATUS_OK;
		if (land)
			return STATUS_BUSY;
		l->may_fall = !l->refused;
		l->busy = l->stuck = l->refused = l->full = false;
		nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	} while (clock_us() < until_us);
	return STATUS_BUSY;
}

/* Takes the finished copies of the slab map. Sets a bit for each disk that they are on. With the lock. */
static struct disk_transfer *copies_take(struct slab_map *r, uint32_t *units)
{
	struct disk_transfer *copied = r->copied;

	*units = 0;
	for (const struct disk_transfer *m = copied; m; m = m->waiting_next)
		*units |= 1u << m->unit->number;
	r->copied = NULL; /* copies that are written from now on are not covered by these syncs */
	return copied;
}

/* Makes the copies durable; the blocks then move to them. Without the lock. */
static enum status copies_land(struct cache *c, struct slab_map *r)
{
	struct tier *t = c->tier;
	enum status s = STATUS_OK;
	struct disk_transfer *copied;
	uint32_t units;

	cache_lock(c);
	copied = copies_take(r, &units);
	cache_unlock(c);
	if (!copied)
		return STATUS_OK;
	CRASH_POINT("compact_sync");
	for (uint32_t i = 0; i < t->unit_count; i++) {
		enum status one = units >> i & 1 ? unit_sync(c, &t->units[i], SYNC_US_MAX) : STATUS_OK;

		s = one ? one : s;
	}
	CRASH_POINT("compact_synced");
	cache_lock(c);
	for (uint32_t i = 0; i < t->unit_count && s; i++)
		unit_failed(c, &t->units[i]);
	cache_unlock(c);
	spills_land(c, copied, s);
	return s;
}

/* Seals the slab map, so that no new transfer uses it. OK: none uses it now. BUSY: one does. With the lock. */
static enum status slab_map_seal(struct slab_map *r, bool stuck)
{
	if (r->transfers != r->left_count || r->class->unit->failed)
		return STATUS_BUSY;
	for (uint32_t i = 0; i < r->slots; i++) {
		const struct block *b = r->at[i].block;

		if (b && (block_pins(b) || b->moving || ((b->span || b->vram) && !stuck)))
			return STATUS_BUSY;
	}
	CRASH_POINT("compact_sealed");
	r->sealed = true;
	return STATUS_OK;
}

static enum status slab_map_empty(struct cache *c, struct slab_map *r)
{
	const uint64_t until_us = clock_us() + GIVE_UP_US;
	struct leaving l = { .slab_map = r };
	enum status s, landed;

	do {
		s = copies_write(c, &l, until_us);
		landed = copies_land(c, r);
		if (landed)
			return landed;
		if (!s) {
			cache_lock(c);
			s = slab_map_seal(r, l.stuck);
			cache_unlock(c);
		}
	} while (s && clock_us() < until_us);
	return s;
}

/* ---- the end ---- */

/* Lets a slab map stay that was to be given up. Copies that came too late for a sync get tombstones. With the lock. */
static void slab_map_stay(struct cache *c, struct slab_map *r)
{
	struct disk_transfer *late = r->copied;

	r->copied = NULL;
	r->leaving = r->sealed = false;
	disk_slab_close(r->class->unit->disk, r->slab, false);
	spills_drop(c, late);
}

/* Removes the blocks of a slab that was deleted from the disk. */
static void blocks_give_up(struct cache *c, struct slab_map *r, enum counter why)
{
	for (uint32_t i = 0; i < r->slots; i++) {
		struct block *b = r->at[i].block;

		if (!b)
			continue;
		cache_count(c, why, 1);
		cache_count(c, COUNTER_DROPPED, 1);
		const struct index_ident name = block_name(b);

		catalog_untell(c, &name);
		block_remove(c, b, CACHE_REASON_EVICTED);
	}
	CRASH_POINT("slab_map_given_up");
}

/* The slab is deleted before its blocks are: so a restart finds none of its headers, whichever blocks are deleted
 * meanwhile. */
enum status slab_map_give_up(struct cache *c, struct slab_map *r, enum counter why)
{
	struct disk *d = r->class->unit->disk;
	enum status s = slab_map_empty(c, r);

	if (!s)
		s = disk_slab_drop(d, r->slab);
	cache_lock(c);
	CRASH_POINT("slab_taken_away");
	if (s)
		slab_map_stay(c, r);
	r->gone = !s;
	burials_release(c, r);
	burials_feed(c);
	if (!s)
		blocks_give_up(c, r, why);
	cache_unlock(c);
	ends_run(c); /* tombstones in it must end: until then the slab map cannot be freed */
	cache_lock(c);
	if (!s && !r->transfers)
		slab_map_free(c, r);
	cache_unlock(c);
	return s;
}

enum status cache_compact_step(struct cache *c, uint32_t disk, uint64_t bytes_max, uint64_t *freed)
{
	struct slab_map *least = NULL;
	struct disk_slab_view v = { .slab = 0 };
	struct disk_view view;
	struct unit *u;
	enum status s;

	*freed = 0;
	u = c->tier ? unit_configured(c->tier, disk) : NULL;
	if (!u)
		return STATUS_NOT_FOUND;
	disk_look(u->disk, &view);
	cache_lock(c);
	if (view.slab_bytes_used > bytes_max)
		least = slab_map_least(u->classes, true);
	for (struct disk_class *k = u->classes; k && !least; k = k->next) {
		least = slab_map_least(k, false);
		if (least && !slab_map_fits_elsewhere(least))
			least = NULL;
	}
	s = !c->tier->restored ? STATUS_BUSY : least ? STATUS_OK : STATUS_MISS;
	/* A chore may have deleted the file already and not yet said so. */
	if (!s && (!disk_slab_next(u->disk, least->slab - 1, &v) || v.slab != least->slab))
		s = STATUS_BUSY;
	if (!s)
		slab_map_leave(least);
	cache_unlock(c);
	if (s)
		return s;
	CRASH_POINT("compact");
	s = slab_map_give_up(c, least, COUNTER_EVICTED_COMPACT);
	if (!s)
		*freed = v.file_bytes;
	return s;
}

/* ---- a slab for a class ---- */

/* With the lock: chooses the next slab map. */
static struct slab_map *slab_map_give(struct cache *c, const struct disk_class *k, struct unit *only)
{
	struct slab_map *given;

	cache_lock(c);
	slab_maps_prune(c, k->unit);
	given = place_elsewhere(c, k) ? NULL : place_slab_map(c, k->slot_bytes, only);
	CRASH_POINT("class_poorest");
	if (given)
		slab_map_leave(given);
	cache_unlock(c);
	return given;
}

/* Gives slabs of one disk up until there is a slab for the class. */
static enum status slab_trade(struct cache *c, const struct disk_class *k)
{
	enum status s = STATUS_EXHAUSTED;
	struct unit *u = NULL;

	for (int i = 0; s == STATUS_EXHAUSTED && i < GIVEN_MOST; i++) {
		struct slab_map *given = slab_map_give(c, k, u);
		uint64_t slot_bytes = k->slot_bytes;
		struct disk_class *robbed;

		if (!given)
			break;
		robbed = given->class;
		u = robbed->unit;
		if (slab_map_give_up(c, given, COUNTER_EVICTED_DISK))
			continue;
		cache_lock(c);
		robbed->robbed_us = c->now_us;
		if (u != k->unit && class_for(c, u, k->slot_bytes))
			slot_bytes = class_joined(u, k->slot_bytes)->slot_bytes;
		cache_unlock(c);
		s = disk_slab_prepare(u->disk, slot_bytes);
	}
	return s;
}

/* Makes a slab from the disk's free bytes. *needed: the class had no free slot when it asked; a slot that is free by
 * now may be a victim's. */
static enum status slab_make(struct cache *c, const struct disk_class *k, bool *needed)
{
	struct disk *d = k->unit->disk;
	enum status s = STATUS_OK;
	uint64_t least;
	uint32_t most;

	cache_lock(c);
	most = place_slabs(k);
	least = place_slots(k);
	*needed = k->needed;
	cache_unlock(c);
	s = disk_slabs_prepare(d, k->slot_bytes, most, least);
	CRASH_POINT("class_feed");
	while (s == STATUS_EXHAUSTED && !disk_slab_drop_free(d, k->slot_bytes))
		s = disk_slabs_prepare(d, k->slot_bytes, 1, least);
	return s;
}

void slab_feed(struct cache *c, struct disk_class *k)
{
	bool needed;
	enum status s = slab_make(c, k, &needed);
	const bool early = s == STATUS_EXHAUSTED && !needed;

	if (s == STATUS_EXHAUSTED && needed)
		s = slab_trade(c, k);
	cache_lock(c);
	k->wanted = k->needed = false;
	if (early) { /* the free slots may suffice, so no other slab is given up yet */
		k->preallocate_us = c->now_us;
		s = STATUS_OK;
	}
	if (!k->full || c->now_us - k->full_us > VAIN_APART_US)
		k->vain_us = c->now_us;
	k->full = s != STATUS_OK;
	k->full_us = c->now_us;
	if (s == STATUS_UNAVAILABLE || s == STATUS_IO)
		unit_failed(c, k->unit);
	cache_unlock(c);
}
