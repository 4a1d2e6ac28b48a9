/* Reads and checks copies on disks: for Verify and Inspect, and for blocks that a crash has left unverified. */
#ifndef TERRACE_DAEMON_DISK_SCRUB_H
#define TERRACE_DAEMON_DISK_SCRUB_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct block;
struct cache;
struct cache_verified;
struct cache_wait;
struct scrub_target;
struct slot_header;

/* cache_verify_step for blocks on disks, which it reads into memory of its own. It waits for the disk: call it on a
 * worker. */
enum status cache_verify_disk_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes, struct cache_verified *sum);
/* Without the lock, of a pinned block: reads and checks its copy. OK: *h is its header. STALE, CORRUPT: the copy is not
 * there. Else the disk could not read it. Waits for the disk. */
enum status scrub_copy(const struct block *b, const struct scrub_target *t, struct slot_header *h);
/* Begins to read and check the block's copy on its disk, for a call that waits. When w is told of the end, a sound
 * block is no longer unverified, and a damaged one has been removed. With the lock. */
enum status scrub_begin(struct cache *c, struct block *b, struct cache_wait *w);
/* Begins to check more of the unverified blocks that way, as many as may be under way and read now. */
void scrub_pump(struct cache *c);
/* A call waits until no block is unverified: they are checked faster for a while. */
void scrub_hurry(struct cache *c);

#endif
