/* Where a block comes from, and what begins to bring it: call/source.c. With the cache's lock. */
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
	SOURCE_RUN = 32,               /* names that are chosen for, and fetched, together */
	SOURCE_NONE = 0xff,
};

/* The one choice. For each name of the run (at most SOURCE_RUN) the number of the source (cache.sources) from which it
 * is to come, or SOURCE_NONE. Names that the same sources have come from the same one: from that by which the last of
 * them is there the soonest, by the sources' estimates, which say what is queued. If two cost about the same it is the
 * one that was registered first. without: sources that are not to be chosen, a bit each. */
void block_source(struct cache *c, const struct key_run *run, uint32_t without, uint8_t *from);

/* Begins to bring the block to memory from the source that costs least, or joins what brings it already. OK: it is
 * there, or comes, and w, which may be NULL, is told of that. As the tiers' fetch (block/tier.h); how->links is
 * taken if it comes. */
enum status source_fetch(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
/* The same for a call that takes whatever place it needs. */
enum status source_bring(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* The same of a run of n blocks, none of which is in memory (NULLs are passed over): they come together. w is not NULL.
 * How many do not come. */
uint32_t source_bring_run(struct cache *c, uint32_t n, struct block *const *block, enum ring_priority priority,
			  struct cache_wait *w);

#endif
