/* The ring's engine without io_uring: a pool of threads. Each thread takes a request, makes its system calls and calls
 * `done`. The pool has no more threads than the depth, so the depth needs no count of its own. Thread i uses cell i of
 * `live`.
 */
#include <stdlib.h>

#include "store/ring/private.h"

enum { THREADS_DEFAULT = 16 };

struct ring_worker {
	struct ring *ring;
	struct ring_live *cell;
	pthread_t thread;
};

struct ring_pool {
	pthread_cond_t work;
	uint32_t idle;             /* sleep in `work`; under the ring's lock */
	uint32_t threads;
	struct ring_worker workers[];
};

static void serve(struct ring *r, struct ring_live *cell, struct ring_request *q)
{
	int error = ring_begin(r, cell, q);

	if (!error) {
		do
			atomic_fetch_add_explicit(&r->counters.submits, 1, memory_order_relaxed);
		while (ring_progress(cell, ring_transfer_here(r, cell), &error));
	}
	ring_end(r, cell, error)->done(q);
}

static void *worker_run(void *arg)
{
	struct ring_worker *w = arg;
	struct ring *r = w->ring;
	struct ring_pool *p = r->pool;
	struct ring_request *cancelled, *q;
	bool closing = false;

	if (r->options.thread_begin)
		r->options.thread_begin(r->options.thread_arg);
	while (!closing) {
		q = NULL;
		pthread_mutex_lock(&r->lock);
		while (!(cancelled = ring_take_cancelled(r)) && !(q = ring_take(r)) && !r->closing) {
			p->idle++;
			pthread_cond_wait(&p->work, &r->lock);
			p->idle--;
		}
		closing = !cancelled && !q;
		pthread_mutex_unlock(&r->lock);
		if (cancelled)
			ring_complete_cancelled(cancelled);
		else if (q)
			serve(r, w->cell, q);
	}
	if (r->options.thread_end)
		r->options.thread_end(r->options.thread_arg);
	ring_thread_ended(r);
	return NULL;
}

static void threads_leave(struct ring *r)
{
	struct ring_pool *p = r->pool;

	pthread_cond_broadcast(&p->work);
	for (uint32_t i = 0; i < p->threads; i++)
		pthread_detach(p->workers[i].thread);
}

static void threads_stop(struct ring *r)
{
	struct ring_pool *p = r->pool;

	pthread_cond_broadcast(&p->work);
	for (uint32_t i = 0; i < p->threads; i++)
		pthread_join(p->workers[i].thread, NULL);
	pthread_cond_destroy(&p->work);
	free(p);
}

static enum status threads_start(struct ring *r)
{
	uint32_t n = r->options.threads ? r->options.threads : THREADS_DEFAULT;
	struct ring_pool *p;

	if (n > r->options.depth)
		n = r->options.depth;
	p = calloc(1, sizeof(*p) + n * sizeof(p->workers[0]));
	if (!p)
		return STATUS_EXHAUSTED;
	pthread_cond_init(&p->work, NULL);
	r->pool = p;
	for (; p->threads < n; p->threads++) {
		struct ring_worker *w = &p->workers[p->threads];

		w->ring = r;
		w->cell = &r->live[p->threads];
		if (ring_thread_start(r, &w->thread, worker_run, w)) {
			pthread_mutex_lock(&r->lock);
			r->closing = true;
			pthread_mutex_unlock(&r->lock);
			threads_stop(r);
			return STATUS_EXHAUSTED;
		}
	}
	return STATUS_OK;
}

static uint32_t threads_sleepers(struct ring *r, uint32_t requests)
{
	uint32_t wanted = r->closing ? r->pool->threads : requests ? requests : 1;

	return wanted < r->pool->idle ? wanted : r->pool->idle;
}

static void threads_wake(struct ring *r, uint32_t threads)
{
	while (threads--)
		pthread_cond_signal(&r->pool->work);
}

static uint64_t threads_cpu_us(struct ring *r)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < r->pool->threads; i++)
		all += ring_thread_cpu_us(r->pool->workers[i].thread);
	return all;
}

const struct ring_engine_calls ring_threads_engine = {
	.start = threads_start,
	.stop = threads_stop,
	.leave = threads_leave,
	.sleepers = threads_sleepers,
	.wake = threads_wake,
	.cpu_us = threads_cpu_us,
};
