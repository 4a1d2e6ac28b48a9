/* Estimates whether a block that is asked for would be one of s3fifo's ghosts, without keeping a list of ghosts. */
#ifndef TERRACE_EVICTION_AGAIN_H
#define TERRACE_EVICTION_AGAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/memory.h"

enum { AGAIN_SHARES = 16 /* parts into which the capacity is divided */ };

/* The clock of new blocks. Zeroed: no block has come yet. */
struct again {
	uint64_t new_blocks;               /* accesses to blocks that were not in the cache and were no ghosts */
	uint32_t new_ms[2 * AGAIN_SHARES]; /* when each share of capacity / AGAIN_SHARES new blocks was full, over the
					    * last two turnovers */
};

/* Notes an access to the block of a record; the record still describes the accesses before this one. Returns whether
 * the block would be a ghost: whether, since its last access, fewer new blocks have come than `small`, the number of
 * blocks in the small queue, plus 9/10 of the capacity. So many come before the block has left that queue and before
 * the list of ghosts, which holds 9/10 of the capacity, has dropped it. */
bool again_note(struct again *a, const struct record *r, uint64_t capacity, uint64_t small, uint64_t now_us);

#endif
