/* A wait: what a call that needs a disk or a GPU holds while it is put aside. Links connect it to the transfers whose
 * ends it waits for. */
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

/* How often a call may wait. A call that has waited so often, or whose loads were shed, takes what memory has. */
enum { WAIT_ROUNDS = 4 };

/* Which unit ends what a link waits for: a disk (its number) or the catalog (WAIT_CATALOG). */
enum { WAIT_CATALOG = CACHE_DISKS_MAX };

struct cache_wait {
	void (*ready)(void *arg);
	void *arg;
	bool last;
	bool poll;
	uint64_t again_us;             /* after BUSY, if not 0: call again after so long */
	/* The cache's: */
	struct cache_wait_link *links;
	uint32_t outstanding, stage, shed;
	enum status worst, refused;
	enum status uncommitted;       /* not OK: the catalog's word on a commit of this wait */
	/* of a Flush of everything that is BUSY: so many unverified blocks are missing, all others are durable; 0:
	 * others are missing too */
	uint64_t unverified;
	uint64_t since_us;             /* of a Flush: it ignores blocks that were stored later */
	uint32_t layout;               /* ... where its walk goes on: in that layout, */
	struct unwritten_walk walk;    /* ... in its list of what is on no disk; */
	bool falls;                    /* ... of which what is on GPUs alone comes down now; the rest comes first */
	bool again;                    /* ... something was begun, so there is to be another walk */
	/* a bit each; of a delete: disks that had something to write a tombstone for; of a flush: that had failed when
	 * it began */
	uint32_t units;
	uint32_t pending, begun;       /* the same, of a delete: disks that are to be synced yet, whose sync has begun; */
	uint32_t committed;            /* and `pending` as its last commit began */
	uint32_t of_unit[CACHE_DISKS_MAX + 1]; /* of `outstanding` what each disk is to end; the last: the catalog */
	uint32_t warmed, warmed_links; /* of a Warm: its answer if all comes, and as many blocks; */
	uint64_t warmed_since;         /* the value of the cache's pinned_lost when it began */
	uint32_t linked;               /* how many links there are */
	struct block *adopts;          /* pinned already, for the next link of it */
	struct vram_transfer *fence;   /* of a lease on a GPU: stands behind its copies once all have their place; then: */
	uint64_t marked;               /* the ups before it, 0: there is none */
	uint32_t fence_base;
};

/* One thing that a wait waits for (a transfer, a sync, a commit of the catalog), and a pin that it keeps. */
struct cache_wait_link {
	struct cache_wait *wait;       /* NULL: the wait was given up; the link is freed at its event */
	struct cache_wait_link *next;  /* of the wait */
	struct cache_wait_link *transfer_next;
	struct block *pinned;
	struct gpu *gpu;               /* of `apart`: the copy's GPU; NULL: memory */
	bool apart;                    /* the pin is of one copy alone */
	bool done;
	bool sync_request;             /* the link is part of a struct sync_request */
	uint8_t part;                  /* 1 + index in of_unit; 0: none */
};

void cache_wait_end(struct cache *c, struct cache_wait *w);
/* Makes a link for something that will call wait_link_done; NULL: no memory. pin (may be NULL): stays pinned until the
 * wait ends. */
struct cache_wait_link *wait_link(struct cache *c, struct cache_wait *w, struct block *pin);
/* What the link waits for has ended. */
void wait_link_done(struct cache *c, struct cache_wait_link *l, enum status s);
/* Adds a pin without an event: of one copy, on that GPU or in memory (gpu NULL). */
bool wait_pin(struct cache *c, struct cache_wait *w, struct block *b);
bool wait_pin_on(struct cache *c, struct cache_wait *w, struct block *b, struct gpu *gpu);
void wait_spares_free(struct cache *c);
/* The wait waits for that link too, which is not wait_link's and is freed by its address (`sync_request`); what it is
 * of was not begun, and nothing was linked since. */
void wait_link_in(struct cache_wait *w, struct cache_wait_link *l);
void wait_link_out(struct cache_wait *w, struct cache_wait_link *l);
/* Adds links to the list of a transfer (by transfer_next): they are told of its end too. */
void wait_links_join(struct cache_wait_link **list, struct cache_wait_link *more);
void wait_link_part(struct cache_wait *w, struct cache_wait_link *l, uint32_t part);
/* Ends the wait early: it is told of nothing any more, and its pins are given back. */
void wait_links_drop(struct cache *c, struct cache_wait *w);
/* From now on the link pins only the copy on that GPU, if there is one. */
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
