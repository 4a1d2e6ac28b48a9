/* The ring's engine on io_uring: one thread owns the kernel's ring; no other thread touches it.
 *
 * The thread takes requests until the depth is full or none waits. Then it submits them all and sleeps, in one system
 * call. A disk may complete many requests at a time. The thread submits the next requests before it calls the `done`
 * functions, since these have work of their own. Other threads wake it through an eventfd on which a read is always
 * under way. They do so only if the thread sleeps and has room in the depth: while the depth is full, the next
 * completion finds new requests anyway. A change of the kernel's tables of files and buffers is an order, which the
 * thread carries out between two submissions.
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "store/ring/private.h"

#define DATA_WAKE UINT64_MAX

/* What a ring's thread does, as others see it. */
enum uring_rest {
	RUNS,
	SLEEPS_FULL,                /* no room in the depth: new requests need no wake */
	SLEEPS,
};

enum order_kind { ORDER_FILE, ORDER_BUFFER };

struct order {
	enum order_kind kind;
	uint32_t index;
	int fd;
	struct iovec memory;
	bool done, well;
	struct order *next;
};

struct ring_uring {
	/* The thread's: */
	struct io_uring ring;
	uint64_t woken;             /* target of the eventfd's read */
	uint32_t free_count;
	uint16_t free_cells[RING_DEPTH_MAX];
	bool wake_armed;
	struct ring_request *ended, **ended_end; /* their `done` is to be called */
	/* Constant after the start: */
	int wake_fd;
	pthread_t thread;
	uint32_t files_max;         /* size of the kernel's table; 0: refused */
	bool buffers;               /* the kernel has a table */
	/* Under the ring's lock: */
	enum uring_rest rest;
	struct order *orders;
	pthread_cond_t answered;    /* an order was carried out, or the start */
	bool started;
	enum status start_status;
	/* By ring_file_add and _remove of that file: */
	bool registered[RING_FILES_MAX];
};

/* ---- start ---- */

static void refuse(struct ring *r, const char *what, int error)
{
	char level = '0';
	FILE *f = error == EPERM ? fopen("/proc/sys/kernel/io_uring_disabled", "re") : NULL;

	if (f) {
		if (fread(&level, 1, 1, f) != 1)
			level = '0';
		fclose(f);
	}
	if (level == '0')
		snprintf(r->refusal, sizeof(r->refusal), "%s: %s", what, strerror(error));
	else
		snprintf(r->refusal, sizeof(r->refusal), "%s: %s (kernel.io_uring_disabled is %c)", what,
			 strerror(error), level);
}

static int setup(struct io_uring *ring, uint32_t depth)
{
	static const unsigned flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_COOP_TASKRUN,
		0,
	};
	int error = 0;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		error = -io_uring_queue_init(depth + 1, ring, flags[i]);
		if (error != EINVAL) /* a flag that this kernel does not know */
			break;
	}
	return error;
}

/* A seccomp filter may allow io_uring_setup and refuse the rest. Only a request that came back proves that the ring
 * works. */
static int try_nop(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int n;

	io_uring_prep_nop(io_uring_get_sqe(ring));
	n = io_uring_submit_and_wait(ring, 1);
	if (n < 0)
		return -n;
	n = io_uring_wait_cqe(ring, &cqe);
	if (n < 0)
		return -n;
	n = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return -n;
}

static bool has_operations(struct io_uring *ring)
{
	static const int needed[] = {IORING_OP_READ,	    IORING_OP_WRITE, IORING_OP_READ_FIXED,
				     IORING_OP_WRITE_FIXED, IORING_OP_FSYNC};
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	bool has = probe != NULL;

	for (size_t i = 0; has && i < sizeof(needed) / sizeof(needed[0]); i++)
		has = io_uring_opcode_supported(probe, needed[i]);
	io_uring_free_probe(probe);
	return has;
}

/* The kernel allows no larger table of files than the process may have descriptors. */
static void make_tables(struct ring *r)
{
	struct ring_uring *u = r->uring;
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		u->files_max = limit.rlim_cur < RING_FILES_MAX ? (uint32_t)limit.rlim_cur : RING_FILES_MAX;
		if (io_uring_register_files_sparse(&u->ring, u->files_max))
			u->files_max = 0;
	}
	u->buffers = io_uring_register_buffers_sparse(&u->ring, RING_BUFFERS_MAX) == 0;
	if (u->buffers)
		r->buffers = calloc(RING_BUFFERS_MAX, sizeof(r->buffers[0]));
}

