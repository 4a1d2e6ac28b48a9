/* The arena: the sizes that follow from its options, and taking and giving of slots. See arena.h.
 *
 * A span keeps one bit and one 32-bit cell for each slot. The cell of a taken slot is the low half of its generation:
 * so a slot given back twice is noticed even if it is taken again by then. A class's spans with free slots are in a
 * list, and the first span is used up before the next is touched. So slots that are taken one after the other lie side
 * by side, and become cold at the same time.
 *
 * An extent has an array with an entry for each granule: the span that has it. A slot that is given back, and a walk,
 * find their span in it by (extent, granule).
 */
#include "store/arena/arena.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/arena/private.h"
#include "store/short_lock.h"

#define GRANULE_MIN (64ull << 10)
#define GRANULE_MAX (2ull << 20)

_Static_assert((int)ARENA_WHY_MAX == (int)HOST_WHY_MAX, "the words of a device are copied whole");

static bool options_allowed(const struct arena_options *o)
{
	const uint64_t g = o->granule_bytes;

	return o->budget_bytes >= EXTENT_PAGE_BYTES && o->extent_bytes <= EXTENT_BYTES_MAX &&
	       (g == 0 || (g >= EXTENT_PAGE_BYTES && g <= EXTENT_BYTES_MAX && (g & (g - 1)) == 0));
}

static enum status device_granularity(const struct arena_options *o, uint64_t *out)
{
	struct device_info info;
	const char *why;
	enum status s;

	*out = EXTENT_PAGE_BYTES;
	if (!o->ops)
		return STATUS_OK;
	s = o->ops->info(o->device, &info, &why);
	if (s == STATUS_OK && o->budget_bytes < info.granularity)
		s = STATUS_INVALID;
	if (s == STATUS_OK)
		*out = info.granularity;
	return s;
}

/* The largest power of two that is not above `bytes`, which is not 0. */
static uint64_t power_below(uint64_t bytes)
{
	return 1ull << (63 - __builtin_clzll(bytes));
}

/* With a budget below 1 MiB a granule is a sixteenth of the budget. */
static uint64_t granule_of(const struct arena_options *o, uint64_t granularity)
{
	const uint64_t share = max_u64(o->budget_bytes / 1024, min_u64(o->budget_bytes / 16, GRANULE_MIN));
	uint64_t granule = o->granule_bytes;

	if (granule == 0)
		granule = min_u64(power_below(share), GRANULE_MAX);
	return round_up(min_u64(granule, power_below(o->budget_bytes)), granularity);
}

static uint64_t extent_bytes_of(const struct arena_options *o, uint64_t granule)
{
	const uint64_t most = o->budget_bytes - o->budget_bytes % granule;
	const uint64_t share = o->budget_bytes / (o->tenants > 1 ? 16 : 4);
	const uint64_t unit = o->huge_pages && !o->ops ? max_u64(granule, EXTENT_HUGE_PAGE_BYTES) : granule;
	uint64_t bytes = o->extent_bytes;

	if (bytes == 0)
		bytes = min_u64(max_u64(share, ARENA_EXTENT_BYTES_MIN), EXTENT_BYTES_MAX);
	return min_u64(min_u64(round_up(bytes, unit), EXTENT_BYTES_MAX), most);
}

static void mutex_init(struct arena *a)
{
	pthread_condattr_t attr;

	short_lock_init(&a->mutex);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&a->grown, &attr);
	pthread_condattr_destroy(&attr);
}

enum status arena_create(const struct arena_options *o, struct arena **out)
{
	uint64_t granularity;
	struct arena *a;
	enum status s;

	if (!options_allowed(o))
		return STATUS_INVALID;
	s = device_granularity(o, &granularity);
	if (s != STATUS_OK)
		return s;
	a = calloc(1, sizeof(*a));
	if (!a)
		return STATUS_EXHAUSTED;
	a->options = *o;
	a->source = (struct host_source){ o->ops, o->device, o->huge_pages };
	a->granule_bytes = granule_of(o, granularity);
	a->extent_bytes = extent_bytes_of(o, a->granule_bytes);
	a->generation = o->first_generation > 0 ? o->first_generation - 1 : 0;
	a->first_id = o->first_extent_id > 0 ? o->first_extent_id : 1;
	a->ids = o->extent_ids > 0 ? o->extent_ids : ARENA_EXTENT_IDS;
	mutex_init(a);
	*out = a;
	return STATUS_OK;
}

void arena_destroy(struct arena *a)
{
	if (!a)
		return;
	for (uint32_t i = 0; i < a->extent_count; i++)
		arena_extent_discard(a->extents[i]);
	arena_classes_free(a);
	free(a->extents);
	pthread_cond_destroy(&a->grown);
	pthread_mutex_destroy(&a->mutex);
	free(a);
}

