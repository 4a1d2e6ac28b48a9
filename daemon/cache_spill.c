/* Which blocks are spilled, and when: in the background, so that what must leave memory is on disk already.
 *
 * A share of the host tier (spill_share) is to be free, not yet made, or *clean*: on disk too. What is missing to that is spilled, in
 * the order of the slots, which is about the order of the puts; a walk that goes round costs nothing a block, where a list would. What is
 * dropped for lack of a clean victim (a slow disk, a storm of puts) is counted as shed: memory never waits for a disk.
 */
#include "daemon/cache_tier.h"
#include "store/crash_point.h"

enum {
	LOOK_SLOTS = 2048,             /* at a time, in one pool */
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
	ready = total - (dirty < total ? dirty : total);
	const uint64_t wanted = total * c->options.spill_share_milli / 1000;

	return ready >= wanted ? 0 : wanted - ready < dirty ? wanted - ready : dirty;
}

static bool spillable(const struct cache *c, const struct block *b)
{
	return !b->rack && !b->moving && block_live(b) && (c->tier->all || !b->unworthy);
}

/* False: the disks take no more now. */
static bool spill_some(struct cache *c, struct pool *p, uint64_t most)
{
	uint32_t budget = LOOK_SLOTS;
	bool round = false;

	while (most && p->dirty && budget) {
		struct block *b = shelf_next_block(p, &p->spill_extent, &p->spill_slot, &budget);
		enum status s;

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
			p->spill_slot -= p->spill_slot > 0; /* it is the next one again */
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
