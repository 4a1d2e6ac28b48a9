/* What the tests of the arena share, whatever memory it is over. */
#ifndef TERRACE_TESTS_STORE_ARENA_RIG_H
#define TERRACE_TESTS_STORE_ARENA_RIG_H

#include "store/arena/arena.h"

#include <check.h>
#include <stdlib.h>

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

#ifdef TERRACE_SANITIZED
enum { SCALE = 10 };
#else
enum { SCALE = 1 };
#endif

/* Marsaglia's xorshift64; *rng is not 0. */
static inline uint64_t next(uint64_t *rng)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

static inline struct arena *arena_with(const struct arena_options *o)
{
	struct arena *a;

	ck_assert_int_eq(arena_create(o, &a), STATUS_OK);
	return a;
}

/* Of exactly that stride: of no test here has a tenant another class that is just a little larger. */
static inline struct arena_class *class_of_tenant(struct arena *a, uint32_t tenant, uint64_t stride)
{
	struct arena_class *k;

	ck_assert_int_eq(arena_class_for(a, tenant, stride, &k), STATUS_OK);
	ck_assert_uint_eq(arena_class_stride(k), stride);
	return k;
}

/* Of tenant 1. */
static inline struct arena_class *class_of(struct arena *a, uint64_t stride)
{
	return class_of_tenant(a, 1, stride);
}

static inline struct arena_usage usage_of(struct arena *a)
{
	struct arena_usage u;

	arena_usage(a, &u);
	return u;
}

static inline struct arena_class_usage class_usage_of(struct arena_class *k)
{
	struct arena_class_usage u;

	arena_class_usage(k, &u);
	return u;
}

/* A free slot, of new pages if there is none; statuses of arena_prepare, and MISS: what is left is the reserve. */
static inline enum status slot_take(struct arena_class *k, bool reserve, struct arena_slot *out)
{
	struct arena_growth g;
	enum status s;

	while ((s = arena_take(k, reserve, out, NULL)) == STATUS_MISS)
		if ((s = arena_prepare(k, &g)) != STATUS_OK)
			break;
	return s;
}

static inline struct arena_slot taken(struct arena_class *k)
{
	struct arena_slot s;

	ck_assert_int_eq(slot_take(k, false, &s), STATUS_OK);
	return s;
}

/* Takes until nothing is left but the reserve; how many. */
static inline uint32_t take_all(struct arena_class *k, struct arena_slot *slots, uint32_t room)
{
	uint32_t n = 0;

	while (n < room && slot_take(k, false, &slots[n]) == STATUS_OK)
		n++;
	ck_assert_uint_lt(n, room);
	return n;
}

static inline int run_cases(const char *name, TCase **cases, uint32_t n)
{
	Suite *suite = suite_create(name);
	SRunner *runner;
	int failed;

	for (uint32_t i = 0; i < n; i++)
		suite_add_tcase(suite, cases[i]);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
