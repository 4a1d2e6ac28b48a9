/* The two clocks: time that only goes on, and the time of day. A leaf of the store. */
#ifndef TERRACE_STORE_CLOCK_H
#define TERRACE_STORE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Microseconds since about the machine's start. This clock cannot be set. */
static inline uint64_t clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Milliseconds since 1970: for what is read by another run, or by people. */
static inline uint64_t clock_unix_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

#endif
