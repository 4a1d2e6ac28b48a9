/* Delete: out of sight at once, in every layout; the slot comes back with the last release. With disks, the answer waits until no
 * restart and no scan could bring the block back: for the tombstone over its header, or the write that displaces it, for a sync of the
 * disks, and for the commit of the catalog that forgets it. Disks are synced whatever lies there now: a header may have been overwritten
 * long ago, since the block was displaced or was a second copy, and that write still be none after a power cut. Left out are those where
 * each such write is known to be durable (unit_unsynced).
 *
 * Each disk goes on by itself. If some take long the catalog is committed without them, and at the deadline the keys that do not concern
 * them have their answer.
 */
#include "daemon/call/delete.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/call/arrival.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/disk_transfer.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/disk/transfer.h"
#include "daemon/session/session.h"
#include "store/clock.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/slab/disk.h"
#include "store/status.h"


enum { DELETE_NEW, DELETE_BURYING, DELETE_COMMITTING };

static void join(struct cache *c, struct disk_transfer *m, struct cache_wait *w)
{
	struct cache_wait_link *l = wait_link(c, w, NULL);

	w->units |= 1u << m->unit->number;
	w->pending |= 1u << m->unit->number;
	if (!l) {
		w->worst = STATUS_IO;
		return;
	}
	wait_link_part(w, l, m->unit->number);
	l->transfer_next = m->links;
	m->links = l;
}

/* Headers that name the key are still to be overwritten: joins the wait for each. */
static void join_tombstones(struct cache *c, const struct index_ident *ident, struct cache_wait *w)
{
	for (struct disk_transfer *tombstone = NULL; w && (tombstone = tombstone_of(c, ident, tombstone));)
		join(c, tombstone, w);
}

static bool is_named(const struct block *b, const struct index_ident *ident)
{
	const struct index_ident name = block_name(b);

	return ident_equal(&name, ident);
}

/* What is still being spilled, though it was removed, now or before, gets a tombstone when the spill has ended. */
static void join_abandoned_spills(struct cache *c, const struct index_ident *ident, struct cache_wait *w)
{
	for (struct disk_transfer *m = w ? c->tier->abandoned_spills : NULL; m; m = m->abandoned_next)
		if (is_named(m->block, ident))
			join(c, m, w);
}

/* Disks where a write over a header of that name may not be durable yet. */
static uint32_t unsynced_units(const struct tier *t, const struct index_ident *ident)
{
	uint32_t units = 0;

	for (uint32_t i = 0; i < t->unit_count; i++)
		units |= (uint32_t)unit_unsynced(&t->units[i], ident) << i;
	return units;
}

static enum status remove_key(struct cache *c, struct layout_pool *const *pools, uint32_t layouts,
			      const struct cache_keys *one, struct cache_wait *w)
{
	struct block *found[CACHE_LAYOUTS_MAX];
	enum status s = STATUS_MISS;
	struct index_ident ident;
	struct unit *u;

	index_read_lock();
	blocks_find(c, pools, layouts, one, found);
	cache_lock(c);
	for (uint32_t l = 0; l < layouts; l++) {
		if (found[l] && block_live(found[l])) {
			CRASH_POINT("delete_remove");
			u = found[l]->slab_map ? found[l]->slab_map->class->unit : NULL;
			block_remove(c, found[l], CACHE_REASON_DELETED);
			cache_count(c, COUNTER_DELETED, 1);
			if (w && u && u->failed)
				w->worst = STATUS_IO;
			s = STATUS_OK;
		}
		block_ident(pools[l], one->bytes, one->key_bytes, &ident);
		arrivals_forget(c, &ident);
		if (!c->tier)
			continue;
		c->tier->deleted = true;
		CRASH_POINT("delete_untell");
		catalog_untell(c, &ident);
		join_tombstones(c, &ident, w);
		join_abandoned_spills(c, &ident, w);
		if (w)
			w->pending |= unsynced_units(c->tier, &ident);
	}
	cache_unlock(c);
	index_read_unlock();
	return s;
}

/* A disk that fails is marked on a thread of its own. Until then a crash, and the loss of the catalog, would make it trusted again, with
 * all that is deleted now; and so would the crash alone until the catalog, whose queue may have been full, has been told. */
static bool marks_missing(const struct tier *t)
{
	struct disk_view v;

	for (uint32_t i = 0; i < t->unit_count; i++) {
		if (!t->units[i].failed)
			continue;
		disk_look(t->units[i].disk, &v);
		if (!v.marked || !t->units[i].banned)
			return true;
	}
	return false;
}

/* One that has failed is wiped before it is used again; but what was to get a tombstone there is not. */
static void sync_unit(struct cache *c, struct cache_wait *w, struct unit *u)
{
	const bool named = w->units >> u->number & 1;

	if (u->failed ? named : wait_sync(c, w, u) != STATUS_OK)
		w->worst = STATUS_IO;
}

