/* Prefetch from disks: blocks that are on a disk alone and will be wanted are loaded, behind all transfers that calls
 * wait for, and no more than prefetch_bytes a second.
 *
 * A bounded queue of *wishes* (advice/wish.h) holds the blocks to load.
 *
 * A tick, and a thread that reads the mail, begins as many loads as budget, memory and disks allow. A prefetched block
 * is *used* when a lease has it, *late* if that lease had to wait for it all the same, and *wasted* if it leaves memory
 * before. Until then the policy does not know it: it is kept while a use may be expected, and is evicted first
 * afterwards. If more than a quarter of a kind of wish was wasted lately, only one wish in eight is granted, and of
 * that the few likeliest blocks. A prefetch ends only when its time is over, so expected blocks may have no more open
 * prefetches than were used lately, and a few.
 */
#include "daemon/advice/prefetch.h"

#include "daemon/advice/advice.h"
#include "daemon/advice/prefetch_gpu.h"
#include "daemon/advice/prefetch_outcome.h"
#include "daemon/advice/request.h"
#include "daemon/advice/wish.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/counters.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/tier.h"
#include "daemon/disk/state.h"
#include "daemon/memory/evict.h"
#include "daemon/memory/probation.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <string.h>

enum {
	WISH_US = 2 * 1000 * 1000,     /* what is expected is not begun later than that */
	HOST_SHARE = 4,                /* of memory, one part of so many may hold what was loaded ahead and is not used yet */
	TRIAL_BLOCKS = 4,              /* of a wish of a kind that is in doubt */
};

/* ---- what became of them ---- */

_Static_assert(COUNTER_EXPECTED_LATE - COUNTER_EXPECTED_BYTES == COUNTER_PREFETCH_LATE - COUNTER_PREFETCH_BYTES,
    "the same rows of both");

static void count_bytes(struct cache *c, enum prefetch_kind kind, enum counter what, uint64_t bytes)
{
	cache_count(c, what, bytes);
	if (kind == PREFETCH_EXPECTED)
		cache_count(c, (enum counter)(what - COUNTER_PREFETCH_BYTES + COUNTER_EXPECTED_BYTES), bytes);
}

void prefetch_end(struct cache *c, struct block *b, enum counter how)
{
	struct prefetch *a = &c->advice->prefetch;
	const enum prefetch_kind kind = (enum prefetch_kind)b->prefetched;
	const uint64_t bytes = b->pool->geometry.need_bytes;

	if (!b->prefetched)
		return;
	if (b->span)
		probation_prefetch_leave(b);
	a->held_bytes -= bytes;
	count_bytes(c, kind, how, bytes);
	b->prefetched = PREFETCH_NO;
	prefetch_outcome_ended(&a->outcome[kind], how == COUNTER_PREFETCH_WASTED);
}

void prefetch_wanted(struct cache *c, struct block *b)
{
	prefetch_end(c, b, COUNTER_PREFETCH_LATE);
}

/* Whether prefetches of this kind are worth their memory. A Lookup's Lease comes soon, so prefetches for it always are.
 * For other kinds it takes seconds to see that no call wants the blocks, and memory could fill with them meanwhile. */
static bool proves_itself(const struct prefetch *a, enum prefetch_kind kind)
{
	return kind == PREFETCH_ASKED || prefetch_outcome_is_good(&a->outcome[kind]);
}

/* ---- wishes ---- */

void prefetch_init(struct prefetch *a)
{
	a->queue = (struct wish_queue){
		.wish = a->wish,
		.size = PREFETCH_WISHES,
		.too_late = COUNTER_PREFETCH_TOO_LATE,
		.expected_us = WISH_US,
	};
}

static void wish_add(struct cache *c, struct wish *w, struct block *b)
{
	(void)c;
	if (b && !b->span && !b->vram && b->slab_map && !b->moving && w->count < WISH_BLOCKS)
		w->id[w->count++] = b->node.id;
}

/* Marks a block of the request that memory has as wanted, so that it is not evicted for what is loaded. */
static void wish_keep(struct cache *c, struct wish *w, struct block *b)
{
	(void)c;
	if (!b || !b->span || w->kept == WISH_BLOCKS)
		return;
	b->wanted++;
	w->keep[w->kept++] = b->node.id;
}

