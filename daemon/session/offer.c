/* Offers: which extents of its session's layouts there are, for an attachment that asked to be told, so that its process can map them
 * before a lease names them. Nothing is lent by it, and nothing kept for it: per layout and tier a number says how far the attachment has been
 * told, since ids of extents rise. An extent that is made out of order is not offered, and is mapped by the lease that names it.
 */
#include "daemon/session/offer.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/session/attachment.h"
#include "daemon/session/session.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/arena/arena.h"
#include "store/device.h"
#include "store/status.h"

#include <stdlib.h>

enum { OFFERED = 64 };

static bool is_tier(const struct cache *c, int32_t gpu)
{
	return gpu == CACHE_HOST || (gpu >= 0 && c->vram && (uint32_t)gpu < c->vram->count);
}

static uint32_t tier_of(int32_t gpu)
{
	return gpu < 0 ? DEVICES_MAX : (uint32_t)gpu;
}

enum status cache_attach_ahead(struct cache *c, uint64_t attachment, int32_t gpu)
{
	struct attachment *a;
	enum status s = STATUS_OK;

	if (!is_tier(c, gpu))
		return STATUS_INVALID;
	cache_lock(c);
	a = attachment_find(c, attachment);
	if (!a || a->gone || a->session->state != SESSION_OPEN)
		s = STATUS_DENIED;
	else if (!a->offers)
		a->offers = calloc(1, sizeof(*a->offers) + session_layouts(a->session) * sizeof(a->offers->next[0]));
	if (!s && !a->offers)
		s = STATUS_EXHAUSTED;
	if (!s)
		a->offers->tiers |= 1u << tier_of(gpu);
	cache_unlock(c);
	return s;
}

void cache_on_extent(struct cache *c, void (*call)(void *arg), void *arg)
{
	cache_lock(c);
	c->on_extent = call;
	c->on_extent_arg = arg;
	cache_unlock(c);
}

void offers_tell(const struct cache *c)
{
	if (c->on_extent)
		c->on_extent(c->on_extent_arg);
}

struct list {
	uint32_t *extents, count, max;
	bool more;
};

/* False: the list is full. */
static bool list_add(struct list *l, uint32_t extent, bool draining, uint32_t *next)
{
	if (extent < *next)
		return true;
	if (!draining && l->count == l->max) {
		l->more = true;
		return false;
	}
	if (!draining)
		l->extents[l->count++] = extent;
	*next = extent + 1;
	return true;
}

/* All extents of the tenant's memory. */
static void of_host(const struct cache *c, uint32_t *next, struct list *l)
{
	uint32_t ids[OFFERED], n;

	do {
		n = arena_extents(c->host, c->tenant.number, *next, ids, OFFERED);
		for (uint32_t i = 0; i < n; i++)
			if (!list_add(l, ids[i], false, next))
				return;
	} while (n == OFFERED);
}

static void of_gpu(const struct vram_pool *vp, uint32_t *next, struct list *l)
{
	for (const struct vram_shelf *s = !vp || vp->gpu->lost || vp->newest < *next ? NULL : vp->shelves; s; s = s->next)
		if (!list_add(l, s->extent, s->draining, next))
			return;
}

uint32_t cache_attach_offers(struct cache *c, uint64_t attachment, int32_t gpu, uint32_t *extents, uint32_t max, bool *more)
{
	struct list l = { extents, 0, max, false };
	const uint32_t tier = tier_of(gpu);
	struct attachment *a;

	*more = false;
	if (!is_tier(c, gpu))
		return 0;
	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a && !a->gone && a->offers && a->session->state == SESSION_OPEN && a->offers->tiers >> tier & 1)
		for (uint32_t i = 0; i < session_layouts(a->session) && !l.more; i++) {
			struct pool *p = session_pool(a->session, i);
			uint32_t *next = &a->offers->next[i][tier];

			if (gpu < 0 && i == 0)
				of_host(c, next, &l);
			else if (gpu >= 0)
				of_gpu(c->vram->gpu[gpu]->pools[p->number], next, &l);
		}
	cache_unlock(c);
	*more = l.more;
	return l.count;
}
