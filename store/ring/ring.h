/* A ring: asynchronous reads, writes and syncs of files, on a thread of its own.
 *
 * Two engines behind one contract. *uring*: io_uring with registered files and buffers, batches of submissions, `depth`
 * under way. *threads*: `depth` bounded by a pool of threads that call pread, pwrite and fdatasync, where io_uring is
 * refused (many containers) or not wanted. ring_look says which one runs.
 *
 * Requests wait in three queues by priority until there is room in the depth; within a priority they keep their order.
 * A lower priority is not starved: after RING_PATIENCE requests of others, one of its own goes. A sync is no barrier:
 * to make a write durable, a caller waits for the write and then submits the sync.
 *
 * A short read or write is continued by the ring; a read past the end of the file is IO with error ENODATA. EINTR and
 * EAGAIN are tried again, a thousand times at most. Every other errno is passed to the caller: the ring never repeats a
 * failed request. A request that io_uring itself cancels, because it may not start a worker thread (RLIMIT_NPROC, a
 * cgroup's pids.max), has not been begun: the ring's thread does it by a system call, and other requests wait
 * meanwhile.
 *
 * Threads: ring_submit, ring_cancel and ring_promote from any thread, completions included. `done` runs on the ring's
 * thread (uring) or on one of its pool (threads; then several may run at a time), exactly once a submit that returned
 * OK, never from inside ring_submit; it may submit again, and may free or reuse its request.
 */
#ifndef TERRACE_STORE_RING_RING_H
#define TERRACE_STORE_RING_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/status.h"

enum { RING_PATIENCE = 8, RING_DEPTH_MAX = 1024, RING_FILES_MAX = 4096, RING_BUFFERS_MAX = 16384 };
#define RING_NONE UINT32_MAX

enum ring_op { RING_READ, RING_WRITE, RING_SYNC /* fdatasync */ };
enum ring_priority { RING_URGENT /* a thread waits */, RING_PREFETCH /* prefetch */, RING_IDLE /* spill, scrub */,
    RING_PRIORITIES };

struct ring_request {
	/* By the submitter; of these the ring changes `priority` alone (ring_promote): */
	enum ring_op op;
	enum ring_priority priority;
	uint32_t file;              /* of ring_file_add */
	uint32_t buffer;            /* of ring_buffer_add, and [at, at + bytes) lies in it; or RING_NONE */
	uint64_t offset;            /* with O_DIRECT offset, bytes and at are multiples of the file system's block */
	uint32_t bytes;             /* at most 1 GiB */
	void *at;
	void (*done)(struct ring_request *r);
	/* When done: OK; IO or EXHAUSTED (ENOSPC, EDQUOT, EFBIG) with `error`; CANCELLED. */
	enum status status;
	int error;
	uint64_t started_us;        /* CLOCK_MONOTONIC when it was given to the kernel; 0: never was */
	/* The ring's: */
	struct ring_request *next, *prev;
	uint32_t progress;
	uint32_t state;
};

/* What the ring asks of the kernel, replaceable by a test to inject faults (threads engine: called as
 * they are; uring engine: `fault` alone is asked). NULL members: the kernel's. Copied by ring_create. */
struct ring_calls {
	ssize_t (*pread)(int fd, void *at, size_t bytes, off_t offset);
	ssize_t (*pwrite)(int fd, const void *at, size_t bytes, off_t offset);
	int (*fdatasync)(int fd);
	/* Before a request is given to the kernel, in both engines, on one of the ring's threads: 0, or the
	 * errno that it is to fail with (EINTR, EAGAIN: asked again); and, for a read or write, a positive
	 * *most makes the first transfer at most so many bytes (with O_DIRECT: a multiple of the block). The
	 * request is already under way for ring_look. NULL: no faults. Sleeping in it delays (a slow disk;
	 * with uring also all that come behind it, and the `done` of what has ended and is not told yet). */
	int (*fault)(void *arg, const struct ring_request *r, uint32_t *most);
	void *arg;
};

enum ring_engine { RING_AUTO, RING_URING, RING_THREADS };

