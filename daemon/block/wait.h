/* What a call that needs a disk or a GPU holds on to while it is put aside, and the links by which ends of transfers reach it. */
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

/* Whether a call may wait (again): one whose loads were shed, or that has waited often, takes what memory has. */
enum { WAIT_ROUNDS = 4 };

/* It is that disk's to end (a number), or the catalog's (WAIT_CATALOG). */
enum { WAIT_CATALOG = CACHE_DISKS_MAX };

struct cache_wait {
	void (*ready)(void *arg);
	void *arg;
	bool last;
	bool poll;
	uint64_t again_us;             /* after BUSY, not 0: and call after so long */
	/* The cache's: */
	struct cache_wait_link *links;
	uint32_t outstanding, stage, shed;
	enum status worst, refused;
	enum status uncommitted;       /* not OK: the catalog's word on a commit of this wait */
	uint64_t unverified;           /* of a flush of everything that is BUSY: all is durable but so many that a crash left and nobody has read; 0: not all is */
	uint64_t since_us;             /* of a flush: what was stored later is not its business */
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
	uint64_t warmed_since;         /* the cache's pinned_lost when it began */
	uint32_t linked;               /* links that there are */
	struct block *adopts;          /* pinned already, for the next link of it */
	struct vram_transfer *fence;   /* of a lease on a GPU: stands behind its copies once all have their place; then: */
	uint64_t marked;               /* the ups before it, 0: there is none */
	uint32_t fence_base;
};

/* One thing that a wait waits for: a transfer, a sync, a commit of the catalog; and a pin it keeps. */
struct cache_wait_link {
	struct cache_wait *wait;       /* NULL: given up; freed when it is done */
	struct cache_wait_link *next;  /* of the wait */
	struct cache_wait_link *transfer_next;
	struct block *pinned;
	struct gpu *gpu;               /* apart: where; NULL: in memory */
	bool apart;                    /* one copy of it alone is */
	bool done;
	bool sync_request;             /* it is of a struct sync_request */
	uint8_t part;                  /* 1 + of_unit's index; 0: none */
};

void cache_wait_end(struct cache *c, struct cache_wait *w);
/* A link to what `done` will be told of; NULL: no memory. pin: kept pinned until the wait ends; may be NULL. */
struct cache_wait_link *wait_link(struct cache *c, struct cache_wait *w, struct block *pin);
/* Its event has come. */
void wait_link_done(struct cache *c, struct cache_wait_link *l, enum status s);
/* A pin alone; of one copy, on that GPU or in memory (NULL). */
bool wait_pin(struct cache *c, struct cache_wait *w, struct block *b);
bool wait_pin_on(struct cache *c, struct cache_wait *w, struct block *b, struct gpu *gpu);
void wait_spares_free(struct cache *c);
/* The wait waits for that link too, which is not wait_link's and is freed by its address (`sync_request`); what it is
 * of was not begun, and nothing was linked since. */
void wait_link_in(struct cache_wait *w, struct cache_wait_link *l);
void wait_link_out(struct cache_wait *w, struct cache_wait_link *l);
/* Links of a movement, by transfer_next: these are told of its end besides those in the list. */
void wait_links_join(struct cache_wait_link **list, struct cache_wait_link *more);
void wait_link_part(struct cache_wait *w, struct cache_wait_link *l, uint32_t part);
/* What it waits for is not told to it any more, and what it pins may go. */
void wait_links_drop(struct cache *c, struct cache_wait *w);
/* From now on it pins the copy on that GPU, where there is one, alone. */
void wait_link_apart(struct cache_wait_link *l, struct gpu *gpu);
static inline bool wait_wanted(struct cache_wait *w)
{
	return w && !w->last && !w->shed && w->stage++ < WAIT_ROUNDS;
}

/* What it waits for is under way, and it may go on waiting. */
static inline bool wait_goes_on(const struct cache_wait *w)
{
	return w && w->outstanding && !w->last;
}

#endif
