/* A wait: the state of a call that needs a disk or a GPU and is put aside. Links connect the wait to the transfers
 * whose ends it waits for.
 */
#ifndef TERRACE_DAEMON_BLOCK_WAIT_H
#define TERRACE_DAEMON_BLOCK_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/layout_pool.h"
#include "daemon/block/values.h"
#include "store/status.h"

struct block;
struct cache;
struct gpu;
struct vram_transfer;

/* How often a call may wait. A call that has waited that often, or one of whose loads has failed, takes what memory
 * has. */
enum { WAIT_ROUNDS = 4 };

/* The unit that ends a link's event: a disk (its number) or the catalog (WAIT_CATALOG). */
enum { WAIT_CATALOG = CACHE_DISKS_MAX };

struct cache_wait {
	void (*ready)(void *arg);
	void *arg;
	bool last;
	bool poll;
	uint64_t again_us;             /* after BUSY, if not 0: the time after which to call again */
	/* The cache's: */
	struct cache_wait_link *links;
	uint32_t outstanding, stage, shed;
	enum status worst, refused;
	enum status uncommitted;       /* not OK: the catalog's status for a commit of this wait */
	/* of a Flush of everything that is BUSY: the number of unverified blocks that are missing, when all others are
	 * durable; 0: others are missing too */
	uint64_t unverified;
	uint64_t since_us;             /* of a Flush: it ignores blocks that were stored later */
	uint32_t layout;               /* the next four, of a Flush: the layout in which its walk goes on, */
	struct unwritten_walk walk;    /* the place in the layout's list of blocks that are on no disk, */
	bool falls;                    /* blocks on GPUs alone are downloaded now, after the other blocks, */
	bool again;                    /* and spills were begun, so another walk is needed */
	/* a bit for each disk. Of a delete: disks that had a tombstone to write. Of a flush: disks that had failed when
	 * it began */
	uint32_t units;
	uint32_t pending, begun;       /* likewise, of a delete: disks that must still be synced; disks whose sync has
				        * begun; */
	uint32_t committed;            /* and `pending` when its last commit began */
	uint32_t of_unit[CACHE_DISKS_MAX + 1]; /* of `outstanding`, the number that each disk ends; the last element:
					        * the catalog */
	uint32_t warmed, warmed_links; /* of a Warm: its answer if all blocks arrive, and the number of blocks (links) found then */
	uint64_t warmed_since;         /* the value of the cache's pinned_lost when it began */
	uint32_t linked;               /* how many links there are */
	struct block *adopts;          /* a block that is pinned already; the next link to it takes over that pin */
	struct vram_transfer *fence;   /* of a lease on a GPU: the fence, queued behind the lease's copies once all have
				        * their places */
	uint64_t marked;               /* the number of uploads before the fence; 0: there is no fence */
	uint32_t fence_base;
};

/* One event that a wait waits for (the end of a transfer or a sync, a commit of the catalog), and a pin that it
 * keeps. */
struct cache_wait_link {
	struct cache_wait *wait;       /* NULL: the wait was given up; the link is freed at its event */
	struct cache_wait_link *next;  /* of the wait */
	struct cache_wait_link *transfer_next;
	struct block *pinned;
	struct gpu *gpu;               /* with `apart`: the copy's GPU; NULL: memory */
	bool apart;                    /* the pin holds one copy only */
	bool done;
	bool sync_request;             /* the link is part of a struct sync_request */
	uint8_t part;                  /* 1 + index in of_unit; 0: none */
};

void cache_wait_end(struct cache *c, struct cache_wait *w);
/* Makes a link for something that will call wait_link_done; NULL: no memory. pin (may be NULL): stays pinned until the
 * wait ends. */
struct cache_wait_link *wait_link(struct cache *c, struct cache_wait *w, struct block *pin);
/* Called when what the link waits for has ended. */
void wait_link_done(struct cache *c, struct cache_wait_link *l, enum status s);
/* Adds a pin of one copy, on that GPU or in memory (gpu NULL), without an event. */
bool wait_pin(struct cache *c, struct cache_wait *w, struct block *b);
bool wait_pin_on(struct cache *c, struct cache_wait *w, struct block *b, struct gpu *gpu);
void wait_spares_free(struct cache *c);
/* Adds a link that is part of a struct sync_request, not one of wait_link's. wait_link_out takes it out again, if its
 * event was not begun and no link was added since. */
void wait_link_in(struct cache_wait *w, struct cache_wait_link *l);
void wait_link_out(struct cache_wait *w, struct cache_wait_link *l);
/* Adds links to the list of a transfer (by transfer_next): the transfer's end ends them too. */
void wait_links_join(struct cache_wait_link **list, struct cache_wait_link *more);
void wait_link_part(struct cache_wait *w, struct cache_wait_link *l, uint32_t part);
/* Ends the wait early: it gets no more events, and its pins are given back. */
void wait_links_drop(struct cache *c, struct cache_wait *w);
/* From now on the link pins only the block's copy on that GPU, if there is one. */
void wait_link_apart(struct cache_wait_link *l, struct gpu *gpu);
static inline bool wait_wanted(struct cache_wait *w)
{
	return w && !w->last && !w->shed && w->stage++ < WAIT_ROUNDS;
}

/* Whether the wait has something under way and may go on. */
static inline bool wait_goes_on(const struct cache_wait *w)
{
	return w && w->outstanding && !w->last;
}

#endif
