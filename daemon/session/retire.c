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
	DROPS_US = 5 * 1000 * 1000,    /* after that, blocks that cannot be spilled are dropped */
	PATIENCE_US = 15 * 1000 * 1000, /* after that, the extent stays where it is */
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

	return c->lacks_us && c->now_us - c->lacks_us <= LACKS_US &&
	       (!r->since_us || c->now_us - r->since_us > PAUSE_US);
}

bool retire_wants(const struct cache *c)
{
	return c->retire && (c->retire->extent || is_lacking(c));
}

/* ---- which extent ---- */

static bool was_not_kept(void *arg, uint32_t extent)
{
	const struct cache *c = arg;

	return extent != c->retire->kept;
}

static bool is_unlent(void *arg, uint32_t extent)
{
	return was_not_kept(arg, extent) && !attachments_lent(arg, extent);
}

/* One that no engine has mapped, if there is one. */
static void begin(struct cache *c)
{
	struct memory_class *to = c->lacks;
	uint32_t extent = arena_retire_find(to->arena, is_unlent, c);

	if (!extent)
		extent = arena_retire_find(to->arena, was_not_kept, c);
	if (!extent)
		c->retire->kept = 0; /* there was no other */
	if (!extent || arena_retire(c->host, extent))
		return;
	*c->retire = (struct retire){ .extent = extent, .kept = c->retire->kept, .to = to, .since_us = c->now_us };
	if (c->on_extent) /* engines are asked */
		c->on_extent(c->on_extent_arg);
}

/* ---- until it is free ---- */

static void give_up(struct cache *c)
{
	arena_retire_end(c->host, c->retire->extent);
	cache_count(c, COUNTER_EXTENTS_KEPT, 1);
	*c->retire = (struct retire){ .kept = c->retire->extent, .since_us = c->now_us };
}

/* With the lock. False: there is no more to do in this round. */
static bool step(struct cache *c)
{
	struct retire *r = c->retire;
	struct arena_window w;

	if (!arena_retired(c->host, r->extent, &w))
		return false;
	if (w.spans == 0 && !attachments_have(c, r->extent)) {
		r->final = true;
		return false;
	}
	if (c->now_us - r->since_us > PATIENCE_US) {
		give_up(c);
		return false;
	}
	r->pass.drops = !c->tiers[TIER_DISK] || c->now_us - r->since_us > DROPS_US;
	return w.spans > 0 && emptying_step(c, &r->pass, &w, COUNTER_EVICTED_TENANT) == EMPTYING_MORE;
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
