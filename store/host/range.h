/* A range of addresses on a device, and which places of it are taken. For the arena (store/arena) and the host tier.
 *
 * Threads: under the caller's lock. */
#ifndef TERRACE_STORE_HOST_RANGE_H
#define TERRACE_STORE_HOST_RANGE_H

#include <stdint.h>

#include "store/status.h"

struct host_place {
	uint64_t at, bytes;      /* from the range's beginning on */
};

struct host_range {
	uint64_t address, bytes; /* 0 bytes: not reserved yet */
	uint32_t count, room;
	struct host_place *places; /* ascending, side by side or apart */
};

/* The first place of so many bytes that is free, now taken. EXHAUSTED: there is none, or no memory. */
enum status host_range_take(struct host_range *r, uint64_t bytes, uint64_t *at);
/* The place that begins there is free again. */
void host_range_give(struct host_range *r, uint64_t at);
/* Forgets the places; the address space is the caller's. */
void host_range_fini(struct host_range *r);

#endif
