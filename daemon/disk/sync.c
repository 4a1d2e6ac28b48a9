/* Syncs and commits that calls wait for: each is a link that is a request of its own. And what is durable on each
 * disk. */
#include "daemon/disk/sync.h"

#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/wait.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "store/catalog/catalog.h"
#include "store/slab/disk.h"
#include "store/status.h"

#include <stddef.h>
#include <stdlib.h>

/* A link that is a request of its own. */
struct wait_errand {
	struct cache_wait_link link;   /* first */
	struct cache *cache;
	struct disk_request sync;
	uint64_t covers;               /* the unit's `written` when it began */
};

static struct wait_errand *wait_errand(struct cache *c, struct cache_wait *w)
{
	struct wait_errand *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->cache = c;
	e->link.errand = true;
	wait_link_in(w, &e->link);
	return e;
}

/* It was not begun. */
static void errand_drop(struct cache_wait *w, struct wait_errand *e)
{
	wait_link_out(w, &e->link);
	free(e);
}

static void catalog_done(void *arg, enum status s)
{
	struct wait_errand *e = arg;
	struct cache *c = e->cache;

	cache_lock(c);
	wait_link_done(c, &e->link, s);
	cache_unlock(c);
}

enum status wait_catalog(struct cache *c, struct cache_wait *w)
{
	struct wait_errand *e = wait_errand(c, w);
	enum status s;

	if (!e)
		return STATUS_EXHAUSTED;
	wait_link_part(w, &e->link, WAIT_CATALOG);
	s = catalog_flush(c->tier->catalog, catalog_done, e);
	if (s) {
		errand_drop(w, e);
		w->uncommitted = s;
	}
	return s;
}

static void sync_done(struct disk_request *q)
{
	struct wait_errand *e = (struct wait_errand *)((char *)q - offsetof(struct wait_errand, sync));
	struct cache *c = e->cache;
	enum status s = q->ring.status;

	cache_lock(c);
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];

		if (u->disk != q->disk)
			continue;
		if (s)
			unit_failed(c, u);
		else if (u->synced < e->covers)
			u->synced = e->covers;
	}
	wait_link_done(c, &e->link, s);
	cache_unlock(c);
}

enum status wait_sync(struct cache *c, struct cache_wait *w, struct unit *u)
{
	struct wait_errand *e = wait_errand(c, w);
	enum status s;

	if (!e)
		return STATUS_EXHAUSTED;
	e->sync.done = sync_done;
	e->covers = u->written;
	wait_link_part(w, &e->link, u->number);
	s = disk_sync(u->disk, &e->sync);
	if (s)
		errand_drop(w, e);
	return s;
}

/* ---- what is durable ---- */

static uint64_t *unsynced_bucket(const struct unit *u, const struct index_ident *ident)
{
	return (uint64_t *)&u->unsynced[ident_hash(ident, 0) % UNSYNCED_BUCKETS];
}

void unit_wrote(struct unit *u, const struct index_ident *ident)
{
	*unsynced_bucket(u, ident) = ++u->written;
}

bool unit_unsynced(const struct unit *u, const struct index_ident *ident)
{
	const uint64_t last = *unsynced_bucket(u, ident);

	return (last ? last : 1) > u->synced;
}
