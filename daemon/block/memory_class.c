/* Classes of slots, and shelves: a shelf is one of a class's extents. Shelves know which published block lies in which slot, for whoever must
 * walk blocks by place: drains, scrubs, and a watch's first look around.
 */
#include "daemon/block/memory_class.h"

#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "eviction/policy.h"
#include "store/host/host.h"
#include "store/ring/ring.h"

#include <stdlib.h>

static struct memory_class *class_find(const struct cache *c, uint64_t stride)
{
	for (uint32_t i = 0; i < c->class_count; i++)
		if (c->classes[i]->stride == stride)
			return c->classes[i];
	return NULL;
}

static enum status class_create(struct cache *c, uint64_t stride, struct memory_class **out)
{
	struct memory_class *k = calloc(1, sizeof(*k));
	enum status s = k && c->class_count < MEMORY_CLASSES_MAX ? STATUS_OK : STATUS_EXHAUSTED;

	if (!s)
		s = host_pool_get(c->host, c->tenant.number, stride, stride, &k->host);
	if (!s) {
		k->policy_room = c->options.host_bytes / stride;
		k->policy = policy_create(c->policy, k->policy_room, c->options.recompute_growth);
		s = k->policy ? STATUS_OK : STATUS_EXHAUSTED;
	}
	if (s) {
		free(k);
		return s;
	}
	k->stride = stride;
	k->number = c->class_count;
	c->classes[c->class_count++] = k;
	*out = k;
	return STATUS_OK;
}

enum status memory_class_get(struct cache *c, uint64_t need_bytes, struct memory_class **out, bool *made)
{
	struct memory_class *k = class_find(c, need_bytes);
	enum status s = STATUS_OK;

	*made = !k;
	if (!k)
		s = class_create(c, need_bytes, &k);
	if (!s)
		*out = k;
	return s;
}

void memory_classes_free(struct cache *c)
{
	for (uint32_t i = 0; i < c->class_count; i++) {
		struct memory_class *k = c->classes[i];

		while (k->shelves)
			shelf_free(c, k->shelves);
		c->policy->destroy(k->policy);
		free(k);
	}
	c->class_count = 0;
}

struct memory_class_sums memory_class_sums(const struct memory_class *k)
{
	struct memory_class_sums sums = { 0 };

	for (const struct pool *p = k->pools; p; p = p->class_next) {
		sums.blocks += p->blocks;
		sums.dirty += p->dirty;
		sums.unworthy += p->unworthy;
	}
	return sums;
}

/* ---- shelves ---- */

struct shelf *shelf_find(struct cache *c, uint32_t extent)
{
	struct shelf *s = c->shelf_hash[extent % SHELF_BUCKETS];

	while (s && s->extent != extent)
		s = s->hash_next;
	return s;
}

/* Ids of extents rise, so a new one mostly goes last; a walk by rising id needs the order. */
void shelf_link(struct cache *c, struct memory_class *k, struct shelf *s)
{
	struct shelf **at = &k->shelves;
	struct shelf **bucket = &c->shelf_hash[s->extent % SHELF_BUCKETS];

	while (*at && (*at)->extent < s->extent)
		at = &(*at)->next;
	s->next = *at;
	*at = s;
	s->hash_next = *bucket;
	*bucket = s;
}

struct shelf *shelf_get(struct cache *c, struct memory_class *k, uint32_t extent)
{
	struct shelf *s = shelf_find(c, extent);
	const struct extent *e;
	uint32_t slots;

	if (s)
		return s;
	e = host_extent(c->host, extent);
	if (!e)
		return NULL;
	slots = e->bytes / k->stride;
	s = calloc(1, sizeof(*s) + slots * sizeof(s->at[0]));
	if (!s)
		return NULL;
	s->class = k;
	s->base = e->base;
	s->stride = k->stride;
	s->extent = extent;
	s->slots = slots;
	for (uint32_t i = 0; i < CACHE_DISKS_MAX; i++)
		s->buffer[i] = RING_NONE;
	shelf_link(c, k, s);
	if (extent > k->newest)
		k->newest = extent;
	observe_extent_added(c);
	k->slots += slots;
	k->free_slots += slots;
	return s;
}

void shelf_free(struct cache *c, struct shelf *s)
{
	struct shelf **at = &s->class->shelves;

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

/* ---- slots ---- */

enum status memory_slot_take(struct cache *c, struct memory_class *k, struct memory_slot *out)
{
	struct host_slot slot;
	struct shelf *s;

	if (host_slot_try(k->host, &slot))
		return STATUS_EXHAUSTED;
	s = shelf_get(c, k, slot.extent);
	if (!s) {
		host_slot_give(&slot);
		return STATUS_EXHAUSTED;
	}
	s->taken++;
	s->held++;
	k->free_slots--;
	k->taken_lately = true;
	*out = (struct memory_slot){ .shelf = s, .index = slot.index, .at = slot.at, .generation = slot.generation };
	return STATUS_OK;
}

void memory_slot_give(const struct memory_slot *m)
{
	struct shelf *s = m->shelf;
	const struct host_slot slot = {
		.pool = s->class->host, .extent = s->extent, .index = m->index, .at = m->at, .offset = m->index * s->stride,
		.generation = m->generation,
	};

	s->taken--;
	if (!s->draining)
		s->class->free_slots++;
	host_slot_give(&slot);
}
