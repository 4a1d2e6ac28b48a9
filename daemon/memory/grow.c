/* How memory grows: pages are taken from the kernel, and new extents are registered with the disks and GPUs. All of it
 * outside the lock.
 *
 * Pages come ahead of need, in steps, from the thread that does the daemon's chores: a put seldom waits for the kernel.
 * A disk's buffers are registered when all pages of an extent are there, since registering takes those that are not.
 * A GPU can only copy from memory that is registered with it, so with GPUs an extent's pages are all taken when it is
 * made, and no span is cut from it before it is registered (block/memory_class.c).
 */
#include "daemon/memory/grow.h"

#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/block/tier.h"
#include "daemon/memory/evict.h"
#include "daemon/memory/trade.h"
#include "daemon/threads/deadline.h"
#include "store/arena/arena.h"
#include "store/host/extent.h"

#include <pthread.h>
#include <stdlib.h>

enum {
	GROWTH_US = 2000 * 1000,       /* a driver may delay the growing thread */
	PREFETCH_STEPS = 4096,         /* in one round of chores; more than one only where extents are small */
};

enum turn { TURN_NONE, TURN_BEGUN, TURN_FOUND };

static bool is_same(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool is_before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* With the lock, which it leaves meanwhile: waits until one step of another thread has ended. False: the step takes too
 * long, or the caller's deadline has passed. */
static bool step_await(struct cache *c, const struct timespec *deadline)
{
	const struct timespec step = c->growth_until;
	const struct timespec *until = is_before(&step, deadline) ? &step : deadline;

	if (!pthread_cond_timedwait(&c->growth, &c->lock, until) || !c->growing)
		return true;
	return until == &step && !is_same(&step, &c->growth_until);
}

/* One thread at a time: an extent is registered once. A driver may take long to register it, or never return: other
 * threads then go on without growth. A thread waits for all steps of others together no longer than for one long step.
 * FOUND: what another thread has taken is enough for the class (NULL: for none). Without the lock. */
static enum turn growth_begin(struct cache *c, const struct memory_class *k)
{
	const struct timespec deadline = deadline_in(GROWTH_US);
	enum turn turn = TURN_BEGUN;

	cache_lock(c);
	while (c->growing && turn == TURN_BEGUN) {
		if (!step_await(c, &deadline))
			turn = TURN_NONE;
		else if (k && memory_class_has_room(k))
			turn = TURN_FOUND;
	}
	if (turn == TURN_BEGUN) {
		c->growing = true;
		c->growth_until = deadline_in(GROWTH_US);
	}
	cache_unlock(c);
	return turn;
}

static void growth_end(struct cache *c)
{
	cache_lock(c);
	c->growing = false;
	pthread_cond_broadcast(&c->growth);
	cache_unlock(c);
}

/* Drops the record of an extent that goes. Called by the thread that has begun growth. */
static void extent_forget(struct cache *c, struct memory_extent *m)
{
	struct memory_extent **at = &c->memory_extents;

	cache_lock(c);
	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	cache_unlock(c);
	if (c->tiers[TIER_DISK])
		c->tiers[TIER_DISK]->extent_gone(c, m);
	if (c->tiers[TIER_GPU])
		c->tiers[TIER_GPU]->extent_gone(c, m);
	free(m->buffer);
	free(m->device);
	free(m);
}

/* The record of a new extent, from which no span has been cut yet. NULL: no memory. */
static struct memory_extent *extent_record(struct cache *c, uint32_t id)
{
	const struct extent *e = arena_extent(c->host, id);
	struct memory_extent *m = e ? calloc(1, sizeof(*m)) : NULL;

	if (!m)
		return NULL;
	m->id = id;
	m->base = e->base;
	if (c->tiers[TIER_GPU])
		c->tiers[TIER_GPU]->extent_made(c, m, e);
	cache_lock(c);
	m->next = c->memory_extents;
	c->memory_extents = m;
	observe_extent_added(c);
	cache_unlock(c);
	return m;
}

/* Notes that all pages of the extent are there, and registers it with the disks. */
static void extent_fix(struct cache *c, struct memory_extent *m)
{
	m->fixed = true;
	if (c->tiers[TIER_DISK])
		c->tiers[TIER_DISK]->extent_fixed(c, m, arena_extent(c->host, m->id));
}

/* Records the extent that growth has made. By the thread that has begun growth, which alone adds extents. */
static bool growth_known(struct cache *c, const struct arena_growth *g)
{
	struct memory_extent *m;

	if (!g->extent)
		return true;
	m = memory_extent_find(c, g->extent);
	if (!m)
		m = extent_record(c, g->extent);
	if (m && g->ready && !m->fixed)
		extent_fix(c, m);
	return m;
}

static bool grow(struct cache *c, struct memory_class *k)
{
	const enum turn turn = growth_begin(c, k);
	struct arena_growth g;
	bool grown;

	if (turn != TURN_BEGUN)
		return turn == TURN_FOUND;
	grown = !arena_prepare(k->arena, &g) && growth_known(c, &g);
	growth_end(c);
	return grown;
}

bool room_hand_over(struct cache *c, uint32_t extent, struct arena_class *to)
{
	struct memory_extent *m;
	struct arena_extent *gone;
	struct arena_growth g;
	bool freed;

	if (growth_begin(c, NULL) != TURN_BEGUN)
		return false;
	m = memory_extent_find(c, extent);
	if (m)
		extent_forget(c, m);
	pthread_mutex_lock(&c->extents);
	freed = !arena_extent_remove(c->host, extent, &gone);
	pthread_mutex_unlock(&c->extents);
	if (freed)
		arena_extent_free(c->host, gone);
	/* Before another tenant can take those bytes. */
	if (freed && !arena_extent_add(to, &g))
		growth_known(c, &g);
	growth_end(c);
	cache_lock(c);
	c->room_epoch++; /* what was refused is worth asking for again */
	cache_unlock(c);
	return freed;
}

static bool is_trading(const struct cache *c, const struct memory_class *k)
{
	return k->trade.since_us && k->grow_refused == c->room_epoch;
}

bool room_comes(const struct cache *c, const struct memory_class *k)
{
	return c->growing && !is_trading(c, k);
}

void room_grow(struct cache *c, struct memory_class *k, bool vain)
{
	bool trades, grown = true;

	cache_lock(c);
	trades = is_trading(c, k);
	cache_unlock(c);
	if (trades)
		trade_finish(c, k);
	else
		grown = grow(c, k);
	if (grown && !vain)
		return;
	cache_lock(c);
	k->grow_refused = c->room_epoch;
	memory_lack_note(c, &c->lacks, k->arena);
	if (vain && trades)
		k->trade_refused = c->room_epoch;
	cache_unlock(c);
}

bool room_wants_preallocation(const struct cache *c)
{
	return c->preallocate_refused != c->room_epoch && tenant_wanting(c, c->host);
}

void room_preallocate(struct cache *c)
{
	const struct tenant *t = tenant_wanting(c, c->host);
	struct arena_growth g = { .more = true };
	bool grown = true;

	for (uint32_t i = 0; i < PREFETCH_STEPS && t && grown && g.more; i++) {
		if (growth_begin(c, NULL) != TURN_BEGUN)
			return;
		grown = !arena_preallocate(c->host, t->number, &g) && growth_known(c, &g);
		growth_end(c);
	}
	if (grown)
		return;
	cache_lock(c);
	c->preallocate_refused = c->room_epoch;
	cache_unlock(c);
}
