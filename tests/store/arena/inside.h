/* What the tests look at inside an arena, and its users do not. */
#ifndef TERRACE_TESTS_STORE_ARENA_INSIDE_H
#define TERRACE_TESTS_STORE_ARENA_INSIDE_H

#include "store/arena/private.h"

/* How many of its slots are taken. */
static inline uint32_t arena_span_taken(struct arena *a, const struct arena_span *span)
{
	uint32_t n;

	pthread_mutex_lock(&a->mutex);
	n = ((const struct span *)span)->used;
	pthread_mutex_unlock(&a->mutex);
	return n;
}

#endif
