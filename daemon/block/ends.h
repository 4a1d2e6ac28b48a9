/* Queues of ends: of transfers, and of other work that is begun with the cache's lock and ends later.
 *
 * A struct end is embedded in its request, so that queueing it cannot fail. Each queued end is run exactly once, with
 * the lock; an end of many parts runs a part at a time (ends_again). Ends that one thread pushes to a queue run in that
 * order. Appended ends (ends_append) may run before pushed ones, and before older appended ones that a bound left over.
 * In one hold of the lock at most ENDS_A_HOLD ends or parts run. After a list of ends has run, each tier that one of
 * them names is pumped once (tier_ops.pump). If a pump appends ends, these run within the same bound, and their tiers
 * are pumped again. No end runs inside the call that begins a transfer, nor inside another end.
 *
 * An end comes by one of three ways:
 * - ends_arrive, from a thread without the lock, as a rule the one on which a disk completes. The first of several such
 *   threads takes the lock and runs the ends of all; the others return at once.
 * - end_queue_push, from a thread without the lock, to a queue that has a thread of its own: each GPU's completion
 *   thread runs that GPU's queue by ends_hold. The device's threads only append.
 * - ends_append, from a thread with the lock: a transfer that waited for memory has failed, or a device was lost. That
 *   thread runs ENDS_A_HOLD appended ends at most before it leaves the lock. The thread of struct ends runs the rest;
 *   if ends_hold or ends_run left the lock, the next hold of that queue does. So cache_unlock runs at most ENDS_A_HOLD
 *   ends, and none that were pushed.
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
	uint32_t tiers;                /* the tiers that are pumped after it, 1u << TIER_... each */
};

struct end_list {
	struct end *first, **last;
};

struct end_queue {
	struct end *_Atomic arrived;   /* not looked at yet, the last first; any thread */
	struct end_list due;           /* with the cache's lock: what is to be run */
};

struct ends {
	struct end_queue queue;        /* of ends_arrive, and of what a bound left over; ends_run runs it */
	/* with the cache's lock: appended by the thread that holds it; empty while the lock is free */
	struct end_list own;
	struct end *again;             /* with the cache's lock: the running end, if it has more parts */
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
/* Queues an end without running it, for a caller that has several. True: the caller must call ends_run after its last
 * push. */
bool ends_push(struct cache *c, struct end *e);
/* Without the lock: runs what is queued, ENDS_A_HOLD in a hold, until nothing is left. All that was queued before the
 * call has been run when it returns. */
void ends_run(struct cache *c);
/* With the lock. */
void ends_append(struct cache *c, struct end *e);
/* By e's run: e has more parts, and run is called again for the next one. Its tiers are pumped after the last part. */
void ends_again(struct cache *c, struct end *e);

/* ---- a queue with a thread of its own ---- */

void end_queue_init(struct end_queue *q);
/* Any thread; e may be gone when it returns. True: the queue was empty, so the caller must wake the queue's thread. */
bool end_queue_push(struct end_queue *q, struct end *e);
/* With the lock, by the queue's thread: runs what is queued, ENDS_A_HOLD at most, then leaves the lock and takes it
 * again. False: nothing is queued, and the lock was not left. */
bool ends_hold(struct cache *c, struct end_queue *q);

#endif
