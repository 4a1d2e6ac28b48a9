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

/* As cache_verify_step, for the blocks on disks, read into memory of its own; waits for the disk. On a worker only. */
enum status cache_verify_disk_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes, struct cache_verified *sum);
/* Without the lock, of a pinned block: reads and checks its copy. *h: its header, on OK. STALE, CORRUPT: it is not there. Else
 * the disk did not give it. Waits for the disk. */
enum status scrub_copy(struct cache *c, const struct block *b, const struct scrub_target *t, struct slot_header *h);
/* The same by a call that waits, with the lock: one whose bytes are sound is unverified no more, and one whose bytes
 * are wrong is removed when w hears of it. */
enum status scrub_begin(struct cache *c, struct block *b, struct cache_wait *w);
/* Looks at more of the unverified blocks that way, as many as may be under way and read now. */
void scrub_pump(struct cache *c);
/* Somebody waits for all of them, for a while from now on. */
void scrub_hurry(struct cache *c);

#endif
