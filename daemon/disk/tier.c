/* The disk tier as a whole: disks and catalog are opened before anything else runs, and closed after everything else
 * has stopped. Work that may take long (making and deleting slab files, registering memory) is done by the chores, on a
 * worker, without the lock. Work that a hanging disk may block for ever has chores of its own.
 */
#include "daemon/disk/tier.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/ends.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/block/options.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/compact.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/load.h"
#include "daemon/disk/disk_transfer.h"
#include "daemon/disk/open.h"
#include "daemon/disk/place.h"
#include "daemon/disk/restore.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/spill.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "daemon/threads/await.h"
#include "daemon/threads/checksum_pool.h"
#include "eviction/departures.h"
#include "eviction/policy.h"
#include "store/catalog/catalog.h"
#include "store/catalog/record.h"
#include "store/clock.h"
#include "store/crash_point.h"
#include "store/host/extent.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
	SWEEP_SLOTS = 8192,
	CLOSE_MS = 10000,              /* unless options say else */
	CATALOG_CLOSE_MS = 2000,       /* its own share, whatever the disks took */
};

static const char *options_problem(const struct cache_options *o)
{
	if (o->disk_count > CACHE_DISKS_MAX)
		return "too many disks";
	if (!o->catalog_folder)
		return "the disk tier needs a folder for its catalog";
	if (o->disk_depth == 0 || o->disk_depth > RING_DEPTH_MAX)
		return "disk_depth must be 1 to 1024";
	if (o->spill_share_milli > 1000)
		return "spill_share must be 0 to 1";
	if (!o->disk_policy || !policy_find(o->disk_policy))
		return "unknown eviction policy for the disks";
	return NULL;
}

enum status tier_create(struct cache *c, const char **why)
{
	struct tier *t;
	enum status s;

	*why = options_problem(&c->options);
	if (*why)
		return STATUS_INVALID;
	*why = "no memory for the disk tier";
	t = c->tier = calloc(1, sizeof(*t));
	if (!t)
		return STATUS_EXHAUSTED;
	t->restorer_end = malloc(sizeof(*t->restorer_end));
	if (!t->restorer_end)
		return STATUS_EXHAUSTED;
	await_init(t->restorer_end);
	t->waiting_for_memory_end = &t->waiting_for_memory;
	t->waiting_tombstones_end = &t->waiting_tombstones;
	t->policy = policy_find(c->options.disk_policy);
	s = tier_open(c, why);
	t->rebuild = c->options.rebuild || t->catalog_state == CATALOG_DAMAGED;
	return s;
}

/* Generations are new over all runs: above what earlier ones may have reached, and above the clock, if the catalog is
 * lost. */
uint64_t tier_first_generation(struct cache *c)
{
	struct boot_record boot = { .boots = 0 };
	uint8_t value[RECORD_VALUE_MAX];
	size_t n = sizeof(value);
	struct record r;
	struct timespec t;
	uint64_t first;

	clock_gettime(CLOCK_REALTIME, &t);
	CRASH_POINT("tier_boot");
	first = (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
	if (!catalog_get(c->tier->catalog, CATALOG_META, "boot", 4, value, &n))
		boot_record_decode("boot", 4, value, n, &boot);
	if (first <= boot.generation_reserved)
		first = boot.generation_reserved + 1;
	c->tier->first_generation = first;
	boot = (struct boot_record){ .boots = boot.boots + 1, .generation_reserved = first + GENERATIONS_RESERVED, .epoch = c->epoch };
	if (!boot_record_encode(&boot, &r))
		catalog_put(c->tier->catalog, CATALOG_META, r.key, r.key_bytes, r.value, r.value_bytes);
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct disk_record d = { .disk_id = c->tier->units[i].id };

		snprintf(d.folder, sizeof(d.folder), "%s", c->tier->units[i].options->folder);
		if (!disk_record_encode(&d, &r))
			catalog_put(c->tier->catalog, CATALOG_SLABS, r.key, r.key_bytes, r.value, r.value_bytes);
	}
	return first;
}

