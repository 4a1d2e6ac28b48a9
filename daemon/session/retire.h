/* Memory that goes from one tenant to another.
 *
 * A tenant may borrow memory that is no tenant's own, of the host and of a GPU. When another tenant lacks memory, an
 * extent is asked back from one that has more beyond its own bytes than the other would have then. Engines that have
 * it mapped are asked to unmap it; when they have, or have leases there, its blocks are evicted (spilled first, with
 * disks). When it is empty and not mapped any more its memory is freed, and the other tenant gets a new extent. An
 * engine that does not answer keeps what it has mapped, blocks and all: its tenant pays for it, and another extent is
 * tried. One extent at a time, of the tiers in turn.
 *
 * The kernel may let go of pages that are registered with io_uring a little later: until then both extents' pages are
 * there. */
#ifndef TERRACE_DAEMON_SESSION_RETIRE_H
#define TERRACE_DAEMON_SESSION_RETIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"

enum { RETIRE_KEPT = 16 };         /* more than can be kept while they are remembered */

struct gpu;

struct retire {
	uint32_t extent;               /* 0: none */
	struct gpu *gpu;               /* the GPU whose extent it is; NULL: host memory */
	struct arena_class *to;        /* the class that is to have it */
	/* its last span came free, or it was retired; without an extent: none could be had, or the last one was kept */
	uint64_t since_us;
	uint32_t spans;                /* that were left then */
	bool empties;                  /* its blocks are being evicted; before, engines are asked */
	struct memory_trade pass;
	bool final;                    /* empty and not mapped: being freed */
};

/* An extent that was asked back in vain. */
struct retire_kept {
	uint32_t extent;
	uint64_t us;                   /* when; 0: never */
};

/* The tier that was looked at last: 0 for host memory, then the GPUs; and what stayed where it was. */
struct retires {
	struct retire now;
	uint32_t tier;
	struct retire_kept kept[RETIRE_KEPT];
	uint32_t kept_at;              /* the next of `kept` to be written */
};

/* Before other threads call. False: no memory. With one tenant there is nothing to be done. */
bool retire_create(struct cache *c);
void retire_destroy(struct cache *c);
/* With the lock: whether retire_chores has something to do. */
bool retire_wants(const struct cache *c);
/* Without the lock, now and then. */
void retire_chores(struct cache *c);
/* With the lock: the extent that is asked back; 0: none. No client is offered it. */
static inline uint32_t retire_extent(const struct cache *c)
{
	return c->retire ? c->retire->now.extent : 0;
}

/* With the lock: whether the extent is being freed just now, so that it may not be mapped any more. */
static inline bool retire_is_final(const struct cache *c, uint32_t extent)
{
	return c->retire && c->retire->now.final && c->retire->now.extent == extent;
}

/* Any thread. Whether engines of this cache may be asked for extents. */
bool cache_asks_back(const struct cache *c);
/* The attachment's process listens for what is asked back. */
void cache_attach_listens(struct cache *c, uint64_t attachment);
/* Whether an extent is asked back now. */
bool cache_asks_now(struct cache *c);
/* The extent that the attachment's process is to unmap; 0: none, or it was asked since it mapped it. */
uint32_t cache_attach_asked(struct cache *c, uint64_t attachment);
/* It could not be told: it is asked again. */
void cache_attach_ask_again(struct cache *c, uint64_t attachment);

#endif
