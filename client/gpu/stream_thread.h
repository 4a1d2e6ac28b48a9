/* Runs functions when a GPU has reached a point in a stream, and watches promises (gpu/progress.h), on a thread of the
 * library that streams wake. The thread is started with its first task and sleeps while there are none. Streams wait
 * for what it does, and the driver may wait for streams. So it calls no function of a GPU's table, and takes no lock
 * that another thread holds during such a call (driver/driver_thread.h).
 */
#ifndef TERRACE_CLIENT_GPU_STREAM_THREAD_H
#define TERRACE_CLIENT_GPU_STREAM_THREAD_H

#include "client/include/terrace.h"

#include <stdbool.h>

struct client_attachment;
struct client_gpu;
struct after_token;

/* A task that waits for a stream, embedded in the struct that it is about. */
struct client_after {
	struct client_after *next;
	struct client_attachment *attachment; /* with a reference, and one of its streams */
	struct client_gpu *gpu;
	uint64_t late_us;                     /* absolute; 0: never late */
	/* Called at most once, before run, if the deadline has passed or `given_up` returns true; the stream may still
	 * be busy. Both NULL: never. */
	void (*late)(struct client_after *after, enum terrace_status status);
	bool (*given_up)(struct client_after *after);
	/* Called once: the stream has reached the point, or (lost) never will, since its GPU is lost. It ends the
	 * struct. */
	void (*run)(struct client_after *after, bool lost);
	struct after_token *token;
};

/* Arranges that after->run is called on the thread when the work that is in the stream now is done. On a failure no
 * function will be called. TERRACE_CANCELLED: the attachment is closed. TERRACE_EXHAUSTED, TERRACE_UNAVAILABLE (the GPU
 * is lost), TERRACE_INTERNAL. */
enum terrace_status client_after_start(struct client_after *after, struct client_attachment *attachment,
				       struct client_gpu *gpu, void *stream);

/* Arranges that `look` is called on the thread repeatedly, until it returns that nothing is left to watch.
 * TERRACE_EXHAUSTED. May be called with the progress page's lock held. */
enum terrace_status client_after_watch(struct client_attachment *attachment,
				       bool (*look)(struct client_attachment *attachment));

#endif
