/* Which block leaves memory when a slot is wanted.
 *
 * Slots belong to classes (block/memory_class.h): layouts whose blocks need nearly the same bytes share one. A class
 * that needs a slot gets, in this order:
 *
 *     a free slot of one of its spans
 *     a slot of a new span, where enough granules side by side are free
 *     one from pages that are taken from the kernel, outside the lock, as long as the budget has some (memory/grow.c)
 *     the slot of its own next victim
 *     if it has none: a span from the reserve, which only such classes get
 *     if there is none: the coldest span of other classes, which is emptied and cut anew (memory/trade.c)
 *
 * Once a span's worth of its own evictions, a class also looks whether another class has a span that is colder than
 * its own next victim: that span is emptied and cut anew while the class goes on with what it has. It looks less often
 * while there is none.
 */
#include "daemon/memory/evict.h"

#include "daemon/block/block.h"
#include "daemon/block/counters.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/gpu_class.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/observer.h"
#include "daemon/block/policy_room.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/memory/probation.h"
#include "daemon/memory/trade.h"
#include "eviction/departures.h"
#include "store/arena/arena.h"
#include "store/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	VICTIM_SCAN = 256,             /* nodes a search looks at */
	CLEAN_SCAN = 2048,             /* the same for blocks that are on a disk too: the coldest may not be */
	VICTIM_ROUNDS = 64,            /* searches, if all that it looked at was pinned */
	/* victims whose slots the class does not get, because another class has claimed their span */
	TRIES = 4096,
	GROW_AGAIN_US = 1000 * 1000,   /* the kernel may have memory again */
};

/* ---- copies on probation ---- */

void probation_not_admitted_enter(struct cache *c, struct block *b)
{
	struct memory_class *k = b->pool->class;

	b->node.last_use_us = c->now_us;
	b->node.uses = 0;
	b->node.next = NULL;
	b->node.prev = k->not_admitted_last;
	if (k->not_admitted_last)
		k->not_admitted_last->next = &b->node;
	else
		k->not_admitted = &b->node;
	k->not_admitted_last = &b->node;
}

void probation_not_admitted_leave(struct block *b)
{
	struct policy_node *n = &b->node;
	struct memory_class *k = b->pool->class;

	if (n->prev)
		n->prev->next = n->next;
	else
		k->not_admitted = n->next;
	if (n->next)
		n->next->prev = n->prev;
	else
		k->not_admitted_last = n->prev;
	n->prev = n->next = NULL;
	b->not_admitted = false;
}

static uint64_t life_us(enum prefetch_kind kind)
{
	return kind == PREFETCH_ASKED ? PREFETCH_ASKED_US : PREFETCH_EXPECTED_US;
}

void probation_prefetch_enter(struct cache *c, struct block *b)
{
	struct memory_class *k = b->pool->class;

	b->not_admitted = false; /* it is asked again when it is used */
	k->prefetched_blocks++;
	b->node.last_use_us = c->now_us;
	b->node.uses = 0;
	b->node.next = NULL;
	b->node.prev = k->prefetched_last;
	if (k->prefetched_last)
		k->prefetched_last->next = &b->node;
	else
		k->prefetched = &b->node;
	k->prefetched_last = &b->node;
}

void probation_prefetch_leave(struct block *b)
{
	struct memory_class *k = b->pool->class;
	struct policy_node *n = &b->node;

	k->prefetched_blocks--;
	if (n->prev)
		n->prev->next = n->next;
	else
		k->prefetched = n->next;
	if (n->next)
		n->next->prev = n->prev;
	else
		k->prefetched_last = n->prev;
	n->prev = n->next = NULL;
}

struct block *probation_prefetch_victim(const struct cache *c, const struct memory_class *k, bool any)
{
	uint32_t looked = 0;

	for (struct policy_node *n = k->prefetched; n && looked < VICTIM_SCAN; n = n->next, looked++) {
		struct block *b = (struct block *)block_of_node(n);

		if (!any && c->now_us - n->last_use_us <= life_us((enum prefetch_kind)b->prefetched))
			continue;
		if (block_memory_pins(b) == 0)
			return b;
	}
	return NULL;
}

/* ---- victims ---- */

