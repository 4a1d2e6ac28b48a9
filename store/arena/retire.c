/* Extents that go from one tenant to another: they give no slot any more, and when the last of their slots is given
 * back and no process has them mapped, their memory is freed. The other tenant's extent is new memory, which the kernel
 * or the device has zeroed. See arena.h. */
#include "store/arena/arena.h"

#include <stdlib.h>
#include <string.h>

#include "store/arena/private.h"

/* What the tenant has beyond its own bytes. */
static uint64_t surplus(const struct arena_tenant *t)
{
	const uint64_t has = arena_has(t);

	return has > t->own_bytes ? has - t->own_bytes : 0;
}

static uint64_t span_bytes(const struct arena_class *k)
{
	return k->span_granules * k->arena->granule_bytes;
}

/* Whether the extent may go to the class's tenant: its own tenant keeps its own bytes, and at least as much beyond them
 * as the other has then. So extents do not go back and forth between tenants that both want them. And a span of the
 * class fits into what is free then. */
static bool may_go(const struct arena_extent *e, const struct arena_class *k)
{
	const struct arena_tenant *from = e->tenant, *to = k->tenant;
	const uint64_t bytes = e->memory.bytes;

	return from != to && !e->retired && !e->growing && surplus(from) >= bytes &&
	       surplus(from) - bytes >= surplus(to) + bytes && arena_room(to) + bytes >= span_bytes(k);
}

/* With the mutex. */
static bool lacks(const struct arena_class *k)
{
	const struct arena *a = k->arena;
	const struct arena_tenant *t = k->tenant;
	const uint64_t bytes = span_bytes(k);

	if (arena_room(t) >= bytes || (t->most_bytes && t->most_bytes < arena_has(t) + bytes))
		return false;
	for (uint32_t i = 0; i < a->extent_count; i++)
		if (may_go(a->extents[i], k))
			return true;
	return false;
}

bool arena_lacks(struct arena_class *k)
{
	bool is;

	pthread_mutex_lock(&k->arena->mutex);
	is = lacks(k);
	pthread_mutex_unlock(&k->arena->mutex);
	return is;
}

/* The newest use of its spans. False: slots of it are held, or a class has claimed a part of it. */
static bool newest_of(const struct arena_extent *e, uint32_t *newest)
{
	*newest = 0;
	for (uint32_t i = 0, n; i < e->ready; i += n) {
		const struct span *s = e->at_granule[i].span;
		uint32_t used;

		n = s ? s->public.granules : 1;
		for (uint32_t j = i; j < i + n; j++)
			if (e->at_granule[j].claim)
				return false;
		if (s && atomic_load_explicit(&s->public.held, memory_order_relaxed))
			return false;
		used = s ? atomic_load_explicit(&s->public.newest, memory_order_relaxed) : 0;
		*newest = used > *newest ? used : *newest;
	}
	return true;
}

uint32_t arena_retire_find(struct arena_class *k, bool (*may)(void *arg, uint32_t extent), void *arg)
{
	const struct arena *a = k->arena;
	uint32_t found = 0, coldest = UINT32_MAX, newest;

	pthread_mutex_lock(&k->arena->mutex);
	for (uint32_t i = 0; i < a->extent_count && lacks(k); i++) {
		const struct arena_extent *e = a->extents[i];

		if (!may_go(e, k) || !newest_of(e, &newest) || newest >= coldest ||
		    !may(arg, e->memory.extent.id))
			continue;
		coldest = newest;
		found = e->memory.extent.id;
	}
	pthread_mutex_unlock(&k->arena->mutex);
	return found;
}

static void close_spans(const struct arena_extent *e, bool closed)
{
	for (uint32_t i = 0; i < e->ready; i++) {
		struct span *s = e->at_granule[i].span;

		if (s && s->public.granule == i)
			arena_span_closed(s, closed);
	}
}

enum status arena_retire(struct arena *a, uint32_t extent)
{
	enum status s = STATUS_BUSY;
	struct arena_extent *e;
	uint32_t newest;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, extent);
	if (e && !e->retired && !e->growing && newest_of(e, &newest)) {
		close_spans(e, true);
		arena_granules_retire(e, true);
		s = STATUS_OK;
	}
	pthread_mutex_unlock(&a->mutex);
	return s;
}

void arena_retire_end(struct arena *a, uint32_t extent)
{
	struct arena_extent *e;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, extent);
	if (e && e->retired) {
		arena_granules_retire(e, false);
		close_spans(e, false);
	}
	pthread_mutex_unlock(&a->mutex);
}

bool arena_retired(struct arena *a, uint32_t extent, struct arena_window *out)
{
	const struct arena_extent *e;
	bool is;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, extent);
	is = e && e->retired;
	if (is)
		*out = (struct arena_window){ .extent = extent, .granules = e->granules, .spans = e->spans };
	pthread_mutex_unlock(&a->mutex);
	return is;
}

bool arena_retired_held(struct arena *a, uint32_t extent)
{
	const struct arena_extent *e;
	uint32_t newest;
	bool held;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, extent);
	held = e && !newest_of(e, &newest);
	pthread_mutex_unlock(&a->mutex);
	return held;
}

static void forget(struct arena *a, const struct arena_extent *e)
{
	const uint32_t place = arena_extent_place(a, e->memory.extent.id);

	memmove(&a->extents[place], &a->extents[place + 1], (--a->extent_count - place) * sizeof(a->extents[0]));
}

enum status arena_extent_remove(struct arena *a, uint32_t extent, struct arena_extent **out)
{
	struct arena_extent *e;
	enum status s = STATUS_BUSY;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, extent);
	if (e && e->retired && e->spans == 0) {
		forget(a, e);
		*out = e;
		s = STATUS_OK;
	}
	pthread_mutex_unlock(&a->mutex);
	return s;
}

void arena_extent_free(struct arena *a, struct arena_extent *e)
{
	struct arena_tenant *t = e->tenant;
	const uint64_t bytes = e->memory.bytes, at = e->at, granules = e->granules;

	arena_extent_discard(e);
	pthread_mutex_lock(&a->mutex);
	arena_place_give(t, at);
	a->taken_bytes -= bytes;
	a->refused = false;
	t->granules -= granules;
	pthread_mutex_unlock(&a->mutex);
}
