/* Flush: blocks without a disk copy are written, the disks are synced, and the catalog is committed, in that order.
 * Each step is begun for all blocks and then waited for; the wait calls the caller again. If a disk fails meanwhile,
 * all steps begin anew, since its blocks must be written to the other disks and synced there.
 *
 * A flush of everything walks the lists of blocks that no disk has (block/unwritten.h), until a walk finds nothing to
 * begin. A block with a disk copy is in no such list, but may be about to lose that copy. So the flush also waits for
 * failed disks and for slabs that are being deleted, and then until scrub_pump() has verified all unverified blocks.
 * After all that it walks once more.
 */
#include "daemon/call/flush.h"

#include "daemon/block/block.h"
#include "daemon/block/check.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/unwritten.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/disk/transfer.h"
#include "daemon/session/session.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"

#include <string.h>

enum { FLUSH_NEW, FLUSH_WRITING, FLUSH_SYNCING, FLUSH_COMMITTING };
enum { WAITED_SPILLS = 256, WAITED_LOOKS = 4, WALK_BLOCKS = 4096 }; /* at a time, in one flush; looked at in one step */

struct flush {
	struct cache *cache;
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	const struct cache_keys *keys;
	struct cache_wait *wait;
	enum status refused;           /* why a block could not be written: the last reason */
	bool more;                     /* blocks are left that the disks did not take now */
};

/* Whether the block's copy on a disk can be promised. False on a failed disk or in a slab that is being deleted:
 * memory's copy is soon the only one. False for unverified blocks: a write that was cut off may have left the header
 * and not the bytes. */
static bool on_sound_disk(const struct block *b)
{
	return b->slab_map && !b->slab_map->leaving && !b->slab_map->class->unit->failed && !b->unverified;
}

/* The block is downloaded first, and then written. The download evicts nothing that this flush, or any disk, has to
 * write yet. */
static void flush_down(struct flush *f, struct block *b)
{
	enum status s = STATUS_BUSY;

	if (f->wait->outstanding < WAITED_SPILLS)
		s = f->more || f->wait->outstanding ? vram_write_through(f->cache, b, true,
		    f->wait) : vram_down_soon(f->cache, b, f->wait);
	f->more |= s == STATUS_OK || s == STATUS_BUSY;
	if (s && s != STATUS_BUSY)
		f->refused = f->wait->refused = s;
}

static bool on_gpus_alone(const struct block *b)
{
	return !b->slab_map && !b->span && b->vram;
}

/* A flush of everything promises the layout as a whole. */
static void flush_promise(struct flush *f, struct block *b)
{
	struct slot_header h;

	if ((f->keys || !b->slab_map) && !block_flushed(b))
		promise_block(f->cache, b, b->span && memory_header(b, &h) ? &h : NULL);
}

static void flush_block(struct flush *f, struct block *b)
{
	enum status s;

	flush_promise(f, b);
	if (on_sound_disk(b))
		return;
	if (b->slab_map || !b->span) {
		if (b->unverified && b->slab_map && !b->moving && f->wait->outstanding < WAITED_LOOKS)
			scrub_begin(f->cache, b, f->wait);
		f->more |= b->slab_map != NULL;
		return;
	}
	if (f->wait->outstanding >= WAITED_SPILLS) {
		f->more = true;
		return;
	}
	s = spill_begin(f->cache, b, RING_PREFETCH, f->wait);
	if (s == STATUS_UNAVAILABLE || s == STATUS_EXHAUSTED)
		f->refused = f->wait->refused = s;
	else if (s)
		f->more = true;
}

static void flush_found(struct flush *f, bool on_gpus, void (*one)(struct flush *f, struct block *b))
{
	struct block *found[CACHE_LAYOUTS_MAX];

	for (uint32_t i = 0; i < f->keys->count; i++) {
		const struct cache_keys key = { f->keys->bytes + (size_t)i * f->keys->key_bytes, 1, f->keys->key_bytes };

		blocks_find(f->cache, f->pools, f->layouts, &key, found);
		for (uint32_t l = 0; l < f->layouts; l++)
			if (found[l] && block_live(found[l]) && on_gpus_alone(found[l]) == on_gpus)
				one(f, found[l]);
	}
}

