/* Lease and Release. */
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

/* What a Lease is asked for. The places belong to the caller, and are written to before the call returns. */
struct cache_lease_call {
	uint64_t session;
	const struct cache_keys *keys;
	bool all;                      /* all keys or none; else the longest prefix */
	const struct cache_on *on;     /* NULL: host memory, without an attachment */
	uint64_t now_us;
	struct cache_place *places;    /* [places_max], at least keys times layouts, keys outer */
	uint32_t places_max;
};

/* Leases in one admission step. blocks * layouts of the places are written, those that the prefix does not need
 * (block/grid.h) without a place. on->attachment: a live one of the session, else PRECONDITION. MISS (nothing is
 * present, or with `all` something is not) and EXHAUSTED (leases_max, pinned_bytes_max): nothing is held.
 * UNAVAILABLE: draining. Blocks on
 * disk are brought to memory first: BUSY, see cache_wait. w NULL: they count as absent. What cannot be brought (a slow
 * disk, no memory, damage) counts as absent too.
 *
 * On a GPU: what is not there is copied to it, from memory (to which what is on a disk comes first), or from another
 * GPU. The lease is granted when each block has its place there, and the attachment's progress page tells how far the
 * copies are; without a progress page (see cache_attach_lend) when they are done. INVALID: no such GPU, or one that can
 * never have a block of the session's (session/budget.h). UNAVAILABLE: it is lost. With or_host either is as if there
 * were no GPU. EXHAUSTED: gpu_pinned_milli too. */
enum status cache_lease(struct cache *c, const struct cache_lease_call *q, struct cache_leased *out,
			struct cache_wait *w, const char **why);
/* Tells the policies what leases that were granted `deferred` have asked for and used. Any thread; costs nothing if
 * there are none. They are told without it when such a lease ends, when the first of its copies has come to its GPU,
 * and before the next that is not `deferred`. */
void cache_leases_notify(struct cache *c);
/* A lease has been asked for, and is about to be read: who begins its copies wakes up meanwhile, if the one before it had some. Any thread. */
void cache_lease_announce(struct cache *c);
/* NOT_FOUND: no lease of this session has that handle; another session's is as unknown as none. */
enum status cache_release(struct cache *c, uint64_t session, uint64_t lease);
/* Gives back the leases and the reservations that this call of the session was granted: its caller will never know of them. call: not 0. */
void cache_recall(struct cache *c, uint64_t session, uint64_t call);
/* What leases that were granted `deferred` have asked for and used is told to the policies. */
void deferred_notify(struct cache *c);

#endif
