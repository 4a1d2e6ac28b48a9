/* How memory of a GPU changes from one class of slots to another.
 *
 * The class claims a window: the spans of other classes that stand where one span of its own could be
 * (store/arena/arena.h). No slot is taken there any more. The window is emptied in steps of EMPTY_BLOCKS: a copy of a
 * block that has another one is evicted at once, any other is downloaded first. Then the class's next slot is cut
 * there. No process is asked, and nothing is mapped anew.
 *
 * A trade costs as many evictions as it brings slots. So a class compares once in a span's worth of evictions, and
 * begins only if all of the window has been idle a quarter longer than the class's own next victim. A class that has
 * nothing to evict takes the coldest window.
 *
 * A window is given up when a slot of it is in use again, or when it is not empty after CLAIM_US.
 */
#include "daemon/vram/trade.h"

#include "daemon/block/block.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"
#include "store/status.h"

#include <stddef.h>

enum {
	VICTIM_SCAN = 256,
	EMPTY_BLOCKS = 256,            /* a step */
	SPILLS_US = 100 * 1000,        /* what is on its way down is waited for so long before it is dropped */
	CLAIM_US = 5 * 1000 * 1000,
};

/* How a window is being emptied. */
struct emptying {
	bool drops;                    /* what cannot go down is dropped */
	bool waits;                    /* spills may be waited for */
	bool full;                     /* memory has no place now, for others no more than for this one */
	bool in_use;                   /* a slot was met that stays */
	bool passes;                   /* such slots are passed over */
	enum counter reason;
	uint32_t blocks;               /* looked at */
};

static const struct vram_slot *slot_of_node(const struct policy_node *n)
{
	return (const struct vram_slot *)((const char *)n - offsetof(struct vram_slot, node));
}

static bool any_unpinned(const struct policy_node *n, void *arg)
{
	(void)arg;
	return vram_slot_pins(slot_of_node(n)) == 0;
}

static bool goes_at_once(const struct policy_node *n, void *arg)
{
	return any_unpinned(n, arg) && vram_clean(slot_of_node(n));
}

/* For how long the class's next victim has been idle. A copy of which there is no other is a victim only if there is
 * none else. */
static uint64_t own_idle_us(const struct cache *c, const struct vram_class *k)
{
	const struct policy_node *n = c->policy->victim(k->policy, goes_at_once, NULL, VICTIM_SCAN);

	n = n ? n : c->policy->victim(k->policy, any_unpinned, NULL, VICTIM_SCAN);

	return n && c->now_us > n->last_use_us ? c->now_us - n->last_use_us : 0;
}

/* Whether all of the window has been idle longer than own_us, by a quarter. */
static bool is_colder(const struct cache *c, const struct arena_window *w, uint64_t own_us)
{
	const uint64_t until_us = ((uint64_t)w->newest + 1) * ARENA_USE_STEP_US; /* it may have been used as late */

	return c->now_us > until_us && c->now_us - until_us > own_us + own_us / 4;
}

bool vram_trading(struct vram_class *k)
{
	struct arena_window w;

	return arena_claimed(k->arena, &w);
}

static bool claim(struct cache *c, struct vram_class *k, const struct arena_window *w)
{
	if (arena_claim(k->arena, w))
		return false;
	k->claim_us = c->now_us;
	cache_count(c, COUNTER_GPU_TRADES, 1);
	return true;
}

/* ---- emptying ---- */

/* Empties one slot: evicts a copy that lies elsewhere too, and begins to download another. If the copy stays, *e says
 * why: in_use, or full (memory has no place for it). */
static void slot_empty(struct cache *c, struct emptying *e, struct vram_slot *s)
{
	enum status down;

	if (vram_downloading(c, s->block))
		return;
	if (s->state != VRAM_READY || vram_slot_pins(s)) {
		e->in_use = true;
		return;
	}
	if (vram_clean(s)) {
		vram_evict(c, s, e->reason);
		return;
	}
	if (e->full)
		return;
	down = e->waits ? vram_down_soon(c, s->block, NULL) : vram_down(c, s->block, false, NULL);
	if (down == STATUS_BUSY)
		e->full = true;
	else if (down && e->drops)
		vram_evict(c, s, e->reason);
	else if (down)
		e->in_use = true;
}

