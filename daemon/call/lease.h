/* Lease and Release: finds the longest usable prefix, pins its blocks, and gives the pins back. */
#ifndef TERRACE_DAEMON_CALL_LEASE_H
#define TERRACE_DAEMON_CALL_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_leased;
struct cache_on;
struct cache_place;
struct cache_wait;

/* The arguments of a Lease. The places belong to the caller; they are written before the call returns. */
struct cache_lease_call {
	uint64_t session;
	const struct cache_keys *keys;
	bool all;                      /* all keys or none; else the longest prefix */
	const struct cache_on *on;     /* NULL: host memory, without an attachment */
	uint64_t now_us;
	struct cache_place *places;    /* [places_max], at least keys times layouts, keys outer */
	uint32_t places_max;
};

/* Leases in one admission step. Writes blocks * layouts places; a block that the prefix does not need (block/grid.h)
 * gets none. on->attachment: a live one of the session, else PRECONDITION. MISS (nothing is present, or with `all`
 * something is missing) and EXHAUSTED (leases_max, pinned_bytes_max): nothing is held. UNAVAILABLE: draining. Blocks on
 * disk are brought to memory first: BUSY, see cache_wait. w NULL: they count as absent. A block that cannot be brought
 * (a slow disk, no memory, damage) counts as absent too.
 *
 * On a GPU: blocks that are not there are copied to it from memory or from another GPU; blocks on a disk come to memory
 * first. The lease is granted when each block has its place on the GPU; the attachment's progress page then shows how
 * far the copies are. Without a progress page (see cache_attach_lend) it is granted when the copies are done. INVALID:
 * no such GPU, or one that can never hold a block of the session (session/budget.h). UNAVAILABLE: the GPU is lost. With
 * or_host both mean a lease in memory. EXHAUSTED: gpu_pinned_milli too. */
enum status cache_lease(struct cache *c, const struct cache_lease_call *q, struct cache_leased *out,
			struct cache_wait *w, const char **why);
/* Tells the policies what `deferred` leases have asked for and used. Any thread; costs nothing if there are none. It
 * also happens when such a lease ends, when its first copy has come to its GPU, and before the next lease that is not
 * `deferred`. */
void cache_leases_notify(struct cache *c);
/* A Lease is about to be read from the socket: wakes the submission thread meanwhile, if the lease before it needed
 * copies. Any thread. */
void cache_lease_announce(struct cache *c);
/* NOT_FOUND: the session has no lease with that handle. A lease of another session is NOT_FOUND too. */
enum status cache_release(struct cache *c, uint64_t session, uint64_t lease);
/* Gives back the leases and reservations that this call of the session was granted, as the caller will never see the
 * reply. call: not 0. */
void cache_recall(struct cache *c, uint64_t session, uint64_t call);
/* Does with the lock what cache_leases_notify does without it. */
void deferred_notify(struct cache *c);

#endif
