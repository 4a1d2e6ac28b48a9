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

/* What a Reserve is asked for. The arrays belong to the caller, and are written to before the call returns. */
struct cache_reserve_call {
	uint64_t session;
	const struct cache_keys *keys;
	const struct slot_info *info;  /* [keys], or NULL; of the key's unit, in which tokens 0 means all */
	const uint64_t *cells; /* [keys], a bit a layout that is to have a slot; NULL: those with a full block there */
	bool open;                     /* keys->count open blocks, without keys; tokens 0 means none yet */
	const struct cache_on *on;     /* NULL: host memory, without an attachment */
	bool may_grow;                 /* it may make an extent, which lasts, and on a GPU wait some seconds for room */
	uint64_t now_us;
	enum status *statuses;         /* [keys] */
	uint64_t *reservations;        /* [keys], 0 unless OK */
	struct cache_place *places;    /* [places_max], at least keys times layouts, keys outer */
	uint32_t places_max;
};

/* Reserves a slot for each key in every layout that its cells name. Evicts as needed. The key is claimed: a second
 * Reserve of it by anybody is BUSY while the first lives. EXISTS: stored in all of them already, or there are none (a
 * key stored in some gets slots in the others only). EXHAUSTED: for this key and all after it. INVALID: its info, or a
 * bit of cells where the layout has no cell, or there is no such layout; and open blocks where a block covers several
 * keys. attachment: as in cache_lease. UNAVAILABLE: draining, or the GPU is lost; INVALID: no such GPU. Without
 * may_grow BUSY says that it is needed, and nothing is reserved: call again, with it. */
enum status cache_reserve(struct cache *c, const struct cache_reserve_call *q, const char **why);
/* Says that nobody writes to the slots any more: they are reused at once. NOT_FOUND: no reservation of this session has
 * that handle; BUSY: it is being committed. */
enum status cache_abort(struct cache *c, uint64_t session, uint64_t reservation);

#endif
