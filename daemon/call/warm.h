/* Warm: brings blocks up ahead of their use. */
#ifndef TERRACE_DAEMON_CALL_WARM_H
#define TERRACE_DAEMON_CALL_WARM_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_wait;

/* Brings the longest prefix (of each layout what it needs) to memory, ahead of its use. *blocks: keys of the prefix that
 * are in memory at the end; with the first BUSY those of the prefix wherever they are. BUSY: as above; a caller that does not want to
 * know need not call again: ending the wait stops nothing. No lease, no use. */
enum status cache_warm(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
		       struct cache_wait *w, uint32_t *blocks, const char **why);
/* The same, to a GPU; INVALID, UNAVAILABLE as in cache_lease_on. */
enum status cache_warm_on(struct cache *c, uint64_t session, const struct cache_keys *k, int32_t gpu, uint64_t now_us,
			  struct cache_wait *w, uint32_t *blocks, const char **why);

#endif
