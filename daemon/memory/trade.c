/* Memory that goes from one class to another.
 *
 * A class claims a window (store/arena/arena.h): granules for one span of its own, where spans of other classes stand.
 * Those spans give no slot any more. Their blocks are evicted in steps, with the lock let go between, and when the
 * window is empty the class's next take cuts its span there; if it comes for none within some seconds, the granules are
 * free for any class. No process is asked: engines keep their tenant's memory mapped, and what a lease or a reservation
 * holds is in no window.
 *
 * A window is chosen by the newest use of any block in it, so a trade never takes a block that is warmer than the one
 * it is compared with. Blocks that only memory has are spilled first; a trade waits for that, but not for ever.
 */
#include "daemon/memory/trade.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/tier.h"
#include "daemon/memory/evict.h"
#include "store/arena/arena.h"
#include "store/clock.h"
#include "store/index.h"
#include "store/ring/ring.h"

#include <time.h>

enum {
	STEP_BLOCKS = 256,             /* in one hold of the lock */
	CHORE_STEPS = 64,              /* of one trade, in one round of chores */
	OLDER_PART = 4,                /* a window is to be older by one part in so many */
	/* spans' worth of evictions between two comparisons, when those before were in vain, */
	LOOKS_VAIN_MAX = 16,
	/* but at least so many comparisons while a class turns over all its slots once */
	LOOKS_A_TURN = 8,
	WAIT_US = 100 * 1000,          /* so long a caller waits for spills */
	POLL_US = 1000,
	/* memory that was emptied for a class, and not taken, is free for all classes after that */
	UNUSED_US = 5 * 1000 * 1000,
	/* after that, a trade that no caller waits for drops blocks that it cannot spill, or is given up */
	STUCK_US = 5 * 1000 * 1000,
};

enum step { STEP_DONE, STEP_MORE, STEP_WAITS };

/* ---- which window ---- */

/* How long, at least, nothing in the window has been used: uses are noted in steps. */
static uint64_t idle_of(const struct cache *c, const struct arena_window *w)
{
	const uint64_t used_us = (w->newest + 1ull) * ARENA_USE_STEP_US;

	return c->now_us > used_us ? c->now_us - used_us : 0;
}

static bool is_older(const struct cache *c, const struct arena_window *w, const struct block *own)
{
	const uint64_t idle = c->now_us - own->node.last_use_us;

	return idle_of(c, w) > idle + idle / OLDER_PART;
}

bool trade_begin(struct cache *c, struct memory_class *k, const struct block *own)
{
	struct arena_window w;

	if (k->trade.since_us)
		return true;
	if (k->trade_refused == c->room_epoch || arena_window_find(k->arena, !own, &w) || w.spans == 0)
		return false;
	if ((own && !is_older(c, &w, own)) || arena_claim(k->arena, &w))
		return false;
	k->trade = (struct memory_trade){ .since_us = c->now_us ? c->now_us : 1, .granule = w.granule };
	c->trades++;
	cache_count(c, own ? COUNTER_TRADES_COLDER : COUNTER_TRADES_NEED, 1);
	tier_wake(c);
	return true;
}

static uint32_t evictions_till_look(const struct memory_class *k, const struct arena_class_usage *u, bool vain)
{
	const uint64_t turn = u->slots / LOOKS_A_TURN, most = (uint64_t)LOOKS_VAIN_MAX * u->span_slots;
	const uint64_t longer = 2 * (uint64_t)k->compare_at, bound = turn < most ? turn : most;

	if (!vain || bound < u->span_slots || longer < u->span_slots)
		return u->span_slots;
	return (uint32_t)(longer < bound ? longer : bound);
}

void trade_look(struct cache *c, struct memory_class *k, const struct block *own)
{
	struct arena_class_usage u;
	bool vain;

	/* Blocks that were not admitted, or prefetched in vain, say nothing about the class's age. */
	if (own->not_admitted || own->prefetched || ++k->evicted < k->compare_at)
		return;
	arena_class_usage(k->arena, &u);
	k->evicted = 0;
	vain = !trade_begin(c, k, own);
	k->compare_at = evictions_till_look(k, &u, vain);
}

/* ---- emptying ---- */

/* Whether the block must be written to a disk before it is evicted. Begins that write. */
static bool spills_first(struct cache *c, struct memory_trade *t, struct block *b)
{
	enum status s;

	if (!c->tiers[TIER_DISK] || t->drops || b->no_spill || block_elsewhere(b))
		return false;
	if (c->spills_stuck_us && c->now_us - c->spills_stuck_us < STUCK_US)
		return false;
	s = c->tiers[TIER_DISK]->store(c, b, RING_PREFETCH, NULL);
	t->spilled |= s == STATUS_OK;
	return s != STATUS_UNAVAILABLE;
}

