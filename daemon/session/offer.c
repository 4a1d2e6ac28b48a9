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
#include "store/device.h"
#include "store/status.h"

#include <stdlib.h>

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

static void of_host(const struct pool *p, uint32_t *next, struct list *l)
{
	for (const struct shelf *s = p->newest < *next ? NULL : p->shelves; s; s = s->next)
		if (!list_add(l, s->extent, s->draining, next))
			return;
}

/* All of the tenant's. */
static void of_gpu(const struct gpu *g, uint32_t tenant, uint32_t *next, struct list *l)
{
	uint32_t id;

	while (g->arena && !g->lost && arena_extents(g->arena, tenant, *next, &id, 1))
		if (!list_add(l, id, false, next))
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
		for (uint32_t i = 0; i < (gpu < 0 ? session_layouts(a->session) : 1) && !l.more; i++) {
			struct pool *p = session_pool(a->session, i);
			uint32_t *next = &a->offers->next[i][tier];

			if (gpu < 0)
				of_host(p, next, &l);
			else
				of_gpu(c->vram->gpu[gpu], p->tenant->number, next, &l);
		}
	cache_unlock(c);
	*more = l.more;
	return l.count;
}
