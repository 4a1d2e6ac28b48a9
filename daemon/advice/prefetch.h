/* Loads from disk to memory ahead of their use: wishes, their budget, and what became of them. */
#ifndef TERRACE_DAEMON_ADVICE_PREFETCH_H
#define TERRACE_DAEMON_ADVICE_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/advice/prefetch_outcome.h"
#include "daemon/block/counters.h"
#include "daemon/memory/probation.h"

struct block;
struct cache;
struct pool;
struct request;

enum { AHEAD_WISHES = 64, AHEAD_BLOCKS = 1024 };

struct ahead_wish {
	uint64_t whole, part;          /* of its request: request_whole() of all its keys, and of those that were there */
	uint64_t until_us;
	enum ahead_kind kind;
	uint32_t count, begun;         /* blocks; 0: free */
	uint32_t kept;                 /* of the same request, in memory, to stay there until the Lease comes */
	uint64_t id[AHEAD_BLOCKS], keep[AHEAD_BLOCKS];
};

struct ahead {
	struct ahead_wish wish[AHEAD_WISHES];
	struct ahead_tried tried[AHEAD_KINDS];
	uint64_t held_bytes;           /* of blocks that were loaded ahead and are not used yet */
	uint64_t budget_bytes, budget_us; /* what may be read now, and as of when */
};

/* In a read section: a request was told; a Lease of it came; loads are begun, of what is wished for. */
void ahead_request(struct cache *c, const struct request *r);
void ahead_leased(struct cache *c, const struct request *r);
void ahead_pump(struct cache *c);
/* What became of it (of others: nothing): one of COUNTER_AHEAD_USED, _WASTED and _LATE. It is in no list then. */
void ahead_end(struct cache *c, struct block *b, enum counter how);
/* A call waits for a block that is not in memory. */
void ahead_wanted(struct cache *c, struct block *b);

#endif
