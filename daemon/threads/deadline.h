/* Deadlines of waits on a condition, by the monotonic clock. */
#ifndef TERRACE_DAEMON_THREADS_DEADLINE_H
#define TERRACE_DAEMON_THREADS_DEADLINE_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* wait_us from now; UINT64_MAX: later than anything. For conditions of deadline_cond_init alone. */
static inline struct timespec deadline_in(uint64_t wait_us)
{
	const uint64_t s = wait_us / 1000000, most = 1u << 30;
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += (time_t)(s < most ? s : most);
	t.tv_nsec += (long)(wait_us % 1000000) * 1000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}

static inline void deadline_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

#endif
