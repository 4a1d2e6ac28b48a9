/* Delete: the block cannot be found any more at once, in every layout; its slot comes back with the last release. With
 * disks, the answer waits until no restart and no scan can bring the block back. It waits for the tombstone over the
 * header (or for the write that displaces it), for a sync of the disks, and for the catalog's commit without the block.
 * Disks are synced even if the block is not there now: its header may have been overwritten earlier, by a write that a
 * power cut could still undo. Disks where each such write is known to be durable are left out (unit_unsynced).
 *
 * Each disk goes on by itself. If some take long, the catalog is committed without them. At the deadline, keys that do
 * not concern those disks get their answer.
 */
#include "daemon/call/delete.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
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

/* Headers that name the key are still to be overwritten: waits for each of these tombstones. */
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

/* A spill of a removed block that is still under way gets a tombstone when it ends. */
static void join_abandoned_spills(struct cache *c, const struct index_ident *ident, struct cache_wait *w)
{
	for (struct disk_transfer *m = w ? c->tier->abandoned_spills : NULL; m; m = m->abandoned_next)
		if (is_named(m->block, ident))
			join(c, m, w);
}

/* Disks where the overwriting of a header of that name may not be durable yet. */
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

/* A failed disk is marked by a thread of its own. Until the mark is written, a crash together with the loss of the
 * catalog would make the disk trusted again, with all that is deleted now. Until the catalog, whose queue may be full,
 * has been told, the crash alone would. */
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

/* A failed disk is wiped before it is used again, so it needs no sync. But if it was to get a tombstone of this delete,
 * the delete answers IO. */
static void sync_unit(struct cache *c, struct cache_wait *w, struct unit *u)
{
	const bool named = w->units >> u->number & 1;

	if (u->failed ? named : wait_sync(c, w, u) != STATUS_OK)
		w->worst = STATUS_IO;
}

/* Begins the sync of each pending disk that waits for no tombstone any more. A disk that needs no sync is not pending
 * any more. With the lock. */
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

/* Whether the disks that are pending take longer than a sound disk. */
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

/* With the lock, at the deadline. False: no key is known to be deleted for good. */
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

/* Deletes the keys in these layouts. */
static enum status delete_in(struct cache *c, struct layout_pool *const *pools, uint32_t layouts,
			     const struct cache_keys *k, enum status *statuses, struct cache_wait *w, const char **why)
{
	enum status status;

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

enum status cache_delete(struct cache *c, uint64_t session, const struct cache_keys *k, enum status *statuses,
			 struct cache_wait *w, const char **why)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = session_pools(c, session, pools);

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return STATUS_NOT_FOUND;
	*why = cache_keys_problem(k, layouts);
	if (*why)
		return STATUS_INVALID;
	return delete_in(c, pools, layouts, k, statuses, w, why);
}

/* Layouts that were never here have no block here, and no pool: their names are remembered alone. */
static void forget_unknown(struct cache *c, uint32_t tenant, uint64_t layout_id, const struct cache_keys *k)
{
	for (uint32_t i = 0; i < k->count; i++) {
		const struct index_ident name = { layout_id, tenant, (uint8_t)k->key_bytes,
						  k->bytes + (size_t)i * k->key_bytes };

		arrivals_forget(c, &name);
	}
}

enum status cache_forget(struct cache *c, const struct cache_forget_call *q, enum status *statuses,
			 struct cache_wait *w, const char **why)
{
	const struct tenant *t = tenant_of_number(c, q->tenant);
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = 0;

	*why = cache_keys_problem(q->keys, q->layouts);
	if (*why)
		return STATUS_INVALID;
	for (uint32_t i = 0; i < q->keys->count && (!w || w->stage == DELETE_NEW); i++)
		statuses[i] = STATUS_MISS;
	for (uint32_t i = 0; i < q->layouts; i++) { /* the lock is left after each, as there may be many keys */
		struct layout_pool *p;

		cache_lock(c);
		p = t ? layout_pool_by_id(c, t, q->layout_ids[i]) : NULL;
		if (p)
			pools[layouts++] = p;
		else
			forget_unknown(c, q->tenant, q->layout_ids[i], q->keys);
		cache_unlock(c);
	}
	return layouts ? delete_in(c, pools, layouts, q->keys, statuses, w, why) : STATUS_OK;
}