enum status tier_start(struct cache *c, const char **why)
{
	struct tier *t = c->tier;

	*why = "cannot start the thread that takes up the disks";
	if (pthread_create(&t->restorer, NULL, restore_main, c))
		return STATUS_INTERNAL;
	t->restorer_started = true;
	return STATUS_OK;
}

/* A list that keeps the memory reachable for leak checkers. */
static struct cache *left_behind;

static uint64_t us_until(uint64_t until_us)
{
	const uint64_t now_us = clock_us();

	return until_us > now_us ? until_us - now_us : 0;
}

/* Stops the restorer. True: it runs no more. */
static bool restorer_ends(struct tier *t, uint64_t until_us)
{
	atomic_store(&t->restorer_stop, true);
	if (!t->restorer_started)
		return true;
	if (await_came(t->restorer_end, us_until(until_us)))
		return !pthread_join(t->restorer, NULL);
	pthread_detach(t->restorer);
	return false;
}

/* Makes the disks durable. After an orderly stop the next start trusts the catalog about every slot, so the disks must
 * be durable first. */
static bool disks_sync(struct cache *c, uint64_t until_us)
{
	bool synced = true;

	for (uint32_t i = 0; i < c->tier->unit_count && synced; i++)
		synced = !unit_sync(c, &c->tier->units[i], us_until(until_us));
	return synced;
}

/* Notes the run that ends in order; or, if not all is known by then, the highest generation that is not vouched for. An
 * older version does not recognise that mark, and reads all headers. */
static void mark_clean(struct cache *c)
{
	const uint64_t mark[] = { c->epoch, c->tier->doubt };
	uint64_t unverified = 0;

	cache_lock(c);
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		unverified += c->tier->units[i].unverified;
	cache_unlock(c);
	catalog_put(c->tier->catalog, CATALOG_META, "clean", 5, mark, unverified ? sizeof(mark) : sizeof(mark[0]));
}

/* Closes the disks. If the restorer has not ended, leaves them behind: it waits for a read of one of them, perhaps of
 * each. True: all are closed. */
static bool disks_end(struct tier *t, bool restorer_ended, uint64_t until_us)
{
	bool ended = restorer_ended;

	for (uint32_t i = 0; i < t->unit_count; i++) {
		if (!restorer_ended)
			disk_leave(t->units[i].disk);
		else if (!disk_close_by(t->units[i].disk, us_until(until_us)))
			ended = false;
	}
	return ended;
}

/* Ends the tier in an order that a crash at any moment survives: the restorer, the checksum threads, the syncs, the
 * disks, the mark of a clean end, the catalog. The mark is written only if the catalog is up to date and all steps
 * before have succeeded. */
bool tier_stop(struct cache *c, bool read)
{
	const uint32_t wait_ms = c->options.disk_close_ms ? c->options.disk_close_ms : CLOSE_MS;
	const uint64_t until_us = clock_us() + wait_ms * 1000ull;
	struct tier *t = c->tier;
	bool restorer_ended, ended;

	CRASH_POINT("tier_stop");
	restorer_ended = restorer_ends(t, until_us);
	cache_lock(c);
	/* A clean end: the catalog describes every header on the disks. */
	bool clean = t->restored && !t->lagging && !t->renewing && !t->transfer_count;

	t->stopping = true;
	loads_feed(c);
	cache_unlock(c);
	/* Loads whose check is under way end while the disks are still open. Loads that arrive from now on are checked
	 * on the disks' threads. */
	sums_stop(c->sums);
	const bool asked = clean || (restorer_ended && t->out_count), answers = asked && disks_sync(c, until_us);

	clean = clean && answers;
	if (answers && !read)
		tier_pardon(c);
	ended = disks_end(t, restorer_ended, until_us);
	if (ended) {
		cache_lock(c);
		burials_feed(c);
		cache_unlock(c);
		ends_run(c); /* transfers that the disks refused at the end */
	}
	CRASH_POINT("clean_before");
	if (clean && ended && !read)
		mark_clean(c);
	CRASH_POINT("clean_mark");
	/* A restorer that was left behind may still use the catalog. */
	if (!restorer_ended || read)
		ended = false;
	else
		ended = catalog_close_by(t->catalog, us_until(until_us) + CATALOG_CLOSE_MS * 1000ull) && ended;
	if (!ended) {
		t->left_next = left_behind;
		left_behind = c;
	}
	return ended;
}

