/* The queue of ends: of transfers, and of other work that is begun with the cache's lock and ends later.
 *
 * A struct end is embedded in its request, so that queueing it cannot fail. Each queued end is run exactly once, with
 * the lock. Ends that one thread queues run in that order. After the ends of one hold of the lock, each tier that one
 * of them names is pumped once (tier_ops.pump). No end runs inside the call that begins a transfer, nor inside another
 * end.
 *
 * An end comes by one of two ways:
 * - ends_arrive, from a thread without the lock, as a rule the one on which a disk or a driver completes. The first of
 *   several such threads takes the lock and runs the ends of all; the others return at once.
 * - ends_append, from a thread with the lock: a transfer that waited for memory has failed, or a device was lost. That
 *   thread runs the end before it leaves the lock, ENDS_A_HOLD at most; the queue's own thread runs the rest. So a call
 *   that leaves the lock runs at most ENDS_A_HOLD ends, and none that arrived on other threads.
 */
#ifndef TERRACE_DAEMON_BLOCK_ENDS_H
#define TERRACE_DAEMON_BLOCK_ENDS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/lock.h"

enum { ENDS_A_HOLD = 64 }; /* that are run in one hold of the lock, at most */

struct end {
	/* With the lock, which it does not leave. It may free the struct that contains e, and may queue e again. */
	void (*run)(struct cache *c, struct end *e);
	struct end *next;
	enum tier_kind tier;           /* the tier that is pumped after it; TIER_KINDS: none */
};

struct end_list {
	struct end *first, **last;
};

struct ends {
	struct end *_Atomic arrived;   /* by ends_arrive, not looked at yet, the last first; any thread */
	/* with the cache's lock: appended by the thread that holds it; empty while the lock is free */
	struct end_list own;
	struct end_list due;           /* what ends_run is to run */
	pthread_mutex_t mutex;         /* of the two below; nothing is locked in it */
	bool woken, over;
	pthread_cond_t wake;
	pthread_t thread;
};

/* Makes c->ends and starts its thread. False: no memory, or no thread. */
bool ends_create(struct cache *c);
/* Runs all that is queued and ends the thread. ended: nothing can be queued any more, and the queue is freed. Else the
 * queue, its thread and the whole cache stay. Without a queue it does nothing. */
void ends_destroy(struct cache *c, bool ended);

/* Without the lock; e may be gone when it returns. */
void ends_arrive(struct cache *c, struct end *e);
/* The same in two steps, for several ends. True: the caller must call ends_run after its last push. */
bool ends_push(struct cache *c, struct end *e);
/* Without the lock: runs what is queued, ENDS_A_HOLD in a hold, until nothing is left. All that was queued before the
 * call has been run when it returns. */
void ends_run(struct cache *c);
/* With the lock. */
void ends_append(struct cache *c, struct end *e);

#endif
