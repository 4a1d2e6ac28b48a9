/* Delete: removes blocks so that no restart brings them back. */
#ifndef TERRACE_DAEMON_CALL_DELETE_H
#define TERRACE_DAEMON_CALL_DELETE_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_wait;

/* statuses[count]: OK if at least one layout had it, else MISS. Out of sight at once; the slot of a pinned
 * block is reused after the last release. Reservations of the key go on. BUSY (with a wait): the statuses are kept by the caller
 * for the calls that follow, and no restart brings the blocks back once the answer is OK; but with w->last a status may be DEADLINE: a disk that
 * did not answer in time may still have that block. w NULL: not waited for. IO: they are out of sight, but a disk that failed may still have
 * them. */
enum status cache_delete(struct cache *c, uint64_t session, const struct cache_keys *k, enum status *statuses,
			 struct cache_wait *w, const char **why);

#endif
