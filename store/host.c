/* The host tier: budget -> pools -> extents -> slots.
 *
 * An extent keeps one 32-bit cell and one bit a slot. The cell of a free slot is the index of the next
 * free one, that of a taken slot the low half of its generation: taking is a pop, giving is a push, and
 * a slot given twice is noticed even if somebody else has it by then. The extents of a pool that have
 * free slots stand in a list; the first is used up before the next is touched, so that the others may
 * run empty and be drained.
 *
 * A new extent takes its pages from the kernel, which lasts. That happens outside the mutex, one extent
 * a pool at a time, with its bytes already reserved in the budget; who needs a slot of that pool
 * meanwhile waits for it.
 */
#include "store/host.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/slot.h"

#define CELL_NONE UINT32_MAX

struct host_extent {
	struct extent extent;
	struct host_pool *pool;
	struct host_extent *prev, *next; /* in the pool's list while listed; next also chains the doomed */
	uint32_t slots, used;
	uint32_t free_first;             /* CELL_NONE: full */
	bool listed, draining;
	uint64_t *taken;                 /* a bit a slot */
	uint32_t cell[];
};

struct host_pool {
	struct host_tier *tier;
	uint64_t layout_id, slot_bytes;
	uint32_t tenant;
	bool growing;                    /* a thread is making an extent */
	struct host_extent *first, *last; /* not draining, not full */
};

struct host_tier {
	pthread_mutex_t mutex;           /* guards everything below and in pools and extents */
	pthread_cond_t grown;
	struct host_options options;
	uint64_t extent_bytes;           /* of all extents and of those being made */
	uint64_t generation, open_failures;
	int open_error;
	uint32_t last_id;
	uint32_t extent_count, extent_room, pool_count;
	struct host_extent **extents;    /* ids ascend */
	struct host_pool *pools[HOST_POOLS_MAX];
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

enum status host_create(const struct host_options *o, struct host_tier **out)
{
	struct host_tier *t;
	pthread_condattr_t attr;

	if (o->budget_bytes < EXTENT_PAGE_BYTES || o->extent_bytes < EXTENT_PAGE_BYTES ||
	    o->extent_bytes > EXTENT_BYTES_MAX)
		return STATUS_INVALID;
	t = calloc(1, sizeof(*t));
	if (!t)
		return STATUS_EXHAUSTED;
	t->options = *o;
	t->generation = o->first_generation > 0 ? o->first_generation - 1 : 0;
	pthread_mutex_init(&t->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->grown, &attr);
	pthread_condattr_destroy(&attr);
	*out = t;
	return STATUS_OK;
}

static void extent_discard(struct host_extent *e)
{
	extent_close(&e->extent);
	free(e->taken);
	free(e);
}

void host_destroy(struct host_tier *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->extent_count; i++)
		extent_discard(t->extents[i]);
	for (uint32_t i = 0; i < t->pool_count; i++)
		free(t->pools[i]);
	free(t->extents);
	pthread_cond_destroy(&t->grown);
	pthread_mutex_destroy(&t->mutex);
	free(t);
}

/* Appends a pool; mutex held. */
static enum status pool_add(struct host_tier *t, uint32_t tenant, uint64_t layout_id, uint64_t slot_bytes,
			    struct host_pool **out)
{
	struct host_pool *p;

	if (t->pool_count == HOST_POOLS_MAX)
		return STATUS_EXHAUSTED;
	p = calloc(1, sizeof(*p));
	if (!p)
		return STATUS_EXHAUSTED;
	p->tier = t;
	p->tenant = tenant;
	p->layout_id = layout_id;
	p->slot_bytes = slot_bytes;
	t->pools[t->pool_count++] = p;
	*out = p;
	return STATUS_OK;
}

static struct host_pool *pool_find(const struct host_tier *t, uint32_t tenant, uint64_t layout_id)
{
	for (uint32_t i = 0; i < t->pool_count; i++)
		if (t->pools[i]->tenant == tenant && t->pools[i]->layout_id == layout_id)
			return t->pools[i];
	return NULL;
}

enum status host_pool_get(struct host_tier *t, uint32_t tenant, uint64_t layout_id, uint64_t slot_bytes,
			  struct host_pool **out)
{
	enum status s = STATUS_OK;
	struct host_pool *p;

