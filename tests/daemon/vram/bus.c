#include "tests/daemon/vram/bus.h"

#include "store/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { WAYS = 2, WAITING = 16 }; /* more than the daemon has under way */

struct way {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t come;
	struct { struct device_copy *copy; uint64_t come_ns; } queue[WAITING];
	uint32_t first, end;
	bool over;
};

static struct way ways[WAYS];
static double ns_a_byte;

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
	const struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* From then on; when it has ended, by the bus's time, which does not wait for a processor. */
static uint64_t run(struct device_copy *c, uint64_t begun)
{
	const double part_ns = ns_a_byte * (double)c->part_bytes * c->count;
	const uint64_t ended = begun + (uint64_t)(part_ns * c->parts);

	for (uint32_t p = 1; c->progress && p <= c->parts; p++) {
		sleep_until(begun + (uint64_t)(part_ns * p));
		atomic_store((_Atomic uint32_t *)sim_at(c->progress), c->progress_base + p);
	}
	sleep_until(ended);
	c->done(c, STATUS_OK); /* it is gone */
	return ended;
}

static void *run_all(void *arg)
{
	struct way *w = arg;
	uint64_t ended = 0;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (w->first == w->end && !w->over)
			pthread_cond_wait(&w->come, &w->lock);
		if (w->first == w->end)
			break;
		struct device_copy *c = w->queue[w->first % WAITING].copy;
		const uint64_t come_ns = w->queue[w->first++ % WAITING].come_ns;

		pthread_mutex_unlock(&w->lock);
		ended = run(c, come_ns > ended ? come_ns : ended);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

void bus_open(double gb_s)
{
	ns_a_byte = 1 / gb_s;
	for (int i = 0; i < WAYS; i++) {
		struct way *w = &ways[i];

		*w = (struct way){ .first = 0 };
		pthread_mutex_init(&w->lock, NULL);
		pthread_cond_init(&w->come, NULL);
		ck_assert_int_eq(pthread_create(&w->thread, NULL, run_all, w), 0);
	}
}

void bus_close(void)
{
	for (int i = 0; i < WAYS; i++) {
		struct way *w = &ways[i];

		pthread_mutex_lock(&w->lock);
		w->over = true;
		pthread_cond_signal(&w->come);
		pthread_mutex_unlock(&w->lock);
		pthread_join(w->thread, NULL);
		pthread_mutex_destroy(&w->lock);
		pthread_cond_destroy(&w->come);
	}
}

enum status bus_copy(struct device *d, struct device_copy *c, const char **why)
{
	struct way *w = &ways[c->way];

	(void)d;
	(void)why;
	ck_assert_int_lt(c->way, WAYS);
	pthread_mutex_lock(&w->lock);
	ck_assert_uint_lt(w->end - w->first, WAITING);
	w->queue[w->end % WAITING].come_ns = clock_ns();
	w->queue[w->end++ % WAITING].copy = c;
	pthread_cond_signal(&w->come);
	pthread_mutex_unlock(&w->lock);
	return STATUS_OK;
}
