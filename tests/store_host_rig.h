/* What the tests of the host tier share, whatever memory it is over. */
#ifndef TERRACE_TESTS_STORE_HOST_RIG_H
#define TERRACE_TESTS_STORE_HOST_RIG_H

#include "store/host.h"

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

#endif
