/* Reserve and Abort: takes slots that an engine writes in place, and gives them back. */
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

/* The arguments of a Reserve. The arrays belong to the caller; they are written before the call returns. */
struct cache_reserve_call {
	uint64_t session;
	const struct cache_keys *keys;
	const struct slot_info *info;  /* [keys], or NULL; of the key's unit; tokens 0 means all */
	/* [keys], a bit for each layout that is to have a slot; NULL: the layouts that have a full block there */
	const uint64_t *cells;
	bool open;                     /* keys->count open blocks, without keys; tokens 0 means none yet */
	const struct cache_on *on;     /* NULL: host memory, without an attachment */
	/* it may make an extent, which takes long, and on a GPU wait some seconds for room */
	bool may_grow;
	uint64_t now_us;
	enum status *statuses;         /* [keys] */
	uint64_t *reservations;        /* [keys], 0 unless OK */
	struct cache_place *places;    /* [places_max], at least keys times layouts, keys outer */
	uint32_t places_max;
};

/* Reserves a slot for each key in every layout that its cells name. Evicts as needed. The key becomes pending: while
 * the reservation lives, any other Reserve of the key is BUSY. EXISTS: the key is stored in all of these layouts
 * already, or there are none (a key stored in some gets slots in the others only). EXHAUSTED: no room for this key and
 * all after it; after OK *why says what had run out for these, or is NULL. INVALID: wrong info; a bit of cells
 * where the layout has no cell, or for no layout; an open block that cannot begin there. attachment: as in cache_lease.
 * UNAVAILABLE: draining, or the GPU is lost; INVALID: no such GPU. Without may_grow, BUSY says that may_grow is needed;
 * nothing is reserved, and the caller calls again with it. */
enum status cache_reserve(struct cache *c, const struct cache_reserve_call *q, const char **why);
/* Gives the slots up. The caller must not write to them any more: they are reused at once. NOT_FOUND: no reservation of
 * this session has that handle; BUSY: it is being committed. */
enum status cache_abort(struct cache *c, uint64_t session, uint64_t reservation);

#endif
