/* Where the bytes of blocks come from.
 *
 * A tier (block/tier.h) holds copies of blocks that the index knows. A source brings bytes by name into slots of memory
 * that its caller has reserved. The disks and the GPUs are sources of blocks that the index knows. A source that is
 * `by_name` may have blocks that the index does not know, as another machine does: what it knows of them is its own
 * table of hints, and never a record in the index. Each source is registered once (source_add); one function above all
 * of them chooses the cheapest for a run of keys (call/source.h), and nobody else names a source.
 *
 * Every member is called with the cache's lock and must not wait. known() and estimate() are arithmetic on what the
 * source keeps, without a system call: they are called for each run. An end never comes from inside the member that
 * began what ends.
 *
 * The rule of slots: from the moment at which fetch() has begun a piece until that piece's end the piece's slot belongs
 * to the source, whatever happens meanwhile: a deadline, a cancel, the loss of what the bytes come from, the removal of
 * the block, the death of the call. Bytes may still be written there. So whoever cancels waits for the end like
 * everybody else, and only then gives the slot back or takes it for something else.
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
};

/* Names that are wanted together, a chain's in its order. They may be of several layouts. */
struct key_run {
	uint32_t count;
	const struct run_key *key;
};

/* What a source knows of a name. */
enum source_word {
	SOURCE_NOT,                    /* the source does not have it, or did not a moment ago */
	SOURCE_MAY,                    /* the source does not know: ask() would tell */
	SOURCE_HAS,                    /* the source has it, or did a moment ago */
};

/* Microseconds from now until the bytes of the first and of the last block of a run are there. */
struct source_cost {
	uint64_t first_us, last_us;
};

/* A question under way: the caller's until ask() returns OK, the source's from then on until its end. */
struct source_ask {
	struct key_run run;
	uint64_t deadline_us;          /* of the machine's clock (store/clock.h) */
	/* What known() says of the run from now on, for a second at least, is the answer: no name of it is SOURCE_MAY.
	 * s: OK, or why there was none: DEADLINE, UNAVAILABLE, CANCELLED. With the lock, once, on any thread. */
	void (*ended)(struct cache *c, struct source_ask *a, enum status s);
};

/* One block on its way. */
struct fetch_piece {
	struct run_key key;
	struct memory_slot slot;       /* where the slot's bytes go, header and block */
	struct cache_wait_link *links; /* of waits, by transfer_next, which hear of the piece's end; NULL: none */
	void *own;                     /* the caller's; the source does not look at it */
	/* Upon fetch()'s return: */
	enum status begun;             /* OK: the piece will end. Else why not, and slot and links are the caller's */
	/* At its end: */
	uint64_t position;             /* of the block's first token in its sequence; of a block that the index knows */
};

/* Pieces that are fetched together: the caller's until fetch() returns OK, the source's from then on until `ended`. */
struct fetch {
	struct source *source;
	enum ring_priority priority;
	uint64_t deadline_us;          /* of the machine's clock: the source then ends what has not come; 0: none */
	/* Of a source of blocks that the index knows. Piece i has come to this end, and its slot is the caller's
	 * again. OK: the bytes are that block's, and have been checked. With the lock, once for each piece that was
	 * begun, on any thread, in any order. */
	void (*piece_ended)(struct cache *c, struct fetch *f, uint32_t i, enum status s);
	/* The same of a source that is by_name, by source_came(): OK says that all bytes of the slot have been
	 * written, and nobody has looked at them. Without the lock. */
	void (*piece_came)(struct fetch *f, uint32_t i, enum status s);
	/* After the last piece_ended: the source knows the fetch no more. With the lock. */
	void (*ended)(struct cache *c, struct fetch *f);
	bool for_gpu;                  /* a GPU reads the bytes next */
	bool cancelled;                /* cancel() was called */
	uint32_t count;
	uint32_t outstanding;          /* the source's: pieces that have not ended */
	struct fetch_piece piece[];
};

struct source_ops {
	const char *name;              /* "disk", "gpu" */

