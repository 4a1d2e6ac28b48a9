/* What the tests of the host tier share, whatever memory it is over. */
#ifndef TERRACE_TESTS_STORE_HOST_RIG_H
#define TERRACE_TESTS_STORE_HOST_RIG_H

#include "store/host/private.h"

#include <check.h>

/* Marsaglia's xorshift64; *rng is not 0. */
static inline uint64_t next(uint64_t *rng)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

static inline struct host_tier *tier_with(const struct host_options *o)
{
	struct host_tier *t;

	ck_assert_int_eq(host_create(o, &t), STATUS_OK);
	return t;
}

/* Of tenant 1. */
static inline struct host_pool *pool_of(struct host_tier *t, uint64_t layout, uint64_t slot_bytes)
{
	struct host_pool *p;

	ck_assert_int_eq(host_pool_get(t, 1, layout, slot_bytes, &p), STATUS_OK);
	return p;
}

static inline struct host_usage usage_of(struct host_tier *t)
{
	struct host_usage u;

	host_usage(t, &u);
	return u;
}

/* A free slot, of a new extent if there is none; statuses of host_pool_prepare. */
static inline enum status slot_take(struct host_pool *p, struct host_slot *out)
{
	enum status s;
	uint32_t extent;

	while ((s = host_slot_try(p, out)) == STATUS_MISS)
		if ((s = host_pool_prepare(p, 1, &extent)) != STATUS_OK)
			break;
	return s;
}

/* Frees the drained extents that nobody holds: how many. */
static inline uint32_t drain_poll(struct host_tier *t)
{
	return host_doomed_free(t, host_doomed_take(t));
}

/* Ids of a pool's extents that are not draining, oldest first, `max` at most; returns how many there are. */
static inline uint32_t extents_of(struct host_pool *p, uint32_t *ids, uint32_t max)
{
	struct host_tier *t = p->tier;
	uint32_t n = 0;

	pthread_mutex_lock(&t->mutex);
	for (uint32_t i = 0; i < t->extent_count; i++) {
		if (t->extents[i]->pool != p || t->extents[i]->draining)
			continue;
		if (n < max)
			ids[n] = t->extents[i]->memory.extent.id;
		n++;
	}
	pthread_mutex_unlock(&t->mutex);
	return n;
}

#endif
