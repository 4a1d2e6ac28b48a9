/* Extents of an arena: how they are made, and to which tenant they belong. See arena.h.
 *
 * Taking pages from the kernel is slow. It happens outside the mutex, by one thread a tenant at a time; the bytes of a
 * new extent are counted before. Another thread that needs a slot of that tenant waits meanwhile (arena_prepare).
 */
#include "store/arena/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/arena/private.h"

/* ---- the table ---- */

uint32_t arena_extent_place(const struct arena *a, uint32_t id)
{
	uint32_t low = 0, high = a->extent_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (a->extents[middle]->memory.extent.id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct arena_extent *arena_extent_find(const struct arena *a, uint32_t id)
{
	uint32_t place = arena_extent_place(a, id);

	return place < a->extent_count && a->extents[place]->memory.extent.id == id ? a->extents[place] : NULL;
}

static enum status table_grow(struct arena *a)
{
	uint32_t room = a->extent_room ? 2 * a->extent_room : 16;
	struct arena_extent **more;

	if (a->extent_count < a->extent_room)
		return STATUS_OK;
	more = realloc(a->extents, room * sizeof(struct arena_extent *));
	if (!more)
		return STATUS_EXHAUSTED;
	a->extents = more;
	a->extent_room = room;
	return STATUS_OK;
}

/* Gives a new extent its id and makes it known. */
static enum status extent_publish(struct arena *a, struct arena_extent *e, uint32_t ready)
{
	if (a->extents_made == a->ids || table_grow(a) != STATUS_OK)
		return STATUS_EXHAUSTED;
	e->memory.extent.id = a->first_id + a->extents_made++;
	a->extents[a->extent_count++] = e;
	e->tenant->granules += e->granules;
	e->tenant->unready += e->granules;
	arena_granules_ready(e, ready);
	return STATUS_OK;
}

/* ---- memory ---- */

void arena_extent_discard(struct arena_extent *e)
{
	for (uint32_t i = 0; i < e->granules; i++) {
		struct span *s = e->at_granule[i].span;

		if (s && (i + 1 == e->granules || e->at_granule[i + 1].span != s))
			free(s);
	}
	host_memory_close(&e->tenant->arena->source, &e->memory);
	free(e);
}

/* Reserves the tenant's range of addresses. The thread that makes the tenant's first extent calls it, without the
 * mutex. */
static enum status range_reserve(struct arena_tenant *t, struct host_failure *f)
{
	struct arena *a = t->arena;
	const uint64_t budget = a->options.budget_bytes, most = t->most_bytes ? min_u64(t->most_bytes, budget) : budget;
	uint64_t address, bytes = round_up(ARENA_RANGE_BUDGETS * most, a->granule_bytes);
	enum status s;

	if (t->range.bytes)
		return STATUS_OK;
	s = host_memory_reserve(&a->source, bytes, &address, f);
	if (s != STATUS_OK)
		return s;
	pthread_mutex_lock(&a->mutex);
	t->range.address = address;
	t->range.bytes = bytes;
	pthread_mutex_unlock(&a->mutex);
	return STATUS_OK;
}

/* Takes a place for an extent of device memory. Called without the mutex. */
static enum status place_take(struct arena_tenant *t, uint64_t bytes, uint64_t *at, struct host_failure *f)
{
	enum status s = range_reserve(t, f);

	if (s != STATUS_OK)
		return s;
	pthread_mutex_lock(&t->arena->mutex);
	s = host_range_take(&t->range, bytes, at);
	pthread_mutex_unlock(&t->arena->mutex);
	if (s != STATUS_OK)
		snprintf(f->why, sizeof(f->why), "no place in the tenant's range of addresses");
	return s;
}

void arena_place_give(struct arena_tenant *t, uint64_t at)
{
	if (t->arena->options.ops)
		host_range_give(&t->range, at);
}

static enum status memory_open(struct arena_tenant *t, struct arena_extent *e, uint64_t bytes, uint64_t present,
			       struct host_failure *f)
{
	struct arena *a = t->arena;
	struct host_source source = a->source;
	enum status s = a->options.ops ? place_take(t, bytes, &e->at, f) : STATUS_OK;

	if (s != STATUS_OK)
		return s;
	source.huge = source.huge && bytes % EXTENT_HUGE_PAGE_BYTES == 0;
	s = host_memory_open(&source, t->range.address + e->at, bytes, present, &e->memory, f);
	if (s != STATUS_OK) {
		pthread_mutex_lock(&a->mutex);
		arena_place_give(t, e->at);
		pthread_mutex_unlock(&a->mutex);
	}
	return s;
}

/* Makes an extent that is in no table yet, with its first `present` bytes of pages. Called without the mutex. */
static enum status extent_make(struct arena_tenant *t, uint64_t bytes, uint64_t present, struct arena_extent **out,
			       struct host_failure *f)
{
	const uint32_t granules = (uint32_t)(bytes / t->arena->granule_bytes);
	struct arena_extent *e = calloc(1, sizeof(*e) + granules * sizeof(e->at_granule[0]));
	enum status s;

	*f = (struct host_failure){ .error = ENOMEM };
	if (!e)
		return STATUS_EXHAUSTED;
	*f = (struct host_failure){ 0 };
	e->tenant = t;
	e->granules = granules;
	s = memory_open(t, e, bytes, present, f);
	if (s != STATUS_OK) {
		free(e);
		return s;
	}
	*out = e;
	return STATUS_OK;
}

/* ---- growth: all functions have the mutex, but release it while the kernel works ---- */

/* The granules whose pages one step takes, where a span wants n side by side and `run` of them are free already. */
static uint32_t step_granules(const struct arena *a, uint32_t run, uint32_t n, uint32_t left)
{
	const uint64_t step = max_u64(ARENA_STEP_BYTES / a->granule_bytes, n > run ? n - run : 1);

	return (uint32_t)min_u64(max_u64(step, 1), left);
}

/* The number of free granules just before the first granule without pages. */
static uint32_t run_before(const struct arena_extent *e)
{
	uint32_t run = 0;

	while (run < e->ready && !e->at_granule[e->ready - 1 - run].span && !e->at_granule[e->ready - 1 - run].claim)
		run++;
	return run;
}

/* An extent of the tenant that lacks pages and that, once it has them, has n free granules side by side. */
static struct arena_extent *extent_unready(const struct arena_tenant *t, uint32_t n)
{
	const struct arena *a = t->arena;

	for (uint32_t i = 0; t->unready > 0 && i < a->extent_count; i++) {
		struct arena_extent *e = a->extents[i];

		if (e->tenant != t || e->ready == e->granules || e->retired)
			continue;
		if (run_before(e) + e->granules - e->ready >= n)
			return e;
	}
	return NULL;
}

static enum status growth_ended(struct arena *a, enum status s, const struct host_failure *f)
{
	a->refused = s != STATUS_OK;
	if (s != STATUS_OK) {
		a->open_failures++;
		a->failure = *f;
	}
	return s;
}

static enum status populate(struct arena_extent *e, uint32_t n, struct arena_growth *out)
{
	struct arena *a = e->tenant->arena;
	const uint64_t from = e->ready * a->granule_bytes;
	uint64_t end = from + step_granules(a, run_before(e), n, e->granules - e->ready) * a->granule_bytes;
	struct host_failure failure = { 0 };
	enum status s;

	end = min_u64(round_up(end, e->memory.extent.page_bytes), e->memory.bytes);
	e->growing = true;
	pthread_mutex_unlock(&a->mutex);
	s = host_memory_populate(&e->memory, from, end - from, &failure);
	pthread_mutex_lock(&a->mutex);
	e->growing = false;
	if (s == STATUS_OK) {
		arena_granules_ready(e, (uint32_t)(end / a->granule_bytes));
		*out = (struct arena_growth){ .extent = e->memory.extent.id, .ready = e->ready == e->granules };
	}
	return growth_ended(a, s, &failure);
}

static enum status extent_add(struct arena_tenant *t, uint64_t bytes, uint32_t n, struct arena_growth *out)
{
	struct arena *a = t->arena;
	const uint32_t granules = (uint32_t)(bytes / a->granule_bytes);
	const bool whole = a->options.ops || a->options.whole_extents;
	const uint32_t ready = whole ? granules : step_granules(a, 0, n, granules);
	struct arena_extent *e = NULL;
	struct host_failure failure;
	enum status s;

	a->taken_bytes += bytes;
	t->coming = granules;
	pthread_mutex_unlock(&a->mutex);
	s = extent_make(t, bytes, ready * a->granule_bytes, &e, &failure);
	pthread_mutex_lock(&a->mutex);
	t->coming = 0;
	if (s == STATUS_OK)
		s = extent_publish(a, e, ready);
	if (s == STATUS_OK) {
		*out = (struct arena_growth){ .extent = e->memory.extent.id, .made = true, .ready = ready == granules };
	} else {
		a->taken_bytes -= bytes;
		if (e) {
			arena_place_give(t, e->at);
			arena_extent_discard(e);
		}
	}
	return growth_ended(a, s, &failure);
}

/* The size of the next extent; 0: the budget has not enough left for one of n granules. */
static uint64_t extent_next_bytes(const struct arena_tenant *t, uint32_t n)
{
	const struct arena *a = t->arena;
	const uint64_t left = arena_room(t);
	const uint64_t bytes = min_u64(a->extent_bytes, left - left % a->granule_bytes);

	return bytes / a->granule_bytes >= n ? bytes : 0;
}

/* Takes memory, one step. MISS: there is none to take. */
static enum status grow(struct arena_tenant *t, uint32_t n, struct arena_growth *out)
{
	struct arena_extent *e = extent_unready(t, n);
	const uint64_t bytes = e ? 0 : extent_next_bytes(t, n);
	enum status s = STATUS_MISS;

	t->growing = true;
	if (e)
		s = populate(e, n, out);
	else if (bytes > 0)
		s = extent_add(t, bytes, n, out);
	t->growing = false;
	pthread_cond_broadcast(&t->arena->grown);
	return s;
}

static bool can_take(const struct arena_class *k)
{
	struct arena_extent *e;
	uint32_t granule;

	if (k->first || (k->claim.granules && arena_claim_free(k, &e, &granule)))
		return true;
	return arena_run_find(k, k->span_granules, false, &e, &granule);
}

bool arena_can_take(struct arena_class *k)
{
	bool can;

	pthread_mutex_lock(&k->arena->mutex);
	can = can_take(k);
	pthread_mutex_unlock(&k->arena->mutex);
	return can;
}

enum status arena_prepare(struct arena_class *k, struct arena_growth *out)
{
	struct arena *a = k->arena;
	struct arena_growth growth = { 0 };
	enum status s = STATUS_OK;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ARENA_GROWTH_WAIT_S;
	pthread_mutex_lock(&a->mutex);
	while (k->tenant->growing && !can_take(k) && s == STATUS_OK)
		if (pthread_cond_timedwait(&a->grown, &a->mutex, &until) != 0)
			s = STATUS_EXHAUSTED;
	if (s == STATUS_OK && !can_take(k))
		s = grow(k->tenant, k->span_granules, &growth);
	pthread_mutex_unlock(&a->mutex);
	if (s == STATUS_OK)
		*out = growth;
	return s == STATUS_MISS ? STATUS_EXHAUSTED : s;
}

enum status arena_extent_add(struct arena_class *k, struct arena_growth *out)
{
	struct arena_tenant *t = k->tenant;
	struct arena *a = k->arena;
	enum status s = STATUS_BUSY;
	uint64_t bytes;

	*out = (struct arena_growth){ 0 };
	pthread_mutex_lock(&a->mutex);
	bytes = extent_next_bytes(t, k->span_granules);
	if (!t->growing && bytes == 0)
		s = STATUS_EXHAUSTED;
	if (!t->growing && bytes > 0) {
		t->growing = true;
		s = extent_add(t, bytes, k->span_granules, out);
		t->growing = false;
		pthread_cond_broadcast(&a->grown);
	}
	pthread_mutex_unlock(&a->mutex);
	return s;
}

/* With whole_extents the next extent is begun when less than a quarter of one is free, since it takes longer than a
 * step. */
static bool wants_more(const struct arena_tenant *t)
{
	const struct arena *a = t->arena;
	const uint64_t part = a->options.whole_extents ? a->extent_bytes / 4 : 0, has = t->granules * a->granule_bytes;
	uint64_t least = max_u64(ARENA_PREALLOCATED_BYTES, part);

	/* Bytes that are no tenant's own are for the tenant that needs them. */
	if (a->options.tenants > 1)
		least = min_u64(least, max_u64(t->own_bytes > has ? t->own_bytes - has : 0, ARENA_STEP_BYTES));

	return t->free * a->granule_bytes < least &&
	       (t->unready > 0 || extent_next_bytes(t, 1) > 0);
}

bool arena_wants(struct arena *a, uint32_t tenant)
{
	struct arena_tenant *t;
	bool wants;

	pthread_mutex_lock(&a->mutex);
	t = arena_tenant_get(a, tenant);
	wants = t && !t->growing && wants_more(t);
	pthread_mutex_unlock(&a->mutex);
	return wants;
}

enum status arena_preallocate(struct arena *a, uint32_t tenant, struct arena_growth *out)
{
	struct arena_growth growth = { 0 };
	struct arena_tenant *t;
	enum status s = STATUS_OK;

	pthread_mutex_lock(&a->mutex);
	t = arena_tenant_get(a, tenant);
	if (!t)
		s = STATUS_EXHAUSTED;
	else if (t->growing)
		s = STATUS_BUSY;
	else if (wants_more(t))
		s = grow(t, 1, &growth);
	if (s == STATUS_OK)
		growth.more = wants_more(t);
	pthread_mutex_unlock(&a->mutex);
	if (s == STATUS_OK)
		*out = growth;
	return s;
}

/* ---- what is known ---- */

struct extent *arena_extent(struct arena *a, uint32_t id)
{
	struct arena_extent *e;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, id);
	pthread_mutex_unlock(&a->mutex);
	return e ? &e->memory.extent : NULL;
}

bool arena_extent_owner(struct arena *a, uint32_t id, uint32_t *tenant)
{
	struct arena_extent *e;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, id);
	if (e)
		*tenant = e->tenant->number;
	pthread_mutex_unlock(&a->mutex);
	return e != NULL;
}

