/* Which slab is given up, and how. */
#ifndef TERRACE_DAEMON_DISK_COMPACT_H
#define TERRACE_DAEMON_DISK_COMPACT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "store/status.h"

struct cache;
struct disk_class;
struct slab_map;
struct unit;

/* Empties the least used slab of a disk and slot size, and deletes its file. It does so while the other slabs of the
 * size have room for its blocks, or while slab files take `bytes_max` more than the disk's budget (a changed
 * configuration). Blocks whose only copy was there are evicted; blocks that memory has too are copied to other slabs
 * first, or evicted if there is no place. *freed: bytes of files deleted. One slab a call. MISS: nothing (more) to do.
 * BUSY: the slab is in use, or there was no time for all copies: call again. NOT_FOUND: no such disk. Else a disk
 * failed. Takes half a second and a sync: call it on a worker. */
enum status cache_compact_step(struct cache *c, uint32_t disk, uint64_t bytes_max, uint64_t *freed);
/* The idle slab map with the fewest blocks; of k, or of all classes from k on. */
struct slab_map *slab_map_least(const struct disk_class *k, bool all);
/* The slab map is chosen: nothing new is written to it. */
void slab_map_leave(struct slab_map *r);
/* Without the lock, on a worker, of a slab map that is leaving: copies blocks that memory has too to other slabs, then
 * deletes the slab with the blocks left in it, which are counted as `why`. Not OK: the slab map stays, and is no longer
 * leaving. It may take half a second and a sync. */
enum status slab_map_give_up(struct cache *c, struct slab_map *r, enum counter why);
/* Without the lock, on the worker of the disks' chores: makes a slab for a class that wants one: a new one, or in the
 * place of another class's slab. Takes long. */
void slab_feed(struct cache *c, struct disk_class *k);
/* Without the lock: syncs the disk, and waits for that; a failed disk is not synced. DEADLINE: the disk has not
 * answered in time. */
enum status unit_sync(struct cache *c, struct unit *u, uint64_t wait_us);

#endif