static void wish_for(struct cache *c, const struct request *r, enum prefetch_kind kind)
{
	struct prefetch *a = &c->advice->prefetch;
	struct wish *w = wish_begin(c, &a->queue, r, kind);

	wish_fill(c, r, w, wish_add);
	wish_grant(c, w, &a->outcome[kind], TRIAL_BLOCKS, COUNTER_PREFETCH_UNVERIFIED);
	if (w->count && kind == PREFETCH_ASKED)
		wish_fill_asked(c, r, w, wish_keep);
}

void prefetch_request(struct cache *c, const struct request *r)
{
	if (c->vram && c->vram->prefetch)
		vram_prefetch_request(c, r);
	if (!c->tier || !c->options.prefetch_bytes || c->tier->stopping || r->kind == REQUEST_REPORT)
		return;
	if (r->kind == REQUEST_LOOKUP && r->present)
		wish_for(c, r, PREFETCH_ASKED);
	wish_for(c, r, PREFETCH_EXPECTED);
}

void prefetch_leased(struct cache *c, const struct request *r)
{
	if (c->vram && c->vram->prefetch)
		vram_prefetch_leased(c, r);
	wish_leased(c, &c->advice->prefetch.queue, r);
}

/* ---- loads ---- */

/* Whether the block may have a place in memory without loss. A full class gives up what it would give up for a put of
 * the same block; for a block that is sure to be leased, its coldest. */
static bool deserves_room(struct cache *c, const struct block *b, enum prefetch_kind kind)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .moved = true };
	struct memory_class *k = b->pool->class;

	if (c->advice->prefetch.held_bytes + b->pool->geometry.need_bytes > c->options.host_bytes / HOST_SHARE)
		return false;
	return room_spares(c, k) && (kind == PREFETCH_ASKED || memory_class_has_room(k) || !room_keeps_out(c, k, &e));
}

/* Begins a prefetch from a disk. OK: it has begun, or is not to be. BUSY: no more of this wish now. EXHAUSTED: no more
 * of any wish. */
static enum status load_prefetch(struct cache *c, struct block *b, enum prefetch_kind kind)
{
	const uint64_t bytes = b->pool->geometry.need_bytes;

	if (!proves_itself(&c->advice->prefetch, kind)) {
		cache_count(c, COUNTER_PREFETCH_UNVERIFIED, 1);
		return STATUS_OK;
	}
	if (!deserves_room(c, b, kind)) {
		cache_count(c, COUNTER_PREFETCH_NO_ROOM, 1);
		return kind == PREFETCH_ASKED ? STATUS_BUSY : STATUS_OK;
	}
	if (!wish_affords(c, &c->advice->prefetch.queue, c->options.prefetch_bytes, bytes)) {
		cache_count(c, COUNTER_PREFETCH_NO_BUDGET, 1);
		return STATUS_EXHAUSTED;
	}
	if (tiers_fetch(c, b, &(struct fetch_how){ .priority = RING_PREFETCH }, NULL)) {
		cache_count(c, COUNTER_PREFETCH_NO_DISK, 1);
		return STATUS_BUSY;
	}
	b->prefetched = kind;
	c->advice->prefetch.outcome[kind].open++;
	c->advice->prefetch.queue.budget_bytes -= bytes;
	c->advice->prefetch.held_bytes += bytes;
	count_bytes(c, kind, COUNTER_PREFETCH_BYTES, bytes);
	return STATUS_OK;
}

static enum status wish_pump(struct cache *c, struct wish *w)
{
	enum status s = STATUS_OK;

	if (w->until_us < c->now_us)
		wish_drop(c, &c->advice->prefetch.queue, w);
	while (w->begun < w->count && !s) {
		struct block *b = by_id_find(c, w->id[w->begun]);

		if (b && !b->span && !b->vram && b->slab_map && !b->moving)
			s = load_prefetch(c, b, w->kind);
		w->begun += !s;
	}
	if (w->begun == w->count && w->kind != PREFETCH_ASKED)
		wish_end(c, w);
	return s;
}

void prefetch_pump(struct cache *c)
{
	enum status s = STATUS_OK;

	if (c->vram && c->vram->prefetch)
		vram_prefetch_pump(c);
	if (!c->tier || c->tier->stopping)
		return;
	for (enum prefetch_kind kind = PREFETCH_ASKED; kind < PREFETCH_KINDS; kind++)
		for (uint32_t i = 0; i < PREFETCH_WISHES && s != STATUS_EXHAUSTED; i++)
			if (c->advice->prefetch.wish[i].count && c->advice->prefetch.wish[i].kind == kind)
				s = wish_pump(c, &c->advice->prefetch.wish[i]);
}
