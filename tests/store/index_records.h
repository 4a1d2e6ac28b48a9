/* How many live records an index has, by a walk over all of them. */
#ifndef TERRACE_TESTS_STORE_INDEX_RECORDS_H
#define TERRACE_TESTS_STORE_INDEX_RECORDS_H

#include "store/index.h"

static inline uint64_t index_records(struct index *x)
{
	struct index_walk w = { .place = 0 };
	uint64_t n = 0;

	index_read_lock();
	while (index_walk_next(x, &w))
		n++;
	index_read_unlock();
	return n;
}

#endif
