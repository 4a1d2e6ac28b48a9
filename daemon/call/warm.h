/* Warm: brings blocks up ahead of their use. */
#ifndef TERRACE_DAEMON_CALL_WARM_H
#define TERRACE_DAEMON_CALL_WARM_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_wait;

/* What a Warm is asked for. */
struct cache_warm_call {
	uint64_t session;
	const struct cache_keys *keys;
	int32_t gpu;                   /* where they are wanted: index in the options' order, or CACHE_HOST */
	uint64_t now_us;
};

/* Brings the longest prefix (of each layout what it needs) there, ahead of its use. *blocks: keys of the prefix
 * that are there at the end; with the first BUSY those of the prefix wherever they are. BUSY: as in cache_lease; a
 * caller that does not want to know need not call again: ending the wait stops nothing. No lease, no use. INVALID,
 * UNAVAILABLE: as in cache_lease on a GPU. */
enum status cache_warm(struct cache *c, const struct cache_warm_call *q, struct cache_wait *w, uint32_t *blocks,
		       const char **why);

#endif
