/* Extents that attachments are offered before they need them. */
#ifndef TERRACE_DAEMON_SESSION_OFFER_H
#define TERRACE_DAEMON_SESSION_OFFER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/status.h"

struct cache;

enum { TIERS = DEVICES_MAX + 1 };

struct offers {
	uint32_t tiers;                /* asked for, a bit each */
	uint32_t next[TIERS];          /* it has been told of what is before */
	uint64_t seen[TIERS];          /* cache's extents_made, when it had been told of all */
};

/* From now on it is to be offered its tenant's extents on that GPU (CACHE_HOST: in host memory). INVALID: no such GPU.
 * DENIED: the attachment or its session is gone. EXHAUSTED. */
enum status cache_attach_premap(struct cache *c, uint64_t attachment, int32_t gpu);
/* Extents there that are to be offered and have not been, `max` at most: how many. *more: there are others. None is lent by it. */
uint32_t cache_attach_offers(struct cache *c, uint64_t attachment, int32_t gpu, uint32_t *extents, uint32_t max, bool *more);
/* `call` is called from any thread, under the cache's lock, when there is an extent more to be offered; it must only wake somebody. NULL: no
 * more. */
void cache_on_extent(struct cache *c, void (*call)(void *arg), void *arg);
/* There is an extent more. */
void offers_tell(struct cache *c);

#endif
