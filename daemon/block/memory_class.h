/* A class of slots of host memory: a stride, and what all layouts whose blocks lie in such slots share. Layouts of one tenant whose blocks
 * take the same stride are in the same class: its free slots serve each of them, and its one eviction policy says which block of any of
 * them leaves for another. A class lives as long as the cache. With the cache's lock. daemon/memory decides what leaves; this has the books.
 */
#ifndef TERRACE_DAEMON_BLOCK_MEMORY_CLASS_H
#define TERRACE_DAEMON_BLOCK_MEMORY_CLASS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "store/status.h"

struct block;
struct cache;
struct host_pool;
struct policy;
struct policy_node;
struct pool;

enum { MEMORY_CLASSES_MAX = 4096, CLASS_COLD_IDS = 64, SHELF_BUCKETS = 4096 };

struct memory_class {
	uint32_t number;               /* in the cache's list */
	uint64_t stride;               /* bytes from slot to slot */
	struct host_pool *host;
	struct pool *pools;            /* the layouts in it, by class_next */
	struct policy *policy;
	uint64_t policy_room;          /* slots that it was told of last */
	struct shelf *shelves;
	uint32_t newest;               /* of these and of earlier ones, the highest extent id */
	uint64_t slots;                /* on its shelves that do not drain */
	int64_t free_slots;            /* of these */
	uint64_t evictable;            /* published blocks in memory that are not pinned */
	uint64_t grow_refused;         /* room_epoch at which no extent was to be had */
	uint64_t balance_us;           /* when room_balance last looked around for it: one that has much to evict must not keep others from it */
	bool taken_lately;             /* a slot, since room_ahead last looked */
	struct policy_node *ahead, *ahead_last; /* loaded ahead and not used yet, not in the policy: the oldest first */
	uint64_t ahead_blocks;
	struct policy_node *refused, *refused_last; /* in memory, but not in the policy: they go first, in this order */
	uint64_t cold[CLASS_COLD_IDS], cold_us; /* ids of some dirty blocks that are the coldest, as of a search then */
	uint32_t cold_at, cold_count, cold_scan; /* and how many nodes that was to look at */
	uint32_t spill_pool;           /* the number of the layout in which the search for dirty blocks by place goes on */
};

/* An extent as the cache sees it: which published block is in which slot. */
struct shelf {
	struct memory_class *class;
	struct shelf *next, *hash_next; /* of the class, by rising extent id; of the bucket */
	uint8_t *base;
	uint64_t stride;               /* the class's: what a block needs of a slot is geometry.need_bytes */
	uint32_t buffer[CACHE_DISKS_MAX]; /* its registration with each disk, or RING_NONE */
	uint64_t *device;              /* its address on each GPU (vram/vram.h), 0: none; NULL without GPUs */
	uint32_t extent, slots;
	uint32_t taken;                /* slots not free */
	uint32_t held;                 /* of these: pinned or reserved, so that eviction cannot empty them */
	bool draining;
	struct block *at[];            /* NULL: free, reserved or dead */
};

/* A taken slot. */
struct memory_slot {
	struct shelf *shelf;
	uint32_t index;
	uint8_t *at;                   /* address of its first byte */
	uint64_t generation;           /* new at each take; never 0 */
};

/* The class for a layout whose block needs so many bytes; *made: it is new, and its policy has been told of nothing. INVALID: a slot is
 * larger than host memory. EXHAUSTED: no memory. */
enum status memory_class_get(struct cache *c, uint64_t need_bytes, struct memory_class **out, bool *made);
void memory_classes_free(struct cache *c);
/* Sums over its layouts: blocks that only memory has and that are on the way to no disk; of these, those that no disk is to have; all. */
struct memory_class_sums {
	uint64_t blocks, dirty, unworthy;
};
struct memory_class_sums memory_class_sums(const struct memory_class *k);

/* Made if new; NULL: no memory. */
struct shelf *shelf_get(struct cache *c, struct memory_class *k, uint32_t extent);
struct shelf *shelf_find(struct cache *c, uint32_t extent);
void shelf_link(struct cache *c, struct memory_class *k, struct shelf *s);
void shelf_free(struct cache *c, struct shelf *s);

/* A free slot of the class, taken and held. EXHAUSTED: none is free, or no memory. */
enum status memory_slot_take(struct cache *c, struct memory_class *k, struct memory_slot *out);
/* Gives it back. The caller has counted it as held no more. */
void memory_slot_give(const struct memory_slot *s);

#endif
