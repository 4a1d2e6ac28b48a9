/* Offers: which extents of its tenant there are, for an attachment that asked to be told, so that its process can map
 * them before a lease names them. Nothing is lent by it, and nothing kept for it: for each tier a number says how far
 * the attachment has been told, since ids of extents rise. An extent that is made out of order is not offered: the
 * lease that names it has it mapped.
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

enum { OFFERED = 64 }; /* ids that are asked for at a time */

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
		a->offers = calloc(1, sizeof(*a->offers));
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

void offers_tell(struct cache *c)
{
	c->extents_made++;
	if (c->on_extent)
		c->on_extent(c->on_extent_arg);
}

/* Extents from `next` on, the first ones of them, by rising id. */
struct list {
	uint32_t *extents, count, max;
	uint32_t next, newest;         /* newest: of all that there are */
	bool more;
};

static void list_add(struct list *l, uint32_t extent, bool draining)
{
	uint32_t at = l->count;

	l->newest = extent > l->newest ? extent : l->newest;
	if (extent < l->next || draining)
		return;
	for (; at > 0 && l->extents[at - 1] > extent; at--)
		if (at < l->max)
			l->extents[at] = l->extents[at - 1];
	if (at < l->max)
		l->extents[at] = extent;
	l->more |= l->count == l->max;
	l->count += l->count < l->max;
}

static void of_host(const struct cache *c, struct list *l)
{
	for (uint32_t i = 0; i < c->pool_count; i++) {
		const struct pool *p = c->pools[i];

		for (const struct shelf *s = p->newest < l->next ? NULL : p->shelves; s; s = s->next)
			list_add(l, s->extent, s->draining);
	}
}

static void of_gpu(const struct cache *c, const struct gpu *g, struct list *l)
{
	uint32_t ids[OFFERED], from = l->next, n = OFFERED;

	for (; g->arena && !g->lost && n == OFFERED; from = n ? ids[n - 1] + 1 : from) {
		n = arena_extents(g->arena, c->tenant.number, from, ids, OFFERED);
		for (uint32_t i = 0; i < n; i++)
			list_add(l, ids[i], false);
	}
}

/* Without looking, if none has been made since the attachment had been told of all. */
static void offers_list(const struct cache *c, struct offers *o, int32_t gpu, struct list *l)
{
	const uint32_t tier = tier_of(gpu);

	if (o->seen[tier] == c->extents_made)
		return;
	l->next = o->next[tier];
	if (gpu < 0)
		of_host(c, l);
	else
		of_gpu(c, c->vram->gpu[gpu], l);
	if (l->more)
		o->next[tier] = l->extents[l->count - 1] + 1;
	else if (l->newest >= l->next)
		o->next[tier] = l->newest + 1;
	if (!l->more)
		o->seen[tier] = c->extents_made;
}

uint32_t cache_attach_offers(struct cache *c, uint64_t attachment, int32_t gpu, uint32_t *extents, uint32_t max,
			     bool *more)
{
	struct list l = { .extents = extents, .max = max };
	struct attachment *a;

	*more = false;
	if (!is_tier(c, gpu))
		return 0;
	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a && !a->gone && a->offers && a->session->state == SESSION_OPEN && a->offers->tiers >> tier_of(gpu) & 1)
		offers_list(c, a->offers, gpu, &l);
	cache_unlock(c);
	*more = l.more;
	return l.count;
}
