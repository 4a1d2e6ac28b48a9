/* Offers tell an attachment that asked for them which extents its tenant has, so that its process can map them before a
 * lease names them. An offer lends nothing. Since ids of extents rise, one number for each tier says how far the
 * attachment has been told. An extent that is made out of order is not offered; the process maps it when a lease names
 * it.
 */
#include "daemon/session/offer.h"

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/session/attachment.h"
#include "daemon/session/retire.h"
#include "daemon/session/session.h"
#include "daemon/vram/state.h"
#include "store/arena/arena.h"
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

enum status cache_attach_premap(struct cache *c, uint64_t attachment, int32_t gpu)
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

/* The tenant's extents from where the last offer ended, by rising id; without looking, if none has been made since the
 * attachment had been told of all. */
static uint32_t offers_list(const struct cache *c, const struct attachment *to, int32_t gpu, uint32_t *extents,
			    uint32_t max, bool *more)
{
	const struct gpu *g = gpu < 0 ? NULL : c->vram->gpu[gpu];
	const uint32_t tenant = session_tenant(to->session)->number;
	struct offers *o = to->offers;
	struct arena *a = !g ? c->host : g->lost ? NULL : g->arena;
	const uint32_t tier = tier_of(gpu);
	const uint32_t not = retire_extent(c);
	uint32_t n, one, left = 0;

	if (!a || o->seen[tier] == c->extents_made)
		return 0;
	n = arena_extents(a, tenant, o->next[tier], extents, max);
	if (n)
		o->next[tier] = extents[n - 1] + 1;
	*more = n == max && arena_extents(a, tenant, o->next[tier], &one, 1);
	if (!*more)
		o->seen[tier] = c->extents_made;
	for (uint32_t i = 0; i < n; i++)
		if (extents[i] != not)
			extents[left++] = extents[i];
	return left;
}

uint32_t cache_attach_offers(struct cache *c, uint64_t attachment, int32_t gpu, uint32_t *extents, uint32_t max,
			     bool *more)
{
	struct attachment *a;
	uint32_t n = 0;

	*more = false;
	if (!is_tier(c, gpu))
		return 0;
	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a && !a->gone && a->offers && a->session->state == SESSION_OPEN && a->offers->tiers >> tier_of(gpu) & 1)
		n = offers_list(c, a, gpu, extents, max, more);
	cache_unlock(c);
	return n;
}
