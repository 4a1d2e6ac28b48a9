/* Slots of blocks on disks, the slabs that are cut into them and their classes, as the cache sees them. With the
 * cache's lock. daemon/disk fills them; this is what others may look at.
 */
#ifndef TERRACE_DAEMON_BLOCK_DISK_CLASS_H
#define TERRACE_DAEMON_BLOCK_DISK_CLASS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/block.h"
#include "eviction/policy.h"

struct disk_transfer;
struct policy;
struct unit;

enum { CLASS_COLD = 64 };

struct slab_map_slot {
	struct block *block;           /* NULL: none, or it is on its way in or out */
	struct policy_node node;       /* of the class's policy, while block is set */
};

struct slab_map {
	struct disk_class *class;
	struct slab_map *next, *hash_next; /* of the class; of the bucket */
	struct slab_map *slab_next;    /* of the unit, by rising slab */
	uint32_t slab, slots;
	uint32_t blocks;
	uint64_t newest;               /* tier->uses at the last use or arrival of any of its blocks; */
	uint64_t newest_us;            /* and when that was, modulo 2^64 */
	bool promised;                 /* the block in promised_slot was flushed; false: see slab_map_promised() */
	uint32_t promised_slot;
	uint32_t hand;                 /* where the search for a block that may be displaced goes on */
	uint32_t transfers;            /* spills into and out of it and tombstones in it that are under way */
	bool leaving;                  /* its slab is to be deleted: what it has is not durable */
	bool sealed;                   /* ... now: nothing is loaded from it any more */
	struct disk_transfer *copied;  /* spills of its blocks elsewhere: written, not synced */
	struct disk_transfer *left;    /* tombstones of what was there, begun when its slab is gone, or stays */
	uint32_t left_count;
	bool gone;                     /* its slab is deleted */
	struct slab_map_slot at[];
};

struct disk_class {
	struct unit *unit;
	bool failed;                   /* the disk has: it gives up its blocks bit by bit, and none is to be had */
	struct disk_class *next;
	uint64_t slot_bytes;
	struct policy *policy;
	uint64_t policy_room;          /* slots that it was told of last */
	struct slab_map *slab_maps;
	uint64_t slots, blocks;        /* in these */
	bool wanted;                   /* a slab, by the chores, since: */
	uint64_t wanted_us;
	bool needed;                   /* and no slot was free */
	bool full;                     /* the chores found no slab for it, */
	uint64_t full_us;              /* at that time: they are not asked again at once */
	uint64_t preallocate_us;       /* when there was none to be made ahead of need; 0: never */
	uint64_t robbed_us;            /* when another class took a slab of it last; 0: none did */
	uint64_t cold[CLASS_COLD], cold_us; /* ids of some that may be displaced, as of a search then */
	uint32_t cold_at, cold_count;
};

/* On a disk, and to be had there. */
static inline bool slab_map_serves(const struct block *b)
{
	return b->slab_map && !b->slab_map->class->failed;
}

/* It would not be lost with its copy in memory. */
static inline bool block_elsewhere(const struct block *b)
{
	return slab_map_serves(b) || (b->vram && vram_ready(b));
}

#endif