uint64_t arena_extent_bytes(const struct arena *a)
{
	return a->extent_bytes;
}

uint64_t arena_granule_bytes(const struct arena *a)
{
	return a->granule_bytes;
}

uint64_t arena_generation(struct arena *a)
{
	uint64_t generation;

	pthread_mutex_lock(&a->mutex);
	generation = ++a->generation;
	pthread_mutex_unlock(&a->mutex);
	return generation;
}

/* ---- taking ---- */

static struct span *span_alloc(uint32_t slots)
{
	const uint32_t words = (slots + 63) / 64;
	struct span *s = calloc(1, sizeof(*s) + words * sizeof(s->taken[0]) + slots * sizeof(s->cell[0]));

	if (s)
		s->cell = (uint32_t *)&s->taken[words];
	return s;
}

static void span_place(struct span *s, struct arena_class *k, struct arena_extent *e, uint32_t granule,
		       uint32_t granules)
{
	const uint64_t offset = granule * k->arena->granule_bytes;
	struct arena_span *p = &s->public;

	s->extent = e;
	p->class = k;
	p->extent = e->memory.extent.id;
	p->granule = granule;
	p->granules = granules;
	p->slots = (uint32_t)(granules * k->arena->granule_bytes / k->stride);
	p->stride = k->stride;
	p->offset = offset;
	if (k->arena->options.ops)
		p->address = e->memory.device.address + offset;
	else
		p->at = e->memory.extent.base + offset;
}

/* Where a span of the class can be cut, and of how many granules. From ARENA_PIECES these may be as few as one slot
 * needs. */
static bool place_find(struct arena_class *k, enum arena_from from, struct arena_extent **e, uint32_t *granule,
		       uint32_t *granules)
{
	const uint64_t granule_bytes = k->arena->granule_bytes;

	*granules = k->span_granules;
	if (arena_run_find(k, *granules, from != ARENA_SPARE, e, granule))
		return true;
	*granules = (uint32_t)((k->stride + granule_bytes - 1) / granule_bytes);
	return from == ARENA_PIECES && arena_run_find(k, *granules, true, e, granule);
}

/* Cuts a span of the class: from its claim if all of the claim is free, else anywhere. Mutex held. */
static enum status span_cut(struct arena_class *k, enum arena_from from)
{
	const bool claimed = k->claim.granules > 0;
	uint32_t granule, granules = k->span_granules;
	struct arena_extent *e;
	struct span *s;
	bool from_claim = claimed && arena_claim_free(k, &e, &granule);

	if (!from_claim && !place_find(k, from, &e, &granule, &granules))
		return STATUS_MISS;
	s = span_alloc((uint32_t)(granules * k->arena->granule_bytes / k->stride));
	if (!s)
		return STATUS_EXHAUSTED;
	if (from_claim)
		arena_claim_end(k);
	span_place(s, k, e, granule, granules);
	arena_granules_use(e, granule, granules, s);
	e->spans++;
	k->spans++;
	k->tenant->spans++;
	k->arena->span_count++;
	k->slots += s->public.slots;
	arena_span_list(s);
	return STATUS_OK;
}

/* The first free slot of a span that has one; mutex held. */
static void slot_pop(struct span *s, struct arena_slot *out)
{
	const struct arena_span *p = &s->public;
	const uint64_t generation = ++p->class->arena->generation;
	uint32_t word = s->free_first / 64, i;

	while (!~s->taken[word])
		word++;
	i = word * 64 + (uint32_t)__builtin_ctzll(~s->taken[word]);
	s->free_first = i + 1;
	s->cell[i] = (uint32_t)generation;
	s->taken[word] |= 1ull << (i % 64);
	s->used++;
	s->extent->used++;
	p->class->used++;
	if (s->used == p->slots)
		arena_span_unlist(s);
	*out = (struct arena_slot){
		.class = p->class,
		.span = &s->public,
		.extent = p->extent,
		.granule = p->granule,
		.index = i,
		.at = p->at ? p->at + i * p->stride : NULL,
		.address = p->address ? p->address + i * p->stride : 0,
		.offset = p->offset + i * p->stride,
		.generation = generation,
	};
}

enum status arena_take(struct arena_class *k, enum arena_from from, struct arena_slot *out, bool *cut)
{
	enum status s = STATUS_OK;
	bool is_new;

	pthread_mutex_lock(&k->arena->mutex);
	is_new = !k->first;
	if (is_new)
		s = span_cut(k, from);
	if (s == STATUS_OK) {
		slot_pop(k->first, out);
		if (cut)
			*cut = is_new;
	}
	pthread_mutex_unlock(&k->arena->mutex);
	return s;
}

/* ---- giving ---- */

static struct span *span_find(const struct arena *a, uint32_t extent, uint32_t granule)
{
	const struct arena_extent *e = arena_extent_find(a, extent);