	if (slot_bytes == 0 || slot_bytes % SLOT_HEADER_BYTES != 0 || slot_bytes > EXTENT_BYTES_MAX ||
	    slot_bytes > t->options.budget_bytes)
		return STATUS_INVALID;
	pthread_mutex_lock(&t->mutex);
	p = pool_find(t, tenant, layout_id);
	if (!p)
		s = pool_add(t, tenant, layout_id, slot_bytes, &p);
	else if (p->slot_bytes != slot_bytes)
		s = STATUS_INVALID;
	pthread_mutex_unlock(&t->mutex);
	if (s == STATUS_OK)
		*out = p;
	return s;
}

/* The list of a pool's extents with free slots. */
static void list_append(struct host_extent *e)
{
	struct host_pool *p = e->pool;

	e->prev = p->last;
	e->next = NULL;
	if (p->last)
		p->last->next = e;
	else
		p->first = e;
	p->last = e;
	e->listed = true;
}

static void list_remove(struct host_extent *e)
{
	struct host_pool *p = e->pool;

	if (e->prev)
		e->prev->next = e->next;
	else
		p->first = e->next;
	if (e->next)
		e->next->prev = e->prev;
	else
		p->last = e->prev;
	e->prev = e->next = NULL;
	e->listed = false;
}

