/* Delete: removes blocks so that no restart brings them back. */
#ifndef TERRACE_DAEMON_CALL_DELETE_H
#define TERRACE_DAEMON_CALL_DELETE_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_wait;

/* statuses[count]: OK if at least one layout had the block, else MISS. The blocks cannot be found any more when the
 * call returns; the slot of a pinned block is reused after the last release. Reservations of the key go on. BUSY (with
 * a wait): the caller keeps the statuses for its next call. Once the answer is OK, no restart brings the blocks back;
 * but with w->last a status may be DEADLINE: a disk that did not answer in time may still have that block. w NULL: does
 * not wait. IO: the blocks cannot be found, but a disk that failed may still have them. */
enum status cache_delete(struct cache *c, uint64_t session, const struct cache_keys *k, enum status *statuses,
			 struct cache_wait *w, const char **why);

/* What another member of the cluster has deleted. */
struct cache_forget_call {
	uint32_t tenant;               /* its number */
	const uint64_t *layout_ids;    /* [layouts], at most CACHE_LAYOUTS_MAX */
	uint32_t layouts;
	const struct cache_keys *keys;
};
/* Deletes the keys in those layouts of that tenant, as cache_delete does, and keeps other members from bringing them
 * back for a while (call/deleted.h). */
enum status cache_forget(struct cache *c, const struct cache_forget_call *q, enum status *statuses,
			 struct cache_wait *w, const char **why);

#endif