/* Empties a span from slot `from` on. When its last slot is freed the span is no more. Returns the slot at which the
 * step ended, or UINT32_MAX at the span's end. */
static uint32_t span_empty(struct cache *c, struct emptying *e, struct arena *a, const struct arena_span *place,
			   uint32_t from)
{
	const uint32_t extent = place->extent, granule = place->granule, slots = place->slots;
	struct vram_span *span = place->owner;

	for (uint32_t i = from; i < slots && (e->passes || !e->in_use); i++) {
		if (e->blocks == EMPTY_BLOCKS)
			return i;
		if (span->at[i].state == VRAM_FREE)
			continue;
		e->blocks++;
		slot_empty(c, e, &span->at[i]);
		if (arena_span_at(a, extent, granule) != place)
			break;
	}
	return UINT32_MAX;
}

/* Takes a step in emptying the window that the class has claimed, if it has. */
static void claim_empty(struct cache *c, struct vram_class *k, bool drops)
{
	struct emptying e = { .drops = drops, .waits = c->now_us - k->claim_us < SPILLS_US,
			      .reason = COUNTER_EVICTED_GPU_TRADE };
	struct arena *a = k->gpu->arena;
	struct arena_window w;
	uint32_t next;

	if (!arena_claimed(k->arena, &w))
		return;
	for (uint32_t i = w.granule; i < w.granule + w.granules; i = next) {
		const struct arena_span *place = arena_span_at(a, w.extent, i);

		next = place ? place->granule + place->granules : i + 1;
		if (place)
			span_empty(c, &e, a, place, 0);
	}
	if (e.in_use)
		arena_unclaim(k->arena);
}

bool vram_emptying_step(struct cache *c, struct gpu *g, struct memory_trade *t, const struct arena_window *w)
{
	struct emptying e = { .drops = t->drops, .waits = !t->drops, .passes = true,
			      .reason = COUNTER_EVICTED_GPU_TENANT };
	uint32_t next;

	for (; t->granule < w->granule + w->granules; t->granule = next) {
		const struct arena_span *place = arena_span_at(g->arena, w->extent, t->granule);
		uint32_t at;

		next = place ? place->granule + place->granules : t->granule + 1;
		at = place && place->owner ? span_empty(c, &e, g->arena, place, t->slot) : UINT32_MAX;
		t->slot = at == UINT32_MAX ? 0 : at;
		if (at != UINT32_MAX)
			return true;
	}
	t->granule = w->granule;
	return false;
}

/* ---- whose turn it is ---- */

/* The number of copies that a span of the class holds. */
static uint32_t span_worth(const struct vram_class *k)
{
	struct arena_class_usage u;

	arena_class_usage(k->arena, &u);
	return u.span_slots;
}

void vram_trade(struct cache *c, struct vram_class *k)
{
	struct arena_window w;

	if (!vram_trading(k) && k->evicted >= span_worth(k)) {
		k->evicted = 0;
		if (!arena_window_find(k->arena, false, &w) && is_colder(c, &w, own_idle_us(c, k)))
			claim(c, k, &w);
	}
	claim_empty(c, k, false);
}

bool vram_trade_force(struct cache *c, struct vram_class *k, bool drops)
{
	struct arena_window w;

	if (!vram_trading(k) && (arena_window_find(k->arena, !k->spans, &w) || !claim(c, k, &w)))
		return false;
	claim_empty(c, k, drops);
	return true;
}

void vram_trades_step(struct cache *c, struct gpu *g)
{
	for (struct vram_class *k = g->classes; k; k = k->next) {
		if (!vram_trading(k))
			continue;
		claim_empty(c, k, false);
		if (c->now_us - k->claim_us > CLAIM_US)
			arena_unclaim(k->arena);
	}
}
