/* The thread pool: parts are handed out under one lock, which is cheap since a part is worth a fraction of a millisecond. */
#include "workers.h"

#include <sched.h>
#include <string.h>

static uint32_t cpus(void)
{
	cpu_set_t set;
	int count = 1;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		count = CPU_COUNT(&set);
	return count < 1 ? 1 : count > WORKERS_MAX ? WORKERS_MAX : (uint32_t)count;
}

/* Takes parts until there are none; the lock is held on entry and on return. */
static void take_parts(struct workers *w)
{
	while (w->next < w->parts) {
		uint32_t part = w->next++;

		w->busy++;
		pthread_mutex_unlock(&w->lock);
		w->task(w->arg, part);
		pthread_mutex_lock(&w->lock);
		w->busy--;
	}
	if (w->busy == 0)
		pthread_cond_signal(&w->end);
}

static void *work(void *arg)
{
	struct workers *w = arg;

	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		if (w->next < w->parts)
			take_parts(w);
		else
			pthread_cond_wait(&w->begin, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

bool workers_init(struct workers *w, uint32_t count, struct fault *fault)
{
	memset(w, 0, sizeof(*w));
	w->count = count ? count : cpus();
	if (w->count > WORKERS_MAX)
		return fault_set(fault, "at most %d threads", WORKERS_MAX);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->begin, NULL);
	pthread_cond_init(&w->end, NULL);
	for (; w->running + 1 < w->count; w->running++) {
		int error = pthread_create(&w->threads[w->running], NULL, work, w);

		if (error != 0) {
			workers_fini(w);
			return fault_set(fault, "cannot start a thread: %s", strerror(error));
		}
	}
	return true;
}

void workers_fini(struct workers *w)
{
	if (w->count == 0)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->begin);
	pthread_mutex_unlock(&w->lock);
	for (uint32_t i = 0; i < w->running; i++)
		pthread_join(w->threads[i], NULL);
	pthread_cond_destroy(&w->begin);
	pthread_cond_destroy(&w->end);
	pthread_mutex_destroy(&w->lock);
	w->count = 0;
}

void workers_run(struct workers *w, uint32_t parts, void (*task)(void *arg, uint32_t part), void *arg)
{
	if (w->count == 1 || parts == 1) {
		for (uint32_t part = 0; part < parts; part++)
			task(arg, part);
		return;
	}
	pthread_mutex_lock(&w->lock);
	w->task = task;
	w->arg = arg;
	w->parts = parts;
	w->next = 0;
	pthread_cond_broadcast(&w->begin);
	take_parts(w);
	while (w->busy > 0)
		pthread_cond_wait(&w->end, &w->lock);
	pthread_mutex_unlock(&w->lock);
}
