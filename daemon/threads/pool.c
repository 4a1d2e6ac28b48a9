/* The worker threads and their ring of pointers, under one mutex. See threads/pool.h. */
#include "daemon/threads/pool.h"

#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/threads/deadline.h"
#include "store/short_lock.h"
#include "store/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { THREADS_MAX = 64 };

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t more, ended;
	struct work **ring; /* queue_max of them; the oldest at `first` */
	uint32_t queue_max, first, queued, running;
	bool stopping;
	uint64_t done, refused;
	uint32_t threads, live; /* live: those that have not ended */
	pthread_t thread[THREADS_MAX];
};

/* The oldest work, or NULL once stopping and empty. before: the thread has just done one. */
static struct work *take(struct workers *w, bool before)
{
	struct work *work = NULL;

	pthread_mutex_lock(&w->lock);
	w->running -= before;
	w->done += before;
	while (!w->queued && !w->stopping)
		pthread_cond_wait(&w->more, &w->lock);
	if (w->queued) {
		work = w->ring[w->first];
		w->first = (w->first + 1) % w->queue_max;
		w->queued--;
		w->running++;
	}
	pthread_mutex_unlock(&w->lock);
	if (work && work->holder)
		quota_give(work->holder, QUOTA_WORK, 1);
	return work;
}

static void *worker_main(void *arg)
{
	struct workers *w = arg;
	struct work *work;

	cache_thread_enter();
	for (bool before = false; (work = take(w, before)); before = true)
		work->run(work);
	cache_thread_leave();
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

enum status workers_submit(struct workers *w, struct work *work)
{
	enum status s = STATUS_OK;

	pthread_mutex_lock(&w->lock);
	if (w->stopping) {
		s = STATUS_UNAVAILABLE;
	} else if (w->queued == w->queue_max) {
		w->refused++;
		s = STATUS_EXHAUSTED;
	} else {
		w->ring[(w->first + w->queued) % w->queue_max] = work;
		w->queued++;
	}
	pthread_mutex_unlock(&w->lock);
	/* Not with the lock: the thread that wakes up takes it first of all. */
	if (s == STATUS_OK)
		pthread_cond_signal(&w->more);
	return s;
}

enum status workers_submit_for(struct workers *w, struct work *work, struct quota_holder *holder, const char **why)
{
	enum status s = quota_take(holder, QUOTA_WORK, 1, why);

	if (s)
		return s;
	work->holder = holder;
	s = workers_submit(w, work);
	if (s)
		quota_give(holder, QUOTA_WORK, 1);
	if (s == STATUS_EXHAUSTED)
		*why = "too many calls that wait for a worker: the queue is full: try again later, or raise queue_max or workers";
	else if (s)
		*why = "shutting down";
	return s;
}

void workers_look(struct workers *w, struct workers_view *out)
{
	pthread_mutex_lock(&w->lock);
	*out = (struct workers_view){ w->queued, w->running, w->queue_max, w->threads, w->done, w->refused };
	pthread_mutex_unlock(&w->lock);
}