/* The place of the extent `id`, or extent_count; mutex held. */
static uint32_t extent_place(const struct host_tier *t, uint32_t id)
{
	uint32_t low = 0, high = t->extent_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (t->extents[middle]->extent.id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < t->extent_count && t->extents[low]->extent.id == id ? low : t->extent_count;
}

static struct host_extent *extent_find(const struct host_tier *t, uint32_t id)
{
	uint32_t place = extent_place(t, id);

	return place < t->extent_count ? t->extents[place] : NULL;
}

/* The size of the next extent of a pool within what is left of the budget; false: not even one
 * slot. Huge pages are rounded up to here, so that the extent takes what the budget was asked for. */
static bool extent_plan(const struct host_pool *p, uint64_t *bytes, bool *huge)
{
	const struct host_options *o = &p->tier->options;
	uint64_t left = o->budget_bytes - p->tier->extent_bytes;
	uint64_t wished = min_u64(min_u64(o->extent_bytes, o->budget_bytes / 8), left);
	uint64_t slots = wished / p->slot_bytes, page = EXTENT_HUGE_PAGE_BYTES;
	uint64_t exact = (slots > 0 ? slots : 1) * p->slot_bytes;
	uint64_t rounded = (exact + page - 1) / page * page;

	if (exact > left)
		return false;
	*huge = o->huge_pages && rounded <= left && rounded <= EXTENT_BYTES_MAX;
	*bytes = *huge ? rounded : exact;
	return true;
}

/* Makes an extent with all its slots free, in no list; without the mutex. */
static enum status extent_make(struct host_pool *p, uint64_t bytes, bool huge, struct host_extent **out,
			       int *error)
{
	uint32_t slots = (uint32_t)(bytes / p->slot_bytes);
	struct host_extent *e = calloc(1, sizeof(*e) + slots * sizeof(e->cell[0]));
	uint64_t *taken = calloc((slots + 63) / 64, sizeof(*taken));
	enum status s;

	*error = 0;
	if (!e || !taken) {
		free(taken);
		free(e);
		return STATUS_EXHAUSTED;
	}
	s = extent_open(&e->extent, 0, bytes, huge);
	if (s != STATUS_OK) {
		*error = e->extent.error;
		free(taken);
		free(e);
		return s;
	}
	assert(e->extent.bytes == bytes);
	e->pool = p;
	e->slots = slots;
	e->taken = taken;
	for (uint32_t i = 0; i < slots; i++)
		e->cell[i] = i + 1 < slots ? i + 1 : CELL_NONE;
	*out = e;
	return STATUS_OK;
}

/* Gives a new extent its id and makes it known; mutex held. */
static enum status extent_publish(struct host_tier *t, struct host_extent *e)
{
	if (t->extent_count == t->extent_room) {
		uint32_t room = t->extent_room ? 2 * t->extent_room : 16;
		struct host_extent **more = realloc(t->extents, room * sizeof(*more));

		if (!more)
			return STATUS_EXHAUSTED;
		t->extents = more;
		t->extent_room = room;
	}
	e->extent.id = ++t->last_id;
	t->extents[t->extent_count++] = e;
	list_append(e);
	return STATUS_OK;
}

/* Adds an extent to the pool. Mutex held on entry and return, free between; p->growing keeps others
 * out. */
static enum status pool_grow(struct host_pool *p)
{
	struct host_tier *t = p->tier;
	struct host_extent *e = NULL;
	enum status s;
	uint64_t bytes;
	bool huge;
	int error;

	if (!extent_plan(p, &bytes, &huge))
		return STATUS_EXHAUSTED;
	t->extent_bytes += bytes;
	p->growing = true;
	pthread_mutex_unlock(&t->mutex);
	s = extent_make(p, bytes, huge, &e, &error);
	pthread_mutex_lock(&t->mutex);
	p->growing = false;
	if (s == STATUS_OK)
		s = extent_publish(t, e);
	if (s != STATUS_OK) {
		if (e)
			extent_discard(e);
		t->extent_bytes -= bytes;
		t->open_failures++;
		t->open_error = error;
	}
	pthread_cond_broadcast(&t->grown);
	return s;
}

/* Pops a slot of an extent that has one; mutex held. */
static void slot_pop(struct host_extent *e, struct host_slot *out)
{
	uint32_t i = e->free_first;
	uint64_t generation = ++e->pool->tier->generation;

	e->free_first = e->cell[i];
	e->cell[i] = (uint32_t)generation;
	e->taken[i / 64] |= 1ull << (i % 64);
	e->used++;
	if (e->free_first == CELL_NONE)
		list_remove(e);
	*out = (struct host_slot){
		.pool = e->pool,
		.extent = e->extent.id,
		.index = i,
		.at = e->extent.base + i * e->pool->slot_bytes,
		.offset = i * e->pool->slot_bytes,
		.generation = generation,
	};
}

static struct timespec growth_deadline(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += HOST_GROWTH_WAIT_S;
	return until;
}

enum status host_slot_take(struct host_pool *p, struct host_slot *out)
{
	struct host_tier *t = p->tier;
	struct timespec until = growth_deadline();
	enum status s = STATUS_OK;

	pthread_mutex_lock(&t->mutex);
	while (!p->first && s == STATUS_OK) {
		if (!p->growing)
			s = pool_grow(p);
		else if (pthread_cond_timedwait(&t->grown, &t->mutex, &until) != 0 && !p->first)
			s = STATUS_EXHAUSTED;
	}
	if (p->first) {
		slot_pop(p->first, out);
		s = STATUS_OK;
	}
	pthread_mutex_unlock(&t->mutex);
	return s;
}

enum status host_slot_try(struct host_pool *p, struct host_slot *out)
{
	enum status s = STATUS_MISS;

	pthread_mutex_lock(&p->tier->mutex);
	if (p->first) {
		slot_pop(p->first, out);
		s = STATUS_OK;
	}
	pthread_mutex_unlock(&p->tier->mutex);
	return s;
}

/* Mutex held. */
static bool has_free(const struct host_pool *p, uint32_t slots)
{
	uint64_t n = 0;

	for (const struct host_extent *e = p->first; e && n < slots; e = e->next)
		n += e->slots - e->used;
	return n >= slots;
}

enum status host_pool_prepare(struct host_pool *p, uint32_t slots, uint32_t *extent)
{
	struct host_tier *t = p->tier;
	struct timespec until = growth_deadline();
	enum status s = STATUS_OK;

	pthread_mutex_lock(&t->mutex);
	while (p->growing && s == STATUS_OK)
		if (pthread_cond_timedwait(&t->grown, &t->mutex, &until) != 0)
			s = STATUS_EXHAUSTED;
	if (s == STATUS_OK && !has_free(p, slots))
		s = pool_grow(p);
	if (s == STATUS_OK && !p->last) /* used up meanwhile */
		s = STATUS_EXHAUSTED;
	if (s == STATUS_OK)
		*extent = p->last->extent.id;
	pthread_mutex_unlock(&t->mutex);
	return s;
}

static bool is_taken(const struct host_extent *e, const struct host_slot *s)
{
	return e && e->pool == s->pool && s->index < e->slots &&
	       (e->taken[s->index / 64] >> (s->index % 64) & 1) &&
	       e->cell[s->index] == (uint32_t)s->generation;
}

void host_slot_give(const struct host_slot *s)
{
	struct host_tier *t = s->pool->tier;
	struct host_extent *e;
	bool taken;

	pthread_mutex_lock(&t->mutex);
	e = extent_find(t, s->extent);
	taken = is_taken(e, s);
	assert(taken && "a slot was given back that is not taken");
	if (taken) {
		e->taken[s->index / 64] &= ~(1ull << (s->index % 64));
		e->cell[s->index] = e->free_first;
		e->free_first = s->index;
		e->used--;
		if (!e->draining && !e->listed)
			list_append(e);
		if (e->pool->growing)
			pthread_cond_broadcast(&t->grown);
	}
	pthread_mutex_unlock(&t->mutex);
}

enum status host_extent_drain(struct host_tier *t, uint32_t extent)
{
	struct host_extent *e;

	pthread_mutex_lock(&t->mutex);
	e = extent_find(t, extent);
	if (e && !e->draining) {
		e->draining = true;
		if (e->listed)
			list_remove(e);
	}
	pthread_mutex_unlock(&t->mutex);
	return e ? STATUS_OK : STATUS_NOT_FOUND;
}

/* Takes the drained extents that nobody holds out of the table, as a chain by `next`; mutex held. */
static struct host_extent *drained_unlink(struct host_tier *t)
{
	struct host_extent *doomed = NULL;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < t->extent_count; i++) {
		struct host_extent *e = t->extents[i];

		if (e->draining && e->used == 0 && !extent_held_by_any(&e->extent)) {
			e->next = doomed;
			doomed = e;
		} else {
			t->extents[kept++] = e;
		}
	}
	t->extent_count = kept;
	return doomed;
}

