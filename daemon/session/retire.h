/* Memory that goes from one tenant to another.
 *
 * A tenant may borrow host memory that is no tenant's own. When another tenant lacks memory, an extent is asked back
 * from one that has more beyond its own bytes than the other would have then: its blocks are evicted (spilled first,
 * with disks), and engines that have it mapped are asked to unmap it. When all that is done the memory is freed, and
 * the other tenant gets a new extent. What is in use, and what a stopped engine keeps mapped, stays: its tenant pays
 * for it. One extent at a time. */
#ifndef TERRACE_DAEMON_SESSION_RETIRE_H
#define TERRACE_DAEMON_SESSION_RETIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"

struct retire {
	uint32_t extent;               /* 0: none */
	uint32_t kept;                 /* the last one that was asked back in vain */
	struct memory_class *to;       /* who is to have it */
	uint64_t since_us;             /* of the extent; without one: when the last one was kept */
	struct memory_trade pass;
	bool final;                    /* empty, and mapped by nobody: being freed */
};

/* Before other threads call. False: no memory. With one tenant, or with GPUs, there is nothing to be done. */
bool retire_create(struct cache *c);
void retire_destroy(struct cache *c);
/* With the lock: whether retire_chores has something to do. */
bool retire_wants(const struct cache *c);
/* Without the lock, now and then. */
void retire_chores(struct cache *c);
/* With the lock: the extent that is asked back; 0: none. It is offered to nobody. */
static inline uint32_t retire_extent(const struct cache *c)
{
	return c->retire ? c->retire->extent : 0;
}

/* With the lock: whether the extent is being freed just now, so that nobody may map it any more. */
static inline bool retire_is_final(const struct cache *c, uint32_t extent)
{
	return c->retire && c->retire->final && c->retire->extent == extent;
}

/* Any thread. Whether engines of this cache may be asked for extents. */
bool cache_asks_back(const struct cache *c);
/* The attachment's process listens for what is asked back. */
void cache_attach_listens(struct cache *c, uint64_t attachment);
/* The extent that the attachment's process is to unmap, each once; 0: none. */
uint32_t cache_attach_asked(struct cache *c, uint64_t attachment);

#endif
