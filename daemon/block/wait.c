/* Waits: what a call that needs the disks holds on to while it is put aside. Each thing it waits for is a link; a link may keep a
 * block pinned, so that what one load brought is still there when the last has come. */
#include "daemon/block/wait.h"

#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/unwritten.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/sync.h"
#include "daemon/disk/tier.h"
#include "daemon/vram/move_table.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/catalog/catalog.h"
#include "store/slab/disk.h"
#include "store/status.h"

#include <stdlib.h>

/* Calls have thousands of them, which another thread gives back: they are kept rather than freed. NULL: no memory. */
static struct cache_wait_link *link_alloc(struct vram *v)
{
	struct cache_wait_link *l = v ? v->spare_links : NULL;

	if (!l)
		return malloc(sizeof(*l));
	v->spare_links = l->next;
	v->spare_link_count--;
	__builtin_prefetch(v->spare_links, 1);
	return l;
}

static void link_free(struct vram *v, struct cache_wait_link *l)
{
	if (!v || l->errand || v->spare_link_count == VRAM_SPARES_MAX) {
		free(l);
		return;
	}
	l->next = v->spare_links;
	v->spare_links = l;
	v->spare_link_count++;
}

void wait_spares_free(struct vram *v)
{
	struct cache_wait_link *l;

	while ((l = v->spare_links)) {
		v->spare_links = l->next;
		free(l);
	}
}

static void link_in(struct cache_wait *w, struct cache_wait_link *l)
{
	l->wait = w;
	l->next = w->links;
	w->links = l;
	w->linked++;
	w->outstanding++;
}

struct cache_wait_link *wait_link(struct cache *c, struct cache_wait *w, struct block *pin)
{
	struct cache_wait_link *l = link_alloc(c->vram);

	if (!l)
		return NULL;
	*l = (struct cache_wait_link){ .pinned = pin };
	link_in(w, l);
	if (pin && pin == w->adopts)
		w->adopts = NULL;
	else if (pin)
		block_pin(pin);
	return l;
}

void wait_link_part(struct cache_wait *w, struct cache_wait_link *l, uint32_t part)
{
	l->part = (uint8_t)(part + 1);
	w->of_unit[part]++;
}

static struct wait_errand *wait_errand(struct cache *c, struct cache_wait *w)
{
	struct wait_errand *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->cache = c;
	e->link.errand = true;
	link_in(w, &e->link);
	return e;
}

/* It was not begun. */
static void errand_drop(struct cache_wait *w, struct wait_errand *e)
{
	w->links = e->link.next;
	w->linked--;
	w->outstanding--;
	w->of_unit[e->link.part - 1]--;
	free(e);
}

void wait_link_done(struct cache *c, struct cache_wait_link *l, enum status s)
{
	struct cache_wait *w = l->wait;
	bool part_over = false;

	l->done = true;
	if (!w) {
		link_free(c->vram, l);
		return;
	}
	if (s) {
		w->worst = s;
		w->shed++;
		if (l->part == WAIT_CATALOG + 1)
			w->uncommitted = s;
	}
	if (l->part)
		part_over = --w->of_unit[l->part - 1] == 0;
	if (--w->outstanding) {
		if (part_over)
			w->ready(w->arg);
		return;
	}
	if (w->mark)
		vram_mark_place(w);
	w->ready(w->arg);
}

bool wait_pin(struct cache *c, struct cache_wait *w, struct block *b)
{
	struct cache_wait_link *l = wait_link(c, w, b);

	if (!l)
		return false;
	l->done = true;
	w->outstanding--;
	return true;
}

void wait_link_apart(struct cache_wait_link *l, struct gpu *gpu)
{
	if (!l->pinned || l->apart)
		return;
	block_pin_apart(l->pinned, gpu ? vram_slot_of(l->pinned, gpu) : NULL);
	l->apart = true;
	l->gpu = gpu;
}

bool wait_pin_on(struct cache *c, struct cache_wait *w, struct block *b, struct gpu *gpu)
{
	if (!wait_pin(c, w, b))
		return false;
	wait_link_apart(w->links, gpu);
	return true;
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

void wait_links_drop(struct cache *c, struct cache_wait *w)
{
	struct cache_wait_link *l, *next;

	for (l = w->links; l; l = next) {
		next = l->next;
		if (next && next->pinned)
			__builtin_prefetch(&next->pinned->record.pins, 1);
		if (l->pinned && l->apart)
			block_unpin_on(l->pinned, l->gpu);
		else if (l->pinned)
			block_unpin(l->pinned);
		l->pinned = NULL;
		l->wait = NULL;
		if (l->done)
			link_free(c->vram, l);
	}
	w->links = NULL;
	w->linked = 0;
}

void cache_wait_end(struct cache *c, struct cache_wait *w)
{
	if (!w->links && !w->mark && !w->walk.list)
		goto out;
	cache_lock(c);
	unwritten_walk_end(&w->walk);
	vram_mark_drop(w);
	wait_links_drop(c, w);
	cache_unlock(c);
out:
	*w = (struct cache_wait){ .ready = w->ready, .arg = w->arg };
}
