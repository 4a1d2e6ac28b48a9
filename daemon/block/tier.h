/* What a tier does for the parts beside it and below it. Memory, the disks and the GPUs have a table each;
 * daemon/cache.c registers them, and a tier that there is not has none. A part below the tiers, and a tier that needs
 * another, calls through the table and knows no tier by name.
 *
 * Each member says which lock its caller holds. "The block's" is what guards that block's record, "the class's" what
 * guards that class of slots, "the tier's" what guards the tier as a whole. Today the cache's lock is all three. No
 * member is called for a first pin or a last unpin of a live block (store/index.h says why); only release() is called
 * when the last pin of a copy that is dead or corrupt goes. A movement that a member begins ends later, and never
 * before the member has returned.
 *
 * A member that a tier's table leaves out is NULL. Members of a copy are called of a tier that has such a copy. The
 * functions below the table are for those members that a tier may not have, and do nothing where there is no such tier.
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

/* What may go for a slot. */
enum take_effort {
	TAKE_ANY,                      /* whatever the policy gives up, also what is nowhere else */
	TAKE_SPARE,                    /* nothing that is nowhere else */
	TAKE_BELOW,                    /* for what comes down without a hurry: nothing that a GPU alone has beside */
	TAKE_BELOW_SPARE,              /* neither of the two */
	TAKE_SOON,                     /* of a fetch: TAKE_BELOW_SPARE while disks write, then TAKE_ANY */
};

/* How a block is brought to memory. */
struct fetch_how {
	enum ring_priority priority;   /* of a read */
	enum take_effort effort;
	bool for_gpu;                  /* a GPU reads it next */
	bool not_gpu;                  /* copies on GPUs have been tried in vain */
	struct cache_wait_link *links; /* of waits, by transfer_next, that are told of the end too; taken if OK */
};

struct tier_ops {
	const char *name;              /* "host", "disk", "gpu" */

	/* ---- one block's copy here. The block's and the class's lock ---- */

	/* The copy was read. gpu: on which GPU; NULL: in memory, or all of the block. It may have been that copy, or
	 * one above it. */
	void (*use)(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e);
	/* The copy, whose slot is filled, is known to the policy from now on. position: of its first token in the
	 * sequence. */
	void (*enter)(struct cache *c, struct block *b, uint64_t position);
	/* The block is dead: the copy leaves policy and accounting. Its slot stays taken until release(), or until what
	 * lies there is made unreadable, by a reason that asks for it. Of a block out of the accounting
	 * (block_accounting). */
	void (*leave)(struct cache *c, struct block *b, enum cache_reason reason);
	/* The slots of copies here without a pin go back, of a block that is dead, was never published, or has
	 * corrupt ones. */
	void (*release)(struct block *b);
	/* The block's copy in tier `which` has come, or has gone: what is counted by where else a block is, is
	 * counted anew. */
	void (*copies_changed)(struct cache *c, struct block *b, enum tier_kind which, bool came);

	/* ---- movement. The block's and the tier's lock ---- */

	/* Begins to bring the block to memory from the copy here, or joins what has begun; w, which may be NULL, is
	 * told of the end. OK: under way, or there. BUSY: not within how->effort, now. EXHAUSTED, UNAVAILABLE,
	 * CANCELLED: not from here. */
	enum status (*fetch)(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
	/* The block is on its way to memory from here. */
	bool (*in_flight)(struct cache *c, const struct block *b);
	/* Begins to write the copy in memory here, or joins. As fetch; MISS: a place is being made. */
	enum status (*store)(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
	/* Begins to write more of that layout here, as room in memory is waited for. False: nothing is under way or
	 * to be begun. The tier's lock. */
	bool (*hurry)(struct cache *c, struct layout_pool *p);
	/* Begins what background work there is, and what has waited for room. Called once after the tier's ends
	 * (block/ends.h). The tier's lock. */
	void (*pump)(struct cache *c);

	/* ---- room ---- */

	/* A slot of the class for one more copy, taken and held. EXHAUSTED: there is none; if room_wants() then says
	 * a class, pages have to be taken or another class's span emptied, which takes long: undo, leave the lock,
	 * grow() that class, and try again. BUSY: there is none within the effort. The class's lock, and the block's
	 * of each block that leaves for it. */
	enum status (*take)(struct cache *c, struct memory_class *k, enum take_effort effort, struct memory_slot *out);
	/* Whether take() would find a slot within TAKE_SPARE. The class's lock. */
	bool (*spares)(struct cache *c, struct memory_class *k);
	/* Whether the policy would rather keep what it has than give a slot to the block of this event. The class's
	 * lock. */
	bool (*refuses)(struct cache *c, struct layout_pool *p, const struct policy_event *e);
	/* Makes room that take() may find, which may last a tenth of a second. vain: the caller has tried as often as
	 * it makes sense. No lock. */
	void (*grow)(struct cache *c, struct memory_class *k, bool vain);
	/* It is time to tell the policies what room they have, if that has changed. The tier's lock. */
	void (*room_changed)(struct cache *c);

	/* ---- memory that the tier's devices copy from and to. No lock; one thread at a time ---- */

	/* An extent has been made, no slot of which is known to anybody; its pages may be missing. */
	void (*extent_made)(struct cache *c, struct memory_extent *m, const struct extent *e);
	/* All its pages are there. */
	void (*extent_fixed)(struct cache *c, struct memory_extent *m, const struct extent *e);

	/* ---- devices. The tier's lock ---- */

	/* The device of that number does not do what it must, for a reason in words: nothing is copied from or to it any
	 * more, its copies are not to be had, and they are given up bit by bit. */
	void (*lost)(struct cache *c, uint32_t place, const char *why);

	/* ---- waits. The cache's lock ---- */

	/* Nothing that the wait waits for is outstanding, and its mark stands behind that. */
	void (*wait_placed)(struct cache_wait *w);
	/* The wait ends without its mark. */
	void (*wait_dropped)(struct cache_wait *w);
};

/* Takes what take() left to be grown; NULL. */
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

/* To memory, from wherever that costs least: the part above the tiers chooses (call/source.c). As the member `fetch`.
 * The cache's lock. */
static inline enum status tiers_fetch(struct cache *c, struct block *b, const struct fetch_how *how,
				      struct cache_wait *w)
{
	return c->fetch(c, b, how, w);
}

/* The disks' part; without disks nothing is under way. */
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
