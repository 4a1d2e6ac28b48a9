/* Slab files that the catalog names and that are missing or damaged.
 *
 * Their records are forgotten, since another file may get the number one day; the blocks are misses. Later deletes
 * cannot write tombstones into such a file. So the catalog keeps its number: if the file comes back, as from a backup,
 * it is deleted before anything in it is used. No other file gets the number meanwhile.
 */
#include "daemon/disk/durable.h"
#include "daemon/disk/lost.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/open.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "store/catalog/catalog.h"
#include "store/slab/disk.h"

#include <stdatomic.h>
#include <string.h>

enum { KEY_BYTES = 16 };

static void key_of(uint64_t disk_id, uint32_t slab, uint8_t key[KEY_BYTES])
{
	memcpy(key, "slab", 4);
	memcpy(key + 4, &disk_id, sizeof(disk_id));
	memcpy(key + 12, &slab, sizeof(slab));
}

bool unit_has_slab(const struct unit *u, uint32_t slab)
{
	struct disk_slab_view v;

	return slab && disk_slab_next(u->disk, slab - 1, &v) && v.slab == slab;
}

/* The record of a lost slab, made if new. NULL: there are too many to tell them apart. With the lock. */
static struct cache_lost_slab *lost_slab(struct tier *t, struct unit *u, uint32_t slab)
{
	const uint32_t told = t->found.slabs_lost < CACHE_LOST_SLABS_MAX ? t->found.slabs_lost : CACHE_LOST_SLABS_MAX;
	struct cache_lost_slab *l = t->found.lost, *const end = l + told;

	while (l < end && (l->disk != u->configured || l->slab != slab))
		l++;
	if (l < end)
		return l;
	u->slabs_lost++;
	if (t->found.slabs_lost++ >= CACHE_LOST_SLABS_MAX)
		return NULL;
	*l = (struct cache_lost_slab){ .disk = u->configured, .slab = slab, .sure = !t->scan && !u->scan };
	return l;
}

void lost_record(struct cache *c, struct unit *u, uint32_t slab, const struct index_ident *ident, bool in_use)
{
	struct tier *t = c->tier;
	struct cache_lost_slab *l;
	uint8_t key[KEY_BYTES];

	/* If the file is in use, only the record is wrong. Else the file's number goes to the catalog before its record
	 * leaves the catalog. */
	key_of(u->id, slab, key);
	if (!in_use && catalog_put(t->catalog, CATALOG_META, key, sizeof(key), "1", 1))
		t->lagging = true;
	catalog_untell(c, ident);
	if (!in_use)
		disk_slab_skip(u->disk, slab);
	u->blocks_lost++;
	t->found.blocks_lost++;
	l = lost_slab(t, u, slab);
	if (!l)
		return;
	l->blocks++;
	l->problem = in_use ? "has other slots than the catalog says" : NULL; /* lost_judge() */
}

void lost_judge(struct cache *c)
{
	struct tier *t = c->tier;

	for (uint32_t i = 0; i < t->found.slabs_lost && i < CACHE_LOST_SLABS_MAX && !atomic_load(&t->restorer_stop); i++) {
		struct cache_lost_slab *l = &t->found.lost[i];
		const char *problem = l->problem ? l->problem : disk_slab_problem(unit_configured(t, l->disk)->disk, l->slab);

		cache_lock(c);
		l->problem = problem ? problem : "was not in use";
		cache_unlock(c);
	}
}

/* Deletes the file of a lost slab that has come back. */
static void drop(struct cache *c, struct unit *u, uint32_t slab)
{
	struct cache_lost_slab *l;
	const bool dropped = !disk_slab_drop(u->disk, slab);
	uint8_t key[KEY_BYTES];

	key_of(u->id, slab, key);
	cache_lock(c);
	unit_failed(c, u);
	if (dropped)
		catalog_drop(c->tier->catalog, CATALOG_META, key, sizeof(key));
	l = lost_slab(c->tier, u, slab);
	if (l)
		l->problem = dropped ? "came back after its blocks were given up, and was deleted" : "came back after its blocks were given up, and cannot be deleted";
	cache_unlock(c);
}

static bool on_lost(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct cache *c = arg;
	uint64_t id;
	uint32_t slab;

	(void)value;
	(void)value_bytes;
	if (key_bytes < 4 || memcmp(key, "slab", 4) != 0)
		return false;
	if (key_bytes != KEY_BYTES)
		return true;
	memcpy(&id, (const uint8_t *)key + 4, sizeof(id));
	memcpy(&slab, (const uint8_t *)key + 12, sizeof(slab));
	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];

		if (u->id != id)
			continue;
		disk_slab_skip(u->disk, slab);
		if (unit_has_slab(u, slab))
			drop(c, u, slab);
	}
	return !atomic_load(&c->tier->restorer_stop);
}

void lost_return(struct cache *c)
{
	catalog_walk_from(c->tier->catalog, CATALOG_META, "slab", 4, on_lost, c, NULL);
}
