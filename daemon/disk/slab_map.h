/* Slab maps: which block is in which slot of which slab. */
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
struct tenant;

enum { SLAB_MAP_BUCKETS = 1024, UNSYNCED_BUCKETS = 1 << 15 };

enum { SLAB_MAP_CURSOR_BITS = 27 }; /* of a walk over the disks */

/* more than the number of the smallest slots in a slab of 1 TiB, the largest that can be configured */
enum { SLAB_MAP_SLOTS_MAX = 1 << SLAB_MAP_CURSOR_BITS };

#define GENERATIONS_RESERVED (1ull << 32) /* taken at each start */

struct unit {
	struct disk *disk;
	uint64_t id, wiped_id;         /* wiped_id: the id that the disk had before this open wiped it; 0: not wiped */
	uint32_t number;               /* its number among the units */
	uint32_t configured;           /* its number among the options' disks, which people see */
	const struct cache_disk_options *options;
	struct disk_class *classes;
	struct slab_map *slab_maps, *last_slab_map; /* of all classes, by rising slab */
	struct slab_map *slab_map_hash[SLAB_MAP_BUCKETS];
	uint64_t slow_us;              /* since when it refuses spills because it is slow; 0: it does not */
	uint32_t spilling, loading;    /* transfers under way */
	struct rate reads;             /* of its loads */
	bool failed;                   /* its blocks are being given up */
	bool banned;                   /* the catalog has been told that it failed */
	bool over;                     /* its slabs take more than its budget, as an earlier run's budget was larger */
	bool scan;                     /* scan its headers: the catalog's last word is not about this disk's last run */
	uint64_t slabs_lost, blocks_lost; /* as the catalog named them at the start */
	uint64_t sweep;                /* where that is: slab_map_cursor() */
	bool swept;
	uint64_t unverified;           /* unverified blocks of the disk. Looks (disk/scrub.c) read them: */
	uint64_t look;                 /* ... where the next search for one begins: slab_map_cursor() */
	uint32_t looks;                /* ... reads under way that no call waits for */
	int64_t look_bytes;            /* ... bytes that may be read now, as computed then: */
	uint64_t look_us;
	/* writes of headers, numbered from 1 on, all those of earlier runs being one; how many are durable */
	uint64_t written, synced;
	/* by bucket of names: the last write of a header with, or over, such a name */
	uint64_t unsynced[UNSYNCED_BUCKETS];
};

struct slab_map *slab_map_find(struct unit *u, uint32_t slab);
/* The disk's slab map for that slab, made if new. NULL: no memory, or no such slab. */
struct slab_map *slab_map_get(struct cache *c, struct unit *u, uint32_t slab);
void slab_maps_free(struct cache *c, struct unit *u);
void slab_map_free(struct cache *c, struct slab_map *r);
struct disk_class *class_get(struct cache *c, struct unit *u, uint64_t slot_bytes); /* NULL: no memory */
/* The disk's class for blocks of that size (store/class_rule.h); NULL: it does not exist yet. */
struct disk_class *class_joined(const struct unit *u, uint64_t need_bytes);
/* The disk's class for blocks of that size, made if new; NULL: no memory. */
struct disk_class *class_for(struct cache *c, struct unit *u, uint64_t need_bytes);
/* Whether no transfer uses it and no reader holds a block of it. */
bool slab_map_idle(const struct slab_map *r);
/* The bit of a tenant in slab_map.tenants; another tenant may have the same. */
uint64_t slab_map_tenant(const struct cache *c, const struct tenant *t);
/* Block b is in that slot from now on (where, counters, policy). */
void slab_map_attach(struct cache *c, struct slab_map *r, uint32_t slot, struct block *b, uint64_t position);
/* Publishes a block from the copy in that slot; the caller has set its record, tokens, generation and time. In a read
 * section. EXISTS. */
enum status block_adopt(struct cache *c, struct block *b, struct slab_map *slab_map, uint32_t slot, uint64_t position);
/* The block is no longer in its slot, which stays taken on the disk. If the block is in memory it becomes dirty. */
void slab_map_detach(struct cache *c, struct block *b);
void slab_map_use(struct cache *c, struct block *b);
/* See block/tier.h: `unusable`. */
void slab_map_unusable(struct cache *c, struct block *b, bool is);
/* Notes whether the block's bytes on the disk are unverified: only its header has been read. */
void slab_map_unverified(struct block *b, bool is);
/* The block becomes new to the class's policy, as if it were attached now. */
void slab_map_renew(struct cache *c, struct block *b, uint64_t position);
/* Whether a Flush has acknowledged the block, or is about to. */
bool block_flushed(const struct block *b);
/* The block in that slot was flushed. */
void slab_map_promise(struct slab_map *r, uint32_t slot);
/* Whether any block of the slab map was flushed. It walks the slots only if that is not known. */
bool slab_map_promised(struct slab_map *r);
/* Tells the policies of how many slots their classes have now. */
void slab_map_rooms_tell(struct cache *c);
/* Forgets slab maps whose slab disk_slab_drop_free has deleted. */
void slab_maps_prune(struct cache *c, struct unit *u);
/* A disk answered UNAVAILABLE or IO: its blocks are given up from now on. */
void unit_failed(struct cache *c, struct unit *u);
/* If the disk has failed: giving up its blocks begins anew with the first one. */
void unit_sweep_anew(struct unit *u);
/* The next block on any disk from the cursor on (0: the first). Looks at no more than *budget slots. NULL with *budget
 * 0: call again; NULL with some left: no more blocks. */
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
