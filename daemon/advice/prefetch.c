/* Reading ahead: blocks that are on a disk alone and will be wanted are loaded, behind everything that somebody waits for, and no
 * more than prefetch_bytes a second.
 *
 * What is to be loaded hangs in a bounded queue of *wishes* (advice/wish.h).
 *
 * A tick, and whoever reads the mail, begins as many loads as budget, memory and disks allow. A block that was loaded ahead is *used* when a
 * lease has it, *late* if that lease had to wait for it all the same, and *wasted* if it leaves memory before. Until then the policy does
 * not know it: it is kept for as long as somebody may be expected to want it, then it goes first. Of a kind of wish of which more than a
 * quarter was wasted lately one in eight is granted, and of that the likeliest few blocks, until that is better. What became of a block is
 * known only when its time is over: what is expected has no more blocks waiting for that than were used lately, and a few.
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

_Static_assert(COUNTER_EXPECTED_LATE - COUNTER_EXPECTED_BYTES == COUNTER_AHEAD_LATE - COUNTER_AHEAD_BYTES, "the same rows of both");

static void count_bytes(struct cache *c, enum ahead_kind kind, enum counter what, uint64_t bytes)
{
	cache_count(c, what, bytes);
	if (kind == AHEAD_EXPECTED)
		cache_count(c, (enum counter)(what - COUNTER_AHEAD_BYTES + COUNTER_EXPECTED_BYTES), bytes);
}

void ahead_end(struct cache *c, struct block *b, enum counter how)
{
	struct ahead *a = &c->advice->ahead;
	const enum ahead_kind kind = (enum ahead_kind)b->ahead;
	const uint64_t bytes = b->pool->geometry.need_bytes;

	if (!b->ahead)
		return;
	if (b->span)
		probation_ahead_leave(b);
	a->held_bytes -= bytes;
	count_bytes(c, kind, how, bytes);
	b->ahead = AHEAD_NO;
	tried_ended(&a->tried[kind], how == COUNTER_AHEAD_WASTED);
}

void ahead_wanted(struct cache *c, struct block *b)
{
	ahead_end(c, b, COUNTER_AHEAD_LATE);
}

/* A Lookup's Lease comes soon; to see that nobody wants what was expected takes seconds, in which memory could be filled with it. */
static bool proves_itself(const struct ahead *a, enum ahead_kind kind)
{
	return kind == AHEAD_ASKED || tried_proves_itself(&a->tried[kind]);
}

/* ---- wishes ---- */

void ahead_init(struct ahead *a)
{
	a->queue = (struct wish_queue){
		.wish = a->wish,
		.size = AHEAD_WISHES,
		.too_late = COUNTER_AHEAD_TOO_LATE,
		.expected_us = WISH_US,
	};
}

static void wish_add(struct cache *c, struct wish *w, struct block *b)
{
	(void)c;
	if (b && !b->span && !b->vram && b->slab_map && !b->moving && w->count < WISH_BLOCKS)
		w->id[w->count++] = b->node.id;
}

/* What memory has of the request had better not go for what is loaded. */
static void wish_keep(struct cache *c, struct wish *w, struct block *b)
{
	(void)c;
	if (!b || !b->span || w->kept == WISH_BLOCKS)
		return;
	b->wanted++;
	w->keep[w->kept++] = b->node.id;
}

static void wish_for(struct cache *c, const struct request *r, enum ahead_kind kind)
{
	struct ahead *a = &c->advice->ahead;
	struct wish *w = wish_begin(c, &a->queue, r, kind);

	wish_fill(c, r, w, wish_add);
	wish_grant(c, w, &a->tried[kind], TRIAL_BLOCKS, COUNTER_AHEAD_UNVERIFIED);
	if (w->count && kind == AHEAD_ASKED)
		wish_fill_asked(c, r, w, wish_keep);
}

