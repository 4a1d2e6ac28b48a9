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
	uint32_t next[TIERS];          /* it has been told of the extents before that */
	uint64_t seen[TIERS];          /* the cache's extents_made when it had been told of all */
};

/* From now on the attachment is offered its tenant's extents on that GPU (CACHE_HOST: in host memory). INVALID: no such
 * GPU. DENIED: the attachment or its session has ended. EXHAUSTED. */
enum status cache_attach_premap(struct cache *c, uint64_t attachment, int32_t gpu);
/* Writes at most `max` extents there that have not been offered yet, and returns how many. *more: there are others.
 * This lends none of them. */
uint32_t cache_attach_offers(struct cache *c, uint64_t attachment, int32_t gpu, uint32_t *extents, uint32_t max, bool *more);
/* `call` is called on any thread, under the cache's lock, when there is a new extent to offer; it must only wake a
 * thread. NULL: no more calls. */
void cache_on_extent(struct cache *c, void (*call)(void *arg), void *arg);
/* Called when there is a new extent: has the local socket's thread offer it. */
void offers_tell(struct cache *c);

#endif