static enum status thread_open(struct ring *r)
{
	struct ring_uring *u = r->uring;
	int error = setup(&u->ring, r->options.depth);

	if (error) {
		refuse(r, "io_uring_setup", error);
		return STATUS_UNSUPPORTED;
	}
	error = try_nop(&u->ring);
	if (error) {
		refuse(r, "io_uring_enter", error);
	} else if (!has_operations(&u->ring)) {
		error = EOPNOTSUPP;
		refuse(r, "io_uring's reads, writes or syncs", error);
	}
	if (error) {
		io_uring_queue_exit(&u->ring);
		return STATUS_UNSUPPORTED;
	}
	make_tables(r);
	u->free_count = r->options.depth;
	for (uint32_t i = 0; i < u->free_count; i++)
		u->free_cells[i] = (uint16_t)i;
	return STATUS_OK;
}

/* ---- orders: the kernel's tables ---- */

static bool order_run(struct ring_uring *u, struct order *o)
{
	const __u64 tag = 0;

	if (o->kind == ORDER_FILE)
		return io_uring_register_files_update(&u->ring, o->index, &o->fd, 1) == 1;
	return io_uring_register_buffers_update_tag(&u->ring, o->index, &o->memory, &tag, 1) == 1;
}

static void orders_run(struct ring *r, struct order *o)
{
	struct ring_uring *u = r->uring;

	for (struct order *next; o; o = next) {
		bool well = order_run(u, o);

		pthread_mutex_lock(&r->lock);
		next = o->next;
		o->well = well;
		o->done = true;
		pthread_cond_broadcast(&u->answered);
		pthread_mutex_unlock(&r->lock);
	}
}

static void uring_wake(struct ring *r, uint32_t threads)
{
	if (threads)
		eventfd_write(r->uring->wake_fd, 1);
}

static uint32_t uring_sleepers(struct ring *r, uint32_t requests)
{
	struct ring_uring *u = r->uring;

	if (u->rest == RUNS || (requests && u->rest == SLEEPS_FULL))
		return 0;
	u->rest = RUNS;
	return 1;
}

static bool order_wait(struct ring *r, struct order *o)
{
	struct ring_uring *u = r->uring;
	uint32_t wakes;

	pthread_mutex_lock(&r->lock);
	o->next = u->orders;
	u->orders = o;
	wakes = uring_sleepers(r, 0);
	pthread_mutex_unlock(&r->lock);
	uring_wake(r, wakes);
	pthread_mutex_lock(&r->lock);
	while (!o->done)
		pthread_cond_wait(&u->answered, &r->lock);
	pthread_mutex_unlock(&r->lock);
	return o->well;
}

static bool uring_file_set(struct ring *r, uint32_t file, int fd)
{
	struct ring_uring *u = r->uring;
	struct order o = {.kind = ORDER_FILE, .index = file, .fd = fd};

	if (file >= u->files_max || (fd < 0 && !u->registered[file]))
		return false;
	u->registered[file] = order_wait(r, &o) && fd >= 0;
	return u->registered[file];
}

static bool uring_buffer_set(struct ring *r, uint32_t buffer, void *base, uint64_t bytes)
{
	struct order o = {.kind = ORDER_BUFFER, .index = buffer, .memory = {base, (size_t)bytes}};

	return order_wait(r, &o);
}

/* ---- the thread ---- */

/* The submission queue has room: each cell, and the wake, has one entry at a time. */
static struct io_uring_sqe *sqe_get(struct ring_uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	assert(sqe);
	return sqe;
}

static void transfer_prepare(const struct ring_uring *u, struct io_uring_sqe *sqe,
			     const struct ring_live *cell, int fd)
{
	const struct ring_request *q = cell->request;
	uint64_t offset = q->offset + q->progress;
	uint8_t *at = (uint8_t *)q->at + q->progress;
	unsigned bytes = ring_transfer_bytes(cell);
	bool fixed = q->buffer != RING_NONE && u->buffers;

	if (q->op == RING_READ && fixed)
		io_uring_prep_read_fixed(sqe, fd, at, bytes, offset, (int)q->buffer);
	else if (q->op == RING_READ)
		io_uring_prep_read(sqe, fd, at, bytes, offset);
	else if (fixed)
		io_uring_prep_write_fixed(sqe, fd, at, bytes, offset, (int)q->buffer);
	else
		io_uring_prep_write(sqe, fd, at, bytes, offset);
}

