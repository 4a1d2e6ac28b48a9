/* Parts of the daemon above this folder (gRPC, local calls, the local socket, metrics) as stop.c and stats.c see
 * them. Each such folder fills one table, and daemon_add lists the part in struct daemon: process/ calls the parts
 * and includes none of them.
 */
#ifndef TERRACE_DAEMON_PROCESS_PART_H
#define TERRACE_DAEMON_PROCESS_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"

/* part: what daemon_add had, never NULL. All but stats are called by main. */
struct part_ops {
	const char *name;              /* for the log */
	/* For the log: what threads_stop has waited for in vain. NULL: the log names the workers instead. */
	const char *hangs;
	/* The part may have a worker do something yet: threads_stop comes before the end of the workers, else after
	 * it. */
	bool uses_workers;

	/* Refuses new calls, waits up to grace_us for calls under way, then cancels them. Returns at once. It may
	 * be called again with less grace. NULL, and calls_wait with it: the part has no calls of its own. */
	void (*calls_stop)(void *part, uint64_t grace_us);
	/* True once every call has ended and the part's thread is about to exit. Waits for that at most wait_us. */
	bool (*calls_wait)(void *part, uint64_t wait_us);
	/* Ends the part's connections and threads, removes its socket, and waits at most wait_us for what workers
	 * do for it. False: something has not ended; then stats and threads_stop may still be called. NULL:
	 * calls_stop has done it. */
	bool (*threads_stop)(void *part, uint64_t wait_us);
	/* Frees the part. It stops what was not stopped before, however long that takes, but a part with calls must
	 * have ended them (calls_wait, which returned true) or never had any. */
	void (*destroy)(void *part);
	/* Emits rows of figures. Any thread. NULL: none. */
	void (*stats)(void *part, cache_stat_fn *emit, void *arg);
};

#endif
