/* A ring: asynchronous reads, writes and syncs of files, on threads of its own.
 *
 * Two engines have the same contract. *uring*: io_uring with registered files and buffers and batches of submissions,
 * on one thread. *threads*: a pool of threads that call pread, pwrite and fdatasync, for machines where io_uring is
 * refused (many containers) or not wanted. At most `depth` requests are under way; in the threads engine the pool's
 * size bounds them too. ring_look says which engine runs.
 *
 * Requests wait in three queues by priority until there is room in the depth; within a priority they keep their order.
 * A lower priority is not starved: after RING_PATIENCE requests of others, one of its own goes. A sync is no barrier:
 * to make a write durable, a caller waits for the write and then submits the sync.
 *
 * The ring continues a short read or write. A read past the end of the file is IO with error ENODATA. EINTR and EAGAIN
 * are tried again, a thousand times at most. Every other errno is passed to the caller: the ring never repeats a failed
 * request. io_uring itself cancels a request if it may not start a worker thread (RLIMIT_NPROC, a cgroup's pids.max).
 * Such a request has not been begun: the ring's thread does it by a system call, and other requests wait meanwhile.
 *
 * Threads: ring_submit, ring_cancel and ring_promote may be called from any thread, completions included. `done` runs
 * on the ring's thread (uring) or on a thread of its pool (threads; then several may run at a time). It runs exactly
 * once for a submit that returned OK, and never inside ring_submit. It may submit again, and may free or reuse its
 * request.
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
enum ring_priority { RING_URGENT /* a thread waits for it */, RING_PREFETCH /* prefetch */, RING_IDLE /* spill, scrub */,
    RING_PRIORITIES };

struct ring_request {
	/* The submitter sets these; the ring changes only `priority` among them (ring_promote): */
	enum ring_op op;
	enum ring_priority priority;
	uint32_t file;              /* of ring_file_add */
	uint32_t buffer;            /* of ring_buffer_add, and then [at, at + bytes) lies in it; or RING_NONE */
	uint64_t offset;            /* with O_DIRECT offset, bytes and at are multiples of the file system's block */
	uint32_t bytes;             /* at most 1 GiB */
	void *at;
	void (*done)(struct ring_request *r);
	/* The outcome, valid in `done`. status is OK, IO, EXHAUSTED (`error` ENOSPC, EDQUOT, EFBIG) or CANCELLED: */
	enum status status;
	int error;
	uint64_t started_us;        /* CLOCK_MONOTONIC when the kernel got it; 0: the kernel never got it */
	/* The ring's: */
	struct ring_request *next, *prev;
	uint32_t progress;
	uint32_t state;
};

/* The system calls of the ring. A test may replace them to inject faults. The threads engine calls all members; the
 * uring engine calls `fault` alone. NULL members: the kernel's calls. ring_create copies the struct. */
struct ring_calls {
	ssize_t (*pread)(int fd, void *at, size_t bytes, off_t offset);
	ssize_t (*pwrite)(int fd, const void *at, size_t bytes, off_t offset);
	int (*fdatasync)(int fd);
	/* Called before the kernel gets a request, in both engines, on one of the ring's threads. Returns 0, or the
	 * errno that the request is to fail with (after EINTR and EAGAIN it is called again). For a read or write a
	 * positive *most limits the first transfer to so many bytes (with O_DIRECT: a multiple of the block). ring_look
	 * counts the request as under way already. NULL: no faults. A sleep in it simulates a slow disk; with uring it
	 * also delays all requests behind this one, and each `done` that is not called yet. */
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

/* INVALID: an option is out of bounds. UNSUPPORTED: io_uring was demanded and is refused (ring_refusal(NULL) says why).
 * EXHAUSTED: no memory, thread or descriptor. The ring's threads block all signals. */
enum status ring_create(const struct ring_options *o, struct ring **out);
/* Cancels waiting requests, waits for those under way, wait_us at most (UINT64_MAX: as long as it takes), and ends the
 * threads. Only `done` may still submit, and gets UNAVAILABLE. NULL allowed. False: the kernel still has requests. Then
 * these requests, their memory, files and buffers and the ring itself must stay as they are to the end of the process,
 * and no thread may use the ring any more. If the kernel answers later after all, `done` is called on the ring's
 * threads, which then end. */
bool ring_destroy_by(struct ring *r, uint64_t wait_us);
/* Why the ring does not use io_uring: what was refused and the errno's text, or that the threads engine was asked for;
 * "" if it uses it. Valid until the ring is destroyed. With NULL: the text of the calling thread's last ring_create,
 * valid until its next one. */
const char *ring_refusal(const struct ring *r);

/* Registers a file. The descriptor stays the caller's and must stay open until ring_file_remove has returned. May wait
 * for the ring's thread, so it must not be called from `done`. If the kernel refuses to register the file (its table is
 * no larger than RLIMIT_NOFILE), the ring uses the plain descriptor and ring_look says so. INVALID: fd < 0. EXHAUSTED:
 * RING_FILES_MAX. */
enum status ring_file_add(struct ring *r, int fd, uint32_t *file);
void ring_file_remove(struct ring *r, uint32_t file); /* no request of the file may be waiting or under way */

/* Registers memory, for as long as the ring lives, or until ring_buffer_remove. If the kernel refuses (RLIMIT_MEMLOCK)
 * or has no more places, *buffer is RING_NONE and the status OK: transfers work a little slower then, and ring_look
 * counts the refusal. The threads engine registers nothing: RING_NONE, not counted. May wait for the ring's thread,
 * which stands still while the kernel pins the pages; so it must not be called from `done`. INVALID: no bytes, or more
 * than 1 GiB. */
enum status ring_buffer_add(struct ring *r, void *base, uint64_t bytes, uint32_t *buffer);
/* The kernel lets go of the memory of a buffer that was registered. No request of it may be waiting or under way. Waits
 * for the ring's thread, so it must not be called from `done`. */
void ring_buffer_remove(struct ring *r, uint32_t buffer);

/* OK: `done` will be called. EXHAUSTED: the queue is full. UNAVAILABLE: the ring is being destroyed. INVALID: a field
 * of the request is not allowed. */
enum status ring_submit(struct ring *r, struct ring_request *q);
/* Takes a waiting request back: its `done` is called with CANCELLED. No effect on a request that the kernel has. `q`
 * must be a submitted request, or zeroed memory. */
void ring_cancel(struct ring *r, struct ring_request *q);
/* Moves a waiting request behind those that wait at this priority, unless its own priority is as high or higher. The
 * request counts as waiting all along, and its `done` is called once, as without the move. False: it was not waiting,
 * and nothing happened. `q`: as for ring_cancel. */
bool ring_promote(struct ring *r, struct ring_request *q, enum ring_priority priority);

struct ring_view {
	enum ring_engine engine;
	bool registered_files;      /* all files are registered */
	uint32_t buffers, buffers_refused; /* registered now; refused by the kernel since the start */
	uint32_t waiting, under_way;
	uint64_t oldest_us;         /* age of the oldest that the kernel has; 0: none */
	uint64_t reads, writes, syncs, read_bytes, write_bytes; /* completed with OK */
	uint64_t failures;          /* completed with an error; cancelled ones are not counted */
	uint64_t submits;           /* system calls that submitted; requests / submits is the batch */
	uint64_t cpu_us;            /* CPU time of the ring's threads, without the kernel's own workers */
};
void ring_look(struct ring *r, struct ring_view *out);

#endif
