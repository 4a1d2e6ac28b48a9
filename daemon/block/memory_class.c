/* Classes, spans and slots of host memory: the accounting. A slot is taken only from an extent that is registered with
 * the disks and GPUs; an extent that another thread has just made waits for that (memory/grow.c).
 */
#include "daemon/block/memory_class.h"

#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"

#include <stdlib.h>

/* ---- classes ---- */

static struct memory_class *class_find(const struct cache *c, const struct arena_class *arena)
{
	for (uint32_t i = 0; i < c->class_count; i++)
		if (c->classes[i]->arena == arena)
			return c->classes[i];
	return NULL;
}

static enum status class_create(struct cache *c, struct arena_class *arena, struct memory_class **out)
{
	struct memory_class *k = c->class_count < CLASSES_MAX ? calloc(1, sizeof(*k)) : NULL;

	if (!k)
		return STATUS_EXHAUSTED;
	k->arena = arena;
	k->stride = arena_class_stride(arena);
	k->policy_room = c->options.host_bytes / k->stride;
	k->policy = policy_create(c->policy, k->policy_room, c->options.recompute_growth);
	if (!k->policy) {
		free(k);
		return STATUS_EXHAUSTED;
	}
	k->number = c->class_count;
	c->classes[c->class_count++] = k;
	*out = k;
	return STATUS_OK;
}

enum status memory_class_get(struct cache *c, uint32_t tenant, uint64_t need_bytes, struct memory_class **out,
			     bool *made)
{
	struct arena_class *arena;
	enum status s = arena_class_for(c->host, tenant, need_bytes, &arena);
	struct memory_class *k;

	if (s)
		return s;
	k = class_find(c, arena);
	*made = !k;
	if (!k)
		s = class_create(c, arena, &k);
	if (!s)
		*out = k;
	return s;
}

void memory_classes_free(struct cache *c)
{
	for (uint32_t i = 0; i < c->class_count; i++) {
		struct memory_class *k = c->classes[i];

		for (struct span_map *s = k->spans, *next; s; s = next) {
			next = s->next;
			free(s);
		}
		c->policy->destroy(k->policy);
		free(k->departures);
		free(k);
	}
	c->class_count = 0;
	for (struct memory_extent *e = c->memory_extents, *next; e; e = next) {
		next = e->next;
		free(e->buffer);
		free(e->device);
		free(e);
	}
	c->memory_extents = NULL;
}

struct memory_class_sums memory_class_sums(const struct memory_class *k)
{
	struct memory_class_sums sums = { 0 };

	for (const struct layout_pool *p = k->pools; p; p = p->class_next) {
		sums.blocks += p->blocks;
		sums.dirty += p->dirty;
		sums.no_spill += p->no_spill;
	}
	return sums;
}

bool memory_class_has_room(const struct memory_class *k)
{
	return arena_can_take(k->arena);
}

struct memory_extent *memory_extent_find(const struct cache *c, uint32_t id)
{
	struct memory_extent *e = c->memory_extents;

	while (e && e->id != id)
		e = e->next;
	return e;
}

/* ---- spans ---- */

static bool is_before(const struct span_map *a, const struct span_map *b)
{
	return a->extent < b->extent || (a->extent == b->extent && a->offset < b->offset);
}

/* A new span mostly goes to the end. */
static void span_link(struct memory_class *k, struct span_map *s)
{
	struct span_map *after = k->spans_last;

	while (after && is_before(s, after))
		after = after->prev;
	s->prev = after;
	s->next = after ? after->next : k->spans;
	if (s->next)
		s->next->prev = s;
	else
		k->spans_last = s;
	if (after)
		after->next = s;
	else
		k->spans = s;
}

static void span_unlink(struct span_map *s)
{
	struct memory_class *k = s->class;

	if (s->prev)
		s->prev->next = s->next;
	else
		k->spans = s->next;
	if (s->next)
		s->next->prev = s->prev;
	else
		k->spans_last = s->prev;
}

/* Makes the record of a span that was just cut. NULL: no memory, or its extent is not registered yet. */
static struct span_map *span_make(struct cache *c, struct memory_class *k, struct arena_span *span)
{
	struct memory_extent *e = memory_extent_find(c, span->extent);
	struct span_map *s = e ? calloc(1, sizeof(*s) + span->slots * sizeof(struct block *)) : NULL;

	if (!s)
		return NULL;
	s->class = k;
	s->memory = e;
	s->place = span;
	s->base = span->at;
	s->stride = span->stride;
	s->offset = span->offset;
	s->extent = span->extent;
	s->slots = span->slots;
	span->owner = s;
	span_link(k, s);
	return s;
}

void span_held(struct span_map *s, int n)
{
	arena_span_hold(s->place, n);
}

void span_used(struct span_map *s, uint64_t now_us)
{
	arena_span_use(s->place, now_us);
}

/* ---- slots ---- */

static enum status take_from(struct cache *c, struct memory_class *k, enum arena_from from, struct memory_slot *out)
{
	struct arena_slot slot;
	struct span_map *s;

	if (arena_take(k->arena, from, &slot, NULL))
		return STATUS_EXHAUSTED;
	s = slot.span->owner ? slot.span->owner : span_make(c, k, slot.span);
	if (!s) {
		arena_give(&slot, NULL);
		return STATUS_EXHAUSTED;
	}
	s->taken++;
	span_held(s, 1);
	span_used(s, c->now_us);
	*out = (struct memory_slot){ .span = s, .index = slot.index, .at = slot.at, .generation = slot.generation };
	return STATUS_OK;
}

enum status memory_slot_take(struct cache *c, struct memory_class *k, bool reserve, struct memory_slot *out)
{
	return take_from(c, k, reserve ? ARENA_RESERVE : ARENA_SPARE, out);
}

enum status memory_slot_take_piece(struct cache *c, struct memory_class *k, struct memory_slot *out)
{
	return take_from(c, k, ARENA_PIECES, out);
}

void memory_slot_give(const struct memory_slot *m)
{
	struct span_map *s = m->span;
	const struct arena_slot slot = {
		.class = s->class->arena, .span = s->place, .extent = s->extent, .granule = s->place->granule, .index = m->index,
		.generation = m->generation,
	};

	s->taken--;
	if (!arena_give(&slot, NULL))
		return;
	span_unlink(s);
	free(s);
}

const struct tenant *tenant_wanting(const struct cache *c, struct arena *a)
{
	for (uint32_t i = 0; i < c->tenant_count; i++)
		if ((c->tenant_count == 1 || c->tenants[i].active) && arena_wants(a, c->tenants[i].number))
			return &c->tenants[i];
	return NULL;
}

void memory_lack_note(struct cache *c, struct memory_lack *l, struct arena_class *k)
{
	if (!c->retire || !arena_lacks(k))
		return;
	*l = (struct memory_lack){ k, c->now_us };
	tier_wake(c);
}
