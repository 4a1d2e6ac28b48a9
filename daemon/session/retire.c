/* Memory that goes from one tenant to another: see session/retire.h. */
#include "daemon/session/retire.h"

#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/memory/grow.h"
#include "daemon/memory/trade.h"
#include "daemon/session/attachment.h"
#include "daemon/session/offer.h"
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
	if (c->tenant_count < 2 || c->vram)
		return true;
	c->retire = calloc(1, sizeof(*c->retire));
	return c->retire;
}

void retire_destroy(struct cache *c)
{
	free(c->retire);
	c->retire = NULL;
}

static bool is_lacking(const struct cache *c)
{
	const struct retire *r = c->retire;

	return c->lacks_us && c->now_us - c->lacks_us <= LACKS_US && !c->settles && !cache_draining(c) &&
	       (!r->since_us || c->now_us - r->since_us > PAUSE_US);
}

bool retire_wants(const struct cache *c)
{
	return c->retire && (c->retire->extent || is_lacking(c));
}

/* ---- which extent ---- */

static bool was_not_kept(const struct cache *c, uint32_t extent)
{
	const struct memory_extent *m = memory_extent_find(c, extent);

	return m && (!m->kept_us || c->now_us - m->kept_us > KEPT_US);
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
static void begin(struct cache *c)
{
	struct memory_class *to = c->lacks;
	uint32_t extent = arena_retire_find(to->arena, is_unlent, c);

	if (!extent)
		extent = arena_retire_find(to->arena, is_lent_to_listeners, c);
	*c->retire = (struct retire){ .since_us = c->now_us };
	if (!extent || arena_retire(c->host, extent))
		return;
	c->retire->extent = extent;
	c->retire->to = to;
	if (c->on_extent) /* engines are asked */
		c->on_extent(c->on_extent_arg);
}

/* ---- until it is free ---- */

static void give_up(struct cache *c)
{
	struct memory_extent *m = memory_extent_find(c, c->retire->extent);

	arena_retire_end(c->host, c->retire->extent);
	if (m)
		m->kept_us = c->now_us;
	attachments_unask(c);
	cache_count(c, COUNTER_EXTENTS_KEPT, 1);
	*c->retire = (struct retire){ .since_us = c->now_us };
}

/* Whether its blocks may be evicted: no engine has it mapped, or one has leases in it, and would map it again and again
 * for the blocks that are there. *vain: an engine has it mapped, for nothing, and does not answer. */
static bool may_empty(struct cache *c, bool lent, bool *vain)
{
	const struct retire *r = c->retire;
	const bool waits = lent && !r->empties && !arena_retired_held(c->host, r->extent);

	*vain = waits && c->now_us - r->since_us > ASK_US;
	return !waits;
}

/* With the lock. False: there is no more to do in this round. */
static bool step(struct cache *c)
{
	struct retire *r = c->retire;
	struct arena_window w;
	bool lent, vain;

	if (!arena_retired(c->host, r->extent, &w))
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
	if (vain || c->settles || cache_draining(c) || c->now_us - r->since_us > PATIENCE_US) {
		give_up(c);
		return false;
	}
	r->pass.drops = !c->tiers[TIER_DISK] || c->now_us - r->since_us > DROPS_US;
	return r->empties && w.spans > 0 &&
	       emptying_step(c, &r->pass, &w, COUNTER_EVICTED_TENANT) == EMPTYING_MORE;
}

static void hand_over(struct cache *c)
{
	const uint32_t extent = c->retire->extent;

	if (!room_hand_over(c, extent, c->retire->to))
		return; /* in the next round */
	cache_lock(c);
	*c->retire = (struct retire){ .extent = 0 };
	cache_count(c, COUNTER_EXTENTS_MOVED, 1);
	cache_unlock(c);
}

void retire_chores(struct cache *c)
{
	bool final = false, more = c->retire;

	for (uint32_t i = 0; i < STEPS && more; i++) {
		index_read_lock();
		cache_lock(c);
		if (!c->retire->extent && is_lacking(c))
			begin(c);
		more = c->retire->extent && !c->retire->final && step(c);
		final = c->retire->final;
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
	a = c->retire && c->retire->extent ? attachment_find(c, attachment) : NULL;
	if (a && a->listens && a->asked != c->retire->extent && attachment_lent(a, c->retire->extent))
		extent = a->asked = c->retire->extent;
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
