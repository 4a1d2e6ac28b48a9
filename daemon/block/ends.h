/* The ends of transfers, and of what else is begun with the cache's lock and ends later.
 *
 * A struct end is part of the request whose end it is: nothing is allocated for it, and to queue it cannot fail. Each
 * end that was queued is run exactly once, with the lock, in the order of queueing as far as one thread queues. After
 * the ends of a hold of the lock, each tier that one of them names is pumped once (tier_ops.pump). No end runs inside
 * the call that begins a transfer, nor inside another end.
 *
 * An end comes by one of two ways:
 * - ends_arrive, from a thread without the lock, as a rule the one on which a disk or a driver completes. The first of
 *   several such threads takes the lock and runs what all of them have brought; the others return at once.
 * - ends_append, from a thread with the lock: a movement that waited for memory has failed, a device was lost. That
 *   thread runs the end before it leaves the lock. Of many it runs ENDS_A_HOLD; the queue's own thread runs the rest.
 * So a call that leaves the lock never runs more than ENDS_A_HOLD ends, and none that arrived on other threads.
 */
#ifndef TERRACE_DAEMON_BLOCK_ENDS_H
#define TERRACE_DAEMON_BLOCK_ENDS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/lock.h"

enum { ENDS_A_HOLD = 64 }; /* that are run in one hold of the lock */

struct end {
	/* With the lock, which it does not leave. It may free what `e` is part of, and may queue it again. */
	void (*run)(struct cache *c, struct end *e);
	struct end *next;
	enum tier_kind tier;           /* is pumped after it; TIER_KINDS: none is */
};

struct end_list {
	struct end *first, **last;
};

struct ends {
	struct end *_Atomic arrived;   /* by ends_arrive, not looked at yet: the last first; any thread */
	struct end_list own;           /* with the cache's lock: of the thread that holds it; empty while none does; */
	struct end_list due;           /* of those that ends_run is to run */
	pthread_mutex_t mutex;         /* of the two below; nothing is locked in it */
	bool woken, over;
	pthread_cond_t wake;
	pthread_t thread;
};

/* Makes c->ends and starts its thread. False: no memory, or no thread. */
bool ends_create(struct cache *c);
/* Runs all that is queued and ends the thread. ended: nothing can be queued any more, and the queue is freed; else it
 * stays, as does the whole cache, and the thread is left behind. No queue: nothing happens. */
void ends_destroy(struct cache *c, bool ended);

/* Without the lock; e may be gone when it returns. */
void ends_arrive(struct cache *c, struct end *e);
/* The same in two steps, for several ends. ends_push: true if the caller is to call ends_run after its last push. */
bool ends_push(struct cache *c, struct end *e);
/* Without the lock: runs what is queued, in holds of ENDS_A_HOLD, until a hold finds nothing. When it returns, all that
 * was queued before the call has been run. */
void ends_run(struct cache *c);
/* With the lock. */
void ends_append(struct cache *c, struct end *e);

#endif
