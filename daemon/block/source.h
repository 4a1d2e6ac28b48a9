/* Where the bytes of blocks come from.
 *
 * A tier (block/tier.h) holds copies of blocks that the index knows. A source brings bytes by name into slots of memory
 * that its caller has reserved. The disks and the GPUs are sources of blocks that the index knows. A source that is
 * `by_name` may have blocks that the index does not know, as another machine does: it keeps what it knows of them in a
 * table of hints of its own, never in the index. Each source is registered once (source_add). One function above all
 * sources chooses the cheapest for a run of keys (call/source.h); no other code names a source.
 *
 * Every member is called with the cache's lock, known() of a source by name also without it, and must not wait. known()
 * and estimate() are called for each run: they compute from what the source keeps, without a system call. An end never
 * comes from inside the member that began the work.
 *
 * The rule of slots: a slot belongs to the source from the moment at which fetch() has begun its piece until the
 * piece's end. A deadline, a cancel, the loss of the device, the removal of the block or the end of the call do not
 * change that, since bytes may still be written to the slot. A caller that cancels therefore waits for the end, and
 * only then gives the slot back or uses it again.
 */
#ifndef TERRACE_DAEMON_BLOCK_SOURCE_H
#define TERRACE_DAEMON_BLOCK_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait_link;
struct layout_pool;
struct source;

/* One name of a run. */
struct run_key {
	struct layout_pool *pool;      /* of its layout */
	struct index_ident name;       /* its key lives as long as the run, or the piece */
	struct block *block;           /* what the index has under that name, alive; NULL: nothing */
	/* For sources by name: the first key of the name's segment of the chain (directory/segment.h), as long as the
	 * name's; valid until the call that has the run returns. NULL: not known */
	const uint8_t *segment_key;
	uint64_t segment;              /* of a name that another member offers, if members are told; else 0 */
	bool told;                     /* other members are told of blocks at its place (exports/exports.h) */
};

/* Names that are wanted together, a chain's in its order. They may be of several layouts. */
struct key_run {
	uint32_t count;
	const struct run_key *key;
};

/* What a source says of a name. */
enum source_word {
	SOURCE_NOT,                    /* the source does not have it, or did not a moment ago */
	SOURCE_MAY,                    /* the source does not know: ask() would tell */
	SOURCE_HAS,                    /* the source has it, or had it a moment ago */
};

/* When the bytes of the first and of the last block of a run will be there, in microseconds from now. */
struct source_cost {
	uint64_t first_us, last_us;
};

/* A question under way. It belongs to the source from ask()'s OK until its end, else to the caller. */
struct source_ask {
	struct key_run run;
	uint64_t deadline_us;          /* of the machine's clock (store/clock.h) */
	/* The answer is there: for a second at least, known() says SOURCE_MAY of no name of the run. s: OK, or why
	 * there was no answer: DEADLINE, UNAVAILABLE, CANCELLED. With the lock, once, on any thread. */
	void (*ended)(struct cache *c, struct source_ask *a, enum status s);
};

/* One block on its way. */
struct fetch_piece {
	struct run_key key;
	struct memory_slot slot;       /* where the slot's bytes go, header and block */
	/* links of waits, by transfer_next, that are told of the piece's end; NULL: none */
	struct cache_wait_link *links;
	void *own;                     /* the caller's; the source does not look at it */
	/* Upon fetch()'s return: */
	enum status begun;             /* OK: the piece will end. Else why not, and slot and links are the caller's */
	/* At its end: */
	uint64_t position;             /* of the block's first token in its sequence; of a block that the index knows */
};

/* Pieces that are fetched together. They belong to the source from fetch()'s OK until `ended`, else to the caller. */
struct fetch {
	struct source *source;
	enum ring_priority priority;
	/* of the machine's clock: the source then ends the pieces that have not come; 0: none */
	uint64_t deadline_us;
	/* Only of a source without by_name. Piece i has ended so, and its slot is the caller's again. OK: the bytes are
	 * that block's, and have been checked. With the lock, once for each piece that was begun, on any thread, in any
	 * order. */
	void (*piece_ended)(struct cache *c, struct fetch *f, uint32_t i, enum status s);
	/* Only of a source with by_name, called by source_came(): piece i has ended so. OK: all bytes of the slot have
	 * been written, but not checked. Without the lock. */
	void (*piece_came)(struct fetch *f, uint32_t i, enum status s);
	/* After the last piece_ended: the source does not use the fetch any more. With the lock. */
	void (*ended)(struct cache *c, struct fetch *f);
	bool for_gpu;                  /* a GPU reads the bytes next */
	bool cancelled;                /* cancel() was called */
	uint32_t count;
	uint32_t outstanding;          /* the source's: pieces that have not ended */
	struct fetch_piece piece[];
};