void tier_destroy(struct cache *c)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		slab_maps_free(c, &c->tier->units[i]);
	if (c->tier->restorer_end)
		await_fini(c->tier->restorer_end);
	free(c->tier->restorer_end);
	free(c->tier);
	c->tier = NULL;
}

bool cache_restored(struct cache *c)
{
	bool restored = true;

	cache_lock(c);
	if (c->tier)
		restored = c->tier->restored;
	cache_unlock(c);
	return restored;
}

/* ---- failure ---- */

/* Gives up some of the blocks of a disk that has failed. */
static void unit_sweep(struct cache *c, struct unit *u)
{
	uint32_t budget = SWEEP_SLOTS;
	struct block *b;

	while ((b = unit_next_block(u, &u->sweep, &budget))) {
		const struct index_ident name = block_name(b);

		catalog_untell(c, &name);
		if (b->span || vram_ready(b)) {
			slab_map_detach(c, b);
			continue;
		}
		cache_count(c, COUNTER_EVICTED_LOST, 1);
		cache_count(c, COUNTER_DROPPED, 1);
		block_remove(c, b, CACHE_REASON_EVICTED);
	}
	CRASH_POINT("unit_swept");
	u->swept = budget > 0;
}

void tier_tick(struct cache *c)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		if (c->tier->units[i].failed && !c->tier->units[i].swept)
			unit_sweep(c, &c->tier->units[i]);
	for (uint32_t i = 0; i < c->tier->unit_count; i++) /* its queue was full then */
		if (c->tier->units[i].failed && !c->tier->units[i].banned)
			c->tier->units[i].banned = unit_ban(c->tier, &c->tier->units[i]);
	burials_feed(c);
	spill_pump(c);
	loads_feed(c);
	scrub_pump(c);
}

/* ---- chores ---- */

static struct disk_class *class_wanting(struct tier *t)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		for (struct disk_class *k = t->units[i].classes; k; k = k->next)
			if (k->wanted && !t->units[i].failed)
				return k;
	return NULL;
}

static struct unit *unit_over(struct tier *t)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (t->units[i].over && !t->units[i].failed)
			return &t->units[i];
	return NULL;
}

bool tier_wants(struct cache *c)
{
	return c->tier && (c->tier->waiting_for_memory || class_wanting(c->tier) || unit_over(c->tier));
}

/* Deletes one slab, if one can be deleted now: a free one, or the one with the fewest blocks. Without the lock. */
static void unit_shrink(struct cache *c, struct unit *u)
{
	struct disk_view v;
	uint64_t freed;

	if (disk_slab_drop_free(u->disk, 0))
		cache_compact_step(c, u->configured, u->options->bytes, &freed);
	disk_look(u->disk, &v);
	cache_lock(c);
	slab_maps_prune(c, u);
	unit_failed(c, u);
	u->over = v.slab_bytes_used > v.budget_bytes && u->slab_maps; /* damaged slabs stay */
	cache_unlock(c);
}

void cache_disk_chores(struct cache *c)
{
	struct disk_class *k;
	struct unit *over;

	if (!c->tier)
		return;
	cache_lock(c);
	while ((k = class_wanting(c->tier))) {
		cache_unlock(c);
		slab_feed(c, k);
		cache_lock(c);
	}
	over = unit_over(c->tier);
	if (over) {
		cache_unlock(c);
		unit_shrink(c, over);
		cache_lock(c);
	}
	spill_pump(c);
	cache_unlock(c);
}

