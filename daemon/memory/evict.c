/* Who makes place for whom.
 *
 * A pool that needs a slot gets a free one, or a new extent (made outside the lock, as the kernel takes its
 * time with the pages), or evicts its own coldest block. Memory moves between pools by whole extents only:
 * when a pool has nothing to evict, or another pool's coldest block has been idle much longer than its own,
 * one extent of the other pool is *drained*: no slot of it is taken any more, its unpinned blocks are
 * evicted, pinned ones delay it, and when the last slot is back and no process maps it, it is freed. That
 * takes a while, so a caller that finds nothing now is told EXHAUSTED: try again.
 *
 * A pool that is being filled gets its next extent ahead of time, when less than a quarter of one is free,
 * so that puts seldom wait for the kernel. The last extent of the budget is not given away like that: else
 * two pools could take it from one another for nothing.
 *
 * One drain at a time makes progress; one that only waits for its holders (5 s without an end) does not
 * keep others from starting. What is nowhere else is spilled first; a disk that takes nothing so long (it hangs, or has no
 * place) is not waited for: memory is never short for a disk's sake.
 */
#include "daemon/memory/evict.h"

#include "daemon/advice/prefetch.h"
#include "daemon/block/block.h"
#include "daemon/block/counters.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/observer.h"
#include "daemon/block/values.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/disk/transfer.h"
#include "daemon/memory/drain.h"
#include "daemon/session/attachment.h"
#include "daemon/threads/deadline.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/vram.h"
#include "store/host/host.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	VICTIM_SCAN = 256,             /* nodes a search looks at */
	CLEAN_SCAN = 2048,             /* the same of those that are on a disk: the coldest may not be */
	VICTIM_ROUNDS = 64,            /* searches, if all that it looked at was pinned */
	BALANCE_EVERY_US = 100 * 1000,
	COLDER_FACTOR = 4,             /* idle so many times as long ... */
	COLDER_MIN_US = 10 * 1000 * 1000, /* ... and at least so much longer */
	SWEEP_SLOTS = 4096,            /* a step */
	DRAIN_STUCK_US = 5 * 1000 * 1000,
	RETIRE_EVERY_US = 1000 * 1000,
	GROWTH_US = 2000 * 1000,       /* a driver may keep others from it */
	GROW_AGAIN_US = 1000 * 1000,   /* the kernel may have memory again */
};

/* Pinned blocks that a search met. */
struct pinned {
	struct block *block[VICTIM_SCAN];
	uint32_t count;
};

static bool may_evict(const struct policy_node *n, void *arg)
{
	struct pinned *met = arg;

	if (block_memory_pins(block_of_node(n)) == 0)
		return true;
	if (met->count < VICTIM_SCAN)
		met->block[met->count++] = (struct block *)block_of_node(n);
	return false;
}

/* Leases that are held for long drift to the cold end, where each search would have to pass them. They are
 * in use: the policy is told so again, and they are out of the way. */
static struct block *victim(struct cache *c, struct pool *p, uint32_t rounds)
{
	struct pinned met;

	for (uint32_t i = 0; i < rounds && p->evictable; i++) {
		struct policy_node *n;

		met.count = 0;
		n = c->policy->victim(p->policy, may_evict, &met, VICTIM_SCAN);
		if (n)
			return (struct block *)block_of_node(n);
		while (met.count)
			block_use(c, met.block[--met.count]);
	}
	return NULL;
}

/* It would not be lost with its copy in memory. */
static bool elsewhere(const struct block *b)
{
	return rack_serves(b) || (b->vram && vram_ready(b));
}

/* Nor would anything be lost that a disk's policy thinks worth a place. */
static bool spared(const struct block *b)
{
	return elsewhere(b) || b->unworthy;
}

/* The first of the pool's refused blocks that may go. clean: and is on a disk or a GPU or not worth it, and not wanted soon. */
static struct block *refused_victim(struct pool *p, bool clean)
{
	uint32_t looked = 0;

	for (struct policy_node *n = p->refused; n && looked < VICTIM_SCAN; n = n->next, looked++) {
		struct block *b = (struct block *)block_of_node(n);

		if (block_memory_pins(b) == 0 && (!clean || (spared(b) && !b->wanted)))
			return b;
	}
	return NULL;
}

static bool may_leave(const struct policy_node *n, void *arg)
{
	(void)arg;
	return block_memory_pins(block_of_node(n)) == 0;
}

