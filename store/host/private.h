/* Inside the host tier: its structs, and how extents come (host/grow.c). host/host.h says what it is. */
#ifndef TERRACE_STORE_HOST_PRIVATE_H
#define TERRACE_STORE_HOST_PRIVATE_H

#include <pthread.h>

#include "store/host/host.h"
#include "store/host/memory.h"
#include "store/host/range.h"

struct host_extent {
	struct host_memory memory;
	uint64_t at;                     /* of device memory: its place in the pool's range */
	struct host_pool *pool;
	struct host_extent *prev, *next; /* in the pool's list while listed; next also chains the doomed */
	uint32_t slots, used;
	uint32_t free_first;             /* none before it is free */
	bool listed, draining;
	bool fresh;                      /* no slot of it has been taken yet */
	uint64_t *taken;                 /* a bit a slot */
	uint32_t cell[];                 /* of each slot that is taken, its generation */
};

struct host_pool {
	struct host_tier *tier;
	uint64_t layout_id, slot_bytes;
	uint32_t tenant;
	bool growing;                    /* a thread is making an extent */
	struct host_range range;         /* with a device; the one who makes the first extent reserves it */
	struct host_extent *first, *last; /* not draining, not full */
};

struct host_tier {
	pthread_mutex_t mutex;           /* guards everything below and in pools and extents */
	pthread_cond_t grown;
	struct host_options options;
	uint64_t granularity;            /* of extents; 0: any pages */
	uint64_t extent_bytes;           /* of all extents and of those being made */
	uint64_t generation, open_failures;
	struct host_failure failure;     /* the last */
	uint32_t last_id, ids_first, ids_end;
	uint32_t extent_count, extent_room, pool_count;
	struct host_extent **extents;    /* ids ascend */
	struct host_pool *pools[HOST_POOLS_MAX];
};

static inline struct host_source host_source_of(const struct host_options *o, bool huge)
{
	return (struct host_source){ o->ops, o->device, huge };
}

static inline uint64_t host_round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* The size of the next extent of a pool within what is left of the budget; false: not even one slot. It is rounded up to huge pages, or
 * to what a device asks for, here, so that the extent takes what the budget was asked for. Mutex held. */
bool host_extent_plan(const struct host_pool *p, uint64_t *bytes, bool *huge);
/* Makes an extent with all its slots free, in no list; without the mutex, one thread a pool. EXHAUSTED, IO, or what the device says, with
 * *f then. */
enum status host_extent_make(struct host_pool *p, uint64_t bytes, bool huge, struct host_extent **out, struct host_failure *f);
/* Frees the struct alone. NULL allowed. */
void host_extent_free(struct host_extent *e);
/* Frees it with its memory; its place on a device stays taken. */
void host_extent_discard(struct host_extent *e);

#endif
