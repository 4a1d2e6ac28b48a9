/* Flush: makes blocks durable. */
#ifndef TERRACE_DAEMON_CALL_FLUSH_H
#define TERRACE_DAEMON_CALL_FLUSH_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_wait;

/* Makes blocks durable: on a disk, synced, and in the synced catalog. k NULL: every block of the session's layouts,
 * statuses NULL. statuses[count], when it ends: OK; MISS (in no layout); EXHAUSTED (no place on a disk); IO;
 * UNAVAILABLE (no disk tier, or none that is sound); with w->last also DEADLINE: not in time. With k NULL these are the
 * call's own status. BUSY: as in cache_delete; w->unverified says what for. An unverified block is durable once it has
 * been read: with keys, the call reads those blocks; without, it waits until all have been read. */
enum status cache_flush(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
			struct cache_wait *w, enum status *statuses, const char **why);

#endif
