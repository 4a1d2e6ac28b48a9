/* Pools and shelves: a pool is a layout of a tenant, a shelf is one of its extents. Shelves know which published
 * block lies in which slot, for drains, which empty a place. What must see each block of a layout does not walk by
 * place: see daemon/block/unwritten.h, and index_walk_next().
 */
#include "daemon/block/layout_pool.h"

#include "daemon/advice/policy_store.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "eviction/policy.h"
#include "kernels/format.h"
#include "store/host/host.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

struct pool *pool_by_id(struct cache *c, uint64_t layout_id)
{
	for (uint32_t i = 0; i < c->pool_count; i++)
		if (c->pools[i]->layout_id == layout_id)
			return c->pools[i];
	return NULL;
}

static enum status pool_create(struct cache *c, struct quota_holder *holder, const struct kv_layout *l, struct pool **out,
			       const char **why)
{
	struct pool *p;
	enum status s = quota_take(holder, QUOTA_LAYOUTS, 1, why);

	if (s)
		return s;
	*why = "no memory for another layout";
	s = STATUS_EXHAUSTED;
	p = calloc(1, sizeof(*p));
	if (!p)
		goto fail;
	p->number = c->pool_count;
	p->tenant = &c->tenant;
	p->layout = *l;
	p->layout_id = kv_layout_id(l);
	kv_geometry_of(l, &p->geometry);
	p->stride = p->geometry.need_bytes;
	s = host_pool_get(c->host, p->tenant->number, p->layout_id, p->stride, &p->host);
	if (s) {
		if (s == STATUS_INVALID)
			*why = "a block of this layout is larger than the host tier";
		goto fail;
	}
	s = STATUS_EXHAUSTED;
	p->policy_room = c->options.host_bytes / p->stride;
	p->policy = policy_create(c->policy, p->policy_room, c->options.recompute_growth);
	if (!p->policy)
		goto fail;
	learned_recall(c, &(struct learner){ 'm', 0, p->layout_id, c->policy, p->policy });
	c->pools[c->pool_count++] = p;
	p->holder = quota_join_again(holder); /* until the daemon ends */
	unwritten_walk_begin(&p->spills, p);
	unwritten_walk_begin(&p->falls, p);
	*out = p;
	return STATUS_OK;
fail:
	quota_give(holder, QUOTA_LAYOUTS, 1);
	free(p);
	return s;
}

enum status pool_get(struct cache *c, struct quota_holder *holder, const struct kv_layout *l, struct pool **out, const char **why)
{
	struct pool *p = pool_by_id(c, kv_layout_id(l));

	if (!p)
		return pool_create(c, holder, l, out, why);
	if (memcmp(&p->layout, l, sizeof(*l))) {
		*why = "another layout has the same id";
		return STATUS_UNSUPPORTED;
	}
	*out = p;
	return STATUS_OK;
}

void pools_free(struct cache *c)
{
	for (uint32_t i = 0; i < c->pool_count; i++) {
		struct pool *p = c->pools[i];

		while (p->shelves)
			shelf_free(c, p->shelves);
		c->policy->destroy(p->policy);
		free(p);
	}
}

struct shelf *shelf_find(struct cache *c, uint32_t extent)
{
	struct shelf *s = c->shelf_hash[extent % SHELF_BUCKETS];

	while (s && s->extent != extent)
		s = s->hash_next;
	return s;
}

/* Ids of extents rise, so a new one mostly goes last; a walk by rising id needs the order. */
void shelf_link(struct cache *c, struct pool *p, struct shelf *s)
{
	struct shelf **at = &p->shelves;
	struct shelf **bucket = &c->shelf_hash[s->extent % SHELF_BUCKETS];

	while (*at && (*at)->extent < s->extent)
		at = &(*at)->next;
	s->next = *at;
	*at = s;
	s->hash_next = *bucket;
	*bucket = s;
}

struct shelf *shelf_get(struct cache *c, struct pool *p, uint32_t extent)
{
	struct shelf *s = shelf_find(c, extent);
	const struct extent *e;
	uint32_t slots;

	if (s)
		return s;
	e = host_extent(c->host, extent);
	if (!e)
		return NULL;
	slots = e->bytes / p->stride;
	s = calloc(1, sizeof(*s) + slots * sizeof(s->at[0]));
	if (!s)
		return NULL;
	s->pool = p;
	s->base = e->base;
	s->stride = p->stride;
	s->extent = extent;
	s->slots = slots;
	for (uint32_t i = 0; i < CACHE_DISKS_MAX; i++)
		s->buffer[i] = RING_NONE;
	shelf_link(c, p, s);
	if (extent > p->newest)
		p->newest = extent;
	observe_extent_added(c);
	p->slots += slots;
	p->free_slots += slots;
	return s;
}

void shelf_free(struct cache *c, struct shelf *s)
{
	struct shelf **at = &s->pool->shelves;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	at = &c->shelf_hash[s->extent % SHELF_BUCKETS];
	while (*at != s)
		at = &(*at)->hash_next;
	*at = s->hash_next;
	free(s->device);
	free(s);
}