	return e && granule < e->granules ? e->at_granule[granule].span : NULL;
}

/* The span of a taken slot. NULL: the slot is not taken, or its description is wrong. Mutex held. */
static struct span *span_of_taken(const struct arena *a, const struct arena_slot *slot)
{
	struct span *s = span_find(a, slot->extent, slot->granule);

	if (!s || s->public.granule != slot->granule || s->public.class != slot->class)
		return NULL;
	if (slot->index >= s->public.slots)
		return NULL;
	return (s->taken[slot->index / 64] >> (slot->index % 64) & 1) &&
	       s->cell[slot->index] == (uint32_t)slot->generation ? s : NULL;
}

static void slot_push(struct span *s, uint32_t index)
{
	s->taken[index / 64] &= ~(1ull << (index % 64));
	if (index < s->free_first)
		s->free_first = index;
	s->used--;
	s->extent->used--;
	s->public.class->used--;
}

/* Ends a span whose last slot was given back: its granules are free. Returns the span's owner. */
static void *span_end(struct span *s)
{
	struct arena_class *k = s->public.class;
	void *owner = s->public.owner;

	if (s->listed)
		arena_span_unlist(s);
	if (!s->closed)
		k->slots -= s->public.slots;
	k->spans--;
	k->tenant->spans--;
	k->arena->span_count--;
	s->extent->spans--;
	arena_granules_free(s->extent, s->public.granule, s->public.granules);
	free(s);
	return owner;
}

bool arena_give(const struct arena_slot *slot, void **owner)
{
	struct arena *a = slot->class->arena;
	bool ended = false;
	struct span *s;

	pthread_mutex_lock(&a->mutex);
	s = span_of_taken(a, slot);
	assert(s && "a slot was given back that is not taken");
	if (s) {
		slot_push(s, slot->index);
		ended = s->used == 0;
		if (ended) {
			void *of = span_end(s);

			if (owner)
				*owner = of;
		} else if (!s->listed && !s->closed) {
			arena_span_list(s);
		}
		if (slot->class->tenant->growing)
			pthread_cond_broadcast(&a->grown);
	}
	pthread_mutex_unlock(&a->mutex);
	return ended;
}

/* ---- what is known ---- */

struct arena_span *arena_span_at(struct arena *a, uint32_t extent, uint32_t granule)
{
	struct span *s;

	pthread_mutex_lock(&a->mutex);
	s = span_find(a, extent, granule);
	pthread_mutex_unlock(&a->mutex);
	return s ? &s->public : NULL;
}

static void usage_of_extents(const struct arena *a, struct arena_usage *u)
{
	u->huge_pages = a->extent_count > 0;
	for (uint32_t i = 0; i < a->extent_count; i++) {
		const struct arena_extent *e = a->extents[i];

		u->huge_pages = u->huge_pages && e->memory.extent.page_bytes == EXTENT_HUGE_PAGE_BYTES;
	}
}

static void usage_of_tenants(const struct arena *a, struct arena_usage *u)
{
	for (const struct arena_tenant *t = a->tenants; t; t = t->next) {
		u->granules += t->granules;
		u->granules_free += t->free + t->unready;
		u->granules_ready += t->free;
		u->reserve += arena_reserve_of(t);
		for (const struct arena_class *k = t->classes; k; k = k->next) {
			u->slots += k->slots;
			u->slots_used += k->used;
		}
	}
}

void arena_usage(struct arena *a, struct arena_usage *out)
{
	struct arena_usage u = { .budget_bytes = a->options.budget_bytes };

	pthread_mutex_lock(&a->mutex);
	u.extent_bytes = a->taken_bytes;
	u.open_failures = a->open_failures;
	u.open_error = a->failure.error;
	memcpy(u.open_why, a->failure.why, sizeof(u.open_why));
	u.extents = a->extent_count;
	u.spans = a->span_count;
	u.classes = a->class_count;
	usage_of_extents(a, &u);
	usage_of_tenants(a, &u);
	pthread_mutex_unlock(&a->mutex);
	*out = u;
}

uint64_t arena_tenant_bytes(struct arena *a, uint32_t tenant)
{
	const struct arena_tenant *t;
	uint64_t bytes = 0;

	pthread_mutex_lock(&a->mutex);
	for (t = a->tenants; t; t = t->next)
		bytes += t->number == tenant ? t->granules * a->granule_bytes : 0;
	pthread_mutex_unlock(&a->mutex);
	return bytes;
}

uint64_t arena_class_unused(struct arena_class *k)
{
	uint64_t bytes;

	pthread_mutex_lock(&k->arena->mutex);
	bytes = arena_room(k->tenant);
	pthread_mutex_unlock(&k->arena->mutex);
	return bytes;
}
