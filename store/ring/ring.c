/* The ring's queues, tables and counters: the common part of both engines.
 *
 * One mutex guards the queues. It is held for a few instructions a request; no system call is made under it. A thread
 * that adds work asks the engine, still under the lock, how many sleeping threads to wake, and wakes them after the
 * lock is released. A running thread looks at the queues again before it sleeps, so it needs no wake.
 */
#include "store/ring/ring.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/clock.h"
#include "store/ring/private.h"
#include "store/shortage.h"

#define BYTES_MAX (1u << 30)

static _Thread_local char last_refusal[RING_REFUSAL_BYTES];

enum status ring_thread_start(struct ring *r, pthread_t *thread, void *(*run)(void *), void *arg)
{
	sigset_t all, before;
	int error;

	pthread_mutex_lock(&r->lock);
	r->threads++;
	pthread_mutex_unlock(&r->lock);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		ring_thread_ended(r);
	return error ? STATUS_EXHAUSTED : STATUS_OK;
}

void ring_thread_ended(struct ring *r)
{
	pthread_mutex_lock(&r->lock);
	r->threads--;
	pthread_cond_signal(&r->ended);
	pthread_mutex_unlock(&r->lock);
}

uint64_t ring_thread_cpu_us(pthread_t thread)
{
	struct timespec t;
	clockid_t clock;

	if (pthread_getcpuclockid(thread, &clock) || clock_gettime(clock, &t))
		return 0;
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* ---- queues ---- */

static void queue_add(struct ring_queue *queue, struct ring_request *q)
{
	q->next = NULL;
	q->prev = queue->first ? queue->last : NULL;
	if (q->prev)
		q->prev->next = q;
	else
		queue->first = q;
	queue->last = q;
}

/* Removes a request that waits in this queue. */
static void queue_remove(struct ring_queue *queue, struct ring_request *q)
{
	if (q->prev)
		q->prev->next = q->next;
	else
		queue->first = q->next;
	if (q->next)
		q->next->prev = q->prev;
	else
		queue->last = q->prev;
	if (!queue->first)
		queue->passed = 0;
}

static struct ring_request *queue_take(struct ring_queue *queue)
{
	struct ring_request *q = queue->first;

	if (q)
		queue_remove(queue, q);
	return q;
}

/* Which queue is next: the highest that has something, or a lower one that was passed over RING_PATIENCE times.
 * RING_PRIORITIES: none. */
static int queue_next(struct ring *r)
{
	int first = 0, next;

	while (first < RING_PRIORITIES && !r->queues[first].first)
		first++;
	next = first;
	for (int i = first + 1; i < RING_PRIORITIES; i++)
		if (r->queues[i].first && ++r->queues[i].passed > RING_PATIENCE && next == first)
			next = i;
	return next;
}

struct ring_request *ring_take(struct ring *r)
{
	const int next = queue_next(r);
	struct ring_request *q = NULL;

	if (next < RING_PRIORITIES) {
		q = queue_take(&r->queues[next]);
		r->queues[next].passed = 0;
		q->state = RING_GIVEN;
		r->waiting--;
		atomic_fetch_add_explicit(&r->under_way, 1, memory_order_relaxed);
	}
	return q;
}

static void cancel_one(struct ring *r, struct ring_request *q)
{
	q->state = RING_IDLE_STATE;
	r->waiting--;
	queue_add(&r->cancelled, q);
}

struct ring_request *ring_take_cancelled(struct ring *r)
{
	struct ring_request *first, *q;

	for (int i = 0; r->closing && i < RING_PRIORITIES; i++)
		while ((q = queue_take(&r->queues[i])))
			cancel_one(r, q);
	first = r->cancelled.first;
	r->cancelled.first = NULL;
	return first;
}

void ring_complete_cancelled(struct ring_request *first)
{
	struct ring_request *next;

	for (; first; first = next) {
		next = first->next;
		first->status = STATUS_CANCELLED;
		first->error = 0;
		first->done(first);
	}
}

static bool in_buffer(const struct ring *r, const struct ring_request *q)
{
	const struct ring_buffer *b;
	uint64_t at;

	if (q->buffer == RING_NONE)
		return true;
	if (!r->buffers || q->buffer >= RING_BUFFERS_MAX)
		return false;
	b = &r->buffers[q->buffer];
	at = (uint64_t)((uintptr_t)q->at - (uintptr_t)b->base);
	return b->base && at <= b->bytes && q->bytes <= b->bytes - at;
}

static bool makes_sense(const struct ring *r, const struct ring_request *q)
{
	if (!q->done || (uint32_t)q->priority >= RING_PRIORITIES || q->file >= RING_FILES_MAX ||
	    !r->files[q->file])
		return false;
	if (q->op == RING_SYNC)
		return true;
	return (q->op == RING_READ || q->op == RING_WRITE) && q->at && q->bytes && q->bytes <= BYTES_MAX &&
	       q->offset <= (uint64_t)INT64_MAX - q->bytes && in_buffer(r, q);
}

/* Under the lock. */
static enum status accept_one(struct ring *r, struct ring_request *q)
{
	if (r->closing)
		return STATUS_UNAVAILABLE;
	if (!makes_sense(r, q))
		return STATUS_INVALID;
	if (r->waiting >= r->options.queue_max)
		return STATUS_EXHAUSTED;
	q->state = RING_WAITING;
	q->started_us = 0;
	q->progress = 0;
	queue_add(&r->queues[q->priority], q);
	r->waiting++;
	return STATUS_OK;
}

enum status ring_submit(struct ring *r, struct ring_request *q)
{
	enum status status;
	uint32_t wakes = 0;

	pthread_mutex_lock(&r->lock);
	status = accept_one(r, q);
	if (!status)
		wakes = r->engine_calls->sleepers(r, 1);
	pthread_mutex_unlock(&r->lock);
	r->engine_calls->wake(r, wakes);
	return status;
}

void ring_cancel(struct ring *r, struct ring_request *q)
{
	uint32_t wakes = 0;

	pthread_mutex_lock(&r->lock);
	if (q->state == RING_WAITING) {
		queue_remove(&r->queues[q->priority], q);
		cancel_one(r, q);
		wakes = r->engine_calls->sleepers(r, 0);
	}
	pthread_mutex_unlock(&r->lock);
	r->engine_calls->wake(r, wakes);
}

/* No thread is woken: the number of waiting requests does not change. */
bool ring_promote(struct ring *r, struct ring_request *q, enum ring_priority priority)
{
	bool waiting;

	pthread_mutex_lock(&r->lock);
	waiting = q->state == RING_WAITING;
	if (waiting && priority < q->priority) {
		queue_remove(&r->queues[q->priority], q);
		q->priority = priority;
		queue_add(&r->queues[priority], q);
	}
	pthread_mutex_unlock(&r->lock);
	return waiting;
}

/* ---- a request's way through an engine ---- */

int ring_begin(struct ring *r, struct ring_live *cell, struct ring_request *q)
{
	int error = 0;

	q->started_us = clock_us();
	cell->request = q;
	cell->most = 0;
	cell->tries = 0;
	atomic_store_explicit(&cell->started_us, q->started_us, memory_order_relaxed);
	if (!r->calls.fault)
		return 0;
	do
		error = r->calls.fault(r->calls.arg, q, &cell->most);
	while ((error == EINTR || error == EAGAIN) && ++cell->tries < RING_TRIES_MAX);
	return error;
}

uint32_t ring_transfer_bytes(const struct ring_live *cell)
{
	const struct ring_request *q = cell->request;
	uint32_t left = q->bytes - q->progress;

	return cell->most && !q->progress && cell->most < left ? cell->most : left;
}

int64_t ring_transfer_here(struct ring *r, const struct ring_live *cell)
{
	struct ring_request *q = cell->request;
	int fd = r->files[q->file] - 1;
	uint8_t *at = q->at;
	int64_t n;

	if (q->op == RING_SYNC) {
		n = r->calls.fdatasync(fd);
	} else {
		uint32_t bytes = ring_transfer_bytes(cell);
		off_t offset = (off_t)(q->offset + q->progress);

		at += q->progress;
		n = q->op == RING_READ ? r->calls.pread(fd, at, bytes, offset) :
					 r->calls.pwrite(fd, at, bytes, offset);
	}
	return n < 0 ? -errno : n;
}

bool ring_progress(struct ring_live *cell, int64_t result, int *error)
{
	struct ring_request *q = cell->request;

	*error = 0;
	if (result == -EINTR || result == -EAGAIN) {
		*error = (int)-result;
		return ++cell->tries < RING_TRIES_MAX;
	}
	if (result < 0) {
		*error = (int)-result;
		return false;
	}
	if (q->op == RING_SYNC)
		return false;
	if (result == 0) {
		*error = q->op == RING_READ ? ENODATA : EIO;
		return false;
	}
	q->progress += (uint32_t)result;
	return q->progress < q->bytes;
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void count(struct ring_counters *c, const struct ring_request *q)
{
	if (q->status) {
		add(&c->failures, 1);
	} else if (q->op == RING_READ) {
		add(&c->reads, 1);
		add(&c->read_bytes, q->bytes);
	} else if (q->op == RING_WRITE) {
		add(&c->writes, 1);
		add(&c->write_bytes, q->bytes);
	} else {
		add(&c->syncs, 1);
	}
}

struct ring_request *ring_end(struct ring *r, struct ring_live *cell, int error)
{
	struct ring_request *q = cell->request;

	q->error = error;
	q->status = !error				   ? STATUS_OK
		    : shortage_is(error) ? STATUS_EXHAUSTED
					   : STATUS_IO;
	count(&r->counters, q);
	cell->request = NULL;
	atomic_store_explicit(&cell->started_us, 0, memory_order_relaxed);
	atomic_fetch_sub_explicit(&r->under_way, 1, memory_order_relaxed);
	return q;
}

/* ---- files and buffers ---- */

enum status ring_file_add(struct ring *r, int fd, uint32_t *file)
{
	uint32_t i = 0;

	if (fd < 0)
		return STATUS_INVALID;
	pthread_mutex_lock(&r->lock);
	while (i < RING_FILES_MAX && r->files[i])
		i++;
	if (i < RING_FILES_MAX)
		r->files[i] = fd + 1;
	pthread_mutex_unlock(&r->lock);
	if (i == RING_FILES_MAX)
		return STATUS_EXHAUSTED;
	if (r->engine_calls->file_set && !r->engine_calls->file_set(r, i, fd))
		atomic_store_explicit(&r->counters.files_refused, true, memory_order_relaxed);
	*file = i;
	return STATUS_OK;
}

void ring_file_remove(struct ring *r, uint32_t file)
{
	assert(file < RING_FILES_MAX && r->files[file]);
	if (r->engine_calls->file_set)
		r->engine_calls->file_set(r, file, -1);
	pthread_mutex_lock(&r->lock);
	r->files[file] = 0;
	pthread_mutex_unlock(&r->lock);
}

/* A free place, marked as taken; RING_NONE: there is none. */
static uint32_t buffer_take(struct ring *r, void *base, uint64_t bytes)
{
	uint32_t i = 0;

	pthread_mutex_lock(&r->lock);
	while (i < RING_BUFFERS_MAX && r->buffers[i].base)
		i++;
	if (i < RING_BUFFERS_MAX)
		r->buffers[i] = (struct ring_buffer){base, bytes};
	pthread_mutex_unlock(&r->lock);
	return i < RING_BUFFERS_MAX ? i : RING_NONE;
}

static void buffer_give(struct ring *r, uint32_t i)
{
	pthread_mutex_lock(&r->lock);
	r->buffers[i] = (struct ring_buffer){NULL, 0};
	pthread_mutex_unlock(&r->lock);
}

enum status ring_buffer_add(struct ring *r, void *base, uint64_t bytes, uint32_t *buffer)
{
	uint32_t i = RING_NONE;

	if (!base || !bytes || bytes > BYTES_MAX)
		return STATUS_INVALID;
	if (r->engine_calls->buffer_set) {
		if (r->buffers)
			i = buffer_take(r, base, bytes);
		if (i != RING_NONE && !r->engine_calls->buffer_set(r, i, base, bytes)) {
			buffer_give(r, i);
			i = RING_NONE;
		}
		atomic_fetch_add(i == RING_NONE ? &r->counters.buffers_refused : &r->counters.buffers, 1);
	}
	*buffer = i;
	return STATUS_OK;
}

void ring_buffer_remove(struct ring *r, uint32_t buffer)
{
	assert(buffer < RING_BUFFERS_MAX && r->buffers && r->buffers[buffer].base);
	r->engine_calls->buffer_set(r, buffer, NULL, 0);
	buffer_give(r, buffer);
	atomic_fetch_sub(&r->counters.buffers, 1);
}

/* ---- the whole ---- */

static const struct ring_calls kernel_calls = {.pread = pread, .pwrite = pwrite, .fdatasync = fdatasync};

static bool bounded(const struct ring_options *o)
{
	return o->depth >= 1 && o->depth <= RING_DEPTH_MAX && o->threads <= RING_DEPTH_MAX &&
	       o->queue_max >= 1 && (uint32_t)o->engine <= RING_THREADS;
}

static void use_engine(struct ring *r, enum ring_engine engine)
{
	r->engine = engine;
	r->engine_calls = engine == RING_URING ? &ring_uring_engine : &ring_threads_engine;
}

static enum status start(struct ring *r)
{
	enum status status = STATUS_UNSUPPORTED;

	if (r->options.engine == RING_THREADS) {
		snprintf(r->refusal, sizeof(r->refusal), "the threads engine was asked for");
	} else {
		use_engine(r, RING_URING);
		status = r->engine_calls->start(r);
	}
	if (status == STATUS_UNSUPPORTED && r->options.engine != RING_URING) {
		use_engine(r, RING_THREADS);
		status = r->engine_calls->start(r);
	}
	return status;
}

/* Initialises the lock and the condition. The condition uses CLOCK_MONOTONIC, which cannot be set. */
static void locks_init(struct ring *r)
{
	pthread_condattr_t clock;

	pthread_mutex_init(&r->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&r->ended, &clock);
	pthread_condattr_destroy(&clock);
}

static void locks_fini(struct ring *r)
{
	pthread_cond_destroy(&r->ended);
	pthread_mutex_destroy(&r->lock);
}

enum status ring_create(const struct ring_options *o, struct ring **out)
{
	enum status status;
	struct ring *r;

	last_refusal[0] = '\0';
	if (!bounded(o))
		return STATUS_INVALID;
	r = calloc(1, sizeof(*r));
	if (!r)
		return STATUS_EXHAUSTED;
	r->options = *o;
	r->calls = o->calls ? *o->calls : kernel_calls;
	if (!r->calls.pread)
		r->calls.pread = pread;
	if (!r->calls.pwrite)
		r->calls.pwrite = pwrite;
	if (!r->calls.fdatasync)
		r->calls.fdatasync = fdatasync;
	locks_init(r);
	status = start(r);
	memcpy(last_refusal, r->refusal, sizeof(last_refusal));
	if (status) {
		locks_fini(r);
		free(r);
		return status;
	}
	*out = r;
	return STATUS_OK;
}

/* Waits until all threads have ended. True: they have, in time. */
static bool threads_end(struct ring *r, uint64_t wait_us)
{
	struct timespec until;
	bool ended;
	int error = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	if (wait_us != UINT64_MAX) {
		const uint64_t ns = (uint64_t)until.tv_nsec + wait_us % 1000000 * 1000;

		until.tv_sec += (time_t)(wait_us / 1000000 + ns / 1000000000);
		until.tv_nsec = (long)(ns % 1000000000);
	}
	pthread_mutex_lock(&r->lock);
	while (r->threads && !error)
		error = wait_us == UINT64_MAX ? pthread_cond_wait(&r->ended, &r->lock) :
						pthread_cond_timedwait(&r->ended, &r->lock, &until);
	ended = r->threads == 0;
	pthread_mutex_unlock(&r->lock);
	return ended;
}

bool ring_destroy_by(struct ring *r, uint64_t wait_us)
{
	uint32_t wakes;

	if (!r)
		return true;
	pthread_mutex_lock(&r->lock);
	r->closing = true;
	wakes = r->engine_calls->sleepers(r, 0);
	pthread_mutex_unlock(&r->lock);
	r->engine_calls->wake(r, wakes);
	if (!threads_end(r, wait_us)) {
		r->engine_calls->leave(r);
		return false;
	}
	r->engine_calls->stop(r);
	locks_fini(r);
	free(r->buffers);
	free(r);
	return true;
}

const char *ring_refusal(const struct ring *r)
{
	return r ? r->refusal : last_refusal;
}

/* Age of the oldest request that the kernel has. */
static uint64_t oldest_us(struct ring *r)
{
	uint64_t first = UINT64_MAX, now;

	for (uint32_t i = 0; i < r->options.depth; i++) {
		uint64_t at = atomic_load_explicit(&r->live[i].started_us, memory_order_relaxed);

		if (at && at < first)
			first = at;
	}
	now = clock_us();
	return first == UINT64_MAX ? 0 : now > first ? now - first : 1;
}

void ring_look(struct ring *r, struct ring_view *out)
{
	struct ring_counters *c = &r->counters;

	*out = (struct ring_view){
		.engine = r->engine,
		.registered_files = r->engine == RING_URING && !c->files_refused,
		.buffers = c->buffers,
		.buffers_refused = c->buffers_refused,
		.under_way = r->under_way,
		.oldest_us = oldest_us(r),
		.reads = c->reads,
		.writes = c->writes,
		.syncs = c->syncs,
		.read_bytes = c->read_bytes,
		.write_bytes = c->write_bytes,
		.failures = c->failures,
		.submits = c->submits,
		.cpu_us = r->engine_calls->cpu_us(r),
	};
	pthread_mutex_lock(&r->lock);
	out->waiting = r->waiting;
	pthread_mutex_unlock(&r->lock);
}
