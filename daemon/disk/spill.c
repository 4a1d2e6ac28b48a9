/* Which blocks are spilled, and when: in the background, so that what must leave memory is on disk already.
 *
 * A share of the host tier (spill_share) is to be free, not yet made, or *clean*: on disk too. What is missing to
 * that is spilled: the coldest, of which a search finds some from time to time; between, in the order in which they
 * were put. And of the coldest so many as that share are to be clean, COLD_SCAN at most, whatever else is: what came
 * back from a disk is clean too, but it was just used. Were that enough, the coldest would stay dirty, and either
 * what is used would go for them, or they would be dropped. What is dropped for lack of a clean victim (a slow disk,
 * a storm of puts) is counted as shed: memory never waits for a disk.
 */
#include "daemon/disk/spill.h"

#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/unwritten.h"
#include "daemon/disk/place.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/transfer.h"
#include "eviction/policy.h"
#include "store/crash_point.h"
#include "store/host/host.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/status.h"

enum {
	LOOK_BLOCKS = 2048,            /* at a time, in one pool */
	COLD_SCAN = 2048,              /* nodes */
	COLD_EVERY_US = 50 * 1000,
	HURRIED = 64,                  /* spills that somebody waits for, at a time */
};

/* Slots of this pool: those that it has, and those that it could still get. */
static uint64_t slots_of(const struct pool *p, const struct host_usage *u)
{
	uint64_t total = u->budget_bytes > u->extent_bytes ? (u->budget_bytes - u->extent_bytes) / p->stride : 0;

	for (const struct shelf *s = p->shelves; s; s = s->next)
		total += s->draining ? 0 : s->slots;
	return total;
}

/* Dirty blocks that are too many in this pool. */
static uint64_t excess(struct cache *c, const struct pool *p, uint64_t total)
{
	/* What is not to be spilled is as good as clean: it is dropped when its place is wanted. */
	const uint64_t dirty = p->dirty > p->unworthy ? p->dirty - p->unworthy : 0;
	const uint64_t wanted = total * c->options.spill_share_milli / 1000;
	uint64_t ready;

	if (c->tier->all)
		return p->dirty;
	/* Nor does what was loaded ahead make way for others. */
	ready = dirty + p->ahead_blocks;
	ready = total - (ready < total ? ready : total);
	return ready >= wanted ? 0 : wanted - ready < dirty ? wanted - ready : dirty;
}

/* How many of the coldest are to be clean. */
static uint64_t coldest_wanted(const struct cache *c, const struct pool *p, uint64_t total)
{
	const uint64_t room = total - (p->blocks < total ? p->blocks : total), wanted = total * c->options.spill_share_milli / 1000;

	return room < wanted ? wanted - room : 0;
}

static bool spillable(const struct cache *c, const struct block *b)
{
	return b->shelf && !b->rack && !b->moving && block_live(b) && (c->tier->all || !b->unworthy);
}

static bool gather_dirty(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);
	struct pool *p = arg;

	if (p->cold_count < POOL_COLD && !b->rack && !b->moving && !b->unworthy)
		p->cold[p->cold_count++] = n->id;
	return p->cold_count == POOL_COLD;
}

/* Of the first `scan` in the order in which they would go. */
static void gather_cold(struct cache *c, struct pool *p, uint32_t scan)
{
	uint32_t looked = 0;

	for (const struct policy_node *n = p->refused; n && looked < scan && !gather_dirty(n, p); n = n->next)
		looked++;
	if (p->cold_count < POOL_COLD && looked < scan)
		policy_look(c->policy, p->policy, gather_dirty, p, scan - looked);
}

/* The coldest, as of a while ago: what memory gives up next had better be on a disk by then. NULL: none is known. */
static struct block *coldest_dirty(struct cache *c, struct pool *p, uint32_t scan)
{
	/* A search that found little is not repeated at once, but for a longer one. */
	if (p->cold_at == p->cold_count &&
	    (p->cold_count >= POOL_COLD / 8 || c->now_us - p->cold_us >= COLD_EVERY_US || scan > p->cold_scan)) {
		p->cold_us = c->now_us;
		p->cold_scan = scan;
		p->cold_at = p->cold_count = 0;
		gather_cold(c, p, scan);
	}
	while (p->cold_at < p->cold_count) {
		struct block *b = by_id_find(c, p->cold[p->cold_at++]);

		if (b && b->pool == p && spillable(c, b))
			return b;
	}
	return NULL;
}

/* At most disk_depth of them: `excess` of whatever is dirty, and the dirty ones of the coldest `cold`. BUSY: the disks take no more now;
 * else what is not OK: they have no place for its blocks. */
static enum status spill_some(struct cache *c, struct pool *p, uint64_t excess, uint64_t cold)
{
	uint32_t budget = LOOK_BLOCKS, most = c->options.disk_depth;
	bool round = false;

	while (most && p->dirty && budget) {
		struct block *b = coldest_dirty(c, p, excess || cold > COLD_SCAN ? COLD_SCAN : (uint32_t)cold);
		const bool is_cold = b;
		enum status s;

		if (!b && !excess)
			break;
		if (!b)
			b = unwritten_walk_next(&p->spills, &budget);
		if (!b) {
			if (!budget || round)
				break;
			round = true;
			unwritten_walk_begin(&p->spills, p);
			continue;
		}
		if (!spillable(c, b))
			continue;
		if (!c->tier->all && spot_denied(c, b)) {
			cache_count(c, COUNTER_REFUSED_DISK, 1);
			block_unworthy(b, true);
			most--;
			excess -= excess > 0;
			continue;
		}
		s = spill_begin(c, b, RING_IDLE, NULL);
		if (s) {
			p->cold_at -= is_cold; /* it is the next one again */
			if (!is_cold)
				unwritten_walk_back(&p->spills);
			return s;
		}
		most--;
		excess -= excess > 0;
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

/* When the disks have enough, who got nothing is the first to be served next time; else who comes behind him who got the last. */
bool spill_pump(struct cache *c)
{
	const uint32_t first = c->tier ? c->tier->spill_first : 0;
	struct host_usage u;
	bool place = false;

	if (!c->tier || c->tier->stopping || !c->tier->restored)
		return true;
	if (!room_for_spills(c->tier, c->options.disk_depth))
		return any_sound(c->tier);
	CRASH_POINT("spill_pump");
	host_usage(c->host, &u);
	for (uint32_t i = 0; i < c->pool_count; i++) {
		const uint32_t at = (first + i) % c->pool_count;
		struct pool *p = c->pools[at];
		const uint64_t total = p->dirty ? slots_of(p, &u) : 0;
		const uint64_t over = p->dirty ? excess(c, p, total) : 0, cold = p->dirty ? coldest_wanted(c, p, total) : 0;
		const uint32_t before = c->tier->move_count;
		const enum status s = over || cold ? spill_some(c, p, over, cold) : STATUS_EXHAUSTED;

		if (s == STATUS_BUSY) {
			c->tier->spill_first = at + (c->tier->move_count > before);
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

bool spill_hurry(struct cache *c, struct pool *p)
{
	const uint64_t unworthy = p->unworthy;
	bool under_way;

	if (!c->tier || c->tier->stopping || !c->tier->restored)
		return false;
	under_way = spill_some(c, p, HURRIED, 0) == STATUS_MISS; /* a slab is being made for them */
	for (uint32_t i = 0; i < c->tier->unit_count; i++)
		under_way |= is_spilling(&c->tier->units[i]);
	return under_way || p->unworthy > unworthy;
}