/* Evicts what can go of a span, from t->slot on. False: the budget ran out before its end. */
static bool span_empty(struct cache *c, struct memory_trade *t, struct span_map *s, enum counter reason,
		       uint32_t *budget)
{
	const uint32_t slots = s->slots;

	for (; t->slot < slots; t->slot++) {
		struct block *b = s->at[t->slot];
		const bool last = s->taken == 1;

		if (!*budget)
			return false;
		--*budget;
		if (!b || block_memory_pins(b) || spills_first(c, t, b))
			continue;
		room_evict(c, b, reason);
		if (last) /* the span is no more */
			break;
	}
	t->slot = 0;
	return true;
}

enum emptying emptying_step(struct cache *c, struct memory_trade *t, const struct arena_window *w, enum counter reason)
{
	uint32_t budget = STEP_BLOCKS;

	while (t->granule < w->granule + w->granules) {
		struct arena_span *s = arena_span_at(c->host, w->extent, t->granule);
		const uint32_t next = s ? s->granule + s->granules : t->granule + 1;

		if (s && s->owner && !span_empty(c, t, s->owner, reason, &budget))
			return EMPTYING_MORE;
		t->granule = next;
		t->slot = 0;
	}
	t->granule = w->granule;
	return EMPTYING_PASSED;
}

static void trade_end(struct cache *c, struct memory_class *k)
{
	c->trades -= k->trade.since_us != 0;
	k->trade = (struct memory_trade){ 0 };
}

/* Ends a trade whose window is empty. The class's next take cuts a span there. */
static void trade_done(struct cache *c, struct memory_class *k)
{
	trade_end(c, k);
	k->emptied_us = c->now_us ? c->now_us : 1;
}

/* One step of the round through the window. With the lock. */
static enum step trade_step(struct cache *c, struct memory_class *k)
{
	struct arena_window w;

	if (!k->trade.since_us || !arena_claimed(k->arena, &w) || w.spans == 0)
		return STEP_DONE;
	if (emptying_step(c, &k->trade, &w, COUNTER_EVICTED_TRADE) == EMPTYING_MORE)
		return STEP_MORE;
	return arena_claimed(k->arena, &w) && w.spans > 0 ? STEP_WAITS : STEP_DONE;
}

/* Gives the trade up: the window's memory stays with its classes. With the lock. */
static void give_up(struct cache *c, struct memory_class *k)
{
	arena_unclaim(k->arena);
	c->spills_stuck_us = k->trade.spilled ? c->now_us : c->spills_stuck_us;
	trade_end(c, k);
	cache_count(c, COUNTER_TRADES_GIVEN_UP, 1);
}

static void pause_us(uint32_t us)
{
	nanosleep(&(struct timespec){ .tv_nsec = us * 1000L }, NULL);
}

void trade_finish(struct cache *c, struct memory_class *k)
{
	const uint64_t until = clock_us() + WAIT_US;
	enum step step = STEP_MORE;

	while (step != STEP_DONE) {
		bool late = clock_us() >= until, over = false;

		index_read_lock();
		cache_lock(c);
		step = trade_step(c, k);
		over = step == STEP_WAITS && k->trade.drops;
		k->trade.drops |= late || !c->tiers[TIER_DISK];
		if (over)
			give_up(c, k);
		else if (step == STEP_DONE)
			trade_done(c, k);
		cache_unlock(c);
		index_read_unlock();
		if (over)
			break;
		if (step == STEP_WAITS && !late && c->tiers[TIER_DISK])
			pause_us(POLL_US);
	}
}

/* Goes on with the class's trade for one round of chores, CHORE_STEPS steps at most. */
static void trade_go_on(struct cache *c, struct memory_class *k)
{
	enum step step = STEP_MORE;

	for (uint32_t i = 0; i < CHORE_STEPS && step == STEP_MORE; i++) {
		index_read_lock();
		cache_lock(c);
		step = trade_step(c, k);
		if (step == STEP_WAITS && k->trade.drops)
			give_up(c, k);
		else if (step == STEP_DONE)
			trade_done(c, k);
		else if (c->now_us - k->trade.since_us > STUCK_US)
			k->trade.drops = true;
		cache_unlock(c);
		index_read_unlock();
	}
}

void trades_tick(struct cache *c)
{
	for (uint32_t i = 0; i < c->class_count; i++) {
		struct memory_class *k = c->classes[i];

		if (!k->emptied_us || k->trade.since_us || c->now_us - k->emptied_us <= UNUSED_US)
			continue;
		arena_unclaim(k->arena); /* nothing, if it came */
		k->emptied_us = 0;
	}
}

void trades_chores(struct cache *c)
{
	uint32_t classes;

	cache_lock(c);
	classes = c->trades ? c->class_count : 0; /* there only come more, at the end */
	cache_unlock(c);
	for (uint32_t i = 0; i < classes; i++)
		if (c->classes[i]->trade.since_us)
			trade_go_on(c, c->classes[i]);
}
