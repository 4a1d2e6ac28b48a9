/* Deadlines of waits on a condition, by the monotonic clock. */
#ifndef TERRACE_DAEMON_THREADS_DEADLINE_H
#define TERRACE_DAEMON_THREADS_DEADLINE_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
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

/* Waits for *done, which `lock` guards and whose change signals `cond`, for at most wait_us. Returns *done. Takes and
 * leaves the lock. */
static inline bool deadline_wait(pthread_cond_t *cond, pthread_mutex_t *lock, const bool *done, uint64_t wait_us)
{
	const struct timespec until = deadline_in(wait_us);
	bool now;

	pthread_mutex_lock(lock);
	while (!*done && pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT)
		;
	now = *done;
	pthread_mutex_unlock(lock);
	return now;
}

#endif
