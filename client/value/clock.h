/* Deadlines: absolute microseconds of CLOCK_MONOTONIC. */
#ifndef TERRACE_CLIENT_VALUE_CLOCK_H
#define TERRACE_CLIENT_VALUE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLIENT_TIMEOUT_MAX_US (86400ull * 1000000) /* a day stands for "long": nothing waits for ever */

static inline uint64_t client_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static inline uint64_t client_deadline_us(uint64_t timeout_us)
{
	return client_now_us() + (timeout_us < CLIENT_TIMEOUT_MAX_US ? timeout_us : CLIENT_TIMEOUT_MAX_US);
}

/* The deadline as pthread_cond_timedwait takes it. */
static inline struct timespec client_time_of(uint64_t deadline_us)
{
	return (struct timespec){(time_t)(deadline_us / 1000000), (long)(deadline_us % 1000000) * 1000};
}

/* Milliseconds left, rounded up, for poll(). */
static inline int client_left_ms(uint64_t deadline_us)
{
	uint64_t now = client_now_us();

	return now < deadline_us ? (int)((deadline_us - now + 999) / 1000) : 0;
}

#endif
