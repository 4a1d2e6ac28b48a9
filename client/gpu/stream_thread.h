/* What is done when a GPU has got somewhere: a thread of the library that streams wake, and that looks after promises
 * (gpu/progress.h). It is started with its first task and sleeps while there are none. Streams wait for what it does, and the driver may wait for streams: so it
 * calls no function of a GPU's table, and takes no lock that is held meanwhile (driver/driver_thread.h). */
#ifndef TERRACE_CLIENT_GPU_STREAM_THREAD_H
#define TERRACE_CLIENT_GPU_STREAM_THREAD_H

#include "client/include/terrace.h"

#include <stdbool.h>

struct client_attachment;
struct client_gpu;
struct after_token;

/* Embedded in what waits for a stream. */
struct client_after {
	struct client_after *next;
	struct client_attachment *attachment; /* with a reference, and one of its streams */
	struct client_gpu *gpu;
	uint64_t late_us;                     /* absolute; 0: never late */
	/* Once, before run, if the deadline has passed, or `given_up` says so: the stream may still be busy. NULL: neither. */
	void (*late)(struct client_after *after, enum terrace_status status);
	bool (*given_up)(struct client_after *after);
	/* Once: the stream has got there, or (lost) never will, since its GPU is lost. Ends the struct. */
	void (*run)(struct client_after *after, bool lost);
	struct after_token *token;
};

/* Has after->run called on the thread when what is in the stream now is done. On a failure nothing will be called.
 * TERRACE_CANCELLED: the attachment is closed. TERRACE_EXHAUSTED, TERRACE_UNAVAILABLE (the GPU is lost), TERRACE_INTERNAL. */
enum terrace_status client_after_start(struct client_after *after, struct client_attachment *attachment,
				       struct client_gpu *gpu, void *stream);

/* Has `look` called on the thread now and then, until it says that nothing is left to be looked after.
 * TERRACE_EXHAUSTED. May be called with the progress page's lock held. */
enum terrace_status client_after_watch(struct client_attachment *attachment,
				       bool (*look)(struct client_attachment *attachment));

#endif
