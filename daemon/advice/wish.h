/* Wishes: the blocks of a request that are wanted somewhere before they are asked for there, in a bounded queue. Memory
 * has one queue (advice/prefetch.c), the GPUs have another (advice/prefetch_gpu.c). With the cache's lock.
 *
 *     asked      a Lookup found the blocks: the Lease that follows will want them. Blocks that are not begun when it
 *     comes are late, and dropped
 *     expected   the graph leads to them from what was asked for (advice/graph.h); dropped after expected_us
 */
#ifndef TERRACE_DAEMON_ADVICE_WISH_H
#define TERRACE_DAEMON_ADVICE_WISH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "daemon/memory/probation.h"

struct prefetch_outcome;
struct block;
struct cache;
struct request;

enum { WISH_BLOCKS = 1024 };

struct wish {
	uint64_t whole, part;          /* those of its request; `part` is `whole` if no prefix was present */
	uint64_t until_us;
	enum prefetch_kind kind;
	uint32_t gpu;                  /* in the GPUs' queue: where the blocks are wanted */
	uint32_t count, begun;         /* blocks; 0: free */
	/* blocks of the same request in memory that are to stay there until the Lease comes */
	uint32_t kept;
	uint64_t id[WISH_BLOCKS], keep[WISH_BLOCKS];
};

struct wish_queue {
	struct wish *wish;             /* [size] */
	uint32_t size;
	enum counter too_late;         /* counts blocks whose wish ended before they were begun */
	uint64_t expected_us;          /* expected blocks are not begun later than that */
	uint64_t budget_bytes, budget_us; /* bytes that may be begun now, and when that was computed */
};

typedef void wish_add_fn(struct cache *c, struct wish *w, struct block *b);

/* A new wish for the request, without blocks yet. If none is free, the one that is the first to expire is dropped. */
struct wish *wish_begin(struct cache *c, struct wish_queue *q, const struct request *r, enum prefetch_kind kind);
/* Calls `add` with each block that the wish is for; NULL for blocks that the cache does not have. */
void wish_fill(struct cache *c, const struct request *r, struct wish *w, wish_add_fn *add);
/* Calls `add` with the blocks that the request found, whatever the wish's kind: those that a Lease of them needs, the
 * deepest last. */
void wish_fill_asked(struct cache *c, const struct request *r, struct wish *w, wish_add_fn *add);
/* Leaves as many blocks as `outcome` grants: of a kind of wish that is in doubt `trial` or none. The others count as
 * `unverified`. */
void wish_grant(struct cache *c, struct wish *w, struct prefetch_outcome *outcome, uint32_t trial,
		enum counter unverified);
/* Ends a wish: early, and its blocks that are not begun are late; or done. */
void wish_drop(struct cache *c, const struct wish_queue *q, struct wish *w);
void wish_end(struct cache *c, struct wish *w);
/* Notes that a Lease of the request has come. */
void wish_leased(struct cache *c, struct wish_queue *q, const struct request *r);
/* Whether `bytes` may be begun now, at `rate` bytes a second. A quarter of a second's worth may be saved up, or one
 * block. The caller that begins them takes them off budget_bytes. */
bool wish_affords(const struct cache *c, struct wish_queue *q, uint64_t rate, uint64_t bytes);

#endif
