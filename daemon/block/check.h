/* Checks of copies in memory against what was committed, and what follows when one is wrong (block/check.c).
 *
 * The block is pinned and has a copy in memory. Checks: any thread, without the lock.
 */
#ifndef TERRACE_DAEMON_BLOCK_CHECK_H
#define TERRACE_DAEMON_BLOCK_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"

struct block;
struct cache;
struct cache_damage;
struct slot_header;

/* Copies the header to *h. True: *h is the header of the commit, every byte of it. */
bool memory_header(const struct block *b, struct slot_header *h);
/* The same, and the bytes of the block are those of the commit. */
bool memory_sound(const struct block *b, struct slot_header *h);
/* Copies the bytes to `to` (the layout's block_bytes). True: what is in `to` is what was committed, and *crc32c is its sum. */
bool memory_copy(const struct block *b, uint8_t *to, uint32_t *crc32c);
/* With the lock, of a live block whose copy in memory was found wrong: counts it, COUNTER_MEMORY_WRONG_..., notes it for the log, and removes the
 * block from all tiers. */
void memory_damaged(struct cache *c, struct block *b, enum counter finder);

enum { DAMAGES_MAX = 64 }; /* noted at a time; the oldest stay */

/* Room for what the log is to say of copies in memory that were wrong. False: no memory. Ends with damage_notes_destroy. */
bool damage_notes_create(struct cache *c);
void damage_notes_destroy(struct cache *c);
bool cache_damage_next(struct cache *c, struct cache_damage *out, uint64_t *untold);

#endif
