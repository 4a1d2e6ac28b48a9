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
struct layout_pool;
struct request;

enum { PREFETCH_WISHES = 64 };

struct prefetch {
	struct wish wish[PREFETCH_WISHES];
	struct wish_queue queue;       /* of these */
	struct prefetch_outcome outcome[PREFETCH_KINDS];
	uint64_t held_bytes;           /* of blocks that were loaded ahead and are not used yet */
};

void prefetch_init(struct prefetch *a);
/* In a read section: a request was told; a Lease of it came; loads are begun, of what is wished for. */
void prefetch_request(struct cache *c, const struct request *r);
void prefetch_leased(struct cache *c, const struct request *r);
void prefetch_pump(struct cache *c);
/* What became of it (of others: nothing): one of COUNTER_PREFETCH_USED, _WASTED and _LATE. It is in no list then. */
void prefetch_end(struct cache *c, struct block *b, enum counter how);
/* A call waits for a block that is not in memory. */
void prefetch_wanted(struct cache *c, struct block *b);

#endif