bool room_keeps_out(struct cache *c, struct pool *p, const struct policy_event *e)
{
	struct policy_node *v = c->policy->admit ? c->policy->victim(p->policy, may_leave, NULL, VICTIM_SCAN) : NULL;

	return v && !c->policy->admit(p->policy, e, v);
}

bool room_refuses(struct cache *c, struct pool *p, const struct policy_event *e)
{
	bool refused = p->refused_us == e->now_us && e->position == p->refused_position + 1;

	if (!c->policy->admit || p->free_slots > 0 || p->grow_refused != c->room_epoch)
		return false;
	if (!refused)
		refused = room_keeps_out(c, p, e);
	if (refused) {
		p->refused_us = e->now_us;
		p->refused_position = e->position;
	}
	return refused;
}

static bool may_depart(const struct policy_node *n, void *arg)
{
	(void)arg;
	return block_memory_pins(block_of_node(n)) == 0 && spared(block_of_node(n));
}

static bool may_depart_unwanted(const struct policy_node *n, void *arg)
{
	return may_depart(n, arg) && !block_of_node(n)->wanted;
}

/* What was loaded ahead for nothing, what was refused, then the coldest; of those that are elsewhere too, and not wanted soon. */
static struct block *victim_to_spare(struct cache *c, struct pool *p)
{
	struct block *b = ahead_victim(c, p, false);
	struct policy_node *n;

	if (!b)
		b = refused_victim(p, c->tier || c->vram);
	if (b || !(c->tier || c->vram))
		return b;
	n = c->policy->victim(p->policy, may_depart_unwanted, NULL, CLEAN_SCAN);
	return n ? (struct block *)block_of_node(n) : NULL;
}

/* The same; if there is none, because spills have not kept up, any. */
static struct block *victim_to_evict(struct cache *c, struct pool *p)
{
	struct block *b = victim_to_spare(c, p);
	struct policy_node *n;

	if (b)
		return b;
	n = c->tier || c->vram ? c->policy->victim(p->policy, may_depart, NULL, CLEAN_SCAN) : NULL;
	if (n)
		return (struct block *)block_of_node(n);
	b = ahead_victim(c, p, true);
	if (!b)
		b = refused_victim(p, false);
	return b ? b : victim(c, p, VICTIM_ROUNDS);
}

/* What a GPU alone has beside would have to come down in its turn. */
static bool may_depart_for_good(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);

	(void)arg;
	return block_memory_pins(b) == 0 && (rack_serves(b) || (b->unworthy && !(b->vram && vram_ready(b)))) && !b->wanted;
}

static bool may_leave_for_good(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);

	(void)arg;
	return block_memory_pins(b) == 0 && (rack_serves(b) || !(b->vram && vram_ready(b)));
}

/* Of what was refused, then of the others. */
static struct block *victim_for_good(struct cache *c, struct pool *p, bool (*may)(const struct policy_node *n, void *arg))
{
	struct policy_node *n = p->refused;

	for (uint32_t looked = 0; n && !may(n, NULL); looked++)
		n = looked < VICTIM_SCAN ? n->next : NULL;
	if (!n)
		n = c->policy->victim(p->policy, may, NULL, CLEAN_SCAN);
	return n ? (struct block *)block_of_node(n) : NULL;
}

/* The same for what comes down from a GPU without anybody being in a hurry for it. */
static struct block *victim_below(struct cache *c, struct pool *p)
{
	struct block *b = ahead_victim(c, p, false);

	return b ? b : victim_for_good(c, p, may_depart_for_good);
}

/* And if there is none, any. */
static struct block *victim_to_drop_below(struct cache *c, struct pool *p)
{
	struct block *b = victim_below(c, p);

	return b ? b : victim_for_good(c, p, may_leave_for_good);
}

bool room_spares(struct cache *c, struct pool *p)
{
	return p->free_slots > 0 || victim_to_spare(c, p);
}

static enum gone_reason gone_reason_of(enum counter why)
{
	return why == COUNTER_EVICTED_REFUSED ? GONE_REFUSED :
	       why == COUNTER_EVICTED_SHED    ? GONE_SHED :
	       why == COUNTER_EVICTED_DRAIN   ? GONE_DRAIN : GONE_FULL;
}

void room_evict(struct cache *c, struct block *b, enum counter why)
{
	if (b->refused || b->unworthy)
		why = COUNTER_EVICTED_REFUSED;
	else if (c->tier && !elsewhere(b))
		why = COUNTER_EVICTED_SHED;
	cache_count(c, why, 1);
	observe_left(c, b->node.id, &b->node, GONE_HOST, gone_reason_of(why));
	if (elsewhere(b)) {
		block_depart(c, b);
		return;
	}
	cache_count(c, COUNTER_DROPPED, 1);
	block_remove(c, b, CACHE_REASON_EVICTED);
}