uint64_t arena_extent_size(struct arena *a, uint32_t id)
{
	const struct arena_extent *e;
	uint64_t bytes;

	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, id);
	bytes = e ? e->memory.bytes : 0;
	pthread_mutex_unlock(&a->mutex);
	return bytes;
}

uint32_t arena_extents(struct arena *a, uint32_t tenant, uint32_t from, uint32_t *ids, uint32_t max)
{
	uint32_t n = 0;

	pthread_mutex_lock(&a->mutex);
	for (uint32_t i = arena_extent_place(a, from); i < a->extent_count && n < max; i++)
		if (a->extents[i]->tenant->number == tenant)
			ids[n++] = a->extents[i]->memory.extent.id;
	pthread_mutex_unlock(&a->mutex);
	return n;
}

static enum status device_extent(const struct arena_extent *e, struct arena_device_extent *out)
{
	int fd = fcntl(e->memory.device_fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return STATUS_EXHAUSTED;
	*out = (struct arena_device_extent){ .fd = fd, .address = e->memory.device.address, .bytes = e->memory.bytes,
					     .at = e->at, .range_bytes = e->tenant->range.bytes };
	return STATUS_OK;
}

enum status arena_extent_device(struct arena *a, uint32_t id, struct arena_device_extent *out)
{
	enum status s = STATUS_NOT_FOUND;
	struct arena_extent *e;

	if (!a->options.ops)
		return s;
	pthread_mutex_lock(&a->mutex);
	e = arena_extent_find(a, id);
	if (e)
		s = device_extent(e, out);
	pthread_mutex_unlock(&a->mutex);
	return s;
}
