/* Memory that goes from one tenant to another: see session/retire.h. */
#include "daemon/session/retire.h"

#include "daemon/block/lock.h"
#include "daemon/memory/grow.h"
#include "daemon/memory/trade.h"
#include "daemon/session/attachment.h"
#include "daemon/session/offer.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/state.h"
#include "daemon/vram/trade.h"
#include "store/arena/arena.h"
#include "store/index.h"

#include <stdlib.h>

enum {
	LACKS_US = 3 * 1000 * 1000,    /* a tenant that has not asked again since then wants nothing more */
	STEPS = 64,                    /* in one round of chores */
	ASK_US = 1000 * 1000,          /* so long engines are waited for that have no lease in the extent */
	/* so long without a span that has become empty: then blocks that cannot be spilled are dropped; */
	DROPS_US = 5 * 1000 * 1000,
	PATIENCE_US = 15 * 1000 * 1000, /* then the extent stays where it is */
	KEPT_US = 10 * 1000 * 1000,    /* and is not asked for again for so long */
	PAUSE_US = 1000 * 1000,        /* until another one is looked for */
};

bool retire_create(struct cache *c)
{
	if (c->tenant_count < 2)
		return true;
	c->retire = calloc(1, sizeof(*c->retire));
	return c->retire;
}

void retire_destroy(struct cache *c)
{
	free(c->retire);
	c->retire = NULL;
}

/* ---- which tier ---- */

static uint32_t tiers(const struct cache *c)
{
	return 1 + (c->vram ? c->vram->count : 0);
}

static struct gpu *gpu_of_tier(const struct cache *c, uint32_t tier)
{
	return tier ? c->vram->gpu[tier - 1] : NULL;
}

static bool is_lacking(const struct cache *c, uint32_t tier)
{
	const struct gpu *g = gpu_of_tier(c, tier);
	const struct memory_lack *l = g ? &g->lacks : &c->lacks;

	return l->us && c->now_us - l->us <= LACKS_US && !(g && g->lost);
}

/* The next tier behind the last one of which memory is missing; tiers(): none, or not now. */
static uint32_t tier_lacking(const struct cache *c)
{
	const struct retires *r = c->retire;
	const uint32_t n = tiers(c);

	if (c->settles || cache_draining(c) || (r->now.since_us && c->now_us - r->now.since_us <= PAUSE_US))
		return n;
	for (uint32_t i = 1; i <= n; i++)
		if (is_lacking(c, (r->tier + i) % n))
			return (r->tier + i) % n;
	return n;
}

bool retire_wants(const struct cache *c)
{
	return c->retire && (c->retire->now.extent || tier_lacking(c) < tiers(c));
}

/* ---- which extent ---- */

static bool was_not_kept(const struct cache *c, uint32_t extent)
{
	for (uint32_t i = 0; i < RETIRE_KEPT; i++) {
		const struct retire_kept *k = &c->retire->kept[i];

		if (k->us && k->extent == extent && c->now_us - k->us <= KEPT_US)
			return false;
	}
	return true;
}

static bool is_unlent(void *arg, uint32_t extent)
{
	return was_not_kept(arg, extent) && !attachments_lent(arg, extent, false);
}

static bool is_lent_to_listeners(void *arg, uint32_t extent)
{
	return was_not_kept(arg, extent) && !attachments_lent(arg, extent, true);
}

/* One that no engine has mapped, if there is one. */
static void begin(struct cache *c, uint32_t tier)
{
	struct gpu *g = gpu_of_tier(c, tier);
	struct arena_class *to = g ? g->lacks.of : c->lacks.of;
	uint32_t extent = arena_retire_find(to, is_unlent, c);

	if (!extent)
		extent = arena_retire_find(to, is_lent_to_listeners, c);
	c->retire->tier = tier;
	c->retire->now = (struct retire){ .gpu = g, .since_us = c->now_us };
	if (!extent || arena_retire(g ? g->arena : c->host, extent))
		return;
	c->retire->now.extent = extent;
	c->retire->now.to = to;
	if (c->on_extent) /* engines are asked */
		c->on_extent(c->on_extent_arg);
}

/* ---- until it is free ---- */

static struct arena *arena_of(const struct cache *c)
{
	return c->retire->now.gpu ? c->retire->now.gpu->arena : c->host;
}

