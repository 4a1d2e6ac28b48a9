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

/* Empties the least used slab of each disk and layout size as long as the others of its size have room for its blocks
 * or `bytes_max` of slab files remain over the disk's budget (a changed configuration), and deletes the file. Blocks whose only copy was
 * there are evicted; those that memory has too are copied to other slabs first, or evicted if there is no place. *freed: bytes of files
 * deleted. One slab a call: MISS when there is nothing (more) to do, BUSY when something else uses the slab now, or there was no time
 * for all copies: call again. NOT_FOUND: no such disk. Else a disk failed. Lasts, half a second and a sync: on a worker. */
enum status cache_compact_step(struct cache *c, uint32_t disk, uint64_t bytes_max, uint64_t *freed);
/* The idle slab map with the fewest blocks; of k, or of all classes from k on. */
struct slab_map *slab_map_least(const struct disk_class *k, bool all);
/* It is chosen: nothing new comes into it. */
void slab_map_leave(struct slab_map *r);
/* Without the lock, on a worker, of a slab map that is leaving: copies elsewhere what memory has too, then deletes the
 * slab with what is left in it, counted as `why`. Not OK: the slab map stays, and is leaving no more. May last half a
 * second, and a sync. */
enum status slab_map_give_up(struct cache *c, struct slab_map *r, enum counter why);
/* Without the lock, on the worker of the disks' chores: a slab for a class that wants one; new, or in the place of
 * one of another class. Lasts. */
void slab_feed(struct cache *c, struct disk_class *k);
/* Without the lock: a sync, waited for; of a disk that has failed, none. DEADLINE: the disk has not answered in time. */
enum status unit_sync(struct cache *c, struct unit *u, uint64_t wait_us);

#endif
