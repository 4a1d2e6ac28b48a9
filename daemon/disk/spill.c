/* Which blocks are spilled, and when: in the background, so that blocks that must leave memory are on disk already.
 *
 * A share of the host tier (spill_share) is to be free, not yet made, or *clean*: on disk too. If it is less, dirty
 * blocks are spilled: the coldest, which a search finds from time to time; between searches, in the order in which they
 * were put. Of the coldest blocks, as many as that share (COLD_SCAN at most) are to be clean in any case. Blocks that
 * came back from a disk are clean too, but they were just used: if they were enough, the coldest would stay dirty, and
 * either used blocks would be evicted for them, or they would be dropped. A block that is dropped for lack of a clean
 * victim (a slow disk, a storm of puts) is counted as shed: memory never waits for a disk.
 */
#include "daemon/disk/spill.h"

#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/unwritten.h"
#include "daemon/disk/place.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "eviction/policy.h"
#include "store/arena/arena.h"
#include "store/crash_point.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"

enum {
	LOOK_BLOCKS = 2048,             /* at a time, in one class */
	COLD_SCAN = 2048,              /* nodes */
	COLD_EVERY_US = 50 * 1000,
	HURRIED = 64,                  /* spills that somebody waits for, at a time */
};

/* Slots of this class: those that it has, and those that it could still get. */
static uint64_t slots_of(const struct memory_class *k)
{
	struct arena_class_usage u;

	arena_class_usage(k->arena, &u);
	return u.room;
}

/* Dirty blocks that are too many in this class. */
static uint64_t excess(struct cache *c, const struct memory_class *k, const struct memory_class_sums *sums, uint64_t total)
{
	/* A block that is not to be spilled counts as clean: it is dropped when its place is wanted. */
	const uint64_t dirty = sums->dirty > sums->no_spill ? sums->dirty - sums->no_spill : 0;
	const uint64_t wanted = total * c->options.spill_share_milli / 1000;
	uint64_t ready;

	if (c->settles)
		return sums->dirty;
	/* Nor does what was loaded ahead make way for others. */
	ready = dirty + k->prefetched_blocks;
	ready = total - (ready < total ? ready : total);
	return ready >= wanted ? 0 : wanted - ready < dirty ? wanted - ready : dirty;
}

/* How many of the coldest are to be clean. */
static uint64_t coldest_wanted(const struct cache *c, const struct memory_class_sums *sums, uint64_t total)
{
	const uint64_t room = total - (sums->blocks < total ? sums->blocks : total), wanted = total * c->options.spill_share_milli / 1000;

	return room < wanted ? wanted - room : 0;
}

static bool spillable(const struct cache *c, const struct block *b)
{
	return b->span && !b->slab_map && !b->moving && block_live(b) && (c->settles || !b->no_spill);
}

static bool gather_dirty(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);
	struct memory_class *k = arg;

	if (k->cold_count < CLASS_COLD_IDS && !b->slab_map && !b->moving && !b->no_spill)
		k->cold[k->cold_count++] = n->id;
	return k->cold_count == CLASS_COLD_IDS;
}

/* Of the first `scan` in the order in which they would go. */
static void gather_cold(struct cache *c, struct memory_class *k, uint32_t scan)
{
	uint32_t looked = 0;

	for (const struct policy_node *n = k->not_admitted; n && looked < scan && !gather_dirty(n, k); n = n->next)
		looked++;
	if (k->cold_count < CLASS_COLD_IDS && looked < scan)
		policy_look(c->policy, k->policy, gather_dirty, k, scan - looked);
}

/* The coldest, as of a while ago: what memory gives up next had better be on a disk by then. NULL: none is known. */
static struct block *coldest_dirty(struct cache *c, struct memory_class *k, uint32_t scan)
{
	/* A search that found little is not repeated at once, but for a longer one. */
	if (k->cold_at == k->cold_count &&
	    (k->cold_count >= CLASS_COLD_IDS / 8 || c->now_us - k->cold_us >= COLD_EVERY_US || scan > k->cold_scan)) {
		k->cold_us = c->now_us;
		k->cold_scan = scan;
		k->cold_at = k->cold_count = 0;
		gather_cold(c, k, scan);
	}
	while (k->cold_at < k->cold_count) {
		struct block *b = by_id_find(c, k->cold[k->cold_at++]);

		if (b && b->span && b->pool->class == k && spillable(c, b))
			return b;
	}
	return NULL;
}

/* The next dirty block of a layout, from where the last search ended; NULL: a whole round, or the budget, brought none. */
static struct block *next_unwritten(struct cache *c, struct layout_pool *p, uint32_t *budget)
{
	bool round = false;

