/* Loads from disk to memory ahead of their use: which wishes are begun, and what became of them. */
#ifndef TERRACE_DAEMON_ADVICE_PREFETCH_H
#define TERRACE_DAEMON_ADVICE_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/advice/prefetch_outcome.h"
#include "daemon/advice/wish.h"
#include "daemon/block/counters.h"
#include "daemon/memory/probation.h"

struct block;
struct cache;
struct pool;
struct request;

enum { AHEAD_WISHES = 64 };

struct ahead {
	struct wish wish[AHEAD_WISHES];
	struct wish_queue queue;       /* of these */
	struct ahead_tried tried[AHEAD_KINDS];
	uint64_t held_bytes;           /* of blocks that were loaded ahead and are not used yet */
};

void ahead_init(struct ahead *a);
/* In a read section: a request was told; a Lease of it came; loads are begun, of what is wished for. */
void ahead_request(struct cache *c, const struct request *r);
void ahead_leased(struct cache *c, const struct request *r);
void ahead_pump(struct cache *c);
/* What became of it (of others: nothing): one of COUNTER_AHEAD_USED, _WASTED and _LATE. It is in no list then. */
void ahead_end(struct cache *c, struct block *b, enum counter how);
/* A call waits for a block that is not in memory. */
void ahead_wanted(struct cache *c, struct block *b);

#endif
