/* Waits: what a call that needs the disks holds on to while it is put aside. Each thing it waits for is a link; a link may keep a
 * block pinned, so that what one load brought is still there when the last has come. */
#include <stdlib.h>

#include "daemon/cache_tier.h"
#include "daemon/cache_vram.h"

struct cache_wait_link *wait_link(struct cache *c, struct cache_wait *w, struct block *pin)
{
	struct cache_wait_link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->cache = c;
	l->wait = w;
	l->next = w->links;
	w->links = l;
	w->outstanding++;
	l->pinned = pin;
	if (pin)
		block_pin(pin);
	return l;
}

void wait_link_done(struct cache *c, struct cache_wait_link *l, enum status s)
{
	struct cache_wait *w = l->wait;

	(void)c;
	l->done = true;
	if (!w) {
		free(l);
		return;
	}
	if (s) {
		w->worst = s;
		w->shed++;
	}
	if (--w->outstanding)
		return;
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
	block_pin_on(l->pinned, gpu);
	block_unpin(l->pinned);
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
	struct cache_wait_link *l = arg;
	struct cache *c = l->cache;

	cache_lock(c);
	wait_link_done(c, l, s);
	cache_unlock(c);
}

enum status wait_catalog(struct cache *c, struct cache_wait *w)
{
	struct cache_wait_link *l = wait_link(c, w, NULL);
	enum status s;

	if (!l)
		return STATUS_EXHAUSTED;
	s = catalog_flush(c->tier->catalog, catalog_done, l);
	if (s) {
		w->links = l->next;
		w->outstanding--;
		free(l);
	}
	return s;
}

static void sync_done(struct disk_request *q)
{
	struct cache_wait_link *l = (struct cache_wait_link *)((char *)q - offsetof(struct cache_wait_link, sync));
	struct cache *c = l->cache;
	enum status s = q->ring.status;

	cache_lock(c);
	if (s == STATUS_IO || s == STATUS_UNAVAILABLE)
		for (uint32_t i = 0; i < c->tier->unit_count; i++)
			if (c->tier->units[i].disk == q->disk)
				unit_failed(c, &c->tier->units[i]);
	wait_link_done(c, l, s);
	cache_unlock(c);
}

enum status wait_sync(struct cache *c, struct cache_wait *w, struct unit *u)
{
	struct cache_wait_link *l = wait_link(c, w, NULL);
	enum status s;

	if (!l)
		return STATUS_EXHAUSTED;
	l->sync.done = sync_done;
	s = disk_sync(u->disk, &l->sync);
	if (s) {
		w->links = l->next;
		w->outstanding--;
		free(l);
	}
	return s;
}

void cache_wait_end(struct cache *c, struct cache_wait *w)
{
	struct cache_wait_link *l, *next;

	if (!w->links && !w->mark)
		goto out;
	cache_lock(c);
	vram_mark_drop(w);
	for (l = w->links; l; l = next) {
		next = l->next;
		if (l->pinned && l->apart)
			block_unpin_on(l->pinned, l->gpu);
		else if (l->pinned)
			block_unpin(l->pinned);
		l->pinned = NULL;
		l->wait = NULL;
		if (l->done)
			free(l);
	}
	cache_unlock(c);
out:
	*w = (struct cache_wait){ .ready = w->ready, .arg = w->arg };
}
