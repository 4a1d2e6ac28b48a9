/* Delete: out of sight at once, in every layout; the slot comes back with the last release. With disks, the answer waits until no
 * restart and no scan could bring the block back: for the tombstone over its header, or the write that displaces it, for a sync of the
 * disks, and for the commit of the catalog that forgets it. All disks are synced, whatever lay there: a header may have been overwritten
 * long ago, since the block was displaced or was a second copy, and that write still be none after a power cut.
 */
#include "daemon/cache_tier.h"
#include "store/crash_point.h"

enum { DELETE_NEW, DELETE_BURYING, DELETE_SYNCING, DELETE_COMMITTING };

static void join(struct cache *c, struct move *m, struct cache_wait *w)
{
	struct cache_wait_link *l = wait_link(c, w, NULL);

	w->units |= 1u << m->unit->number;
	if (!l) {
		w->worst = STATUS_IO;
		return;
	}
	l->move_next = m->links;
	m->links = l;
}

/* Headers that name the key are still to be overwritten: joins the wait for each. */
static void join_graves(struct cache *c, const struct index_ident *ident, struct cache_wait *w)
{
	for (struct move *grave = NULL; w && (grave = grave_of(c, ident, grave));)
		join(c, grave, w);
}

/* What is still being spilled, though it was removed, now or before, is buried when the spill has ended. */
static void join_orphans(struct cache *c, const struct index_ident *ident, struct cache_wait *w)
{
	for (struct move *m = w ? c->tier->orphans : NULL; m; m = m->orphan_next)
		if (ident_equal(&m->block->record.ident, ident))
			join(c, m, w);
}

static enum status remove_key(struct cache *c, struct pool *const *pools, uint32_t layouts,
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
			u = found[l]->rack ? found[l]->rack->class->unit : NULL;
			block_remove(c, found[l], CACHE_REASON_DELETED);
			cache_count(c, COUNTER_DELETED, 1);
			if (w && u && u->failed)
				w->worst = STATUS_IO;
			s = STATUS_OK;
		}
		if (!c->tier)
			continue;
		block_ident(pools[l], one->bytes, one->key_bytes, &ident);
		CRASH_POINT("delete_untell");
		catalog_untell(c, &ident);
		join_graves(c, &ident, w);
		join_orphans(c, &ident, w);
	}
	cache_unlock(c);
	index_read_unlock();
	return s;
}

/* A disk that fails is marked on a thread of its own. Until then a crash, and the loss of the catalog, would make it trusted again, with
 * all that is deleted now. */
static bool marks_missing(const struct tier *t)
{
	struct disk_view v;

	for (uint32_t i = 0; i < t->unit_count; i++) {
		if (!t->units[i].failed)
			continue;
		disk_look(t->units[i].disk, &v);
		if (!v.marked)
			return true;
	}
	return false;
}

/* One that has failed is wiped before it is used again; but what was to be buried there is not. */
static void sync_unit(struct cache *c, struct cache_wait *w, struct unit *u)
{
	const bool named = w->units >> u->number & 1;

	if (u->failed ? named : wait_sync(c, w, u) != STATUS_OK)
		w->worst = STATUS_IO;
}

/* With the lock. OK: nothing is left to wait for. */
static enum status delete_wait(struct cache *c, struct cache_wait *w)
{
	if (w->outstanding)
		return STATUS_BUSY;
	w->poll = marks_missing(c->tier);
	if (w->poll)
		return STATUS_BUSY;
	if (w->stage == DELETE_BURYING) {
		CRASH_POINT("delete_buried");
		w->stage = DELETE_SYNCING;
		for (uint32_t i = 0; i < c->tier->unit_count; i++)
			sync_unit(c, w, &c->tier->units[i]);
		if (w->outstanding)
			return STATUS_BUSY;
	}
	if (w->stage == DELETE_SYNCING) {
		CRASH_POINT("delete_synced");
		w->stage = DELETE_COMMITTING;
		if (wait_catalog(c, w) == STATUS_OK)
			return STATUS_BUSY;
		w->worst = STATUS_IO;
	}
	return w->worst || c->tier->graves_lost ? STATUS_IO : STATUS_OK;
}

enum status cache_delete(struct cache *c, uint64_t session, const struct cache_keys *k, enum status *statuses,
			 struct cache_wait *w, const char **why)
{
	struct pool *pools[CACHE_LAYOUTS_MAX];
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
	cache_unlock(c);
	return status;
}
