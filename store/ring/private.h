/* What the ring's queues (ring/ring.c) and its two engines share. An engine takes requests with ring_take, gives them
 * to the kernel, tells each transfer's end to ring_progress, ends each request with ring_end and then calls its `done`.
 *
 * A request under way has a cell (struct ring_live), so that other threads can see its age without touching the
 * request, which belongs to its submitter again once `done` is called. A cell belongs to one thread of the engine.
 */
#ifndef TERRACE_STORE_RING_PRIVATE_H
#define TERRACE_STORE_RING_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/ring/ring.h"

enum {
	RING_TRIES_MAX = 1000,     /* of EINTR and EAGAIN, a request */
	RING_REFUSAL_BYTES = 160,
};

enum ring_state { RING_IDLE_STATE, RING_WAITING, RING_GIVEN }; /* ring_request.state, under the lock */

struct ring_queue {
	struct ring_request *first, *last;
	uint32_t passed;           /* how often in a row another queue's request was taken while one waited here */
};

struct ring_live {
	_Atomic uint64_t started_us; /* 0: the cell is free */
	struct ring_request *request;
	uint32_t most;             /* of the first transfer (a fault); 0: no bound */
	uint32_t tries;
};

struct ring_buffer {
	uint8_t *base;             /* NULL: free */
	uint64_t bytes;
};

struct ring_counters {
	_Atomic uint64_t reads, writes, syncs, read_bytes, write_bytes, failures, submits;
	_Atomic uint32_t buffers, buffers_refused;
	_Atomic bool files_refused;
};

/* What an engine must do. All functions but `sleepers` are called without the lock. */
struct ring_engine_calls {
	/* Starts the threads. Not OK: r->refusal says why, nothing is left behind. */
	enum status (*start)(struct ring *r);
	/* Frees the engine. Called after r->closing was set, every thread was woken, and the last one has ended
	 * (ring_thread_ended). */
	void (*stop)(struct ring *r);
	/* Called instead of `stop` when some threads have not ended in time; these threads are left running. */
	void (*leave)(struct ring *r);
	/* How many threads to wake for `requests` new requests (0: for something else than a request). Called under the
	 * lock; then `wake` is called for so many threads, without the lock. */
	uint32_t (*sleepers)(struct ring *r, uint32_t requests);
	void (*wake)(struct ring *r, uint32_t threads);
	/* Puts fd (-1: none) or memory (bytes 0: none) into the kernel's tables. False: refused. NULL: the engine has
	 * no tables. */
	bool (*file_set)(struct ring *r, uint32_t file, int fd);
	bool (*buffer_set)(struct ring *r, uint32_t buffer, void *base, uint64_t bytes);
	uint64_t (*cpu_us)(struct ring *r);
};
extern const struct ring_engine_calls ring_uring_engine, ring_threads_engine;

struct ring_uring;
struct ring_pool;

struct ring {
	/* Constant after ring_create: */
	struct ring_options options;
	struct ring_calls calls;
	enum ring_engine engine;
	const struct ring_engine_calls *engine_calls;
	char refusal[RING_REFUSAL_BYTES];
	union {
		struct ring_uring *uring;
		struct ring_pool *pool;
	};
	/* Under the lock: */
	pthread_mutex_t lock;
	struct ring_queue queues[RING_PRIORITIES];
	struct ring_queue cancelled; /* cancelled, and `done` not called yet */
	uint32_t waiting;          /* in `queues` */
	bool closing;
	uint32_t threads;          /* threads that run */
	pthread_cond_t ended;      /* a thread has ended */
	int files[RING_FILES_MAX]; /* descriptor + 1; 0: free */
	struct ring_buffer *buffers; /* RING_BUFFERS_MAX, or NULL without tables */
	/* Any thread: */
	_Atomic uint32_t under_way;
	struct ring_counters counters;
	struct ring_live live[RING_DEPTH_MAX];
};

/* The next waiting request by priority, or NULL. Under the lock. */
struct ring_request *ring_take(struct ring *r);
/* All requests that were cancelled, and with `closing` all that wait, linked by `next`. Under the lock. */
struct ring_request *ring_take_cancelled(struct ring *r);
/* Calls `done` of each request in the list, with CANCELLED. */
void ring_complete_cancelled(struct ring_request *first);

/* Puts a taken request into a free cell and asks ring_calls.fault: 0, or the errno that the request must be completed
 * with. */
int ring_begin(struct ring *r, struct ring_live *cell, struct ring_request *q);
/* Bytes of the next transfer. */
uint32_t ring_transfer_bytes(const struct ring_live *cell);
/* Makes the next transfer (or the sync) on the calling thread. Returns bytes or -errno. */
int64_t ring_transfer_here(struct ring *r, const struct ring_live *cell);
/* Handles the result (bytes or -errno) of a transfer. True: the request goes on, from request->progress. False: the
 * request is complete, with *error (0: well). */
bool ring_progress(struct ring_live *cell, int64_t result, int *error);
/* Frees the cell and counts the request. Returns the request, whose `done` the engine then calls. */
struct ring_request *ring_end(struct ring *r, struct ring_live *cell, int error);

/* Starts a thread of the ring with all signals blocked. ring_thread_ended is the last call that the thread makes. */
enum status ring_thread_start(struct ring *r, pthread_t *thread, void *(*run)(void *), void *arg);
void ring_thread_ended(struct ring *r);
/* CPU time that a thread has used, which has not been joined. */
uint64_t ring_thread_cpu_us(pthread_t thread);

#endif