struct ring_options {
	enum ring_engine engine;    /* AUTO: uring if the kernel allows it, else threads */
	uint32_t depth;             /* under way at most; 1 .. RING_DEPTH_MAX */
	uint32_t threads;           /* of the threads engine, at most RING_DEPTH_MAX; 0: 16; never more than depth */
	uint32_t queue_max;         /* waiting at most, over all priorities, at least 1; beyond: EXHAUSTED */
	void (*thread_begin)(void *arg), (*thread_end)(void *arg); /* on each thread that runs `done`; may be NULL */
	void *thread_arg;
	const struct ring_calls *calls; /* NULL: the kernel's */
};

struct ring;

/* INVALID: an option out of bounds. UNSUPPORTED: io_uring was demanded and is refused
 * (ring_refusal(NULL) says why). EXHAUSTED: no memory, thread or descriptor. The ring's threads have all
 * signals blocked. */
enum status ring_create(const struct ring_options *o, struct ring **out);
/* Cancels waiting requests, waits for those under way, no longer than wait_us (UINT64_MAX: as long as it takes), and
 * ends the threads. Only `done` may still submit, and gets UNAVAILABLE. NULL allowed. False: the kernel still has
 * requests. Then they, their memory, files and buffers and the ring itself must stay as they are to the end of the
 * process, and no thread may use the ring any more. Should the kernel answer after all, `done` is called, on the ring's
 * threads, which then end. */
bool ring_destroy_by(struct ring *r, uint64_t wait_us);
/* Why io_uring is not live: what was refused and the errno's text, or that it was not asked for; "" if
 * it is. Until the ring is destroyed. NULL: of the calling thread's last ring_create, until its next. */
const char *ring_refusal(const struct ring *r);

/* Registers a file; the descriptor stays the caller's, and open until ring_file_remove has returned. May
 * wait for the ring's thread; not from `done`. INVALID: fd < 0. EXHAUSTED: RING_FILES_MAX. If the kernel
 * refuses to register it (its table is no larger than RLIMIT_NOFILE) the plain descriptor is used and
 * ring_look says so. */
enum status ring_file_add(struct ring *r, int fd, uint32_t *file);
void ring_file_remove(struct ring *r, uint32_t file); /* nothing of it is waiting or under way */

/* Registers memory. When the kernel refuses (RLIMIT_MEMLOCK), or has no more places, *buffer is
 * RING_NONE and the status OK: transfers work all the same, a little slower, and ring_look counts it.
 * The threads engine has nothing to register: RING_NONE, not counted. May wait for the ring's thread,
 * and holds it up while the kernel pins the pages; not from `done`. INVALID: no bytes, or more than 1
 * GiB. It stays registered as long as the ring lives. */
enum status ring_buffer_add(struct ring *r, void *base, uint64_t bytes, uint32_t *buffer);

/* OK: `done` will come. EXHAUSTED: the queue is full. UNAVAILABLE: being destroyed. INVALID: the request
 * makes no sense. */
enum status ring_submit(struct ring *r, struct ring_request *q);
/* Takes a waiting request back: its `done` comes with CANCELLED. No effect on a request that the kernel has. The
 * request's memory must still be a submitted request, or zeroed. */
void ring_cancel(struct ring *r, struct ring_request *q);
/* A waiting request goes behind those that wait at this priority, unless its own is as high. It counts as
 * waiting all along, and its `done` comes once, as it would have. False: it was not waiting; no effect
 * then. Its memory: as for ring_cancel. */
bool ring_promote(struct ring *r, struct ring_request *q, enum ring_priority priority);

struct ring_view {
	enum ring_engine engine;
	bool registered_files;      /* all of them */
	uint32_t buffers, buffers_refused; /* registered now; that the kernel refused since the start */
	uint32_t waiting, under_way;
	uint64_t oldest_us;         /* age of the oldest that the kernel has; 0: none */
	uint64_t reads, writes, syncs, read_bytes, write_bytes; /* completed well */
	uint64_t failures;          /* completed otherwise; cancelled ones are not counted */
	uint64_t submits;           /* system calls that submitted; requests / submits is the batch */
	uint64_t cpu_us;            /* of the ring's threads (the kernel's own workers are not in it) */
};
void ring_look(struct ring *r, struct ring_view *out);

#endif
