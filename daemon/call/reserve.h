/* Reserve and Abort. */
#ifndef TERRACE_DAEMON_CALL_RESERVE_H
#define TERRACE_DAEMON_CALL_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_keys;
struct cache_on;
struct cache_place;
struct slot_info;

/* ---- put ---- */

/* Reserves a slot in every layout for each key: statuses[count], reservations[count] (0 unless OK),
 * places[count * layouts]. Evicts as needed. The key is claimed: a second Reserve of it by anybody is BUSY
 * while the first lives. EXISTS: stored in all layouts already (a key stored in some gets slots in the others
 * only). EXHAUSTED: for this key and all after it. INVALID: its info. info: [count] or NULL; tokens 0 means a
 * full block. open: keys->count open blocks, the keys themselves are ignored; tokens 0 means none yet.
 * attachment: as in cache_lease. UNAVAILABLE: draining. may_grow: it may make an extent, which lasts; without
 * it BUSY says that this is needed, and nothing is reserved: call again, with it. */
enum status cache_reserve(struct cache *c, uint64_t session, const struct cache_keys *k,
			  const struct slot_info *info, bool open, uint64_t attachment, bool may_grow,
			  uint64_t now_us, enum status *statuses, uint64_t *reservations, struct cache_place *places,
			  uint32_t places_max, const char **why);
/* The same, on a GPU. INVALID: no such GPU; UNAVAILABLE: it is lost. may_grow: it may also wait for room there, some seconds. */
enum status cache_reserve_on(struct cache *c, uint64_t session, const struct cache_keys *k, const struct slot_info *info, bool open,
			     const struct cache_on *on, bool may_grow, uint64_t now_us, enum status *statuses,
			     uint64_t *reservations, struct cache_place *places, uint32_t places_max, const char **why);
/* Says that nobody writes to the slots any more: they are reused at once. NOT_FOUND: no reservation of this session has
 * that handle; BUSY: it is being committed. */
enum status cache_abort(struct cache *c, uint64_t session, uint64_t reservation);

#endif