/* Begins to write the blocks of the keys: from memory, and by a download from GPUs. In a read section, with the
 * lock. */
static void flush_keys(struct flush *f)
{
	flush_found(f, false, flush_block);
	if (f->cache->vram)
		flush_found(f, true, flush_down);
}

static void walk_anew(struct flush *f)
{
	struct cache_wait *w = f->wait;

	w->layout = 0;
	w->falls = w->again = false;
	unwritten_walk_end(&w->walk);
}

/* The walk's next block. NULL with *budget 0: go on later; NULL with some left: no more. */
static struct block *walk_next(struct flush *f, uint32_t *budget)
{
	struct cache_wait *w = f->wait;
	struct block *b;

	for (; w->layout < f->layouts; w->layout++) {
		if (!w->walk.list)
			unwritten_walk_begin(&w->walk, f->pools[w->layout]);
		while ((b = unwritten_walk_next(&w->walk, budget)))
			if (b->stored_us <= w->since_us && (w->falls ? vram_has_alone(b) : b->span != NULL))
				return b;
		if (!*budget)
			return NULL;
		unwritten_walk_end(&w->walk);
	}
	return NULL;
}

/* Walks all layouts from their beginnings to their ends: blocks in memory, or else blocks on GPUs alone. True: the end
 * has been reached. */
static bool flush_walk(struct flush *f, uint32_t *budget)
{
	struct cache_wait *w = f->wait;
	struct block *b;

	while ((b = walk_next(f, budget))) {
		const uint32_t before = w->outstanding;

		f->more = false;
		if (w->falls)
			flush_down(f, b);
		else
			flush_block(f, b);
		w->again |= w->outstanding > before;
		if (f->more && w->outstanding == before) {
			unwritten_walk_back(&w->walk);
			return false;
		}
	}
	return w->layout == f->layouts;
}

/* Whether a slab that is being deleted has blocks of the flush's layouts that are in memory or on a GPU. */
static bool slab_map_has_mine(const struct flush *f, const struct slab_map *r)
{
	for (uint32_t i = 0; i < r->slots; i++)
		for (uint32_t l = 0; r->at[i].block && l < f->layouts; l++)
			if (r->at[i].block->pool == f->pools[l] && (r->at[i].block->span || r->at[i].block->vram))
				return true;
	return false;
}

/* Whether a disk is about to lose copies of blocks that memory or a GPU has. No list of unwritten blocks has these
 * yet. */
static bool copies_leave(const struct flush *f)
{
	const struct tier *t = f->cache->tier;

	for (uint32_t i = 0; i < t->unit_count; i++) {
		if (t->units[i].failed && !t->units[i].swept)
			return true;
		for (const struct disk_class *k = t->units[i].classes; k; k = k->next)
			for (const struct slab_map *r = k->slab_maps; r; r = r->next)
				if (r->leaving && slab_map_has_mine(f, r))
					return true;
	}
	return false;
}

/* Goes on where the step before stopped: at a block that could not be begun, or at its bound. Blocks on GPUs alone are
 * downloaded after those in memory are on their way, so that the downloads evict nothing that must still be written. */
static void flush_pools(struct flush *f)
{
	struct cache_wait *w = f->wait;
	uint32_t budget = WALK_BLOCKS;
	bool over = flush_walk(f, &budget);

	if (over && !w->falls && f->cache->vram) {
		w->falls = true;
		w->layout = 0;
		over = flush_walk(f, &budget);
	}
	f->more = !over || w->again || copies_leave(f);
	if (over)
		walk_anew(f);
}

/* Begins to write what no disk has yet. True: something is to be waited for. */
static bool flush_write(struct flush *f)
{
	CRASH_POINT("flush_write");
	f->more = false;
	f->refused = STATUS_OK;
	if (f->keys)
		flush_keys(f);
	else
		flush_pools(f);
	f->wait->poll = f->more && !f->wait->outstanding;
	return f->more || f->wait->outstanding;
}

static bool unsynced(const struct block *b)
{
	const struct index_ident name = block_name(b);

	return b->slab_map && unit_unsynced(b->slab_map->class->unit, &name);
}

