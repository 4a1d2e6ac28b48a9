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
#include "store/host/host.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/host/private.h"
#include "store/slot.h"

static enum status device_granularity(const struct host_options *o, uint64_t *out)
{
	struct device_info info;
	const char *why;
	enum status s;

	*out = 0;
	if (!o->ops)
		return STATUS_OK;
	s = o->ops->info(o->device, &info, &why);
	if (s == STATUS_OK && o->budget_bytes < info.granularity)
		s = STATUS_INVALID;
	if (s == STATUS_OK)
		*out = info.granularity;
	return s;
}

enum status host_create(const struct host_options *o, struct host_tier **out)
{
	uint64_t granularity;
	struct host_tier *t;
	pthread_condattr_t attr;
	enum status s;

	if (o->budget_bytes < EXTENT_PAGE_BYTES || o->extent_bytes < EXTENT_PAGE_BYTES ||
	    o->extent_bytes > EXTENT_BYTES_MAX)
		return STATUS_INVALID;
	s = device_granularity(o, &granularity);
	if (s != STATUS_OK)
		return s;
	t = calloc(1, sizeof(*t));
	if (!t)
		return STATUS_EXHAUSTED;
	t->options = *o;
	t->granularity = granularity;
	t->generation = o->first_generation > 0 ? o->first_generation - 1 : 0;
	t->ids_first = o->first_extent_id > 0 ? o->first_extent_id : 1;
	t->last_id = t->ids_first - 1;
	t->ids_end = o->first_extent_id + ((o->extent_ids > 1 ? o->extent_ids : HOST_EXTENT_IDS) - 1);
	pthread_mutex_init(&t->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->grown, &attr);
	pthread_condattr_destroy(&attr);
	*out = t;
	return STATUS_OK;
}

static void pool_discard(struct host_pool *p)
{
	const struct host_options *o = &p->tier->options;

	if (p->range.bytes)
		o->ops->range_free(o->device, p->range.address, p->range.bytes);
	host_range_fini(&p->range);
	free(p);
}

void host_destroy(struct host_tier *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->extent_count; i++)
		host_extent_discard(t->extents[i]);
	for (uint32_t i = 0; i < t->pool_count; i++)
		pool_discard(t->pools[i]);
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

/* Whether slots of this size can be, and an extent of one of them. */
static bool slot_bytes_allowed(const struct host_tier *t, uint64_t slot_bytes)
{
	uint64_t least = t->granularity, align = t->options.ops ? HOST_DEVICE_SLOT_ALIGN : SLOT_HEADER_BYTES;

	return slot_bytes > 0 && slot_bytes % align == 0 && slot_bytes <= EXTENT_BYTES_MAX &&
	       (least ? host_round_up(slot_bytes, least) : slot_bytes) <= t->options.budget_bytes;
}

enum status host_pool_get(struct host_tier *t, uint32_t tenant, uint64_t layout_id, uint64_t slot_bytes,
			  struct host_pool **out)
{
	enum status s = STATUS_OK;
	struct host_pool *p;

