/* Which block is in which slot of which slab. */
#ifndef TERRACE_DAEMON_DISK_SLAB_MAP_H
#define TERRACE_DAEMON_DISK_SLAB_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/block.h"
#include "daemon/block/values.h"

struct block;
struct cache;
struct cache_disk_options;
struct disk;

enum { SLAB_MAP_BUCKETS = 1024, UNSYNCED_BUCKETS = 1 << 15 };

enum { SLAB_MAP_CURSOR_BITS = 27 }; /* of a walk over the disks */

/* more than the smallest ones in a slab of a TiB, the largest that can be configured */
enum { SLAB_MAP_SLOTS_MAX = 1 << SLAB_MAP_CURSOR_BITS };

#define GENERATIONS_RESERVED (1ull << 32) /* at each start */

struct unit {
	struct disk *disk;
	uint64_t id, wiped_id;         /* wiped_id: of what it was before this open; 0: the same */
	uint32_t number;               /* among the units */
	uint32_t configured;           /* among the options' disks: the number that people know it by */
	const struct cache_disk_options *options;
	struct disk_class *classes;
	struct slab_map *slab_maps, *last_slab_map; /* of all classes, by rising slab */
	struct slab_map *slab_map_hash[SLAB_MAP_BUCKETS];
	uint64_t slow_us;              /* since when it refuses spills as it is slow; 0: it does not */
	uint32_t spilling, loading;    /* transfers under way */
	struct rate reads;             /* of loads */
	bool failed;                   /* its blocks are being given up */
	bool banned;                   /* the catalog has been told */
	bool over;                     /* its slabs take more than its budget, as an earlier run's was larger */
	bool scan;                     /* look at its headers: the catalog's last word is not of its last run */
	uint64_t slabs_lost, blocks_lost; /* as the catalog named them at the start */
	uint64_t sweep;                /* where that is: slab_map_cursor() */
	bool swept;
	uint64_t unverified;           /* of its blocks; they are looked at: */
	uint64_t look;                 /* ... where the next search for one begins: slab_map_cursor() */
	uint32_t looks;                /* ... reads under way that nobody waits for */
	int64_t look_bytes;            /* ... that may be read now, as of then: */
	uint64_t look_us;
	uint64_t written, synced;      /* writes of headers, numbered from 1 on, which are all those of earlier runs; so many are durable */
	uint64_t unsynced[UNSYNCED_BUCKETS]; /* the last of them that concerns a name of the bucket: its header was written, or overwritten */
};

struct slab_map *slab_map_find(struct unit *u, uint32_t slab);
/* Made if new. NULL: no memory, or no such slab. */
struct slab_map *slab_map_get(struct cache *c, struct unit *u, uint32_t slab);
void slab_maps_free(struct cache *c, struct unit *u);
void slab_map_free(struct cache *c, struct slab_map *r);
struct disk_class *class_get(struct cache *c, struct unit *u, uint64_t slot_bytes); /* NULL: no memory */
/* The class that blocks of that need join on the unit (store/class_rule.h); NULL: it is to be made. */
struct disk_class *class_joined(const struct unit *u, uint64_t need_bytes);
/* The same, made if new; NULL: no memory. */
struct disk_class *class_for(struct cache *c, struct unit *u, uint64_t need_bytes);
/* Nothing moves to or from it, and no reader holds a block of it. */
bool slab_map_idle(const struct slab_map *r);
/* Block b is in that slot from now on (where, counters, policy). */
void slab_map_attach(struct cache *c, struct slab_map *r, uint32_t slot, struct block *b, uint64_t position);
/* A block is published anew from what lies in that slot; its record, tokens, generation and time are set. In a read
 * section. EXISTS. */
enum status block_adopt(struct cache *c, struct block *b, struct slab_map *slab_map, uint32_t slot, uint64_t position);
/* It is not any more; the slot stays taken on the disk. A block that is in memory becomes dirty. */
void slab_map_detach(struct cache *c, struct block *b);
void slab_map_use(struct cache *c, struct block *b);
/* Whether the block's bytes, in its slab map, are only what its header promises. */
void slab_map_unverified(struct block *b, bool is);
/* It is new to the class's policy, as if it were attached now. */
void slab_map_renew(struct cache *c, struct block *b, uint64_t position);
/* A Flush has acknowledged the block, or is about to. */
bool block_flushed(const struct block *b);
/* The block in that slot was flushed. */
void slab_map_promise(struct slab_map *r, uint32_t slot);
/* Whether any block of the slab map was flushed. Looks at its slots only where it is not known. */
bool slab_map_promised(struct slab_map *r);
/* Tells policies what room their sizes have now. */
void slab_map_rooms_tell(struct cache *c);
/* Forgets slab maps whose slab disk_slab_drop_free has deleted. */
void slab_maps_prune(struct cache *c, struct unit *u);
/* A disk said UNAVAILABLE or IO: its blocks are given up from now on. */
void unit_failed(struct cache *c, struct unit *u);
/* If it has failed: all that it has is given up, from the beginning. */
void unit_sweep_anew(struct unit *u);
/* The next block on any disk from the cursor on (0: the first), looking at no more than *budget slots; NULL with *budget 0: go on;
 * NULL with some left: no more. */
struct block *tier_next_block(struct cache *c, uint64_t *cursor, uint32_t *budget);
struct block *unit_next_block(struct unit *u, uint64_t *cursor, uint32_t *budget);

/* Where a walk over the disks is. */
static inline uint64_t slab_map_cursor(uint32_t unit, uint32_t slab, uint32_t slot)
{
	_Static_assert(CACHE_DISKS_MAX <= 16, "a unit has four bits: the highest is the callers' to use");
	return (uint64_t)unit << (32 + SLAB_MAP_CURSOR_BITS) | (uint64_t)slab << SLAB_MAP_CURSOR_BITS | slot;
}

static inline uint32_t slab_map_cursor_unit(uint64_t cursor)
{
	return (uint32_t)(cursor >> (32 + SLAB_MAP_CURSOR_BITS));
}

#endif
