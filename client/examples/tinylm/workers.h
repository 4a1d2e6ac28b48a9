/* A small thread pool: one task at a time, split into parts. */
#ifndef TINYLM_WORKERS_H
#define TINYLM_WORKERS_H

#include "fault.h"

#include <pthread.h>
#include <stdint.h>

enum { WORKERS_MAX = 64 };

/* Owned by the thread that calls workers_run; the others only take parts from it. */
struct workers {
	pthread_t threads[WORKERS_MAX];
	uint32_t count; /* threads that compute, the caller of workers_run among them */
	uint32_t running; /* threads that were started */
	pthread_mutex_t lock;
	pthread_cond_t begin, end;
	void (*task)(void *arg, uint32_t part);
	void *arg;
	uint32_t parts, next, busy; /* next: the first part not taken; busy: parts taken and not finished */
	bool stop;
};

/* count: 1 to WORKERS_MAX; 0 takes the number of CPUs this process may use. */
bool workers_init(struct workers *w, uint32_t count, struct fault *fault);
void workers_fini(struct workers *w);

/* Calls task(arg, part) once for each part below `parts`, on the threads of the pool and on this one, and returns when all
 * are done. A task must not call workers_run on the same pool. */
void workers_run(struct workers *w, uint32_t parts, void (*task)(void *arg, uint32_t part), void *arg);

#endif