static void prepare(struct ring *r, uint32_t index)
{
	struct ring_uring *u = r->uring;
	const struct ring_live *cell = &r->live[index];
	const struct ring_request *q = cell->request;
	bool registered = u->registered[q->file];
	int fd = registered ? (int)q->file : r->files[q->file] - 1;
	struct io_uring_sqe *sqe = sqe_get(u);

	if (q->op == RING_SYNC)
		io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
	else
		transfer_prepare(u, sqe, cell, fd);
	if (registered)
		io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data64(sqe, index);
}

static void wake_arm(struct ring_uring *u)
{
	struct io_uring_sqe *sqe = sqe_get(u);

	io_uring_prep_read(sqe, u->wake_fd, &u->woken, sizeof(u->woken), 0);
	io_uring_sqe_set_data64(sqe, DATA_WAKE);
	u->wake_armed = true;
}

static void end(struct ring *r, uint32_t index, int error)
{
	struct ring_uring *u = r->uring;
	struct ring_request *q = ring_end(r, &r->live[index], error);

	u->free_cells[u->free_count++] = (uint16_t)index;
	q->next = NULL;
	*u->ended_end = q;
	u->ended_end = &q->next;
}

static void tell(struct ring_uring *u)
{
	struct ring_request *q = u->ended, *next;

	u->ended = NULL;
	u->ended_end = &u->ended;
	for (; q; q = next) {
		next = q->next;
		q->done(q);
	}
}

/* Returns how many requests ended at once, by an injected fault. */
static uint32_t give(struct ring *r, struct ring_request *q)
{
	struct ring_uring *u = r->uring;
	struct ring_request *next;
	uint32_t ended = 0;

	for (; q; q = next) {
		uint32_t index = u->free_cells[--u->free_count];
		int error;

		next = q->next;
		error = ring_begin(r, &r->live[index], q);
		if (error) {
			end(r, index, error);
			ended++;
		} else {
			prepare(r, index);
		}
	}
	return ended;
}

/* The ring never cancels in the kernel. The kernel itself answers ECANCELED when a request wants one of its worker
 * threads and the kernel may make none (a limit of the process or of its cgroup). Such a request was not begun, and
 * says nothing about the disk: it is done here, however long that takes. */
static int64_t outcome(struct ring *r, const struct ring_live *cell, int result)
{
	return result == -ECANCELED ? ring_transfer_here(r, cell) : result;
}

static void reap(struct ring *r)
{
	struct ring_uring *u = r->uring;
	struct io_uring_cqe *cqe;

	while (!io_uring_peek_cqe(&u->ring, &cqe)) {
		uint64_t data = cqe->user_data;
		int result = cqe->res, error;

		io_uring_cqe_seen(&u->ring, cqe);
		if (data == DATA_WAKE)
			u->wake_armed = false;
		else if (ring_progress(&r->live[data], outcome(r, &r->live[data], result), &error))
			prepare(r, (uint32_t)data);
		else
			end(r, (uint32_t)data, error);
	}
}

/* What the thread has to do in one round. */
struct round {
	struct ring_request *given, *cancelled;
	struct order *orders;
	bool closing;
};

/* Takes the work of one round; false: there is none. With no work and no `done` to call, the thread is marked as asleep
 * under the same lock. So no new request can come unseen. */
static bool round_take(struct ring *r, struct round *w)
{
	struct ring_uring *u = r->uring;
	struct ring_request **tail = &w->given;
	uint32_t room = u->free_count;

	*w = (struct round){0};
	pthread_mutex_lock(&r->lock);
	w->orders = u->orders;
	u->orders = NULL;
	w->cancelled = ring_take_cancelled(r);
	for (; room && (*tail = ring_take(r)); room--)
		tail = &(*tail)->next;
	*tail = NULL;
	w->closing = r->closing;
	if (w->orders || w->cancelled || w->given || u->ended)
		u->rest = RUNS;
	else
		u->rest = room ? SLEEPS : SLEEPS_FULL;
	pthread_mutex_unlock(&r->lock);
	return w->orders || w->cancelled || w->given || u->ended;
}

/* Marks the thread as running. It looks at the queues before it sleeps again, so requests that come meanwhile need no
 * wake. */
static void awake(struct ring *r)
{
	pthread_mutex_lock(&r->lock);
	r->uring->rest = RUNS;
	pthread_mutex_unlock(&r->lock);
}