/* A bit for each disk that has flushed blocks and may not have them durably. In a read section. */
static uint32_t units_to_sync(struct flush *f)
{
	struct block *found[CACHE_LAYOUTS_MAX];
	const struct tier *t = f->cache->tier;
	uint32_t units = 0;

	for (uint32_t i = 0; !f->keys && i < t->unit_count; i++)
		units |= (uint32_t)(t->units[i].written > t->units[i].synced) << i;
	for (uint32_t i = 0; f->keys && i < f->keys->count; i++) {
		const struct cache_keys key = { f->keys->bytes + (size_t)i * f->keys->key_bytes, 1, f->keys->key_bytes };

		blocks_find(f->cache, f->pools, f->layouts, &key, found);
		for (uint32_t l = 0; l < f->layouts; l++)
			if (found[l] && block_live(found[l]) && unsynced(found[l]))
				units |= 1u << found[l]->slab_map->class->unit->number;
	}
	return units;
}

static bool flush_sync(struct flush *f, uint32_t units)
{
	struct tier *t = f->cache->tier;

	for (uint32_t i = 0; i < t->unit_count; i++)
		if (units >> i & 1 && !t->units[i].failed && wait_sync(f->cache, f->wait, &t->units[i]))
			f->wait->worst = STATUS_IO;
	return f->wait->outstanding;
}

/* If a write takes longer than on a sound disk, syncs meanwhile, once, what was written to other disks. */
static void flush_beside(struct flush *f)
{
	struct cache_wait *w = f->wait;
	const uint64_t slow_us = f->cache->options.disk_slow_ms * 1000ull;
	uint32_t units;

	w->again_us = slow_us;
	if (!f->keys || w->stage != FLUSH_WRITING || f->cache->now_us - w->since_us < slow_us)
		return;
	units = units_to_sync(f) & ~w->begun;
	w->begun |= units;
	flush_sync(f, units);
}

static bool flush_commit(struct flush *f)
{
	const enum status s = wait_catalog(f->cache, f->wait);

	if (s)
		f->wait->worst = s == STATUS_UNAVAILABLE ? STATUS_IO : s; /* its queue is full because it fails */
	return f->wait->outstanding;
}

/* A bit for each disk that has failed. */
static uint32_t failed_units(const struct tier *t)
{
	uint32_t failed = 0;

	for (uint32_t i = 0; i < t->unit_count; i++)
		failed |= (uint32_t)t->units[i].failed << i;
	return failed;
}

static void flush_anew(struct flush *f)
{
	struct cache_wait *w = f->wait;

	w->stage = FLUSH_WRITING;
	w->units = failed_units(f->cache->tier);
	w->worst = w->refused = w->uncommitted = STATUS_OK;
	w->begun = 0;
	walk_anew(f);
}

/* For a flush of everything: begins to read the unverified blocks of earlier runs. These are durable by this run's
 * first sync, whenever they are read. True: some are left. */
static bool flush_doubts(struct flush *f)
{
	for (uint32_t i = 0; i < f->layouts; i++)
		f->wait->unverified += f->pools[i]->unverified;
	if (f->wait->unverified)
		scrub_hurry(f->cache);
	f->wait->poll = f->wait->unverified;
	return f->wait->unverified;
}

/* A failed spill is begun again on the disks that are left; a failed commit ends the flush. */
static enum status flush_step(struct flush *f)
{
	struct cache_wait *w = f->wait;

	if (w->outstanding) {
		flush_beside(f);
		return STATUS_BUSY;
	}
	wait_links_drop(f->cache, w); /* what has been written need not stay */
	if (w->stage == FLUSH_NEW)
		w->since_us = f->cache->now_us;
	if (w->stage == FLUSH_NEW || (w->stage == FLUSH_WRITING && w->worst) || failed_units(f->cache->tier) != w->units)
		flush_anew(f);
	if (w->stage == FLUSH_WRITING && flush_write(f))
		return STATUS_BUSY;
	if (w->stage == FLUSH_WRITING) {
		CRASH_POINT("flush_sync");
		w->stage = FLUSH_SYNCING;
		w->worst = STATUS_OK;
		if (flush_sync(f, units_to_sync(f)))
			return STATUS_BUSY;
	}
	if (w->stage == FLUSH_SYNCING && !w->worst) {
		CRASH_POINT("flush_commit");
		for (uint32_t i = 0; !f->keys && i < f->layouts; i++)
			promise_pool(f->cache, f->pools[i]);
		w->stage = FLUSH_COMMITTING;
		if (flush_commit(f))
			return STATUS_BUSY;
	}
	return w->worst;
}

