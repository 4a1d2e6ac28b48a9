/* Lookup, which tells what is cached, and Touch, by which an engine reports uses of its own. */
#ifndef TERRACE_DAEMON_CALL_LOOKUP_H
#define TERRACE_DAEMON_CALL_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct cache;

/* ---- lookup and lease ---- */

/* The longest prefix usable in all layouts; block/grid.h says what it needs of each. A windowed layout of a plain
 * session needs only the blocks that cover the last window - 1 tokens of it. states: NULL or [count * layouts], keys
 * outer: 0 absent, 1 in memory, 2 on disk only, 3 on a GPU and not in memory, 4 no cell: the layout has no block there.
 * A Lookup counts as no use, and takes no lease and no lock. */
enum status cache_lookup(struct cache *c, uint64_t session, const struct cache_keys *k, uint32_t *prefix,
			 uint8_t *states, uint32_t states_max, const char **why);
/* Bytes a second at which a disk was lately read to memory: that of the disk that ended a load last. 0: none did since
 * the start. Takes no lock. */
uint64_t cache_load_bytes_s(struct cache *c);
/* After a lookup of these keys that found that prefix, shorter than the keys, in a cache with sources by name: whether
 * those have blocks behind it, or may have some. They are asked, without waiting, and what they have stays where it is.
 */
bool cache_lookup_asks(struct cache *c, uint64_t session, const struct cache_keys *k, uint32_t prefix, uint64_t now_us);
/* *found: how many keys are in at least one layout. In a session with a grid only those blocks count, as used and as
 * found, that the prefix of all the keys needs. */
enum status cache_touch(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
			uint32_t *found, const char **why);
/* What an engine says of its keys: what has happened to the conversation, and how much they are worth to it. */
struct cache_hint {
	enum cache_event event;
	int32_t priority;              /* above 0: high, below: low */
	uint64_t ttl_ms;               /* how long the blocks will be wanted; 0: not said */
};

/* Counts as a use of the keys, and counts the event. The policy is told the hint, and decides itself what to do with
 * it; lru ignores it. INVALID also: an unknown event. */
enum status cache_report(struct cache *c, uint64_t session, const struct cache_keys *k, const struct cache_hint *hint,
			 uint64_t now_us, const char **why);

#endif
