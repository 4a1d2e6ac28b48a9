/* Waits: the state of a call that is put aside for disks or GPUs. Each event that it waits for is a link. A link may
 * keep a block pinned, so that blocks that arrived early are still there when the last one arrives.
 */
#include "daemon/block/wait.h"

#include "daemon/block/block.h"
#include "daemon/block/gpu_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/tier.h"
#include "daemon/block/unwritten.h"
#include "store/status.h"

#include <stdlib.h>

/* Takes a link from the spare ones, or new memory. With GPUs a call has thousands of links, and another thread frees
 * them, so they are kept for reuse. NULL: no memory. */
static struct cache_wait_link *link_alloc(struct cache *c)
{
	struct cache_wait_link *l = c->spare_links;

	if (!l)
		return malloc(sizeof(*l));
	c->spare_links = l->next;
	c->spare_link_count--;
	__builtin_prefetch(c->spare_links, 1);
	return l;
}

static void link_free(struct cache *c, struct cache_wait_link *l)
{
	if (l->sync_request || c->spare_link_count == c->spare_links_max) {
		free(l);
		return;
	}
	l->next = c->spare_links;
	c->spare_links = l;
	c->spare_link_count++;
}

void wait_spares_free(struct cache *c)
{
	struct cache_wait_link *l;

	while ((l = c->spare_links)) {
		c->spare_links = l->next;
		free(l);
	}
}

void wait_link_in(struct cache_wait *w, struct cache_wait_link *l)
{
	l->wait = w;
	l->next = w->links;
	w->links = l;
	w->linked++;
	w->outstanding++;
}

void wait_link_out(struct cache_wait *w, struct cache_wait_link *l)
{
	w->links = l->next;
	w->linked--;
	w->outstanding--;
	w->of_unit[l->part - 1]--;
}

struct cache_wait_link *wait_link(struct cache *c, struct cache_wait *w, struct block *pin)
{
	struct cache_wait_link *l = link_alloc(c);

	if (!l)
		return NULL;
	*l = (struct cache_wait_link){ .pinned = pin };
	wait_link_in(w, l);
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

void wait_link_done(struct cache *c, struct cache_wait_link *l, enum status s)
{
	struct cache_wait *w = l->wait;
	bool part_over = false;

	l->done = true;
	if (!w) {
		link_free(c, l);
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
	if (w->fence)
		c->tiers[TIER_GPU]->wait_placed(w);
	w->ready(w->arg);
}

void wait_links_join(struct cache_wait_link **list, struct cache_wait_link *more)
{
	while (*list)
		list = &(*list)->transfer_next;
	*list = more;
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
			link_free(c, l);
	}
	w->links = NULL;
	w->linked = 0;
}

void cache_wait_end(struct cache *c, struct cache_wait *w)
{
	if (!w->links && !w->fence && !w->walk.list)
		goto out;
	cache_lock(c);
	unwritten_walk_end(&w->walk);
	if (w->fence)
		c->tiers[TIER_GPU]->wait_dropped(w);
	wait_links_drop(c, w);
	cache_unlock(c);
out:
	*w = (struct cache_wait){ .ready = w->ready, .arg = w->arg };
}