/* Pinned blocks that a search for a victim has met. */
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

/* Leases that are held for long drift to the cold end, where each search would have to pass them. So the policy is told
 * that they are in use. */
static struct block *victim(struct cache *c, struct memory_class *k, uint32_t rounds)
{
	struct pinned met;

	for (uint32_t i = 0; i < rounds && k->evictable; i++) {
		struct policy_node *n;

		met.count = 0;
		n = c->policy->victim(k->policy, may_evict, &met, VICTIM_SCAN);
		if (n)
			return (struct block *)block_of_node(n);
		while (met.count)
			block_use(c, met.block[--met.count]);
	}
	return NULL;
}

/* Whether evicting the block loses nothing that a disk's policy thinks worth a place. */
static bool spared(const struct block *b)
{
	return block_elsewhere(b) || b->no_spill;
}

/* The first not-admitted block of the class that can be evicted. clean: one that is on a disk or GPU or needs no spill,
 * and is not wanted soon. */
static struct block *not_admitted_victim(struct memory_class *k, bool clean)
{
	uint32_t looked = 0;

	for (struct policy_node *n = k->not_admitted; n && looked < VICTIM_SCAN; n = n->next, looked++) {
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

bool room_keeps_out(struct cache *c, struct memory_class *k, const struct policy_event *e)
{
	struct policy_node *v = c->policy->admit ? c->policy->victim(k->policy, may_leave, NULL, VICTIM_SCAN) : NULL;

	return v && !c->policy->admit(k->policy, e, v);
}

bool room_refuses(struct cache *c, struct layout_pool *p, const struct policy_event *e)
{
	bool not_admitted = p->not_admitted_us == e->now_us && e->position == p->not_admitted_position + 1;

	if (!c->policy->admit || p->class->grow_refused != c->room_epoch || memory_class_has_room(p->class))
		return false;
	if (!not_admitted)
		not_admitted = room_keeps_out(c, p->class, e);
	if (not_admitted) {
		p->not_admitted_us = e->now_us;
		p->not_admitted_position = e->position;
	}
	return not_admitted;
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

/* There is nowhere else where a block could be. */
static bool is_alone(const struct cache *c)
{
	return !c->tiers[TIER_DISK] && !c->tiers[TIER_GPU];
}

/* The block to evict that costs least: a prefetched block that was not used in time, else one that was not admitted,
 * else the coldest. Only blocks that have another copy and are not wanted soon. NULL: there is none. */
static struct block *victim_to_spare(struct cache *c, struct memory_class *k)
{
	struct block *b = probation_prefetch_victim(c, k, false);
	struct policy_node *n;

	if (!b)
		b = not_admitted_victim(k, !is_alone(c));
	if (b || is_alone(c))
		return b;
	n = c->policy->victim(k->policy, may_depart_unwanted, NULL, CLEAN_SCAN);
	return n ? (struct block *)block_of_node(n) : NULL;
}

/* The block to evict: victim_to_spare's, or, if there is none because spills have not kept up, any block. */
static struct block *victim_to_evict(struct cache *c, struct memory_class *k)
{
	struct block *b = victim_to_spare(c, k);
	struct policy_node *n;

	if (b)
		return b;
	n = is_alone(c) ? NULL : c->policy->victim(k->policy, may_depart, NULL, CLEAN_SCAN);
	if (n)
		return (struct block *)block_of_node(n);
	b = probation_prefetch_victim(c, k, true);
	if (!b)
		b = not_admitted_victim(k, false);
	return b ? b : victim(c, k, VICTIM_ROUNDS);
}

/* Whether a block's copy in memory may go for good: a disk has the block, or no disk takes it and no GPU has it. A
 * block that otherwise only a GPU has would have to be downloaded again. */
static bool may_depart_for_good(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);

	(void)arg;
	return block_memory_pins(b) == 0 && (slab_map_serves(b) || (b->no_spill && !(b->vram && vram_ready(b)))) &&
	    !b->wanted;
}

static bool may_leave_for_good(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);

	(void)arg;
	return block_memory_pins(b) == 0 && (slab_map_serves(b) || !(b->vram && vram_ready(b)));
}

/* The first block that `may` allows: of the blocks that were not admitted, then of the policy's. NULL: there is
 * none. */
static struct block *victim_for_good(struct cache *c, struct memory_class *k, bool (*may)(const struct policy_node *n, void *arg))
{
	struct policy_node *n = k->not_admitted;