/* For a flush of everything, when all that there was to write is durable. A disk may have lost a copy meanwhile: looks
 * again. OK: nothing is left. */
static enum status flush_end(struct flush *f)
{
	if (flush_doubts(f))
		return STATUS_BUSY;
	if (!flush_write(f))
		return STATUS_OK;
	flush_anew(f);
	return STATUS_BUSY;
}

static enum status key_status(struct flush *f, const struct cache_keys *one)
{
	struct block *found[CACHE_LAYOUTS_MAX];
	enum status s = STATUS_MISS;

	blocks_find(f->cache, f->pools, f->layouts, one, found);
	for (uint32_t l = 0; l < f->layouts; l++) {
		if (!found[l] || !block_live(found[l]))
			continue;
		if (!on_sound_disk(found[l]))
			return f->refused ? f->refused : STATUS_EXHAUSTED;
		s = f->wait->worst;
	}
	return s;
}

/* At the deadline: judges each key by itself. Synced blocks count even if the catalog does not have them, as a run that
 * did not end in order reads all headers. False: nothing is durable. */
static bool flush_in_part(struct flush *f, enum status *statuses)
{
	const struct cache_keys *k = f->keys;
	struct block *found[CACHE_LAYOUTS_MAX];
	bool durable = false;

	for (uint32_t i = 0; i < k->count; i++) {
		const struct cache_keys one = { k->bytes + (size_t)i * k->key_bytes, 1, k->key_bytes };

		statuses[i] = STATUS_MISS;
		blocks_find(f->cache, f->pools, f->layouts, &one, found);
		for (uint32_t l = 0; l < f->layouts && statuses[i] != STATUS_DEADLINE; l++)
			if (found[l] && block_live(found[l]))
				statuses[i] = on_sound_disk(found[l]) && !unsynced(found[l]) ? STATUS_OK : STATUS_DEADLINE;
		durable |= statuses[i] == STATUS_OK;
	}
	return durable;
}

static enum status flush_answer(struct flush *f, enum status s, enum status *statuses)
{
	const struct cache_keys *k = f->keys;

	CRASH_POINT("flush_answer");
	cache_count(f->cache, COUNTER_FLUSHES, s == STATUS_OK);
	if (!k)
		return s ? s : f->wait->refused;
	for (uint32_t i = 0; i < k->count; i++) {
		const struct cache_keys one = { k->bytes + (size_t)i * k->key_bytes, 1, k->key_bytes };

		statuses[i] = key_status(f, &one);
	}
	return STATUS_OK;
}

static const char no_disk[] = "no disk is in use";

enum status cache_flush(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
			struct cache_wait *w, enum status *statuses, const char **why)
{
	struct flush f = { .cache = c, .keys = k, .wait = w };
	enum status s;

	f.layouts = session_pools(c, session, f.pools);
	*why = "no such session: it was never opened, or it has ended";
	if (!f.layouts)
		return STATUS_NOT_FOUND;
	*why = k ? cache_keys_problem(k, f.layouts) : NULL;
	if (*why)
		return STATUS_INVALID;
	*why = "there is no disk tier";
	if (!c->tier)
		return STATUS_UNAVAILABLE;
	*why = no_disk;
	if (!c->tier->unit_count)
		return STATUS_UNAVAILABLE;
	w->poll = !cache_restored(c);
	if (w->poll)
		return STATUS_BUSY;
	*why = "not every block is durable";
	index_read_lock();
	cache_lock(c);
	cache_time(c, now_us);
	w->unverified = 0;
	s = flush_step(&f);
	if (!s && !k && !w->refused)
		s = flush_end(&f);
	if (s != STATUS_BUSY) {
		if (k)
			/* finds out what only memory still has, and why; begins nothing that would be waited for */
			flush_write(&f);
		s = flush_answer(&f, s, statuses);
		*why = s == STATUS_UNAVAILABLE ? no_disk : *why;
	} else if (k && w->last && flush_in_part(&f, statuses)) {
		s = STATUS_OK;
	}
	cache_unlock(c);
	index_read_unlock();
	return s;
}