/* With the lock. */
static void units_step(struct cache *c, struct cache_wait *w)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		const uint32_t unit = 1u << i;

		if (!(w->pending & unit) || w->of_unit[i])
			continue;
		if (!(w->begun & unit)) {
			CRASH_POINT("delete_tombstones");
			w->begun |= unit;
			sync_unit(c, w, &c->tier->units[i]);
		}
		if (!w->of_unit[i])
			w->pending &= ~unit;
	}
}

/* The disks that are pending take longer than a sound one. */
static bool is_late(const struct cache *c, struct cache_wait *w)
{
	const uint64_t slow_us = c->options.disk_slow_ms * 1000ull;

	if (!w->since_us)
		w->since_us = clock_us();
	w->again_us = slow_us;
	return clock_us() - w->since_us >= slow_us;
}

/* With the lock. OK: nothing is left to wait for. */
static enum status delete_wait(struct cache *c, struct cache_wait *w)
{
	units_step(c, w);
	if (w->of_unit[WAIT_CATALOG])
		return STATUS_BUSY;
	if (w->pending && (w->last || !is_late(c, w)))
		return STATUS_BUSY;
	if (w->last && w->stage == DELETE_COMMITTING && w->committed != w->pending)
		return STATUS_BUSY; /* there is no time for another commit */
	w->poll = marks_missing(c->tier);
	if (w->poll)
		return STATUS_BUSY;
	if (w->stage != DELETE_COMMITTING || w->committed != w->pending) {
		CRASH_POINT("delete_synced");
		w->stage = DELETE_COMMITTING;
		w->committed = w->pending;
		if (wait_catalog(c, w) == STATUS_OK)
			return STATUS_BUSY;
		w->worst = STATUS_IO;
	}
	if (w->pending)
		return STATUS_BUSY;
	return w->worst || c->tier->tombstones_lost ? STATUS_IO : STATUS_OK;
}

/* With the lock: whether a header of that name may be on one of those disks. */
static bool may_be_there(struct cache *c, const struct index_ident *ident, uint32_t units)
{
	for (struct disk_transfer *tombstone = NULL; (tombstone = tombstone_of(c, ident, tombstone));)
		if (units >> tombstone->unit->number & 1)
			return true;
	for (const struct disk_transfer *m = c->tier->abandoned_spills; m; m = m->abandoned_next)
		if (units >> m->unit->number & 1 && is_named(m->block, ident))
			return true;
	return unsynced_units(c->tier, ident) & units;
}

/* With the lock, at the deadline. False: of no key it is known that it is gone for good. */
static bool known_in_part(struct cache *c, struct layout_pool *const *pools, uint32_t layouts,
			  const struct cache_keys *k, const struct cache_wait *w,
			  enum status *statuses)
{
	bool known = false;

	if (w->stage != DELETE_COMMITTING || w->of_unit[WAIT_CATALOG] || w->worst || c->tier->tombstones_lost)
		return false;
	for (uint32_t i = 0; i < k->count; i++) {
		bool open = false;

		for (uint32_t l = 0; l < layouts; l++) {
			struct index_ident ident;

			block_ident(pools[l], k->bytes + (size_t)i * k->key_bytes, k->key_bytes, &ident);
			open |= may_be_there(c, &ident, w->committed);
		}
		statuses[i] = open ? STATUS_DEADLINE : statuses[i];
		known |= !open;
	}
	return known;
}

enum status cache_delete(struct cache *c, uint64_t session, const struct cache_keys *k, enum status *statuses,
			 struct cache_wait *w, const char **why)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = session_pools(c, session, pools);
	enum status status;

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return STATUS_NOT_FOUND;
	*why = cache_keys_problem(k, layouts);
	if (*why)
		return STATUS_INVALID;
	if (w && c->tier && !cache_restored(c)) {
		w->poll = true;
		return STATUS_BUSY;
	}
	for (uint32_t i = 0; i < k->count && (!w || w->stage == DELETE_NEW); i++) {
		const struct cache_keys one = { k->bytes + (size_t)i * k->key_bytes, 1, k->key_bytes };

		statuses[i] = remove_key(c, pools, layouts, &one, c->tier ? w : NULL);
	}
	if (!w || !c->tier)
		return STATUS_OK;
	*why = "the blocks are out of sight, but a disk that failed may still have them";
	cache_lock(c);
	w->poll = false;
	if (w->stage == DELETE_NEW)
		w->stage = DELETE_BURYING;
	status = delete_wait(c, w);
	if (status == STATUS_BUSY && w->last && known_in_part(c, pools, layouts, k, w, statuses))
		status = STATUS_OK;
	cache_unlock(c);
	return status;
}
