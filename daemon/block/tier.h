/* What a tier does for the parts beside it and below it. Memory, the disks and the GPUs have a table each;
 * daemon/cache.c registers them; a tier that does not exist has no table. Parts below the tiers, and a tier that needs
 * another one, call through the table and know no tier by name.
 *
 * Each member says which lock its caller holds. "The block's" is what guards that block's record, "the class's" what
 * guards that class of slots, "the tier's" what guards the tier as a whole. Today the cache's lock is all three. The
 * first pin and the last unpin of a live block call no member (store/index.h says why). release() is called when a dead
 * or corrupt copy loses its last pin. A transfer that a member begins ends after the member has returned.
 *
 * A member that a tier's table leaves out is NULL. Members about a copy are called only for a tier that has the copy.
 * The functions below the table call members that may be missing; they do nothing if the tier or the member does not
 * exist.
 */
#ifndef TERRACE_DAEMON_BLOCK_TIER_H
#define TERRACE_DAEMON_BLOCK_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache_wait;
struct cache_wait_link;
struct extent;
struct gpu;
struct memory_class;
struct memory_extent;
struct memory_slot;
struct policy_event;
struct layout_pool;

/* Which blocks may be evicted for a slot. */
enum take_effort {
	TAKE_ANY,                      /* any that the policy gives up, also blocks that have no other copy */
	TAKE_SPARE,                    /* only blocks that have another copy */
	TAKE_BELOW,                    /* of a background download: no block whose only other copy is on a GPU */
	TAKE_BELOW_SPARE,              /* only blocks that TAKE_SPARE and TAKE_BELOW both allow */
	TAKE_SOON,                     /* of a fetch: TAKE_BELOW_SPARE while disks write, then TAKE_ANY */
};

/* How a block is brought to memory. */
struct fetch_how {
	enum ring_priority priority;   /* of a read */
	enum take_effort effort;
	bool for_gpu;                  /* a GPU reads it next */
	bool not_gpu;                  /* the copies on GPUs could not be used: do not try them again */
	/* links of waits, by transfer_next, that are also told of the end; the callee's if it returns OK */
	struct cache_wait_link *links;
};

struct tier_ops {
	const char *name;              /* "host", "disk", "gpu" */

	/* ---- one block's copy here. The block's and the class's lock ---- */

	/* A copy was read. gpu: the GPU whose copy was read; NULL: the copy in memory, or all copies. The copy that was
	 * read may be this tier's or one of a tier above. */
	void (*use)(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e);
	/* The block has become unusable (block_unusable), or is usable again: a copy here, if there is one, is the next
	 * to go, or no longer. */
	void (*unusable)(struct cache *c, struct block *b, bool is);
	/* The slot of the copy is filled: from now on the policy knows the copy. position: of the block's first token
	 * in the sequence. */
	void (*enter)(struct cache *c, struct block *b, uint64_t position);
	/* The block is dead: the copy leaves policy and accounting. The slot stays taken until release(), or, if
	 * `reason` asks for it, until its bytes have been made unreadable. The caller has taken the block out of the
	 * accounting (block_accounting). */
	void (*leave)(struct cache *c, struct block *b, enum cache_reason reason);
	/* Gives back the slots of copies here that have no pin. The block is dead, was never published, or has corrupt
	 * copies. */
	void (*release)(struct block *b);
	/* Tier `which` has got a copy of the block (came), or has lost it: recounts what depends on where else the
	 * block is. */
	void (*copies_changed)(struct cache *c, struct block *b, enum tier_kind which, bool came);

	/* ---- movement. The block's and the tier's lock ---- */