	if (!slot_bytes_allowed(t, slot_bytes))
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

/* Before those at the end that nobody has taken a slot of yet: who has had them made is the first to. */
static void list_return(struct host_extent *e)
{
	struct host_extent *next = NULL, *prev = e->pool->last;

	for (; prev && prev->fresh; prev = prev->prev)
		next = prev;
	if (!next) {
		list_append(e);
		return;
	}
	e->prev = prev;
	e->next = next;
	next->prev = e;
	if (prev)
		prev->next = e;
	else
		e->pool->first = e;
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

/* The place of the first extent with an id of at least `id`; mutex held. */
static uint32_t extent_place(const struct host_tier *t, uint32_t id)
{
	uint32_t low = 0, high = t->extent_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (t->extents[middle]->memory.extent.id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct host_extent *extent_find(const struct host_tier *t, uint32_t id)
{
	uint32_t place = extent_place(t, id);

	return place < t->extent_count && t->extents[place]->memory.extent.id == id ? t->extents[place] : NULL;
}

/* An id comes again only after all others, and when its extent is gone; mutex held. */
static uint32_t id_next(struct host_tier *t)
{
	do
		t->last_id = t->last_id == t->ids_end ? t->ids_first : t->last_id + 1;
	while (extent_find(t, t->last_id));
	return t->last_id;
}

/* Gives a new extent its id and makes it known; mutex held. */
static enum status extent_publish(struct host_tier *t, struct host_extent *e)
{
	uint32_t place;

	if (t->extent_count > t->ids_end - t->ids_first)
		return STATUS_EXHAUSTED;
	if (t->extent_count == t->extent_room) {
		uint32_t room = t->extent_room ? 2 * t->extent_room : 16;
		struct host_extent **more = realloc(t->extents, room * sizeof(*more));

		if (!more)
			return STATUS_EXHAUSTED;
		t->extents = more;
		t->extent_room = room;
	}
	e->memory.extent.id = id_next(t);
	place = extent_place(t, e->memory.extent.id);
	memmove(&t->extents[place + 1], &t->extents[place], (t->extent_count - place) * sizeof(*t->extents));
	t->extents[place] = e;
	t->extent_count++;
	e->fresh = true;
	list_append(e);
	return STATUS_OK;
}

/* Adds an extent to the pool. Mutex held on entry and return, free between; p->growing keeps others
 * out. */
static enum status pool_grow(struct host_pool *p)
{
	struct host_tier *t = p->tier;
	struct host_extent *e = NULL;
	struct host_failure failure;
	enum status s;
	uint64_t bytes;
	bool huge;

	if (!host_extent_plan(p, &bytes, &huge))
		return STATUS_EXHAUSTED;
	t->extent_bytes += bytes;
	p->growing = true;
	pthread_mutex_unlock(&t->mutex);
	s = host_extent_make(p, bytes, huge, &e, &failure);
	pthread_mutex_lock(&t->mutex);
	p->growing = false;
	if (s == STATUS_OK)
		s = extent_publish(t, e);
	if (s != STATUS_OK) {
		if (e && t->options.ops)
			host_range_give(&p->range, e->at);
		if (e)
			host_extent_discard(e);
		t->extent_bytes -= bytes;
		t->open_failures++;
		t->failure = failure;
	}
	pthread_cond_broadcast(&t->grown);
	return s;
}

/* Takes the first free slot of an extent that has one, so that what is put in one after the other lies side by side; mutex held. */
static void slot_pop(struct host_extent *e, struct host_slot *out)
{
	uint32_t word = e->free_first / 64;
	uint64_t generation = ++e->pool->tier->generation;

	while (!~e->taken[word])
		word++;
	const uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(~e->taken[word]);

	e->fresh = false;
	e->free_first = i + 1;
	e->cell[i] = (uint32_t)generation;
	e->taken[word] |= 1ull << (i % 64);
	e->used++;
	if (e->used == e->slots)
		list_remove(e);
	*out = (struct host_slot){
		.pool = e->pool,
		.extent = e->memory.extent.id,
		.index = i,
		.offset = i * e->pool->slot_bytes,
		.generation = generation,
	};
	if (e->pool->tier->options.ops)
		out->address = e->memory.device.address + out->offset;
	else
		out->at = e->memory.extent.base + out->offset;
}

uint64_t host_generation(struct host_tier *t)
{
	uint64_t generation;

	pthread_mutex_lock(&t->mutex);
	generation = ++t->generation;
	pthread_mutex_unlock(&t->mutex);
	return generation;
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
	enum status s = STATUS_OK;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += HOST_GROWTH_WAIT_S;
	pthread_mutex_lock(&t->mutex);
	while (p->growing && s == STATUS_OK)
		if (pthread_cond_timedwait(&t->grown, &t->mutex, &until) != 0)
			s = STATUS_EXHAUSTED;
	if (s == STATUS_OK && !has_free(p, slots))
		s = pool_grow(p);
	if (s == STATUS_OK && !p->last) /* used up meanwhile */
		s = STATUS_EXHAUSTED;
	if (s == STATUS_OK)
		*extent = p->last->memory.extent.id;
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
		if (s->index < e->free_first)
			e->free_first = s->index;
		e->used--;
		if (!e->draining && !e->listed)
			list_return(e);
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

		if (e->draining && e->used == 0 && !extent_held_by_any(&e->memory.extent)) {
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

/* The bytes, and a place on a device, are free only when the memory is really back. */
uint32_t host_doomed_free(struct host_tier *t, struct host_extent *doomed)
{
	uint32_t n = 0;

	const struct host_source source = host_source_of(&t->options, false);

	for (struct host_extent *e = doomed; e; e = e->next)
		host_memory_close(&source, &e->memory);
	pthread_mutex_lock(&t->mutex);
	while (doomed) {
		struct host_extent *next = doomed->next;

		t->extent_bytes -= doomed->memory.bytes;
		if (t->options.ops)
			host_range_give(&doomed->pool->range, doomed->at);
		host_extent_free(doomed);
		doomed = next;
		n++;
	}
	pthread_mutex_unlock(&t->mutex);
	return n;
}

struct extent *host_extent(struct host_tier *t, uint32_t id)
{
	struct host_extent *e;

	pthread_mutex_lock(&t->mutex);
	e = extent_find(t, id);
	pthread_mutex_unlock(&t->mutex);
	return e ? &e->memory.extent : NULL;
}

enum status host_extent_device(struct host_tier *t, uint32_t id, struct host_device_extent *out)
{
	enum status s = STATUS_NOT_FOUND;
	struct host_extent *e;
	int fd;

	if (!t->options.ops)
		return s;
	pthread_mutex_lock(&t->mutex);
	e = extent_find(t, id);
	if (e) {
		fd = fcntl(e->memory.device_fd, F_DUPFD_CLOEXEC, 0);
		s = fd >= 0 ? STATUS_OK : STATUS_EXHAUSTED;
		if (s == STATUS_OK)
			*out = (struct host_device_extent){ .fd = fd, .address = e->memory.device.address,
							    .bytes = e->memory.bytes, .at = e->at,
							    .range_bytes = e->pool->range.bytes };
	}
	pthread_mutex_unlock(&t->mutex);
	return s;
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

uint64_t host_unused(struct host_tier *t)
{
	uint64_t bytes;

	pthread_mutex_lock(&t->mutex);
	bytes = t->options.budget_bytes - t->extent_bytes;
	pthread_mutex_unlock(&t->mutex);
	return bytes;
}

void host_usage(struct host_tier *t, struct host_usage *out)
{
	struct host_usage u = { .budget_bytes = t->options.budget_bytes, .huge_pages = true };

	pthread_mutex_lock(&t->mutex);
	u.extent_bytes = t->extent_bytes;
	u.open_failures = t->open_failures;
	u.open_error = t->failure.error;
	memcpy(u.open_why, t->failure.why, sizeof(u.open_why));
	u.extents = t->extent_count;
	u.pools = t->pool_count;
	for (uint32_t i = 0; i < t->extent_count; i++) {
		const struct host_extent *e = t->extents[i];

		if (e->draining)
			u.draining_bytes += e->memory.bytes;
		else
			u.slots += e->slots;
		u.slots_used += e->used;
		u.huge_pages = u.huge_pages && e->memory.extent.page_bytes == EXTENT_HUGE_PAGE_BYTES;
	}
	u.huge_pages = u.huge_pages && u.extents > 0;
	pthread_mutex_unlock(&t->mutex);
	*out = u;
}
