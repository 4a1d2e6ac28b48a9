/* Which blocks of the graph exist. Messages tell the advisor each block that comes or leaves. But blocks that a restart
 * takes up send none, and messages without room in the mailbox are lost. After such a loss the advisor checks all
 * nodes, some at each pass, while new messages come. A block without a node gets no node: there may be many times more
 * blocks than nodes, and the graph knows nothing of such a block.
 */
#include "daemon/advice/graph.h"
#include "daemon/block/by_id.h"
#include "daemon/block/lock.h"
#include "daemon/disk/state.h"
#include "eviction/graph_edges.h"

#include <stdatomic.h>

/* A look is for one node in one pool. */
enum {
	LOOKS_A_PASS = 1 << 15,        /* some ms */
	LOOKS_A_HOLD = 512,            /* of the cache's lock */
};

static bool is_there(const struct cache *c, uint64_t name)
{
	for (uint32_t i = 0; i < c->pool_count; i++)
		if (by_id_find(c, policy_id(name, c->pools[i]->layout_id)))
			return true;
	return false;
}

/* 1 at least. */
static uint32_t pools_now(struct cache *c)
{
	uint32_t pools;

	cache_lock(c);
	pools = c->pool_count;
	cache_unlock(c);
	return pools ? pools : 1;
}

/* True: all have been looked at. */
static bool look_at_nodes(struct cache *c, struct advisor *a)
{
	struct graph_node_record n[LOOKS_A_HOLD];
	const uint32_t pools = pools_now(c), most = pools < LOOKS_A_HOLD ? LOOKS_A_HOLD / pools : 1;
	bool there[LOOKS_A_HOLD], more = true;

	for (uint32_t looks = 0; more && looks < LOOKS_A_PASS; looks += most * pools) {
		uint32_t count = 0;

		while (count < most && (more = graph_edges_next_node(a->graph, a->latest_us, &a->look.node, &n[count])))
			count++;
		cache_lock(c);
		for (uint32_t i = 0; i < count; i++)
			there[i] = is_there(c, n[i].id);
		cache_unlock(c);
		for (uint32_t i = 0; i < count; i++)
			graph_edges_mark(a->graph, n[i].id, there[i]);
	}
	return !more;
}

static bool has_cause(struct cache *c, struct advisor *a, uint64_t dropped)
{
	bool restored;

	if (dropped == a->look.dropped && !atomic_load(&a->unseen))
		return false;
	cache_lock(c);
	restored = !c->tier || c->tier->restored;
	cache_unlock(c);
	return restored;
}

void live_pass(struct cache *c, struct advisor *a, uint64_t dropped)
{
	if (!a->look.on && has_cause(c, a, dropped)) {
		atomic_store(&a->unseen, false);
		a->look = (struct live_look){ .on = true, .dropped = dropped };
	}
	if (a->look.on)
		a->look.on = !look_at_nodes(c, a);
}
