/* Which blocks are spilled, and when: in the background, so that what must leave memory is on disk already.
 *
 * A share of the host tier (spill_share) is to be free, not yet made, or *clean*: on disk too. What is missing to that is spilled: the
 * coldest, of which a search finds some from time to time; between, in the order of the slots, which is about the order of the puts. What is
 * dropped for lack of a clean victim (a slow disk, a storm of puts) is counted as shed: memory never waits for a disk.
 */
#include "daemon/cache_advice.h"
#include "daemon/cache_tier.h"
#include "store/crash_point.h"

enum {
	LOOK_SLOTS = 2048,             /* at a time, in one pool */
	COLD_SCAN = 2048,              /* nodes */
	COLD_EVERY_US = 50 * 1000,
};

/* Dirty blocks that are too many in this pool. */
static uint64_t excess(struct cache *c, const struct pool *p, const struct host_usage *u)
{
	uint64_t spare = u->budget_bytes > u->extent_bytes ? (u->budget_bytes - u->extent_bytes) / p->geometry.slot_bytes : 0;
	uint64_t total = spare, ready;

	for (const struct shelf *s = p->shelves; s; s = s->next)
		total += s->draining ? 0 : s->slots;
	/* What is not to be spilled is as good as clean: it is dropped when its place is wanted. */
	const uint64_t dirty = p->dirty > p->unworthy ? p->dirty - p->unworthy : 0;

	if (c->tier->all)
		return p->dirty;
	/* Nor does what was loaded ahead make way for others. */
	ready = dirty + p->ahead_blocks;
	ready = total - (ready < total ? ready : total);
	const uint64_t wanted = total * c->options.spill_share_milli / 1000;

	return ready >= wanted ? 0 : wanted - ready < dirty ? wanted - ready : dirty;
}

static bool spillable(const struct cache *c, const struct block *b)
{
	return !b->rack && !b->moving && block_live(b) && (c->tier->all || !b->unworthy);
}

static bool gather_dirty(const struct policy_node *n, void *arg)
{
	const struct block *b = block_of_node(n);
	struct pool *p = arg;

	if (p->cold_count < POOL_COLD && !b->rack && !b->moving && !b->unworthy)
		p->cold[p->cold_count++] = n->id;
	return p->cold_count == POOL_COLD;
}

/* In the order in which they would go. */
static void gather_cold(struct cache *c, struct pool *p)
{
	uint32_t looked = 0;

	for (const struct policy_node *n = p->refused; n && looked < COLD_SCAN && !gather_dirty(n, p); n = n->next)
		looked++;
	if (p->cold_count < POOL_COLD)
		c->policy->victim(p->policy, gather_dirty, p, COLD_SCAN);
}

/* The coldest, as of a while ago: what memory gives up next had better be on a disk by then. NULL: none is known. */
static struct block *coldest_dirty(struct cache *c, struct pool *p)
{
	/* A search that found little is not repeated at once. */
	if (p->cold_at == p->cold_count && (p->cold_count >= POOL_COLD / 8 || c->now_us - p->cold_us >= COLD_EVERY_US)) {
		p->cold_us = c->now_us;
		p->cold_at = p->cold_count = 0;
		gather_cold(c, p);
	}
	while (p->cold_at < p->cold_count) {
		struct block *b = by_id_find(c, p->cold[p->cold_at++]);

		if (b && b->shelf && b->pool == p && spillable(c, b))
			return b;
	}
	return NULL;
}

/* False: the disks take no more now. */
static bool spill_some(struct cache *c, struct pool *p, uint64_t most)
{
	uint32_t budget = LOOK_SLOTS;
	bool round = false;

	while (most && p->dirty && budget) {
		struct block *b = coldest_dirty(c, p);
		const bool cold = b;
		enum status s;

		if (!b)
			b = shelf_next_block(p, &p->spill_extent, &p->spill_slot, &budget);
		if (!b) {
			if (!budget || round)
				break;
			round = true;
			p->spill_extent = p->spill_slot = 0;
			continue;
		}
		if (!spillable(c, b))
			continue;
		if (!c->tier->all && rack_refuses(c, b)) {
			cache_count(c, COUNTER_REFUSED_DISK, 1);
			block_unworthy(b, true);
			most--;
			continue;
		}
		s = spill_begin(c, b, RING_IDLE, NULL);
		if (s) {
			p->spill_slot -= !cold && p->spill_slot > 0; /* it is the next one again */
			p->cold_at -= cold;
			return false;
		}
		most--;
	}
	return true;
}

static bool room_for_spills(const struct tier *t, uint32_t depth)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (!t->units[i].failed && t->units[i].spilling < depth)
			return true;
	return false;
}

void spill_pump(struct cache *c)
{
	struct host_usage u;

	if (!c->tier || c->tier->stopping || !c->tier->restored || !room_for_spills(c->tier, c->options.disk_depth))
		return;
	CRASH_POINT("spill_pump");
	host_usage(c->host, &u);
	for (uint32_t i = 0; i < c->pool_count; i++) {
		struct pool *p = c->pools[i];
		uint64_t most = p->dirty ? excess(c, p, &u) : 0;

		if (most > c->options.disk_depth)
			most = c->options.disk_depth;
		if (most && !spill_some(c, p, most))
			return;
	}
}
