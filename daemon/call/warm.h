/* Warm: brings blocks to a tier before they are used. */
#ifndef TERRACE_DAEMON_CALL_WARM_H
#define TERRACE_DAEMON_CALL_WARM_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_wait;

/* The arguments of a Warm. */
struct cache_warm_call {
	uint64_t session;
	const struct cache_keys *keys;
	int32_t gpu;                   /* where the blocks are wanted: index in the options' order, or CACHE_HOST */
	uint64_t now_us;
};

/* Brings the blocks that the longest prefix needs there, before they are used. *blocks: how many keys of the prefix are
 * there at the end; with the first BUSY, how many keys the prefix has, wherever its blocks are. BUSY: as in
 * cache_lease; a caller that does not need the result need not call again, since ending the wait stops no transfer.
 * Warm takes no lease and counts as no use. INVALID, UNAVAILABLE: as in cache_lease on a GPU. */
enum status cache_warm(struct cache *c, const struct cache_warm_call *q, struct cache_wait *w, uint32_t *blocks,
		       const char **why);

#endif
