/* Leases that are granted. */
#ifndef TERRACE_DAEMON_SESSION_LEASE_H
#define TERRACE_DAEMON_SESSION_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/aging.h"
#include "store/status.h"

struct block;
struct cache;
struct gpu;
struct layout_pool;
struct quota_wish;
struct session;
struct vram_slot;

/* the last: on the GPU too, and its slot knows of this use */
enum lease_place { LEASE_IN_MEMORY, LEASE_ON_GPU, LEASE_COMING };

struct lease {
	struct aging aging;            /* first */
	struct lease *prev, *next;     /* of the session */
	struct session *session;
	struct gpu *gpu;               /* the GPU that has some of its blocks; NULL: all in memory */
	uint64_t handle, bytes;
	/* the layout whose blocks stand for the chain, with a grid; NULL: a plain session */
	const struct layout_pool *main;
	uint64_t call;                 /* the caller's number of the call that it was granted to; 0: none */
	uint32_t count;
	uint32_t gpu_slots;            /* how many of its blocks are on the GPU */
	uint64_t gpu_bytes;            /* how many of `bytes` are on the GPU */
	/* of block[]; behind it a byte for each says whether it is on the GPU: lease_on_gpu(), enum lease_place */
	uint32_t room;
	struct block *block[];
};

struct lease *lease_alloc(uint32_t blocks); /* NULL: no memory */
/* Adds a block to the lease, pinned where it is leased: in that slot of a GPU, or in memory (NULL). pinned: the lease
 * takes over a pin of all copies that the caller has. */
void lease_pin(struct lease *l, struct block *b, struct vram_slot *copy, bool pinned);
/* Gives up all of its pins. */
void lease_unpin(struct lease *l);
/* Takes the lease over, with its pinned blocks. EXHAUSTED: too many leases; it stays the caller's. */
enum status lease_record(struct cache *c, struct session *s, struct lease *l, uint64_t now_us);
void lease_end(struct cache *c, struct lease *l);
/* Whether the session's holder may have one lease more, and its pins (at most PINS_WISHES): OK, or EXHAUSTED. */
enum status lease_ask(struct cache *c, const struct session *s, const struct quota_wish *pins, uint32_t count,
		      const char **why);
/* The session's first lease, or reservation, that was granted to that call; NULL: none. */
struct lease *lease_of_call(const struct session *s, uint64_t call);
/* Tells the policies that the lease's blocks are used; skips blocks that have been removed meanwhile. */
void lease_use(struct cache *c, struct lease *l);

static inline uint8_t *lease_on_gpu(struct lease *l)
{
	return (uint8_t *)&l->block[l->room];
}

/* A listener of block/observer.h: processes whose leases have a failed copy on that GPU are told before the copy counts
 * as there. */
void leases_copies_failed(struct cache *c, const struct gpu *g);

#endif