	for (uint32_t looked = 0; n && !may(n, NULL); looked++)
		n = looked < VICTIM_SCAN ? n->next : NULL;
	if (!n)
		n = c->policy->victim(k->policy, may, NULL, CLEAN_SCAN);
	return n ? (struct block *)block_of_node(n) : NULL;
}

/* The block to evict for a background download from a GPU. Blocks that a disk has, or that no disk takes, go; a block
 * that otherwise a GPU alone has stays. NULL: there is none. */
static struct block *victim_below(struct cache *c, struct memory_class *k)
{
	struct block *b = probation_prefetch_victim(c, k, false);

	return b ? b : victim_for_good(c, k, may_depart_for_good);
}

/* victim_below's block; if there is none, the coldest that a disk has or that no GPU has. NULL: there is none. */
static struct block *victim_to_drop_below(struct cache *c, struct memory_class *k)
{
	struct block *b = victim_below(c, k);

	return b ? b : victim_for_good(c, k, may_leave_for_good);
}

bool room_spares(struct cache *c, struct memory_class *k)
{
	return memory_class_has_room(k) || victim_to_spare(c, k);
}

static enum eviction_reason eviction_reason_of(enum counter why)
{
	return why == COUNTER_EVICTED_REFUSED ? EVICTION_NOT_ADMITTED :
	       why == COUNTER_EVICTED_SHED    ? EVICTION_SHED :
	       why == COUNTER_EVICTED_PEER    ? EVICTION_PEER :
	       why == COUNTER_EVICTED_TRADE   ? EVICTION_TRADE : EVICTION_FULL;
}

void room_evict(struct cache *c, struct block *b, enum counter why)
{
	if (block_is(b, BLOCK_AT_PEER) && !block_elsewhere(b))
		why = COUNTER_EVICTED_PEER;
	else if (b->not_admitted || b->no_spill)
		why = COUNTER_EVICTED_REFUSED;
	else if (c->tiers[TIER_DISK] && !block_elsewhere(b))
		why = COUNTER_EVICTED_SHED;
	cache_count(c, why, 1);
	if (b->pool->class->departures)
		departures_note(b->pool->class->departures, 1);
	observe_left(c, b->node.id, &b->node, EVICTION_HOST, eviction_reason_of(why));
	if (block_elsewhere(b)) {
		block_depart(c, b);
		return;
	}
	cache_count(c, COUNTER_DROPPED, 1);
	block_remove(c, b, CACHE_REASON_EVICTED);
}

/* A look for blocks that are about to go. */
struct look {
	const struct cache *cache;
	void (*visit)(void *arg, const struct block *b);
	void *arg;
	uint32_t left;                 /* victims that it has not met yet */
};

static bool look_at(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);
	struct look *l = arg;

	if (block_memory_pins(b) || (!is_alone(l->cache) && !spared(b)))
		return false;
	if (!block_elsewhere(b))
		l->visit(l->arg, b);
	return --l->left == 0;
}

bool room_leaving(struct cache *c, uint32_t at, void (*visit)(void *arg, const struct block *b), void *arg)
{
	struct memory_class *k = at < c->class_count ? c->classes[at] : NULL;
	const struct policy_node *n = k ? k->not_admitted : NULL;
	struct look l = { c, visit, arg, 0 };
	uint32_t looked = 0;

	if (k && !k->departures)
		k->departures = calloc(1, sizeof(*k->departures));
	if (k && k->departures)
		l.left = departures_soon(k->departures, k->evictable, c->now_us);
	for (; n && l.left && looked < CLEAN_SCAN; n = n->next, looked++)
		look_at(n, &l);
	if (l.left && looked < CLEAN_SCAN)
		policy_look(c->policy, k->policy, look_at, &l, CLEAN_SCAN - looked);
	return k;
}

