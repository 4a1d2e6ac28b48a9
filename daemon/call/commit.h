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

/* The arguments of a Commit. The arrays belong to the caller; they are written before the call returns. */
struct cache_commit_call {
	uint64_t session;
	const struct cache_commit_item *items;
	uint32_t count;                /* of items */
	bool want_lease;
	const struct cache_on *on;     /* with want_lease, its attachment and call are used; NULL: neither */
	uint64_t now_us, unix_ms;      /* unix_ms: the time that the headers get */
	enum status *statuses;         /* [count] */
	struct cache_place *places;    /* [places_max], at least count times layouts, keys outer; with want_lease */
	uint32_t places_max;
};

/* Publishes: seals the headers, then makes all layouts of all items visible. statuses[count]: OK; EXISTS: every layout
 * had the block already (the first commit wins), and the slots are given back; NOT_FOUND: no reservation of this
 * session; BUSY: it is being committed already; INVALID: tokens, key or info do not fit, and the reservation stays;
 * UNAVAILABLE: its GPU is lost, and the reservation with it. A reservation that won in some layouts only is OK; its
 * other slots are given back. Slots on a GPU must have been written before the call; it zeroes what is behind a block's
 * tokens there, and waits for that. want_lease: also leases the blocks that are stored under the committed keys now,
 * and fills places and *leased. Items that are neither OK nor EXISTS get no place; nor does an item that lost to a
 * block that is neither in memory nor on the reservation's GPU. If the lease did not fit, the daemon drains or the
 * session has ended meanwhile, leased->lease is 0 and no item has a place; the commit stands all the same. An
 * attachment that is not live is refused as in cache_lease. leased: NULL without want_lease. */
enum status cache_commit(struct cache *c, const struct cache_commit_call *q, struct cache_leased *leased,
			 const char **why);

#endif
