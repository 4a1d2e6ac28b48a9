/* Classes and tenants of an arena: which stride a layout's blocks get, and how many granules a span of it has. See
 * arena.h.
 *
 * Exact strides would give each layout a class of its own; powers of two would waste a quarter. A layout that joins a
 * class at most 1/16 larger, and spans whose tail is at most 1/32, waste 3 % on average.
 */
#include "store/arena/arena.h"

#include <stdlib.h>

#include "store/arena/private.h"
#include "store/class_rule.h"

enum {
	TAIL_PART = 32,                  /* the tail of a span is at most one such part of the span */
};

uint64_t arena_stride_for(const uint64_t *strides, uint32_t n, uint64_t need_bytes, uint32_t unit)
{
	const bool full = n >= CLASS_RULE_MOST;
	uint64_t exact, joined = 0;

	if (need_bytes > UINT64_MAX / 2)
		return UINT64_MAX;
	exact = round_up(max_u64(need_bytes, 1), unit);
	for (uint32_t i = 0; i < n; i++)
		joined = class_rule_better(joined, strides[i], exact, full);
	if (joined)
		return joined;
	return full ? round_up(exact + exact / CLASS_RULE_SHARE, unit) : exact;
}

uint32_t arena_span_granules(uint64_t stride, uint64_t granule_bytes, uint32_t extent_granules)
{
	const uint64_t share = min_u64(ARENA_SPAN_GRANULES, extent_granules / ARENA_SPAN_GRANULES);
	uint64_t one, most, best, best_tail = UINT64_MAX;

	if (stride > extent_granules * granule_bytes)
		return 0;
	best = one = (stride + granule_bytes - 1) / granule_bytes;
	most = max_u64(one, share);
	for (uint64_t n = one; n <= most; n++) {
		const uint64_t tail = n * granule_bytes % stride;

		if (tail * TAIL_PART <= n * granule_bytes)
			return (uint32_t)n;
		/* tail / n is a smaller part than best_tail / best */
		if (best_tail == UINT64_MAX || tail * best < best_tail * n) {
			best = n;
			best_tail = tail;
		}
	}
	return (uint32_t)best;
}

struct arena_tenant *arena_tenant_get(struct arena *a, uint32_t number)
{
	struct arena_tenant *t = a->tenants;

	while (t && t->number != number)
		t = t->next;
	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->arena = a;
	t->number = number;
	t->next = a->tenants;
	a->tenants = t;
	return t;
}

enum status arena_tenant_bounds(struct arena *a, uint32_t tenant, uint64_t own, uint64_t most)
{
	struct arena_tenant *t;

	pthread_mutex_lock(&a->mutex);
	t = arena_tenant_get(a, tenant);
	if (t) {
		t->own_bytes = own;
		t->most_bytes = most;
	}
	pthread_mutex_unlock(&a->mutex);
	return t ? STATUS_OK : STATUS_EXHAUSTED;
}

static void tenant_free(struct arena *a, struct arena_tenant *t)
{
	while (t->classes) {
		struct arena_class *k = t->classes;

		t->classes = k->next;
		free(k);
	}
	if (t->range.bytes)
		a->options.ops->range_free(a->options.device, t->range.address, t->range.bytes);
	host_range_fini(&t->range);
	free(t);
}

void arena_classes_free(struct arena *a)
{
	while (a->tenants) {
		struct arena_tenant *t = a->tenants;

		a->tenants = t->next;
		tenant_free(a, t);
	}
}

/* Mutex held. */
static enum status class_add(struct arena_tenant *t, uint64_t stride, uint32_t granules, struct arena_class **out)
{
	struct arena *a = t->arena;
	struct arena_class *k;

	if (a->class_count == ARENA_CLASSES_MAX)
		return STATUS_EXHAUSTED;
	k = calloc(1, sizeof(*k));
	if (!k)
		return STATUS_EXHAUSTED;
	k->arena = a;
	k->tenant = t;
	k->stride = stride;
	k->span_granules = granules;
	k->span_slots = (uint32_t)(granules * a->granule_bytes / stride);
	k->next = t->classes;
	t->classes = k;
	t->class_count++;
	a->class_count++;
	*out = k;
	return STATUS_OK;
}

/* Mutex held. */
static enum status class_get(struct arena *a, struct arena_tenant *t, uint64_t stride, struct arena_class **out)
{
	const uint32_t extent_granules = (uint32_t)(a->extent_bytes / a->granule_bytes);
	const uint32_t granules = arena_span_granules(stride, a->granule_bytes, extent_granules);
	struct arena_class *k = t->classes;

	if (granules == 0)
		return STATUS_PRECONDITION;
	while (k && k->stride != stride)
		k = k->next;
	if (!k)
		return class_add(t, stride, granules, out);
	*out = k;
	return STATUS_OK;
}

static uint32_t unit_of(const struct arena *a)
{
	return a->options.ops ? ARENA_DEVICE_UNIT : ARENA_HOST_UNIT;
}

/* The stride for a need among the classes that the tenant has; mutex held. */
static uint64_t stride_among(const struct arena *a, const struct arena_tenant *t, uint64_t need_bytes)
{
	uint64_t strides[ARENA_CLASSES_MAX], stride;
	uint32_t n = 0;

	for (const struct arena_class *k = t->classes; k; k = k->next)
		strides[n++] = k->stride;
	stride = arena_stride_for(strides, n, need_bytes, unit_of(a));
	/* A class that is made larger than the need must still fit an extent that the need itself fits. */
	return need_bytes <= a->extent_bytes ? min_u64(stride, a->extent_bytes) : stride;
}

enum status arena_class_for(struct arena *a, uint32_t tenant, uint64_t need_bytes, struct arena_class **out)
{
	struct arena_tenant *t;
	enum status s;

	pthread_mutex_lock(&a->mutex);
	t = arena_tenant_get(a, tenant);
	s = t ? class_get(a, t, stride_among(a, t, need_bytes), out) : STATUS_EXHAUSTED;
	pthread_mutex_unlock(&a->mutex);
	return s;
}

uint64_t arena_class_stride(const struct arena_class *k)
{
	return k->stride;
}

/* The number of slots that new spans of so many granules would give. The tenant's reserve is left out. */
static uint64_t slots_of(const struct arena_class *k, uint64_t granules)
{
	const struct arena_tenant *t = k->tenant;
	const uint64_t left = arena_left(t), reserve = arena_reserve_of(t);
	const uint64_t spare = left > reserve ? left - reserve : 0;

	return min_u64(granules, spare) / k->span_granules * k->span_slots;
}

static uint64_t free_in_spans(const struct arena_class *k)
{
	uint64_t n = 0;

	for (const struct span *s = k->first; s; s = s->next)
		n += s->public.slots - s->used;
	return n;
}

void arena_class_usage(struct arena_class *k, struct arena_class_usage *out)
{
	pthread_mutex_lock(&k->arena->mutex);
	*out = (struct arena_class_usage){
		.spans = k->spans,
		.span_granules = k->span_granules,
		.span_slots = k->span_slots,
		.slots = k->slots,
		.slots_used = k->used,
		.free = free_in_spans(k) + slots_of(k, k->tenant->free),
		.room = k->slots + slots_of(k, UINT64_MAX),
	};
	pthread_mutex_unlock(&k->arena->mutex);
}