static void give_up(struct cache *c)
{
	struct retires *r = c->retire;

	arena_retire_end(arena_of(c), r->now.extent);
	r->kept[r->kept_at++ % RETIRE_KEPT] = (struct retire_kept){ r->now.extent, c->now_us };
	attachments_unask(c);
	cache_count(c, COUNTER_EXTENTS_KEPT, 1);
	r->now = (struct retire){ .since_us = c->now_us };
}

/* Whether its blocks may be evicted: no engine has it mapped, or one has leases in it, and would map it again and again
 * for the blocks that are there. *vain: an engine has it mapped, for nothing, and does not answer. */
static bool may_empty(struct cache *c, bool lent, bool *vain)
{
	const struct retire *r = &c->retire->now;
	const bool waits = lent && !r->empties && !arena_retired_held(arena_of(c), r->extent);

	*vain = waits && c->now_us - r->since_us > ASK_US;
	return !waits;
}

/* True: the step ended before the extent did. */
static bool empty_step(struct cache *c, struct retire *r, const struct arena_window *w)
{
	if (r->gpu)
		return vram_emptying_step(c, r->gpu, &r->pass, w);
	return emptying_step(c, &r->pass, w, COUNTER_EVICTED_TENANT) == EMPTYING_MORE;
}

/* With the lock. False: there is no more to do in this round. */
static bool step(struct cache *c)
{
	struct retire *r = &c->retire->now;
	struct arena_window w;
	bool lent, vain;

	if (!arena_retired(arena_of(c), r->extent, &w))
		return false;
	lent = attachments_have(c, r->extent);
	if (w.spans == 0 && !lent) {
		r->final = true;
		return false;
	}
	r->empties = may_empty(c, lent, &vain);
	if (r->empties && w.spans != r->spans) {
		r->spans = w.spans;
		r->since_us = c->now_us;
	}
	if (vain || c->settles || cache_draining(c) || (r->gpu && r->gpu->lost) ||
	    c->now_us - r->since_us > PATIENCE_US) {
		give_up(c);
		return false;
	}
	r->pass.drops = !c->tiers[TIER_DISK] || c->now_us - r->since_us > DROPS_US;
	return r->empties && w.spans > 0 && empty_step(c, r, &w);
}

static void hand_over(struct cache *c)
{
	const struct retire *r = &c->retire->now;

	if (!(r->gpu ? vram_hand_over(c, r->gpu, r->extent, r->to) : room_hand_over(c, r->extent, r->to)))
		return; /* in the next round */
	cache_lock(c);
	c->retire->now = (struct retire){ .extent = 0 };
	cache_count(c, COUNTER_EXTENTS_MOVED, 1);
	cache_unlock(c);
}

void retire_chores(struct cache *c)
{
	bool final = false, more = c->retire;

	for (uint32_t i = 0; i < STEPS && more; i++) {
		index_read_lock();
		cache_lock(c);
		if (!c->retire->now.extent && tier_lacking(c) < tiers(c))
			begin(c, tier_lacking(c));
		more = c->retire->now.extent && !c->retire->now.final && step(c);
		final = c->retire->now.final;
		cache_unlock(c);
		index_read_unlock();
	}
	if (final)
		hand_over(c);
}

/* ---- engines are asked ---- */

bool cache_asks_back(const struct cache *c)
{
	return c->retire;
}

void cache_attach_listens(struct cache *c, uint64_t attachment)
{
	struct attachment *a;

	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a)
		a->listens = true;
	cache_unlock(c);
}

bool cache_asks_now(struct cache *c)
{
	bool asks;

	cache_lock(c);
	asks = retire_extent(c);
	cache_unlock(c);
	return asks;
}

uint32_t cache_attach_asked(struct cache *c, uint64_t attachment)
{
	uint32_t extent = 0;
	struct attachment *a;

	cache_lock(c);
	a = retire_extent(c) ? attachment_find(c, attachment) : NULL;
	if (a && a->listens && a->asked != retire_extent(c) && attachment_lent(a, retire_extent(c)))
		extent = a->asked = retire_extent(c);
	cache_unlock(c);
	return extent;
}

void cache_attach_ask_again(struct cache *c, uint64_t attachment)
{
	struct attachment *a;

	cache_lock(c);
	a = attachment_find(c, attachment);
	if (a)
		a->asked = 0;
	cache_unlock(c);
}