	/* Begins to bring the block to memory from the copy here, or joins a transfer that has begun. w (may be NULL)
	 * is told of the end. OK: under way, or already in memory. BUSY: not now within how->effort. EXHAUSTED,
	 * UNAVAILABLE, CANCELLED: this tier cannot bring it. */
	enum status (*fetch)(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
	/* Whether the block is on its way from here to memory. */
	bool (*in_flight)(struct cache *c, const struct block *b);
	/* Begins to write the copy in memory to this tier, or joins a transfer that has begun. Answers as fetch();
	 * MISS: the tier is making a place for it. */
	enum status (*store)(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
	/* Begins to write more of that layout here, as a caller waits for room in memory. False: nothing is under way,
	 * and nothing could be begun. The tier's lock. */
	bool (*hurry)(struct cache *c, struct layout_pool *p);
	/* Begins the background work that is due, and what has waited for room. Called once after the tier's ends have
	 * run (block/ends.h). The tier's lock. */
	void (*pump)(struct cache *c);

	/* ---- room ---- */

	/* A slot of the class for one more copy, taken and held. BUSY: none within the effort. EXHAUSTED: none. If
	 * room_wants() then returns a class, the caller undoes what it did, leaves the lock, calls grow() for that
	 * class and tries again: pages must be taken from the kernel or another class's span emptied, which takes long.
	 * The class's lock, and the block's of each evicted block. */
	enum status (*take)(struct cache *c, struct memory_class *k, enum take_effort effort, struct memory_slot *out);
	/* Whether take() would find a slot with TAKE_SPARE. The class's lock. */
	bool (*spares)(struct cache *c, struct memory_class *k);
	/* Whether the policy would rather keep its blocks than give a slot to the block of this event. The class's
	 * lock. */
	bool (*refuses)(struct cache *c, struct layout_pool *p, const struct policy_event *e);
	/* Makes room for a later take(); it may last a tenth of a second. vain: the caller has tried as often as makes
	 * sense. No lock. */
	void (*grow)(struct cache *c, struct memory_class *k, bool vain);
	/* Tells the policies what room they have, if it has changed. The tier's lock. */
	void (*room_changed)(struct cache *c);
	/* Visits blocks that are about to be evicted from here and then are nowhere (eviction/departures.h), of the
	 * class of number `at` in this tier. False: there is none of that number. `visit` leaves the block as it is.
	 * The tier's lock. */
	bool (*leaving)(struct cache *c, uint32_t at, void (*visit)(void *arg, const struct block *b), void *arg);

	/* ---- memory that the tier's devices copy from and to. No lock; one thread at a time ---- */

	/* An extent has been made. None of its slots is in use yet; its pages may be missing. */
	void (*extent_made)(struct cache *c, struct memory_extent *m, const struct extent *e);
	/* All its pages are there. */
	void (*extent_fixed)(struct cache *c, struct memory_extent *m, const struct extent *e);
	/* It goes: none of its slots is in use, and nothing is copied from or to it any more. */
	void (*extent_gone)(struct cache *c, const struct memory_extent *m);

	/* ---- devices. The tier's lock ---- */

	/* The device of that number has failed, for a reason in words. Nothing is copied from or to it any more, its
	 * copies cannot be read, and they are given up bit by bit. */
	void (*lost)(struct cache *c, uint32_t place, const char *why);

	/* ---- waits. The cache's lock ---- */

	/* Nothing that the wait waits for is outstanding, and its fence stands behind that. */
	void (*wait_placed)(struct cache_wait *w);
	/* The wait ends without its fence. */
	void (*wait_dropped)(struct cache_wait *w);
};

/* Takes the class that take() left to be grown; NULL: none. */
static inline struct memory_class *room_wants(struct cache *c)
{
	struct memory_class *k = c->grow;

	c->grow = NULL;
	return k;
}

static inline void tiers_copies_changed(struct cache *c, struct block *b, enum tier_kind which, bool came)
{
	for (int i = 0; i < TIER_KINDS; i++)
		if (c->tiers[i] && c->tiers[i]->copies_changed)
			c->tiers[i]->copies_changed(c, b, which, came);
}

/* Brings a block to memory from the cheapest tier, which call/source.c chooses. Arguments and answers as of the member
 * `fetch`. The cache's lock. */
static inline enum status tiers_fetch(struct cache *c, struct block *b, const struct fetch_how *how,
				      struct cache_wait *w)
{
	return c->fetch(c, b, how, w);
}

/* hurry() of the disks; false without disks. */
static inline bool tiers_hurry(struct cache *c, struct layout_pool *p)
{
	return c->tiers[TIER_DISK] && c->tiers[TIER_DISK]->hurry(c, p);
}

static inline void tiers_pump(struct cache *c)
{
	if (c->tiers[TIER_DISK])
		c->tiers[TIER_DISK]->pump(c);
}

#endif