/* Takes a slot for a class that has no block to evict. */
static enum status take_newcomer(struct cache *c, struct memory_class *k, bool waits, struct memory_slot *out)
{
	if (!memory_slot_take(c, k, true, out))
		return STATUS_OK;
	while (c->offered_bytes && c->offer_withdraw(c))
		; /* their pins would hold spans */
	if (!trade_begin(c, k, NULL)) /* each span has something that is held */
		return memory_slot_take_piece(c, k, out);
	if (waits)
		c->grow = k;
	return STATUS_EXHAUSTED;
}

/* The class's next victim. Before a block goes of which no copy is left, offers to other members are withdrawn: colder
 * blocks may be pinned by them. */
static struct block *next_victim(struct cache *c, struct memory_class *k,
				 struct block *(*next)(struct cache *c, struct memory_class *k))
{
	struct block *b = next(c, k);

	while (c->offered_bytes && (!b || !(block_elsewhere(b) || block_is(b, BLOCK_AT_PEER | BLOCK_FOR_PEER))) &&
	       c->offer_withdraw(c))
		b = next(c, k);
	return b;
}

/* Takes a slot: a free one, or one from which a victim is evicted. waits: the caller would rather wait until another
 * class's span is emptied than go without. */
static enum status take(struct cache *c, struct memory_class *k, struct block *(*next)(struct cache *c, struct memory_class *k),
			bool waits, struct memory_slot *out)
{
	struct block *b;

	if (!memory_slot_take(c, k, false, out))
		return STATUS_OK;
	if (k->grow_refused != c->room_epoch) {
		c->grow = k;
		return STATUS_EXHAUSTED;
	}
	for (int tries = 0; tries < TRIES && (b = next_victim(c, k, next)); tries++) {
		trade_look(c, k, b);
		room_evict(c, b, COUNTER_EVICTED_FULL);
		if (!memory_slot_take(c, k, false, out))
			return STATUS_OK;
	}
	return k->evictable ? STATUS_EXHAUSTED : take_newcomer(c, k, waits, out);
}

/* Takes a slot as take() does; answers BUSY in place of EXHAUSTED, unless memory can grow. */
static enum status take_some(struct cache *c, struct memory_class *k,
			     struct block *(*next)(struct cache *c, struct memory_class *k), struct memory_slot *out)
{
	enum status s = STATUS_BUSY;

	if (k->grow_refused != c->room_epoch || !k->evictable || memory_class_has_room(k) || next(c, k))
		s = take(c, k, next, false, out);
	return s == STATUS_EXHAUSTED && !c->grow ? STATUS_BUSY : s;
}

enum status room_take(struct cache *c, struct memory_class *k, enum take_effort effort, struct memory_slot *out)
{
	switch (effort) {
	case TAKE_SPARE:
		return take_some(c, k, victim_to_spare, out);
	case TAKE_BELOW:
		return take_some(c, k, victim_to_drop_below, out);
	case TAKE_BELOW_SPARE:
	case TAKE_SOON:
		return take_some(c, k, victim_below, out);
	case TAKE_ANY:
		break;
	}
	return take(c, k, victim_to_evict, true, out);
}

/* Whether the class has that many free slots already. */
static bool has_free(const struct memory_class *k, uint32_t slots)
{
	struct arena_class_usage u;

	arena_class_usage(k->arena, &u);
	return u.free >= slots;
}

void room_clear(struct cache *c, struct memory_class *k, uint32_t slots)
{
	struct block *b;

	if (k->grow_refused != c->room_epoch)
		return;
	for (uint32_t tries = 0; tries < slots && !has_free(k, slots) && (b = victim_to_spare(c, k)); tries++)
		room_evict(c, b, COUNTER_EVICTED_FULL);
}

void room_changed(struct cache *c)
{
	for (uint32_t i = 0; i < c->class_count; i++) {
		struct memory_class *k = c->classes[i];
		struct arena_class_usage u;

		arena_class_usage(k->arena, &u);
		room_tell(c->policy, k->policy, u.room, &k->policy_room);
	}
}

void room_tick(struct cache *c)
{
	if (c->now_us - c->room_epoch_us < GROW_AGAIN_US)
		return;
	c->room_epoch++;
	c->room_epoch_us = c->now_us;
	trades_tick(c);
	for (int i = 0; i < TIER_KINDS; i++)
		if (c->tiers[i])
			c->tiers[i]->room_changed(c);
}
