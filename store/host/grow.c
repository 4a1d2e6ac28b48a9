/* How extents of the host tier come: their size, on a device their place, their memory. See host/host.c. */
#include "store/host/private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void host_extent_free(struct host_extent *e)
{
	if (e)
		free(e->taken);
	free(e);
}

void host_extent_discard(struct host_extent *e)
{
	const struct host_source source = host_source_of(&e->pool->tier->options, false);

	host_memory_close(&source, &e->memory);
	host_extent_free(e);
}

bool host_extent_plan(const struct host_pool *p, uint64_t *bytes, bool *huge)
{
	const struct host_options *o = &p->tier->options;
	const uint64_t granularity = p->tier->granularity, unused = o->budget_bytes - p->tier->extent_bytes;
	uint64_t left = granularity ? unused - unused % granularity : unused; /* what is rounded up fits, too */
	uint64_t wished = min_u64(min_u64(o->extent_bytes, o->budget_bytes / 8), left);
	uint64_t slots = wished / p->slot_bytes;
	uint64_t exact = (slots > 0 ? slots : 1) * p->slot_bytes;
	uint64_t rounded = host_round_up(exact, granularity ? granularity : EXTENT_HUGE_PAGE_BYTES);

	if ((granularity ? rounded : exact) > left)
		return false;
	*huge = !granularity && o->huge_pages && rounded <= left && rounded <= EXTENT_BYTES_MAX;
	*bytes = *huge || granularity ? rounded : exact;
	return true;
}

/* Room for what is known of an extent with all its slots free, without its memory; NULL: no memory. */
static struct host_extent *extent_alloc(struct host_pool *p, uint32_t slots)
{
	struct host_extent *e = calloc(1, sizeof(*e) + slots * sizeof(e->cell[0]));

	if (!e)
		return NULL;
	e->taken = calloc((slots + 63) / 64, sizeof(*e->taken));
	if (!e->taken) {
		free(e);
		return NULL;
	}
	e->pool = p;
	e->slots = slots;
	return e;
}

/* The pool's range is reserved by whoever makes its first extent: twice the budget, so that extents of all sizes find a place. */
static enum status range_reserve(struct host_pool *p, struct host_failure *f)
{
	struct host_tier *t = p->tier;
	const struct host_source source = host_source_of(&t->options, false);
	uint64_t address, bytes = host_round_up(2 * t->options.budget_bytes, t->granularity);
	enum status s;

	if (p->range.bytes)
		return STATUS_OK;
	s = host_memory_reserve(&source, bytes, &address, f);
	if (s != STATUS_OK)
		return s;
	pthread_mutex_lock(&t->mutex);
	p->range.address = address;
	p->range.bytes = bytes;
	pthread_mutex_unlock(&t->mutex);
	return STATUS_OK;
}

/* A place for an extent of a device; without the mutex. */
static enum status place_take(struct host_pool *p, uint64_t bytes, uint64_t *at, struct host_failure *f)
{
	enum status s = range_reserve(p, f);

	if (s != STATUS_OK)
		return s;
	pthread_mutex_lock(&p->tier->mutex);
	s = host_range_take(&p->range, bytes, at);
	pthread_mutex_unlock(&p->tier->mutex);
	if (s != STATUS_OK)
		snprintf(f->why, sizeof(f->why), "no place in the pool's range of addresses");
	return s;
}

static void place_give(struct host_pool *p, uint64_t at)
{
	pthread_mutex_lock(&p->tier->mutex);
	host_range_give(&p->range, at);
	pthread_mutex_unlock(&p->tier->mutex);
}

enum status host_extent_make(struct host_pool *p, uint64_t bytes, bool huge, struct host_extent **out, struct host_failure *f)
{
	const struct host_options *o = &p->tier->options;
	const struct host_source source = host_source_of(o, huge);
	struct host_extent *e = extent_alloc(p, (uint32_t)(bytes / p->slot_bytes));
	enum status s = STATUS_OK;

	*f = (struct host_failure){ 0 };
	if (!e)
		return STATUS_EXHAUSTED;
	if (o->ops)
		s = place_take(p, bytes, &e->at, f);
	if (s != STATUS_OK) {
		host_extent_free(e);
		return s;
	}
	s = host_memory_open(&source, p->range.address + e->at, bytes, bytes, &e->memory, f);
	if (s != STATUS_OK) {
		if (o->ops)
			place_give(p, e->at);
		host_extent_free(e);
		return s;
	}
	assert(o->ops || e->memory.extent.bytes == bytes);
	*out = e;
	return STATUS_OK;
}