	while (p->dirty && *budget) {
		struct block *b = unwritten_walk_next(&p->spills, budget);

		if (b && spillable(c, b))
			return b;
		if (!b && (!*budget || round))
			break;
		if (!b) {
			round = true;
			unwritten_walk_begin(&p->spills, p);
		}
	}
	return NULL;
}

/* The same of the class: of one of its layouts after the other. */
static struct block *next_dirty(struct cache *c, struct memory_class *k, uint32_t *budget)
{
	struct layout_pool *p = k->pools, *first;

	while (p && p->number != k->spill_pool)
		p = p->class_next;
	first = p = p ? p : k->pools;
	while (p && *budget) {
		struct block *b = next_unwritten(c, p, budget);

		k->spill_pool = p->number;
		if (b)
			return b;
		p = p->class_next ? p->class_next : k->pools;
		if (p == first)
			break;
		k->spill_pool = p->number;
	}
	return NULL;
}

/* It was refused, and is the next one again. */
static void look_again(struct block *b, bool is_cold)
{
	b->pool->class->cold_at -= is_cold;
	if (!is_cold)
		unwritten_walk_back(&b->pool->spills);
}

/* At most disk_depth of them: `excess` of whatever is dirty, and the dirty ones of the coldest `cold`. BUSY: the disks take no more now;
 * else what is not OK: they have no place for its blocks. */
static enum status spill_some(struct cache *c, struct memory_class *k, uint64_t excess, uint64_t cold)
{
	uint32_t budget = LOOK_BLOCKS, most = memory_class_sums(k).dirty ? c->options.disk_depth : 0;

	for (; most; most--) {
		struct block *b = coldest_dirty(c, k, excess || cold > COLD_SCAN ? COLD_SCAN : (uint32_t)cold);
		const bool is_cold = b;
		enum status s = STATUS_OK;

		if (!b && excess)
			b = next_dirty(c, k, &budget);
		if (!b)
			break;
		excess -= excess > 0;
		if (!c->settles && spot_denied(c, b)) {
			cache_count(c, COUNTER_REFUSED_DISK, 1);
			block_no_spill(b, true);
			continue;
		}
		s = spill_begin(c, b, RING_IDLE, NULL);
		if (s) {
			look_again(b, is_cold);
			return s;
		}
	}
	return STATUS_OK;
}

static bool room_for_spills(const struct tier *t, uint32_t depth)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (!t->units[i].failed && t->units[i].spilling < depth)
			return true;
	return false;
}

static bool any_sound(const struct tier *t)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (!t->units[i].failed)
			return true;
	return false;
}

/* Round robin: if the disks' queues are full, the next pass starts with the class that got nothing; otherwise with the
 * one after the last that was served. */
bool spill_pump(struct cache *c)
{
	const uint32_t first = c->tier ? c->tier->spill_first : 0;
	bool place = false;

	if (!c->tier || c->tier->stopping || !c->tier->restored)
		return true;
	if (!room_for_spills(c->tier, c->options.disk_depth))
		return any_sound(c->tier);
	CRASH_POINT("spill_pump");
	for (uint32_t i = 0; i < c->class_count; i++) {
		const uint32_t at = (first + i) % c->class_count;
		struct memory_class *k = c->classes[at];
		const struct memory_class_sums sums = memory_class_sums(k);
		const uint64_t total = sums.dirty ? slots_of(k) : 0;
		const uint64_t over = sums.dirty ? excess(c, k, &sums, total) : 0, cold = sums.dirty ? coldest_wanted(c, &sums, total) : 0;
		const uint32_t before = c->tier->transfer_count;
		const enum status s = over || cold ? spill_some(c, k, over, cold) : STATUS_EXHAUSTED;

		if (s == STATUS_BUSY) {
			c->tier->spill_first = at + (c->tier->transfer_count > before);
			return true;
		}
		place |= s != STATUS_EXHAUSTED && s != STATUS_UNAVAILABLE;
	}
	return place;
}

/* And may be waited for. */
static bool is_spilling(const struct unit *u)
{
	struct disk_view v;

	if (!u->spilling || u->failed)
		return false;
	disk_look(u->disk, &v);
	return v.health != DISK_SLOW;
}

bool spill_hurry(struct cache *c, struct layout_pool *p)
{
	const uint64_t no_spill = memory_class_sums(p->class).no_spill;
	bool under_way;

	if (!c->tier || c->tier->stopping || !c->tier->restored)
		return false;
	under_way = spill_some(c, p->class, HURRIED, 0) == STATUS_MISS; /* a slab is being made for them */
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		under_way |= is_spilling(&c->tier->units[i]);
	return under_way || memory_class_sums(p->class).no_spill > no_spill;
}