/* Shelves of other pools compare by: empty ones first, then those with the fewest slots that cannot be
 * emptied, then whether they hold their pool's coldest block. */
static bool shelf_better(const struct shelf *a, const struct shelf *b, const struct block *coldest)
{
	if ((a->taken == 0) != (b->taken == 0))
		return a->taken == 0;
	if (a->held != b->held)
		return a->held < b->held;
	return a == coldest->shelf && b != coldest->shelf;
}

static struct shelf *shelf_to_drain(struct pool *p, const struct block *coldest)
{
	struct shelf *best = NULL;

	for (struct shelf *s = p->shelves; s; s = s->next)
		if (!s->draining && (!best || shelf_better(s, best, coldest)))
			best = s;
	return best;
}

/* A shelf of another pool that nobody uses at all. */
static struct shelf *shelf_idle(struct cache *c, const struct pool *mine)
{
	for (uint32_t i = 0; i < c->pool_count; i++)
		for (struct shelf *s = c->pools[i]->shelves; s && c->pools[i] != mine; s = s->next)
			if (!s->draining && s->taken == 0)
				return s;
	return NULL;
}

static struct block *coldest_elsewhere(struct cache *c, const struct pool *mine)
{
	struct block *coldest = NULL;

	for (uint32_t i = 0; i < c->pool_count; i++) {
		struct block *b = c->pools[i] == mine ? NULL : refused_victim(c->pools[i], false);

		if (!b && c->pools[i] != mine)
			b = victim(c, c->pools[i], 1);
		if (b && (!coldest || (int64_t)(b->node.last_use_us - coldest->node.last_use_us) < 0))
			coldest = b;
	}
	return coldest;
}

bool room_much_colder(const struct cache *c, const struct policy_node *other, const struct policy_node *own)
{
	uint64_t idle_other = c->now_us - other->last_use_us;
	uint64_t idle_own = own ? c->now_us - own->last_use_us : 0;

	return idle_other > COLDER_FACTOR * idle_own && idle_other - idle_own > COLDER_MIN_US;
}

static bool drain_in_progress(const struct cache *c)
{
	for (uint32_t i = 0; i < c->drain_count; i++)
		if (c->now_us - c->drains[i].since_us < DRAIN_STUCK_US)
			return true;
	return c->drain_count == DRAINS_MAX;
}

static void drain_begin(struct cache *c, struct shelf *s)
{
	if (host_extent_drain(c->host, s->extent))
		return;
	s->draining = true;
	s->pool->slots -= s->slots;
	s->pool->free_slots -= s->slots - s->taken;
	c->drains[c->drain_count++] = (struct drain){ .extent = s->extent, .since_us = c->now_us };
	cache_count(c, COUNTER_DRAINS, 1);
}

/* `own`: what the pool could evict itself, or NULL. */
static void room_balance(struct cache *c, struct pool *p, const struct block *own)
{
	struct shelf *s;
	struct block *other;

	if (drain_in_progress(c) || (p->balance_us && c->now_us - p->balance_us < BALANCE_EVERY_US))
		return;
	p->balance_us = c->now_us;
	s = shelf_idle(c, p);
	if (!s) {
		other = coldest_elsewhere(c, p);
		if (!other || (own && !room_much_colder(c, &other->node, &own->node)))
			return;
		s = shelf_to_drain(block_pool(other), other);
	}
	if (s) {
		drain_begin(c, s);
		room_drain_step(c);
	}
}

static enum status take(struct cache *c, struct pool *p, struct block *(*next)(struct cache *c, struct pool *p), struct host_slot *out)
{
	enum status s = STATUS_EXHAUSTED;
	struct block *b;

	if (p->free_slots > 0)
		return host_slot_try(p->host, out) ? STATUS_EXHAUSTED : STATUS_OK;
	if (p->grow_refused != c->room_epoch) {
		c->grow = p;
		return s;
	}
	b = next(c, p);
	room_balance(c, p, b);
	/* The slot of a victim in a draining extent does not come back to the pool: take the next. */
	for (int tries = 0; s == STATUS_EXHAUSTED && tries < SWEEP_SLOTS; tries++) {
		b = next(c, p);
		if (!b)
			break;
		room_evict(c, b, COUNTER_EVICTED_FULL);
		if (p->free_slots > 0)
			s = host_slot_try(p->host, out) ? STATUS_EXHAUSTED : STATUS_OK;
	}
	return s;
}

