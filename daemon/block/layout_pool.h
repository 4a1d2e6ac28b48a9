/* A layout of a tenant, and the extents that hold its blocks. With the cache's lock. */
#ifndef TERRACE_DAEMON_BLOCK_LAYOUT_POOL_H
#define TERRACE_DAEMON_BLOCK_LAYOUT_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/unwritten.h"
#include "daemon/block/values.h"
#include "kernels/format.h"
#include "store/status.h"

struct block;
struct cache;
struct host_pool;
struct policy;
struct policy_node;
struct quota_holder;

enum { POOLS_MAX = 4096 };

enum { SHELF_BUCKETS = 4096 };

enum { POOL_COLD = 64 };

struct tenant {
	const char *name;
	uint32_t number;
	uint64_t pinned_bytes;         /* blocks with at least one pin, each once */
	uint64_t beside_bytes;         /* of these, that are on GPUs, and whose pins do not hold memory */
	uint64_t reserved_bytes;       /* slots of reservations */
};

/* An extent as the cache sees it: which published block is in which slot. */
struct shelf {
	struct pool *pool;
	struct shelf *next, *hash_next; /* of the pool, by rising extent id; of the bucket */
	uint8_t *base;
	uint64_t stride;               /* bytes from slot to slot; what a block needs of a slot is geometry.need_bytes */
	uint32_t buffer[CACHE_DISKS_MAX]; /* its registration with each disk, or RING_NONE */
	uint64_t *device;              /* its address on each GPU (vram/vram.h), 0: none; NULL without GPUs */
	uint32_t extent, slots;
	uint32_t taken;                /* slots not free */
	uint32_t held;                 /* of these: pinned or reserved, so that eviction cannot empty them */
	bool draining;
	struct block *at[];            /* NULL: free, reserved or dead */
};

/* A layout of a tenant. Lives as long as the cache. */
struct pool {
	uint32_t number;
	struct tenant *tenant;
	uint64_t layout_id;
	struct kv_layout layout;
	struct kv_geometry geometry;
	struct quota_holder *holder;   /* who brought it */
	struct host_pool *host;
	uint64_t stride;               /* of its shelves */
	struct policy *policy;
	uint64_t policy_room;          /* slots that it was told of last */
	struct shelf *shelves;
	uint32_t newest;               /* of these and of earlier ones, the highest extent id */
	uint32_t watches;              /* that want its events */
	uint64_t blocks;               /* published, in memory */
	uint64_t evictable;            /* of these not pinned */
	uint64_t disk_blocks;          /* published, on disk; some of them in memory too */
	uint64_t doubted;              /* of these */
	uint64_t flushed_generation;   /* what has no higher one was acknowledged by a Flush of everything */
	uint64_t dirty;                /* in memory, not on disk and not on the way there; 0 without disks */
	struct unwritten unwritten;    /* published, on no disk: those, and what is on its way there or on GPUs alone */
	struct unwritten_walk spills;  /* where the search for what is to be spilled goes on */
	struct unwritten_walk falls;   /* the same for what is to come down from GPUs */
	uint64_t cold[POOL_COLD], cold_us; /* ids of some of them that are the coldest, as of a search then */
	uint32_t cold_at, cold_count, cold_scan; /* and how many nodes that was to look at */
	uint64_t slots;                /* on its shelves that do not drain */
	int64_t free_slots;            /* of these */
	uint64_t grow_refused;         /* room_epoch at which no extent was to be had */
	uint64_t balance_us;           /* when room_balance last looked around for it: one that has much to evict must not keep others from it */
	bool taken_lately;             /* a slot, since room_ahead last looked */
	struct policy_node *ahead, *ahead_last; /* loaded ahead and not used yet, not in the policy: the oldest first */
	uint64_t ahead_blocks;
	struct policy_node *refused, *refused_last; /* in memory, but not in the policy: they go first, in this order */
	uint64_t unworthy;             /* of the dirty: not to be spilled */
	uint64_t refused_us;           /* when admission refused last, and where in a chain */
	uint32_t refused_position;
};

/* peer: who brings it if it is new; NULL: not known. */
enum status pool_get(struct cache *c, struct quota_holder *holder, const struct kv_layout *l, struct pool **out, const char **why);
struct pool *pool_by_id(struct cache *c, uint64_t layout_id);
void pools_free(struct cache *c);
/* Made if new; NULL: no memory. */
struct shelf *shelf_get(struct cache *c, struct pool *p, uint32_t extent);
struct shelf *shelf_find(struct cache *c, uint32_t extent);
void shelf_link(struct cache *c, struct pool *p, struct shelf *s);
void shelf_free(struct cache *c, struct shelf *s);

#endif
