/* Lookup and Touch. */
#ifndef TERRACE_DAEMON_CALL_LOOKUP_H
#define TERRACE_DAEMON_CALL_LOOKUP_H

#include <stdint.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct cache;

/* ---- lookup and lease ---- */

/* The longest prefix usable in all layouts: what it needs of each, block/grid.h says. A windowed layout of a plain
 * session needs only the blocks that cover the last window - 1 tokens of it. states: NULL or [count * layouts], keys
 * outer: 0 absent, 1 in memory, 2 on disk only, 3 on a GPU and not in memory, 4 no cell: the layout has no block there.
 * A probe: no use, no lease, no lock. */
enum status cache_lookup(struct cache *c, uint64_t session, const struct cache_keys *k, uint32_t *prefix,
			 uint8_t *states, uint32_t states_max, const char **why);
/* *found: keys that are in at least one layout. Of a session with a grid only those blocks count, as use and as found,
 * that the prefix of all the keys needs. */
enum status cache_touch(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
			uint32_t *found, const char **why);
/* What an engine says of its keys: what has happened to the conversation, and how much they are worth to it. */
struct cache_hint {
	enum cache_event event;
	int32_t priority;              /* above 0: high, below: low */
	uint64_t ttl_ms;               /* so long they will be wanted; 0: it does not say */
};

/* Counts as use of the keys and counts the event. The policy is told of the hint; what it makes of it is its own
 * affair, and with lru nothing. INVALID also: an unknown event. */
enum status cache_report(struct cache *c, uint64_t session, const struct cache_keys *k, const struct cache_hint *hint,
			 uint64_t now_us, const char **why);

#endif
