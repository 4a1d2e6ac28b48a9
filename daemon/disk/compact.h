/* Chooses which slab is given up, and gives it up. */
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

/* Empties the slab with the fewest blocks of a disk, and deletes its file: one slab a call. It does so while the other
 * slabs of the same slot size have room for its blocks, or while slab files take more than bytes_max (a changed
 * configuration). Blocks whose only copy was there are evicted. Blocks that memory or a GPU has too are first copied to
 * other slabs, or evicted if there is no place. *freed: bytes of files deleted. MISS: nothing (more) to do. BUSY: the
 * slab is in use, or there was no time for all copies; call again. NOT_FOUND: no such disk. Another status: a disk
 * failed. Takes half a second and a sync: call it on a worker. */
enum status cache_compact_step(struct cache *c, uint32_t disk, uint64_t bytes_max, uint64_t *freed);
/* The idle slab map with the fewest blocks, of class k, or with `all` of all classes from k on. */
struct slab_map *slab_map_least(const struct disk_class *k, bool all);
/* Marks a slab map as leaving: nothing new is written to it. */
void slab_map_leave(struct slab_map *r);
/* Called without the lock, on a worker, for a slab map that is leaving. Copies the blocks that memory or a GPU has too
 * to other slabs. Then deletes the slab with the blocks that are left in it, which are counted as `why`. Not OK: the
 * slab map stays and is no longer leaving. May take half a second and a sync. */
enum status slab_map_give_up(struct cache *c, struct slab_map *r, enum counter why);
/* Without the lock, on the worker of the disks' chores: makes a slab for a class that wants one: a new one, or in the
 * place of another class's slab. Takes long. */
void slab_feed(struct cache *c, struct disk_class *k);
/* Without the lock: syncs the disk, and waits for that; a failed disk is not synced. DEADLINE: the disk has not
 * answered in time. */
enum status unit_sync(struct cache *c, struct unit *u, uint64_t wait_us);

#endif
