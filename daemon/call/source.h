/* Chooses where a block comes from, and begins to bring it: call/source.c. With the cache's lock. */
#ifndef TERRACE_DAEMON_CALL_SOURCE_H
#define TERRACE_DAEMON_CALL_SOURCE_H

#include <stdint.h>

#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct fetch_how;
struct key_run;

enum {
	SOURCE_RUN = 32,               /* names that are chosen for and fetched together */
	SOURCE_NONE = 0xff,
};

/* The one choice. For each name of the run (at most SOURCE_RUN): the number of the source (cache.sources) that is to
 * bring it, or SOURCE_NONE. Names that the same sources have are brought by one source: the one that, by its estimate
 * and its queue, brings the last of them the soonest. If two cost about the same, the one registered first is chosen.
 * without: sources that must not be chosen, a bit each. */
void block_source(struct cache *c, const struct key_run *run, uint32_t without, uint8_t *from);

/* Begins to bring the block to memory from the cheapest source, or joins a transfer that brings it already. OK: it is
 * in memory, or on its way; w (may be NULL) is told of the end. Other answers as of the tiers' fetch (block/tier.h).
 * how->links is taken if the block comes. */
enum status source_fetch(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
/* Begins to bring the block to memory, as source_fetch does, for a call that may evict any block for its slot. */
enum status source_bring(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* Begins to bring n blocks to memory together; none of them is there, and NULLs are skipped. w, not NULL, is told of
 * each end. Returns how many do not come. */
uint32_t source_bring_run(struct cache *c, uint32_t n, struct block *const *block, enum ring_priority priority,
			  struct cache_wait *w);

#endif