enum status room_take(struct cache *c, struct pool *p, struct host_slot *out)
{
	return take(c, p, victim_to_evict, out);
}

enum status room_take_spare(struct cache *c, struct pool *p, struct host_slot *out)
{
	enum status s = STATUS_BUSY;

	if (p->grow_refused != c->room_epoch || room_spares(c, p))
		s = take(c, p, victim_to_spare, out);
	return s == STATUS_EXHAUSTED && !c->grow ? STATUS_BUSY : s;
}

enum status room_take_below(struct cache *c, struct pool *p, bool drops, struct host_slot *out)
{
	struct block *(*next)(struct cache *c, struct pool *p) = drops ? victim_to_drop_below : victim_below;
	enum status s = STATUS_BUSY;

	if (p->free_slots > 0 || p->grow_refused != c->room_epoch || next(c, p))
		s = take(c, p, next, out);
	return s == STATUS_EXHAUSTED && !c->grow ? STATUS_BUSY : s;
}

void room_clear(struct cache *c, struct pool *p, uint32_t slots)
{
	struct block *b;

	if (p->grow_refused != c->room_epoch)
		return;
	for (uint32_t tries = 0; p->free_slots < (int64_t)slots && tries < slots && (b = victim_to_spare(c, p)); tries++)
		room_evict(c, b, COUNTER_EVICTED_FULL);
}

/* One at a time: two that grow one pool get the same extent, which is registered once. A driver may take its time over that, or all time: who comes
 * then does without. Without the lock. */
static bool growth_begin(struct cache *c, struct pool *p)
{
	struct timespec until;
	bool begun;

	cache_lock(c);
	until = c->growth_until;
	while (c->growing && !pthread_cond_timedwait(&c->growth, &c->lock, &until))
		continue;
	begun = !c->growing;
	if (begun) {
		c->growing = true;
		c->growth_until = deadline_in(GROWTH_US);
	} else {
		p->grow_refused = c->room_epoch;
	}
	cache_unlock(c);
	return begun;
}

void room_grow(struct cache *c, struct pool *p, uint32_t slots)
{
	uint32_t extent, buffer[CACHE_DISKS_MAX];
	enum status s = host_pool_prepare(p->host, slots, &extent);
	uint64_t *device = NULL;
	struct shelf *shelf = NULL;
	bool known = true;

	if (!growth_begin(c, p))
		return;
	if (!s && (c->tier || c->vram)) {
		cache_lock(c);
		known = shelf_find(c, extent);
		cache_unlock(c);
		if (!known && c->tier)
			tier_buffers_add(c, host_extent(c->host, extent), buffer);
		if (!known)
			device = vram_addresses(c, host_extent(c->host, extent));
	}
	cache_lock(c);
	if (!s)
		shelf = shelf_get(c, p, extent);
	if (!shelf)
		p->grow_refused = c->room_epoch;
	else if (!known && c->tier && shelf->buffer[0] == RING_NONE)
		memcpy(shelf->buffer, buffer, sizeof(buffer));
	if (shelf && !known) {
		shelf->device = device;
		device = NULL;
	}
	cache_unlock(c);
	if (device)
		vram_unregister(c, host_extent(c->host, extent)->base, device);
	free(device);
	cache_lock(c);
	c->growing = false;
	pthread_cond_broadcast(&c->growth);
	cache_unlock(c);
}

/* Looks at each pool in turn, so that none is for ever behind another. */
struct pool *room_ahead(struct cache *c, uint32_t *slots)
{
	struct host_usage u;

	if (c->drain_count || !c->pool_count)
		return NULL;
	host_usage(c->host, &u);
	for (uint32_t i = 0; i < c->pool_count; i++) {
		struct pool *p = c->pools[c->ahead_hint++ % c->pool_count];
		uint64_t each = p->shelves ? (uint64_t)p->shelves->slots * p->shelves->stride : 0;
		bool filling = p->taken_lately;

		p->taken_lately = false;
		if (!filling || !each || p->grow_refused == c->room_epoch || p->free_slots >= p->shelves->slots / 4 ||
		    u.budget_bytes - u.extent_bytes < 2 * each)
			continue;
		*slots = p->shelves->slots / 4;
		return p;
	}
	return NULL;
}

void room_tell(const struct policy_ops *ops, struct policy *policy, uint64_t slots, uint64_t *told)
{
	const uint64_t change = slots > *told ? slots - *told : *told - slots;

	if (!ops->resize || change <= *told / 8)
		return;
	ops->resize(policy, slots);
	*told = slots;
}

