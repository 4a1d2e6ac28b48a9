/* The clock by which the example measures. */
#ifndef TINYLM_CLOCK_H
#define TINYLM_CLOCK_H

#include <time.h>

/* The seconds since a fixed moment. */
static inline double clock_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
