/* Chooses which blocks are spilled, and when. It works in the background, so that a block is on disk before it must
 * leave memory.
 *
 * A share of the host tier (spill_share) is to be free, not yet made, or *clean*, that is, also on disk. While it is
 * less, dirty blocks are spilled: first the coldest, which a search finds from time to time; between searches, blocks
 * in the order in which they were put. In any case the coldest blocks, as many as that share (COLD_SCAN at most), are
 * to be clean. Blocks that were loaded from a disk are clean too, but were just used. If they counted alone, the
 * coldest blocks would stay dirty: then either recently used blocks would be evicted in their place, or they would be
 * dropped. Memory never waits for a disk: a block that is dropped for lack of a clean victim (a slow disk, a storm of
 * puts) is counted as shed.
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
	LOOK_BLOCKS = 2048,             /* blocks looked at in one pass, in one class */
	COLD_SCAN = 2048,              /* nodes */
	COLD_EVERY_US = 50 * 1000,
	HURRIED = 64,                  /* spills that a caller waits for, at a time */
};

/* The slots of this class: those that it has, and those that it can still get. */
static uint64_t slots_of(const struct memory_class *k)
{
	struct arena_class_usage u;

	arena_class_usage(k->arena, &u);
	return u.room;
}

/* How many dirty blocks the class has beyond those that it may. */
static uint64_t excess(struct cache *c, const struct memory_class *k, const struct memory_class_sums *sums, uint64_t total)
{
	/* A block that must not be spilled counts as clean: it is dropped when its place is needed. */
	const uint64_t dirty = sums->dirty > sums->no_spill ? sums->dirty - sums->no_spill : 0;
	const uint64_t wanted = total * c->options.spill_share_milli / 1000;
	uint64_t ready;

	if (c->settles)
		return sums->dirty;
	/* Prefetched blocks do not count as ready to make room. */
	ready = dirty + k->prefetched_blocks;
	ready = total - (ready < total ? ready : total);
	return ready >= wanted ? 0 : wanted - ready < dirty ? wanted - ready : dirty;
}

/* How many of the coldest blocks must be clean. */
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

/* Gathers dirty blocks among the first `scan` nodes, in the order in which they would be evicted. */
static void gather_cold(struct cache *c, struct memory_class *k, uint32_t scan)
{
	uint32_t looked = 0;

	for (const struct policy_node *n = k->not_admitted; n && looked < scan && !gather_dirty(n, k); n = n->next)
		looked++;
	if (k->cold_count < CLASS_COLD_IDS && looked < scan)
		policy_look(c->policy, k->policy, gather_dirty, k, scan - looked);
}

/* The coldest dirty block, by a search of a while ago. It should be on a disk before memory must evict it. NULL: none
 * is known. */
static struct block *coldest_dirty(struct cache *c, struct memory_class *k, uint32_t scan)
{
	/* A search that found little is repeated only after some time, or with a longer scan. */
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

/* The next dirty block of a layout, from where the last search ended; NULL: a whole round, or the budget, brought
 * none. */
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

/* As next_unwritten, for the class: one of its layouts after the other. */
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

/* Puts back a block whose spill was refused, so that it is the next one again. */
static void look_again(struct block *b, bool is_cold)
{
	b->pool->class->cold_at -= is_cold;
	if (!is_cold)
		unwritten_walk_back(&b->pool->spills);
}

/* Begins spills, disk_depth at most: `excess` of any dirty blocks, and the dirty ones among the `cold` coldest. BUSY:
 * the disks take no more of the class now. Another status than OK: the disks have no place for the class's blocks. */
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

/* A class may be refused all the same: its tenant is at its cap and waits for one disk, or a disk is slow. */
static bool any_depth(const struct cache *c)
{
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		if (!c->tier->units[i].failed && place_depth(c, &c->tier->units[i]))
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

/* As spill_some, of what is to be spilled now. EXHAUSTED: nothing is. */
static enum status spill_class(struct cache *c, struct memory_class *k)
{
	const struct memory_class_sums sums = memory_class_sums(k);
	const uint64_t total = sums.dirty ? slots_of(k) : 0;
	const uint64_t over = sums.dirty ? excess(c, k, &sums, total) : 0;
	const uint64_t cold = sums.dirty ? coldest_wanted(c, &sums, total) : 0;

	return over || cold ? spill_some(c, k, over, cold) : STATUS_EXHAUSTED;
}

/* Round robin: if the disks' queues are full, the next pass starts with the class that got nothing; otherwise with the
 * one after the last that was served. A class that is refused while a queue has depth left keeps no other waiting. The
 * pass comes to its end then, and the next one starts after the first class that was served. */
bool spill_pump(struct cache *c)
{
	const uint32_t first = c->tier ? c->tier->spill_first : 0;
	bool place = false, served = false;

	if (!c->tier || c->tier->stopping || !c->tier->restored)
		return true;
	if (!room_for_spills(c->tier, c->options.disk_depth))
		return any_sound(c->tier);
	CRASH_POINT("spill_pump");
	for (uint32_t i = 0; i < c->class_count; i++) {
		const uint32_t at = (first + i) % c->class_count;
		const uint32_t before = c->tier->transfer_count;
		const enum status s = spill_class(c, c->classes[at]);
		const bool begun = c->tier->transfer_count > before;

		if (s == STATUS_BUSY && !any_depth(c)) {
			c->tier->spill_first = at + begun;
			return true;
		}
		if (begun && !served)
			c->tier->spill_first = at + 1;
		served |= begun;
		place |= s != STATUS_EXHAUSTED && s != STATUS_UNAVAILABLE;
	}
	return place;
}

/* Whether the disk writes spills that a caller may wait for; false for a slow disk. */
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