/* What a layout has, and may have yet: others have the rest. */
static void rooms_tell(struct cache *c)
{
	const uint64_t unused = host_unused(c->host);

	for (uint32_t i = 0; i < c->pool_count; i++) {
		struct pool *p = c->pools[i];

		room_tell(c->policy, p->policy, p->slots + unused / p->stride, &p->policy_room);
	}
}

void room_tick(struct cache *c)
{
	if (c->now_us - c->room_epoch_us < GROW_AGAIN_US)
		return;
	c->room_epoch++;
	c->room_epoch_us = c->now_us;
	rooms_tell(c);
	if (c->vram)
		vram_rooms_tell(c);
	if (c->tier && c->tier->restored) /* until then not all slabs are known */
		rack_rooms_tell(c);
}

static void retire_note(struct cache *c, uint32_t attachment, uint32_t extent)
{
	if (c->retired_count == c->retired_cap) {
		uint32_t cap = c->retired_cap ? 2 * c->retired_cap : 16;
		struct retire *r = realloc(c->retired, cap * sizeof(*r));

		if (!r)
			return; /* told again in a second */
		c->retired = r;
		c->retired_cap = cap;
	}
	c->retired[c->retired_count++] = (struct retire){ attachment, extent };
}

void room_drain_tell(struct cache *c, struct drain *d)
{
	if (d->told_us && c->now_us - d->told_us < RETIRE_EVERY_US)
		return;
	d->told_us = c->now_us ? c->now_us : 1;
	for (uint32_t i = 0; i < ATTACHMENT_BUCKETS; i++)
		for (struct attachment *a = c->attachment_hash[i]; a; a = a->hash_next)
			if (!a->gone && attachment_has_lent(a, d->extent))
				retire_note(c, a->number, d->extent);
}

/* It is on its way to a disk, or is to be. */
static bool spills_first(struct cache *c, const struct drain *d, struct block *b)
{
	enum status s;

	if (!c->tier || b->rack || b->unworthy)
		return false;
	s = spill_begin(c, b, RING_IDLE, NULL);
	return s == STATUS_OK || (s != STATUS_UNAVAILABLE && c->now_us - d->since_us < DRAIN_STUCK_US);
}

/* Evicts what can go; goes round again while something pinned, or on its way to disk, was left. */
static void drain_sweep(struct cache *c, struct drain *d)
{
	struct shelf *s = shelf_find(c, d->extent);

	if (!s || s->taken == 0)
		return;
	for (uint32_t n = 0; n < SWEEP_SLOTS && n < s->slots; n++, d->sweep++) {
		struct block *b = s->at[d->sweep % s->slots];

		if (!b || block_memory_pins(b) || spills_first(c, d, b))
			continue;
		room_evict(c, b, COUNTER_EVICTED_DRAIN);
	}
	d->sweep %= s->slots;
}

void room_drain_step(struct cache *c)
{
	for (uint32_t i = 0; i < c->drain_count; i++) {
		drain_sweep(c, &c->drains[i]);
		room_drain_tell(c, &c->drains[i]);
	}
}

bool room_drained(struct cache *c)
{
	for (uint32_t i = 0; i < c->drain_count; i++) {
		const struct shelf *s = shelf_find(c, c->drains[i].extent);

		if (!s || s->taken == 0)
			return true;
	}
	return false;
}

void room_drain_reap(struct cache *c)
{
	for (uint32_t i = 0; i < c->drain_count;) {
		struct shelf *s = shelf_find(c, c->drains[i].extent);

		if (host_extent(c->host, c->drains[i].extent)) {
			i++;
			continue;
		}
		if (s)
			shelf_free(c, s);
		c->room_epoch++;
		c->drains[i] = c->drains[--c->drain_count];
	}
}

void room_retire_flush(struct cache *c)
{
	void (*tell)(void *, uint64_t, uint32_t);
	struct retire *list;
	uint32_t count;
	void *arg;

	cache_lock(c);
	list = c->retired;
	count = c->retired_count;
	c->retired = NULL;
	c->retired_count = c->retired_cap = 0;
	tell = c->retire;
	arg = c->retire_arg;
	cache_unlock(c);
	for (uint32_t i = 0; tell && i < count; i++)
		tell(arg, list[i].attachment, list[i].extent);
	free(list);
}

void cache_on_retire(struct cache *c, void (*retire)(void *arg, uint64_t attachment, uint32_t extent),
		     void *arg)
{
	cache_lock(c);
	c->retire = retire;
	c->retire_arg = arg;
	cache_unlock(c);
}