void tier_chores(struct cache *c)
{
	struct memory_class *waiting_for_memory;

	cache_lock(c);
	waiting_for_memory = c->tier->waiting_for_memory ? c->tier->waiting_for_memory->block->pool->class : NULL;
	cache_unlock(c);
	if (waiting_for_memory)
		c->tiers[TIER_MEMORY]->grow(c, waiting_for_memory, false);
	cache_lock(c);
	loads_feed(c);
	spill_pump(c);
	cache_unlock(c);
}

/* ---- the table ---- */

static void use(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e)
{
	(void)gpu;
	(void)e;
	slab_map_use(c, b);
}

/* Takes a removed block out of its slab map. An evicted block needs no tombstone: the eviction overwrites its header or
 * drops its slab, and tells the catalog then. */
static void leave_slab_map(struct cache *c, struct block *b, enum cache_reason reason)
{
	const struct index_ident name = block_name(b);
	struct slab_map *r = b->slab_map;
	uint32_t slot = b->slab_map_slot;

	if (reason == CACHE_REASON_EVICTED && !b->span) {
		if (r->class->departures)
			departures_note(r->class->departures, 1);
		observe_left(c, b->node.id, &r->at[slot].node, EVICTION_DISK,
			     r->class->unit->failed ? EVICTION_LOST : EVICTION_FULL);
	}
	slab_map_detach(c, b);
	if (reason == CACHE_REASON_EVICTED)
		return;
	catalog_untell(c, &name);
	tombstone_begin(c, r, slot, b->pool, &name, b->generation);
}

static void leave(struct cache *c, struct block *b, enum cache_reason reason)
{
	if (b->moving)
		spill_abandon(c, b);
	if (b->slab_map)
		leave_slab_map(c, b, reason);
}

/* Moves a block that has left memory to the warm end of the disk's policy. So blocks that leave memory first leave the
 * disk first, whether they were written there long before or just now. */
static void copies_changed(struct cache *c, struct block *b, enum tier_kind which, bool came)
{
	if (which == TIER_MEMORY && !came && b->slab_map)
		slab_map_renew(c, b, 0);
}

static bool in_flight(struct cache *c, const struct block *b)
{
	(void)c;
	return b->moving && !b->span;
}

/* Begins what waits for room, on a disk or in memory, which an end may have made. */
static void pump(struct cache *c)
{
	struct tier *t = c->tier;

	if (t->burials_due)
		burials_feed(c);
	if (t->looks_due)
		scrub_pump(c);
	if (t->spared)
		observe_memory_spare(c);
	t->spared = false;
	spill_pump(c);
	loads_feed(c);
}

/* Tells the disks' policies their room. Until the disks are taken up not all slabs are known, and nothing is told. */
static void room_changed(struct cache *c)
{
	if (c->tier->restored)
		slab_map_rooms_tell(c);
}

static void extent_fixed(struct cache *c, struct memory_extent *m, const struct extent *e)
{
	uint32_t *buffer = e ? malloc(CACHE_DISKS_MAX * sizeof(*buffer)) : NULL;

	if (!buffer)
		return; /* transfers from and to it are slower */
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		if (disk_buffer_add(c->tier->units[i].disk, e->base, e->bytes, &buffer[i]))
			buffer[i] = RING_NONE;
	cache_lock(c);
	m->buffer = buffer;
	cache_unlock(c);
}

static void extent_gone(struct cache *c, const struct memory_extent *m)
{
	for (uint32_t i = 0; m->buffer && i < c->tier->unit_count; i++)
		if (m->buffer[i] != RING_NONE)
			disk_buffer_remove(c->tier->units[i].disk, m->buffer[i]);
}

const struct tier_ops disk_tier = {
	.name = "disk",
	.use = use,
	.unusable = slab_map_unusable,
	.leave = leave,
	.copies_changed = copies_changed,
	.fetch = load_begin,
	.in_flight = in_flight,
	.store = spill_begin,
	.hurry = spill_hurry,
	.pump = pump,
	.room_changed = room_changed,
	.leaving = place_leaving,
	.extent_fixed = extent_fixed,
	.extent_gone = extent_gone,
};