struct source_ops {
	const char *name;              /* "disk", "gpu" */

	/* What is known now of these names, without waiting: a source_word for each. */
	void (*known)(struct cache *c, struct source *s, const struct key_run *run, uint8_t *word);

	/* Begins to find out what known() is to say of names that are SOURCE_MAY. OK: the ask ends before its deadline
	 * or soon after. BUSY, EXHAUSTED, UNAVAILABLE: nothing was begun. The caller merges asks, so that no name is in
	 * two of them at a time. NULL: the source never says SOURCE_MAY. */
	enum status (*ask)(struct cache *c, struct source *s, struct source_ask *a);

	/* When the bytes of these names, all of which the source has, would be there if fetch() were called now. It is
	 * computed from running averages of transfer times and from what is queued before them. False: the source
	 * cannot bring them. Before its first transfers a source assumes the speed of a typical device. */
	bool (*estimate)(struct cache *c, struct source *s, const struct key_run *run, struct source_cost *out);

	/* Begins to bring the pieces, each into its slot; f->priority goes for all. OK: at least one piece was begun;
	 * each piece says in `begun` whether it was. Else nothing was begun, and each piece says why: BUSY or
	 * EXHAUSTED, not now; UNAVAILABLE, MISS, CANCELLED, not from here. Until a piece's end nothing else brings its
	 * block or writes to it; the source keeps blocks that the index knows pinned until then. NULL: the source's
	 * tier brings each block by itself, into a slot that the tier takes (tier_ops.fetch). */
	enum status (*fetch)(struct cache *c, struct source *s, struct fetch *f);

	/* The caller does not want the fetch any more. Its ends still come, soon, each with what came of its piece
	 * (CANCELLED if nothing did, OK if all of it had come), and only then are the slots the caller's. A second call
	 * does nothing. Never from inside an end of the fetch itself. */
	void (*cancel)(struct cache *c, struct source *s, struct fetch *f);

	/* What came for that name was not the block: the source leaves out for a while where it came from. NULL: its
	 * bytes are trusted, or nothing can be done. */
	void (*wrong)(struct cache *c, struct source *s, const struct index_ident *name);

	/* Offers the source a copy of a block that is about to leave memory for good, to bring it back later. OK: the
	 * source pins the block until it has copied it or has given up, and does not report which. It must give up the
	 * pin upon pressed(). BUSY: not now. NULL: never. */
	enum status (*offer)(struct cache *c, struct source *s, struct block *b);

	/* Memory is short: the source gives up pins of offered blocks now, of at least so many bytes if it holds them.
	 * May be NULL if offer is. */
	void (*pressed)(struct cache *c, struct source *s, uint64_t bytes);

	/* Something that the source brings bytes from is gone; `place` is the source's own number for it (a disk, a
	 * peer). known() and estimate() leave it out from now on, and transfers under way from it end UNAVAILABLE.
	 * NULL: the source notices by itself. */
	void (*lost)(struct cache *c, struct source *s, uint32_t place, const char *why);
};

/* Embedded in the owner's own record of the source. */
struct source {
	const struct source_ops *ops;
	enum tier_kind tier;           /* whose copies it brings; TIER_KINDS: of no tier, it is by_name */
};

/* Whether the source may have blocks that the index does not know. */
static inline bool source_by_name(const struct source *s)
{
	return s->tier == TIER_KINDS;
}

/* Adds a source, which may be asked from now on. Of two sources that cost the same, the one added first is taken. A
 * source outlives the cache: the cache, when destroyed, cancels its fetches and waits for their ends. EXHAUSTED:
 * SOURCES_MAX. With the lock, or before other threads call. */
static inline enum status source_add(struct cache *c, struct source *s)
{
	if (c->source_count == SOURCES_MAX)
		return STATUS_EXHAUSTED;
	c->sources_by_name |= (uint32_t)source_by_name(s) << c->source_count;
	c->sources[c->source_count++] = s;
	return STATUS_OK;
}

/* ---- for sources ---- */

/* Piece i of a source that is by_name has come, or will not come: the source writes nothing to its slot any more.
 * Without the lock, once for each piece that was begun. From any thread that has called cache_thread_enter(), but not
 * from inside a member. After the last one the fetch is gone. */
static inline void source_came(struct fetch *f, uint32_t i, enum status s)
{
	f->piece_came(f, i, s);
}

#endif
