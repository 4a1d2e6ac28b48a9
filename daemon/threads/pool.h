/* Worker threads for work that would hold up the rpc thread: checksums, copies, scrubs.
 *
 * The queue is bounded, and submitting never waits: if the queue is full it answers EXHAUSTED, which the caller passes
 * on. A struct work is embedded in its owner. It runs exactly once per accepted submit, on a worker, in the order of
 * submission. Every worker enters the index (store/index.h: index_thread_enter), so that work may look blocks up.
 */
#ifndef TERRACE_DAEMON_THREADS_POOL_H
#define TERRACE_DAEMON_THREADS_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct quota_holder;
struct workers;

struct work {
	void (*run)(struct work *w); /* may submit `w` again, or free what it is part of */
	/* The worker calls it before `run`: the work has left the queue. NULL: nothing to do then. */
	void (*taken)(struct work *w);
	struct quota_holder *holder; /* for `taken`: whose share the place in the queue is (block/quota.h) */
};

/* threads 1 to 64. INTERNAL: a thread could not be made. */
enum status workers_create(uint32_t threads, uint32_t queue_max, struct workers **out);
/* Lets `most` workers at a time poll for the next work for up to a tenth of a millisecond before they sleep. Until this
 * is called, none does. For machines with processors to spare. */
void workers_poll(struct workers *w, uint32_t most);
/* Runs what is queued and ends the threads. False: one is in a work that has not returned within wait_us; then only
 * workers_look and workers_stop may be called. By one thread. NULL is fine. */
bool workers_stop(struct workers *w, uint64_t wait_us);
/* Runs what is queued, ends the threads, however long that takes, and frees the pool. NULL is fine. */
void workers_destroy(struct workers *w);

/* Any thread. EXHAUSTED: the queue is full. UNAVAILABLE: being stopped. */
enum status workers_submit(struct workers *w, struct work *work);

struct workers_view {
	uint32_t queued, running, queue_max, threads;
	uint64_t done, refused;
};
void workers_look(struct workers *w, struct workers_view *out);

#endif
