/* Reading ahead: of what the advisor expects after a request, the blocks that are on a disk alone are loaded, behind everything that
 * somebody waits for, and no more than prefetch_bytes a second.
 */
#include "daemon/cache_advice_graph.h"
#include "daemon/cache_tier.h"

/* A quarter of a second's worth may be saved up, or one block. */
static bool budget_has(struct cache *c, uint64_t bytes)
{
	struct advice *a = c->advice;
	uint64_t rate = c->options.prefetch_bytes, most = rate / 4 > bytes ? rate / 4 : bytes;
	uint64_t passed = c->now_us - a->ahead_us;

	/* What a second brings is more than may be saved. */
	a->ahead_bytes += passed < 1000000 ? rate * passed / 1000000 : rate;
	a->ahead_us = c->now_us;
	if (a->ahead_bytes > most)
		a->ahead_bytes = most;
	if (a->ahead_bytes < bytes)
		return false;
	a->ahead_bytes -= bytes;
	return true;
}

/* A full pool gives up what it would give up for a put of the same block. */
static bool deserves_room(struct cache *c, const struct block *b)
{
	const struct policy_event e = { .now_us = c->now_us, .id = b->node.id, .tokens = b->tokens };

	if (b->pool->free_slots > 0)
		return true;
	return b->pool->evictable && !room_keeps_out(c, b->pool, &e);
}

/* False: no more for this request. */
static bool prefetch(struct cache *c, struct block *b)
{
	const uint64_t bytes = b->pool->geometry.slot_bytes;

	if (!deserves_room(c, b)) {
		cache_count(c, COUNTER_AHEAD_NO_ROOM, 1);
		return true;
	}
	if (!budget_has(c, bytes)) {
		cache_count(c, COUNTER_AHEAD_NO_BUDGET, 1);
		return false;
	}
	if (load_begin(c, b, RING_AHEAD, NULL)) {
		cache_count(c, COUNTER_AHEAD_NO_DISK, 1);
		return false;
	}
	b->ahead = true;
	cache_count(c, COUNTER_AHEAD_BYTES, bytes);
	return true;
}

static bool asked_for(const struct request *r, uint64_t name)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->name[i] == name)
			return true;
	return false;
}

void prefetch_for(struct cache *c, const struct request *r)
{
	const struct advice_list *l;

	if (!c->tier || !c->options.prefetch_bytes || c->tier->stopping || r->kind == REQUEST_REPORT)
		return;
	l = advisor_list(c, r);
	for (uint32_t i = 0; l && i < l->count; i++) {
		if (asked_for(r, l->name[i]))
			continue;
		for (uint32_t p = 0; p < r->layouts; p++) {
			struct block *b = by_id_find(c, policy_id(l->name[i], r->pool[p]->layout_id));

			if (b && !b->shelf && b->rack && !b->moving && !prefetch(c, b))
				return;
		}
	}
}
