/* Prefetches from disk to memory: which wishes are begun, and how they ended. */
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
	uint64_t held_bytes;           /* of blocks that were prefetched and are not used yet */
};

void prefetch_init(struct prefetch *a);
/* Notes a request that was told, or a Lease of it, and begins the loads that wishes ask for. In a read section. */
void prefetch_request(struct cache *c, const struct request *r);
void prefetch_leased(struct cache *c, const struct request *r);
void prefetch_pump(struct cache *c);
/* Ends the prefetch of the block with the outcome COUNTER_PREFETCH_USED, _WASTED or _LATE. Does nothing if the block
 * was not prefetched. The block is in no list then. */
void prefetch_end(struct cache *c, struct block *b, enum counter how);
/* Notes that a call waits for a block that is not in memory. */
void prefetch_wanted(struct cache *c, struct block *b);

#endif
