/* A range of addresses on a device, and the list of its taken places. Used by the arena (store/arena) and the host
 * tier.
 *
 * Threads: under the caller's lock.
 */
#ifndef TERRACE_STORE_HOST_RANGE_H
#define TERRACE_STORE_HOST_RANGE_H

#include <stdint.h>

#include "store/status.h"

struct host_place {
	uint64_t at, bytes;      /* `at` counts from the range's beginning */
};

struct host_range {
	uint64_t address, bytes; /* 0 bytes: not reserved yet */
	uint32_t count, room;
	struct host_place *places; /* ascending, side by side or apart */
};

/* Takes the first free place of so many bytes. EXHAUSTED: there is none, or no memory for the list. */
enum status host_range_take(struct host_range *r, uint64_t bytes, uint64_t *at);
/* Frees the place that begins at `at`. */
void host_range_give(struct host_range *r, uint64_t at);
/* Frees the list of places. The address space stays the caller's to free. */
void host_range_fini(struct host_range *r);

#endif