void ahead_request(struct cache *c, const struct request *r)
{
	if (c->vram && c->vram->ahead)
		vram_ahead_request(c, r);
	if (!c->tier || !c->options.prefetch_bytes || c->tier->stopping || r->kind == REQUEST_REPORT)
		return;
	if (r->kind == REQUEST_LOOKUP && r->present)
		wish_for(c, r, AHEAD_ASKED);
	wish_for(c, r, AHEAD_EXPECTED);
}

void ahead_leased(struct cache *c, const struct request *r)
{
	if (c->vram && c->vram->ahead)
		vram_ahead_leased(c, r);
	wish_leased(c, &c->advice->ahead.queue, r);
}

/* ---- loads ---- */

/* Nothing is lost for it. A full pool gives up what it would give up for a put of the same block; for one that is sure to be leased, its
 * coldest. */
static bool deserves_room(struct cache *c, const struct block *b, enum ahead_kind kind)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens, .moved = true };
	struct memory_class *k = b->pool->class;

	if (c->advice->ahead.held_bytes + b->pool->geometry.need_bytes > c->options.host_bytes / HOST_SHARE)
		return false;
	return room_spares(c, k) && (kind == AHEAD_ASKED || memory_class_has_room(k) || !room_keeps_out(c, k, &e));
}

/* OK: begun, or not to be. BUSY: no more of this wish now. EXHAUSTED: no more of any. */
static enum status load_ahead(struct cache *c, struct block *b, enum ahead_kind kind)
{
	const uint64_t bytes = b->pool->geometry.need_bytes;

	if (!proves_itself(&c->advice->ahead, kind)) {
		cache_count(c, COUNTER_AHEAD_UNVERIFIED, 1);
		return STATUS_OK;
	}
	if (!deserves_room(c, b, kind)) {
		cache_count(c, COUNTER_AHEAD_NO_ROOM, 1);
		return kind == AHEAD_ASKED ? STATUS_BUSY : STATUS_OK;
	}
	if (!wish_affords(c, &c->advice->ahead.queue, c->options.prefetch_bytes, bytes)) {
		cache_count(c, COUNTER_AHEAD_NO_BUDGET, 1);
		return STATUS_EXHAUSTED;
	}
	if (tiers_fetch(c, b, &(struct fetch_how){ .priority = RING_AHEAD }, NULL)) {
		cache_count(c, COUNTER_AHEAD_NO_DISK, 1);
		return STATUS_BUSY;
	}
	b->ahead = kind;
	c->advice->ahead.tried[kind].open++;
	c->advice->ahead.queue.budget_bytes -= bytes;
	c->advice->ahead.held_bytes += bytes;
	count_bytes(c, kind, COUNTER_AHEAD_BYTES, bytes);
	return STATUS_OK;
}

static enum status wish_pump(struct cache *c, struct wish *w)
{
	enum status s = STATUS_OK;

	if (w->until_us < c->now_us)
		wish_drop(c, &c->advice->ahead.queue, w);
	while (w->begun < w->count && !s) {
		struct block *b = by_id_find(c, w->id[w->begun]);

		if (b && !b->span && !b->vram && b->slab_map && !b->moving)
			s = load_ahead(c, b, w->kind);
		w->begun += !s;
	}
	if (w->begun == w->count && w->kind != AHEAD_ASKED)
		wish_end(c, w);
	return s;
}

void ahead_pump(struct cache *c)
{
	enum status s = STATUS_OK;

	if (c->vram && c->vram->ahead)
		vram_ahead_pump(c);
	if (!c->tier || c->tier->stopping)
		return;
	for (enum ahead_kind kind = AHEAD_ASKED; kind < AHEAD_KINDS; kind++)
		for (uint32_t i = 0; i < AHEAD_WISHES && s != STATUS_EXHAUSTED; i++)
			if (c->advice->ahead.wish[i].count && c->advice->ahead.wish[i].kind == kind)
				s = wish_pump(c, &c->advice->ahead.wish[i]);
}
