/* Checks of copies in memory against what was committed, and what is done with a damaged copy (block/check.c). The
 * block is pinned and has a copy in memory. Checks run on any thread, without the lock.
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

/* Copies the header to *h. True: *h is exactly the header of the commit. */
bool memory_header(const struct block *b, struct slot_header *h);
/* Copies the header to *h and compares all checksums. True: header and bytes of the block are those of the commit. */
bool memory_sound(const struct block *b, struct slot_header *h);
/* Copies the header to *h and the bytes to `to` (the layout's block_bytes). True: both are what was committed, and
 * *crc32c is the checksum of the bytes. */
bool memory_copy(const struct block *b, struct slot_header *h, uint8_t *to, uint32_t *crc32c);
/* The copy in memory of this live block is damaged: counts it (COUNTER_MEMORY_WRONG_...), notes it for the log, and
 * removes the block from all tiers. With the lock. */
void memory_damaged(struct cache *c, struct block *b, enum counter finder);

enum { DAMAGES_MAX = 64 }; /* noted at a time; the oldest stay */

/* Room for notes to the log of damaged copies in memory. False: no memory. Ends with damage_notes_destroy. */
bool damage_notes_create(struct cache *c);
void damage_notes_destroy(struct cache *c);
/* The next copy in memory that was found damaged since the last call. False: none. *untold: the number of others for
 * which there was no room. */
bool cache_damage_next(struct cache *c, struct cache_damage *out, uint64_t *untold);

#endif
