/* Where a block comes from: call/bring.c. What a Lease or a Warm wants of it stands in call/admission.h. */
#ifndef TERRACE_DAEMON_CALL_BRING_H
#define TERRACE_DAEMON_CALL_BRING_H

#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct fetch_how;

/* Begins to bring the block to memory from the copy that costs least, or joins what brings it already. With the lock.
 * OK: it is there, or comes, and w, which may be NULL, is told of that. As the tiers' fetch (block/tier.h);
 * how->links is taken if it comes. */
enum status source_fetch(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
/* The same for a call that takes whatever place it needs. */
enum status source_bring(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);

#endif