	/* What is known now of these names, without waiting: a word for each. */
	void (*known)(struct cache *c, struct source *s, const struct key_run *run, uint8_t *word);

	/* Begins to find out what known() is to say of names that are SOURCE_MAY. OK: the ask's end comes, before
	 * its deadline or soon after. BUSY, EXHAUSTED, UNAVAILABLE: nothing was begun. The caller merges asks: no
	 * name is in two of them at a time. NULL: the source is never SOURCE_MAY. */
	enum status (*ask)(struct cache *c, struct source *s, struct source_ask *a);

	/* When the bytes of these names, all of which the source has, would be there if fetch() were called now: by
	 * running averages of what transfers took and by what is queued before them. False: the source cannot bring
	 * them. A source that has not been measured yet says what such a device does; it is corrected by what it
	 * then does. */
	bool (*estimate)(struct cache *c, struct source *s, const struct key_run *run, struct source_cost *out);

	/* Begins to bring the pieces, each into its slot; f->priority goes for all. OK: at least one piece was
	 * begun; each piece says in `begun` whether it was. Else nothing was begun, and that is said of each piece:
	 * BUSY or EXHAUSTED, not now; UNAVAILABLE, MISS, CANCELLED, not from here. Nobody else brings a block of the
	 * run, or writes to it, until its end: of blocks that the index knows the source holds a pin so long. NULL:
	 * the source's tier brings each block by itself, into a slot that the tier takes (tier_ops.fetch). */
	enum status (*fetch)(struct cache *c, struct source *s, struct fetch *f);

	/* Nobody wants the fetch any more. Its ends come all the same, soon, each with what came of its piece
	 * (CANCELLED if nothing did, OK if all of it had come), and only then are the slots the caller's. Twice is
	 * once. Never from inside an end of the fetch itself. */
	void (*cancel)(struct cache *c, struct source *s, struct fetch *f);

	/* Whether the source would take a copy of a block that is about to leave memory for good, to bring it back
	 * later. OK: it holds a pin of the block until it has copied it or has given up, and says nothing of that.
	 * It must let go upon pressed(). BUSY: not now. NULL: never. */
	enum status (*offer)(struct cache *c, struct source *s, struct block *b);

	/* Memory is short: the source lets go of pins of offered blocks, of so many bytes at least if it has them,
	 * now. May be NULL if offer is. */
	void (*pressed)(struct cache *c, struct source *s, uint64_t bytes);

	/* Something that the source brings bytes from, by the source's own number (a disk, a peer), is gone: known()
	 * and estimate() leave it out from now on, and what was under way from there ends UNAVAILABLE. NULL: the
	 * source notices by itself. */
	void (*lost)(struct cache *c, struct source *s, uint32_t place, const char *why);
};

/* Embedded in what its owner keeps of the source. */
struct source {
	const struct source_ops *ops;
	enum tier_kind tier;           /* whose copies it brings; TIER_KINDS: none of ours, it is by_name */
};

/* It may have blocks that the index does not know. */
static inline bool source_by_name(const struct source *s)
{
	return s->tier == TIER_KINDS;
}

/* Adds a source, which may be asked from now on. The order is the tie-break: of two that cost the same the earlier
 * one is taken. A source lives longer than the cache, whose end cancels its fetches and waits for their ends.
 * EXHAUSTED: SOURCES_MAX. With the lock, or before other threads call. */
static inline enum status source_add(struct cache *c, struct source *s)
{
	if (c->source_count == SOURCES_MAX)
		return STATUS_EXHAUSTED;
	c->sources_by_name |= (uint32_t)source_by_name(s) << c->source_count;
	c->sources[c->source_count++] = s;
	return STATUS_OK;
}

/* ---- for sources ---- */

/* Piece i of a source that is by_name has come, or will not: the source writes nothing to its slot any more. Without
 * the lock, once for each piece that was begun, from any thread that has called cache_thread_enter(), but never from
 * inside a member. After the last one the fetch is gone. */
static inline void source_came(struct fetch *f, uint32_t i, enum status s)
{
	f->piece_came(f, i, s);
}

#endif
