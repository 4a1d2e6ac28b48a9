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

/* Publishes: seals the headers, then makes all layouts of all items visible. statuses[count]: OK; EXISTS:
 * every layout had one already, first commit wins, the slots are given back; NOT_FOUND: no reservation of this session; BUSY: it is
 * being committed already; INVALID: tokens, key or info do not fit, and the reservation stays; UNAVAILABLE: its GPU is lost, and
 * the reservation with it. Of slots on a GPU no byte is read: whoever commits has seen to it that they are written. Of a
 * reservation that won in some layouts only, the other slots are given back and it is OK. want_lease: also
 * leases what is stored under the committed keys now: places[count * layouts], none for items that are
 * neither OK nor EXISTS, nor for what lost to a block that is neither in memory nor on the reservation's GPU, *leased. Its lease is 0, and nothing has a place, if the lease did not fit, the
 * daemon drains, or the session has ended meanwhile; the commit stands all the same. attachment: as in
 * cache_lease, not looked at without want_lease. */
enum status cache_commit(struct cache *c, uint64_t session, const struct cache_commit_item *items,
			 uint32_t count, bool want_lease, uint64_t attachment, uint64_t now_us,
			 uint64_t unix_ms, enum status *statuses, struct cache_place *places,
			 uint32_t places_max, struct cache_leased *leased, const char **why);
/* The same for a caller of whom on->attachment and on->call are looked at. */
enum status cache_commit_on(struct cache *c, uint64_t session, const struct cache_commit_item *items, uint32_t count, bool want_lease,
			    const struct cache_on *on, uint64_t now_us, uint64_t unix_ms, enum status *statuses,
			    struct cache_place *places, uint32_t places_max, struct cache_leased *leased, const char **why);

#endif
