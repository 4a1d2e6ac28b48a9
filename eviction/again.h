/* Whether a block that is asked for comes again soon enough to be one of the ghosts that s3fifo would have, near enough, without a list of them.
 */
#ifndef TERRACE_EVICTION_AGAIN_H
#define TERRACE_EVICTION_AGAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/memory.h"

enum { AGAIN_SHARES = 16 /* of the capacity */ };

/* Zeroed: nothing has come. */
struct again {
	uint64_t new_blocks;               /* accesses to what was not there, nor of late */
	uint32_t new_ms[2 * AGAIN_SHARES]; /* when there had been capacity / AGAIN_SHARES more, over two turnovers */
};

/* Of an access to the block of a record, which knows of the ones before only: whether fewer than 9/10 of the capacity went from the small queue
 * since the block did, if it did: as many new blocks and the `small` that are in that queue have come since its last access. */
bool again_note(struct again *a, const struct record *r, uint64_t capacity, uint64_t small, uint64_t now_us);

#endif
