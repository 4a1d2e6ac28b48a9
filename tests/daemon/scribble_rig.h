/* What stray writes do to slots, in memory and in slab files: for the tests of what is found of them. */
#ifndef TERRACE_TESTS_DAEMON_SCRIBBLE_RIG_H
#define TERRACE_TESTS_DAEMON_SCRIBBLE_RIG_H

#include "store/slot.h"

/* Does something to a slot, header and block. */
typedef void scribble_fn(uint8_t *slot, uint64_t block_bytes);

/* A slot that is sound by itself, whatever it has become, and of that generation. */
void scribble_reseal(uint8_t *slot, uint64_t generation);
/* The header as the first version of the format has it: without a layout. */
scribble_fn scribble_old;
/* Does it to each slot of key number n (daemon/cache_rig.h) in the slab files of a disk's folder, whose slots are of that size; how many there were. */
int scribble_on_disk(const char *folder, uint64_t slot_bytes, uint64_t n, scribble_fn *hit, uint64_t block_bytes);

#endif