/* Refusals of the kernel at this place are temporary (no memory just now). The entries stay prepared for the next
 * attempt. */
static void submit(struct ring *r, bool wait)
{
	const struct timespec pause = {0, 1000000};
	struct ring_uring *u = r->uring;
	int n;

	if (io_uring_sq_ready(&u->ring))
		atomic_fetch_add_explicit(&r->counters.submits, 1, memory_order_relaxed);
	if (!u->wake_armed)
		wake_arm(u);
	n = wait ? io_uring_submit_and_wait(&u->ring, 1) : io_uring_submit_and_get_events(&u->ring);
	if (n < 0 && n != -EINTR)
		nanosleep(&pause, NULL);
	if (wait)
		awake(r);
}

static void work(struct ring *r)
{
	struct ring_uring *u = r->uring;
	struct round w;

	for (;;) {
		bool found = round_take(r, &w), failed;

		if (!found && w.closing && u->free_count == r->options.depth)
			return;
		orders_run(r, w.orders);
		ring_complete_cancelled(w.cancelled);
		failed = give(r, w.given) > 0;
		/* Found some: look once more before sleeping. But an endless row of faults must not keep
		 * others waiting. */
		if (!found || failed || (u->ended && io_uring_sq_ready(&u->ring)))
			submit(r, !found);
		tell(u);
		reap(r);
	}
}

/* The kernel must not write into our memory after it is freed. */
static void thread_close(struct ring *r)
{
	struct ring_uring *u = r->uring;

	if (u->wake_armed)
		eventfd_write(u->wake_fd, 1);
	while (u->wake_armed) {
		io_uring_submit_and_wait(&u->ring, 1);
		reap(r);
	}
	io_uring_unregister_files(&u->ring); /* else the kernel keeps them open for a while */
	io_uring_queue_exit(&u->ring);
}

static void *thread_run(void *arg)
{
	struct ring *r = arg;
	struct ring_uring *u = r->uring;
	enum status status = thread_open(r);

	pthread_mutex_lock(&r->lock);
	u->started = true;
	u->start_status = status;
	pthread_cond_broadcast(&u->answered);
	pthread_mutex_unlock(&r->lock);
	if (!status) {
		if (r->options.thread_begin)
			r->options.thread_begin(r->options.thread_arg);
		work(r);
		if (r->options.thread_end)
			r->options.thread_end(r->options.thread_arg);
		thread_close(r);
	}
	ring_thread_ended(r);
	return NULL;
}

static void uring_free(struct ring *r)
{
	struct ring_uring *u = r->uring;

	close(u->wake_fd);
	pthread_cond_destroy(&u->answered);
	free(u);
	r->uring = NULL;
}

static void uring_stop(struct ring *r)
{
	pthread_join(r->uring->thread, NULL);
	uring_free(r);
}

static void uring_leave(struct ring *r)
{
	pthread_detach(r->uring->thread);
}

static enum status uring_start(struct ring *r)
{
	struct ring_uring *u = calloc(1, sizeof(*u));
	enum status status = STATUS_EXHAUSTED;

	if (!u)
		return STATUS_EXHAUSTED;
	u->wake_fd = eventfd(0, EFD_CLOEXEC); /* blocking: a read of it must wait in the ring */
	if (u->wake_fd < 0) {
		free(u);
		return STATUS_EXHAUSTED;
	}
	pthread_cond_init(&u->answered, NULL);
	u->ended_end = &u->ended;
	r->uring = u;
	if (ring_thread_start(r, &u->thread, thread_run, r)) {
		uring_free(r);
		return STATUS_EXHAUSTED;
	}
	pthread_mutex_lock(&r->lock);
	while (!u->started)
		pthread_cond_wait(&u->answered, &r->lock);
	status = u->start_status;
	pthread_mutex_unlock(&r->lock);
	if (status)
		uring_stop(r);
	return status;
}

static uint64_t uring_cpu_us(struct ring *r)
{
	return ring_thread_cpu_us(r->uring->thread);
}

const struct ring_engine_calls ring_uring_engine = {
	.start = uring_start,
	.stop = uring_stop,
	.leave = uring_leave,
	.sleepers = uring_sleepers,
	.wake = uring_wake,
	.file_set = uring_file_set,
	.buffer_set = uring_buffer_set,
	.cpu_us = uring_cpu_us,
};
