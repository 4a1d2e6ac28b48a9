/* Slots of blocks on disks, the slabs that are cut into them and their classes, as the cache sees them. With the
 * cache's lock. daemon/disk fills them; other parts may read what is here.
 */
#ifndef TERRACE_DAEMON_BLOCK_DISK_CLASS_H
#define TERRACE_DAEMON_BLOCK_DISK_CLASS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/block.h"
#include "eviction/policy.h"

struct departures;
struct disk_transfer;
struct policy;
struct tenant;
struct unit;

enum { CLASS_COLD = 64 };

struct slab_map_slot {
	struct block *block;           /* NULL: none, or a transfer to or from the slot is under way */
	struct policy_node node;       /* of the class's policy, while block is set */
};

struct slab_map {
	struct disk_class *class;
	struct slab_map *next, *hash_next; /* of the class; of the bucket */
	struct slab_map *slab_next;    /* of the unit, by rising slab */
	uint32_t slab, slots;
	uint32_t blocks;
	uint64_t tenants;              /* slab_map_tenant() of all that have blocks in it, and of some that had */
	uint64_t newest;               /* the value of tier->uses at the last use or arrival of any of its blocks; */
	uint64_t newest_us;            /* and when that was, modulo 2^64 */
	bool promised;                 /* the block in promised_slot was flushed; false: see slab_map_promised() */
	uint32_t promised_slot;
	uint32_t hand;                 /* where the search for a block to displace goes on */
	uint32_t transfers;            /* transfers under way: spills into it and out of it, and tombstones in it */
	bool leaving;                  /* its slab is to be deleted: its blocks are not durable */
	bool sealed;                   /* its slab is being deleted: nothing is loaded from it any more */
	struct disk_transfer *copied;  /* spills of its blocks to other slabs: written, not synced */
	/* tombstones of blocks that were here; they begin when the slab is deleted, or stays */
	struct disk_transfer *left;
	uint32_t left_count;
	bool gone;                     /* its slab is deleted */
	struct slab_map_slot at[];
};

/* Ids of some blocks of a class that may be displaced, as a search found them. */
struct class_cold {
	struct class_cold *next;
	const struct tenant *tenant;   /* for whose block; NULL: for any */
	bool own;                      /* blocks of that tenant alone */
	uint64_t id[CLASS_COLD];
	uint32_t at, count;
	uint64_t us;                   /* when the search was */
	uint32_t slab, slot;           /* where its walk over the class's slab maps goes on */
};

struct disk_class {
	struct unit *unit;
	bool failed;                   /* its disk has failed: its blocks cannot be read, and are given up bit by bit */
	struct disk_class *next;
	uint64_t slot_bytes;
	struct policy *policy;
	uint64_t policy_room;          /* the number of slots that the policy was told last */
	struct slab_map *slab_maps;
	uint64_t slots, blocks;        /* in these */
	/* the chores are to make a slab for it, since: */
	bool wanted;
	uint64_t wanted_us;
	bool needed;                   /* and no slot was free */
	bool full;                     /* the chores found no room for a slab, */
	uint64_t full_us;              /* at that time: they are not asked again at once */
	uint64_t vain_us;              /* and have found none whenever they looked since then */
	uint64_t preallocate_us;       /* when preallocating a slab failed last; 0: never */
	uint64_t robbed_us;            /* when another class last took a slab of it; 0: never */
	/* of blocks that were nowhere else (eviction/departures.h); NULL: not asked for yet */
	struct departures *departures;
	struct class_cold *cold;       /* one for each asker that a short search found nothing for */
};

/* Whether the block's copy on a disk can be read. */
static inline bool slab_map_serves(const struct block *b)
{
	return b->slab_map && !b->slab_map->class->failed;
}

/* Whether the block would survive the loss of its copy in memory. */
static inline bool block_elsewhere(const struct block *b)
{
	return slab_map_serves(b) || (b->vram && vram_ready(b));
}

#endif
