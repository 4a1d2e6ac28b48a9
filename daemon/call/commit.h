/* Commit: publishes reserved blocks. */
#ifndef TERRACE_DAEMON_CALL_COMMIT_H
#define TERRACE_DAEMON_CALL_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_commit_item;
struct cache_leased;
struct cache_on;
struct cache_place;

/* What a Commit is asked for. The arrays belong to the caller, and are written to before the call returns. */
struct cache_commit_call {
	uint64_t session;
	const struct cache_commit_item *items;
	uint32_t count;                /* of items */
	bool want_lease;
	const struct cache_on *on;     /* with want_lease its attachment and call are looked at; NULL: neither */
	uint64_t now_us, unix_ms;      /* unix_ms: what the headers say of the time */
	enum status *statuses;         /* [count] */
	struct cache_place *places;    /* [places_max], at least count times layouts, keys outer; with want_lease */
	uint32_t places_max;
};

/* Publishes: seals the headers, then makes all layouts of all items visible. statuses[count]: OK; EXISTS: every layout
 * had one already, first commit wins, the slots are given back; NOT_FOUND: no reservation of this session; BUSY: it is
 * being committed already; INVALID: tokens, key or info do not fit, and the reservation stays; UNAVAILABLE: its GPU is
 * lost, and the reservation with it. Slots on a GPU have been written when this is called; what is behind the tokens
 * of a block there is zeroed, which is waited for. Of a reservation that won in some layouts only, the other slots are
 * given back and it is OK. want_lease: also leases what is stored under the committed keys now: places, none for items
 * that are neither OK nor EXISTS, nor for what lost to a block that is neither in memory nor on the reservation's GPU,
 * and *leased. Its lease is 0, and nothing has a place, if the lease did not fit, the daemon drains, or the session
 * has ended meanwhile; the commit stands all the same. An attachment that is not live is refused as in cache_lease.
 * leased: NULL without want_lease. */
enum status cache_commit(struct cache *c, const struct cache_commit_call *q, struct cache_leased *leased,
			 const char **why);

#endif