struct host_extent *host_doomed_take(struct host_tier *t)
{
	struct host_extent *doomed;

	pthread_mutex_lock(&t->mutex);
	doomed = drained_unlink(t);
	pthread_mutex_unlock(&t->mutex);
	return doomed;
}

/* The bytes leave the budget only when they are really back. */
uint32_t host_doomed_free(struct host_tier *t, struct host_extent *doomed)
{
	uint64_t bytes = 0;
	uint32_t n = 0;

	while (doomed) {
		struct host_extent *next = doomed->next;

		bytes += doomed->extent.bytes;
		n++;
		extent_discard(doomed);
		doomed = next;
	}
	pthread_mutex_lock(&t->mutex);
	t->extent_bytes -= bytes;
	pthread_mutex_unlock(&t->mutex);
	return n;
}

uint32_t host_drain_poll(struct host_tier *t)
{
	return host_doomed_free(t, host_doomed_take(t));
}

struct extent *host_extent(struct host_tier *t, uint32_t id)
{
	struct host_extent *e;

	pthread_mutex_lock(&t->mutex);
	e = extent_find(t, id);
	pthread_mutex_unlock(&t->mutex);
	return e ? &e->extent : NULL;
}

bool host_extent_owner(struct host_tier *t, uint32_t id, uint32_t *tenant, uint64_t *layout_id,
		       bool *draining)
{
	struct host_extent *e;

	pthread_mutex_lock(&t->mutex);
	e = extent_find(t, id);
	if (e && tenant)
		*tenant = e->pool->tenant;
	if (e && layout_id)
		*layout_id = e->pool->layout_id;
	if (e && draining)
		*draining = e->draining;
	pthread_mutex_unlock(&t->mutex);
	return e != NULL;
}

uint32_t host_pool_extents(struct host_pool *p, uint32_t *ids, uint32_t max)
{
	struct host_tier *t = p->tier;
	uint32_t n = 0;

	pthread_mutex_lock(&t->mutex);
	for (uint32_t i = 0; i < t->extent_count; i++) {
		const struct host_extent *e = t->extents[i];

		if (e->pool != p || e->draining)
			continue;
		if (n < max)
			ids[n] = e->extent.id;
		n++;
	}
	pthread_mutex_unlock(&t->mutex);
	return n;
}

void host_usage(struct host_tier *t, struct host_usage *out)
{
	struct host_usage u = { .budget_bytes = t->options.budget_bytes, .huge_pages = true };

	pthread_mutex_lock(&t->mutex);
	u.extent_bytes = t->extent_bytes;
	u.open_failures = t->open_failures;
	u.open_error = t->open_error;
	u.extents = t->extent_count;
	u.pools = t->pool_count;
	for (uint32_t i = 0; i < t->extent_count; i++) {
		const struct host_extent *e = t->extents[i];

		if (e->draining)
			u.draining_bytes += e->extent.bytes;
		else
			u.slots += e->slots;
		u.slots_used += e->used;
		u.huge_pages = u.huge_pages && e->extent.page_bytes == EXTENT_HUGE_PAGE_BYTES;
	}
	u.huge_pages = u.huge_pages && u.extents > 0;
	pthread_mutex_unlock(&t->mutex);
	*out = u;
}
