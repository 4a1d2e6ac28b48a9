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

enum lease_place { LEASE_IN_MEMORY, LEASE_ON_GPU, LEASE_COMING }; /* the last on the GPU too, and its slot knows of this use */

struct lease {
	struct aging aging;            /* first */
	struct lease *prev, *next;     /* of the session */
	struct session *session;
	struct gpu *gpu;               /* where some of its blocks are; NULL: all in memory */
	uint64_t handle, bytes;
	const struct layout_pool *main; /* whose blocks stand for the chain, with a grid; NULL: a plain session */
	uint64_t call;                 /* that it was granted to, by the caller's number; 0: it has none */
	uint32_t count;
	uint32_t gpu_slots;            /* of the blocks, on the GPU */
	uint64_t gpu_bytes;            /* of `bytes`, the same */
	uint32_t room;                 /* of block[], behind which a byte each says whether it is on the GPU: lease_on_gpu(), enum lease_place */
	struct block *block[];
};

struct lease *lease_alloc(uint32_t blocks); /* NULL: no memory */
/* Puts a block into it, pinned where it is leased: in that slot of a GPU, or in memory (NULL). pinned: a pin of the caller's, of all copies, is
 * the lease's now. */
void lease_pin(struct lease *l, struct block *b, struct vram_slot *copy, bool pinned);
/* Gives up all of them. */
void lease_unpin(struct lease *l);
/* Takes the lease over, with its pinned blocks. EXHAUSTED: too many leases; it stays the caller's. */
enum status lease_record(struct cache *c, struct session *s, struct lease *l, uint64_t now_us);
void lease_end(struct cache *c, struct lease *l);
/* Whether the session's holder may have one lease more, and its pins (at most PINS_WISHES): OK, or EXHAUSTED. */
enum status lease_ask(struct cache *c, const struct session *s, const struct quota_wish *pins, uint32_t count,
		      const char **why);
/* The session's next of either kind that is the call's; NULL. */
struct lease *lease_of_call(const struct session *s, uint64_t call);
/* Tells the policies that the lease's blocks are used; blocks that have been removed meanwhile are passed over. */
void lease_use(struct cache *c, struct lease *l);

static inline uint8_t *lease_on_gpu(struct lease *l)
{
	return (uint8_t *)&l->block[l->room];
}

/* A listener of block/observer.h: processes whose leases have a failed copy on that GPU are told before the copy is there. */
void leases_copies_failed(struct cache *c, const struct gpu *g);

#endif
