/* The worker threads and their ring of pointers, under one mutex. See threads/pool.h.
 *
 * A worker that finds no work may poll for a while before it sleeps (workers_poll): to wake it costs the submitter a
 * system call, and delays the work by the time that this takes. `pollers` are the workers that poll; `spare` are those
 * of them that no submitter counts on yet. A submitter that finds a spare one counts on it, and wakes no other. Each
 * worker takes queued work when it stops polling. So the worker that was counted on has found the work, or another
 * worker has taken it. How long workers poll follows from how long it took lately until work came.
 */
#include "daemon/threads/pool.h"

#include "daemon/threads/deadline.h"
#include "store/clock.h"
#include "store/index_thread.h"
#include "store/short_lock.h"
#include "store/status.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { THREADS_MAX = 64, LOOK_US_MAX = 100, LOOKS_A_CLOCK = 16 };

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t more, ended;
	struct work **ring; /* queue_max of them; the oldest at `first` */
	uint32_t queue_max, first, running;
	_Atomic uint32_t queued; /* written with the lock */
	_Atomic bool stopping;   /* the same */
	uint32_t pollers_max, pollers, spare;
	uint64_t look_us;        /* how long they look */
	uint64_t idle_us;        /* when a worker last found nothing */
	uint64_t done, refused;
	uint32_t threads, live; /* live: those that have not ended */
	pthread_t thread[THREADS_MAX];
};

/* Learns, when work comes, how long it pays to poll for the next. With the lock. */
static void look_learn(struct workers *w)
{
	const uint64_t waited_us = clock_us() - w->idle_us, less = w->look_us - (w->look_us + 3) / 4;

	if (waited_us > LOOK_US_MAX / 2)
		w->look_us = less;
	else if (2 * waited_us >= less)
		w->look_us = 2 * waited_us + 1;
	else
		w->look_us = less;
}

static bool has_news(struct workers *w)
{
	return atomic_load_explicit(&w->queued, memory_order_relaxed) ||
	       atomic_load_explicit(&w->stopping, memory_order_relaxed);
}

static void pause_once(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}

static void look_until(struct workers *w, uint64_t until_us)
{
	while (!has_news(w) && clock_us() < until_us) {
		for (int i = 0; i < LOOKS_A_CLOCK && !has_news(w); i++)
			pause_once();
		sched_yield();
	}
}

/* Polls for work before the thread sleeps, if it may. With the lock, which is let go meanwhile. False: it did not poll,
 * or no work came. */
static bool look_first(struct workers *w)
{
	if (w->pollers == w->pollers_max || !w->look_us)
		return false;
	const uint64_t until_us = w->idle_us + w->look_us;

	w->pollers++;
	w->spare++;
	pthread_mutex_unlock(&w->lock);
	look_until(w, until_us);
	pthread_mutex_lock(&w->lock);
	w->pollers--;
	if (w->spare > w->pollers)
		w->spare = w->pollers;
	return has_news(w);
}

/* Waits until there is work or the pool is stopped. With the lock, which is let go meanwhile. */
static void await_news(struct workers *w)
{
	if (w->pollers_max)
		w->idle_us = clock_us();
	if (!look_first(w))
		while (!has_news(w))
			pthread_cond_wait(&w->more, &w->lock);
}

/* The oldest work, or NULL once stopping and empty. before: the thread has just done one. */
static struct work *take(struct workers *w, bool before)
{
	struct work *work = NULL;

	pthread_mutex_lock(&w->lock);
	w->running -= before;
	w->done += before;
	while (!has_news(w))
		await_news(w);
	if (w->queued) {
		work = w->ring[w->first];
		w->first = (w->first + 1) % w->queue_max;
		w->queued--;
		w->running++;
	}
	pthread_mutex_unlock(&w->lock);
	if (work && work->taken)
		work->taken(work);
	return work;
}

static void *worker_main(void *arg)
{
	struct workers *w = arg;
	struct work *work;

	index_thread_enter();
	for (bool before = false; (work = take(w, before)); before = true)
		work->run(work);
	index_thread_leave();
	pthread_mutex_lock(&w->lock);
	w->live--;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static bool thread_start(struct workers *w)
{
	if (pthread_create(&w->thread[w->threads], NULL, worker_main, w))
		return false;
	w->threads++;
	return true;
}

enum status workers_create(uint32_t threads, uint32_t queue_max, struct workers **out)
{
	if (!threads || threads > THREADS_MAX || !queue_max)
		return STATUS_INVALID;
	struct workers *w = calloc(1, sizeof *w);

	if (!w)
		return STATUS_EXHAUSTED;
	w->ring = calloc(queue_max, sizeof *w->ring);
	if (!w->ring) {
		free(w);
		return STATUS_EXHAUSTED;
	}
	w->queue_max = queue_max;
	short_lock_init(&w->lock);
	pthread_cond_init(&w->more, NULL);
	deadline_cond_init(&w->ended);
	w->live = threads;
	while (w->threads < threads) {
		if (!thread_start(w)) {
			pthread_mutex_lock(&w->lock);
			w->live -= threads - w->threads;
			pthread_mutex_unlock(&w->lock);
			workers_destroy(w);
			return STATUS_INTERNAL;
		}
	}
	*out = w;
	return STATUS_OK;
}

bool workers_stop(struct workers *w, uint64_t wait_us)
{
	const struct timespec until = deadline_in(wait_us);
	bool ended;

	if (!w)
		return true;
	pthread_mutex_lock(&w->lock);
	w->stopping = true;
	pthread_cond_broadcast(&w->more);
	while (w->live && !pthread_cond_timedwait(&w->ended, &w->lock, &until))
		continue;
	ended = !w->live;
	pthread_mutex_unlock(&w->lock);
	return ended;
}

void workers_destroy(struct workers *w)
{
	if (!w)
		return;
	workers_stop(w, UINT64_MAX);
	for (uint32_t i = 0; i < w->threads; i++)
		pthread_join(w->thread[i], NULL);
	pthread_cond_destroy(&w->ended);
	pthread_cond_destroy(&w->more);
	pthread_mutex_destroy(&w->lock);
	free(w->ring);
	free(w);
}

void workers_poll(struct workers *w, uint32_t most)
{
	pthread_mutex_lock(&w->lock);
	w->pollers_max = most;
	pthread_mutex_unlock(&w->lock);
}

enum status workers_submit(struct workers *w, struct work *work)
{
	enum status s = STATUS_OK;
	bool found = false;

	pthread_mutex_lock(&w->lock);
	if (w->stopping) {
		s = STATUS_UNAVAILABLE;
	} else if (w->queued == w->queue_max) {
		w->refused++;
		s = STATUS_EXHAUSTED;
	} else {
		w->ring[(w->first + w->queued) % w->queue_max] = work;
		w->queued++;
		found = w->spare > 0;
		w->spare -= found;
		if (w->pollers_max)
			look_learn(w);
	}
	pthread_mutex_unlock(&w->lock);
	/* Not with the lock: the thread that wakes up takes it first of all. */
	if (s == STATUS_OK && !found)
		pthread_cond_signal(&w->more);
	return s;
}

void workers_look(struct workers *w, struct workers_view *out)
{
	pthread_mutex_lock(&w->lock);
	*out = (struct workers_view){ w->queued, w->running, w->queue_max, w->threads, w->done, w->refused };
	pthread_mutex_unlock(&w->lock);
}
