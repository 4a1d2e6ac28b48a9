/* Pools: a pool is a layout of a tenant. It joins a class of slots of host memory when it is made. */
#include "daemon/block/layout_pool.h"

#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/block/quota.h"
#include "daemon/block/unwritten.h"
#include "kernels/format.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

/* Without a table the one tenant has all. With one nothing of a GPU is borrowed unless gpu_bytes_max says so. */
static uint64_t gpu_most(const struct cache *c, const struct cache_tenant_options *o)
{
	if (!c->options.tenant_count)
		return UINT64_MAX;
	return o->gpu_bytes_max ? o->gpu_bytes_max : o->gpu_bytes;
}

enum status tenants_make(struct cache *c)
{
	const struct cache_tenant_options alone = {
		.name = "default", .number = 1, .pinned_bytes_max = c->options.pinned_bytes_max
	};
	const struct cache_tenant_options *o = c->options.tenant_count ? c->options.tenants : &alone;

	c->tenant_count = c->options.tenant_count ? c->options.tenant_count : 1;
	c->tenants = calloc(c->tenant_count, sizeof(*c->tenants));
	for (uint32_t i = 0; c->tenants && i < c->tenant_count; i++) {
		const uint64_t most = o[i].host_bytes_max;

		c->tenants[i] = (struct tenant){
			.name = o[i].name, .number = o[i].number, .pinned_bytes_max = o[i].pinned_bytes_max,
			.host_most = most && most < c->options.host_bytes ? most : c->options.host_bytes,
			.gpu_own = o[i].gpu_bytes, .gpu_most = gpu_most(c, &o[i]),
			.disk_own = o[i].disk_bytes, .disk_max = o[i].disk_bytes_max
		};
	}
	return c->tenants ? STATUS_OK : STATUS_EXHAUSTED;
}

void tenants_unmake(struct cache *c)
{
	free(c->tenants);
	c->tenants = NULL;
}

struct tenant *tenant_of_number(struct cache *c, uint32_t number)
{
	for (uint32_t i = 0; i < c->tenant_count; i++)
		if (!number || c->tenants[i].number == number)
			return &c->tenants[i];
	return NULL;
}

struct tenant *tenant_of_name(struct cache *c, const char *name)
{
	for (uint32_t i = 0; i < c->tenant_count; i++)
		if (!*name || !strcmp(c->tenants[i].name, name))
			return &c->tenants[i];
	return NULL;
}

struct layout_pool *layout_pool_by_id(struct cache *c, const struct tenant *t, uint64_t layout_id)
{
	for (uint32_t i = 0; i < c->pool_count; i++)
		if (c->pools[i]->layout_id == layout_id && c->pools[i]->tenant == t)
			return c->pools[i];
	return NULL;
}

static enum status layout_pool_create(struct cache *c, struct tenant *t, struct quota_holder *holder,
			       const struct kv_layout *l, struct layout_pool **out, const char **why)
{
	struct layout_pool *p;
	bool made;
	enum status s = quota_take(holder, QUOTA_LAYOUTS, 1, why);

	if (s)
		return s;
	*why = "no memory for another layout";
	s = STATUS_EXHAUSTED;
	p = calloc(1, sizeof(*p));
	if (!p)
		goto fail;
	p->cache = c;
	p->number = c->pool_count;
	p->tenant = t;
	p->layout = *l;
	p->layout_id = kv_layout_id(l);
	kv_geometry_of(l, &p->geometry);
	s = memory_class_get(c, t->number, p->geometry.need_bytes, &p->class, &made);
	if (s) {
		if (s == STATUS_PRECONDITION) {
			*why = "a block of this layout is larger than an extent of memory: raise extent_bytes, or host_bytes";
			s = STATUS_INVALID;
		}
		goto fail;
	}
	if (made)
		observe_policy_made(c, &(struct learner){ 'm', 0, p->class->stride, c->policy, p->class->policy });
	p->class_next = p->class->pools;
	p->class->pools = p;
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

enum status layout_pool_get(struct cache *c, struct tenant *t, struct quota_holder *holder, const struct kv_layout *l,
		     struct layout_pool **out, const char **why)
{
	struct layout_pool *p = layout_pool_by_id(c, t, kv_layout_id(l));

	if (!p)
		return layout_pool_create(c, t, holder, l, out, why);
	if (memcmp(&p->layout, l, sizeof(*l))) {
		*why = "another layout has the same id";
		return STATUS_UNSUPPORTED;
	}
	*out = p;
	return STATUS_OK;
}

void pools_free(struct cache *c)
{
	memory_classes_free(c);
	for (uint32_t i = 0; i < c->pool_count; i++)
		free(c->pools[i]);
}
