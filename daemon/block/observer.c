/* Each kind of news goes to the listeners of its row, until the NULL that ends it. */
#include "daemon/block/observer.h"

#include "daemon/block/lock.h"

#define TELL(c, news, ...) \
	do { \
		for (uint32_t i_ = 0; (c)->observers->news[i_]; i_++) \
			(c)->observers->news[i_](__VA_ARGS__); \
	} while (0)

void observe_stored(struct cache *c, const struct block *b)
{
	TELL(c, stored, c, b);
}

void observe_moved(struct cache *c, const struct block *b)
{
	TELL(c, moved, c, b);
}

void observe_removed(struct cache *c, const struct block *b, enum cache_reason reason)
{
	TELL(c, removed, c, b, reason);
}

void observe_listed(struct cache *c, const struct block *b, bool in)
{
	TELL(c, listed, c, b, in);
}

void observe_left(struct cache *c, uint64_t id, const struct policy_node *n, enum eviction_tier tier,
		  enum eviction_reason reason)
{
	TELL(c, left, c, id, n, tier, reason);
}

void observe_soon(const struct cache *c, uint64_t id, bool gpu)
{
	TELL(c, soon, c, id, gpu);
}

void observe_came_back(struct cache *c, uint64_t id, bool gpu)
{
	TELL(c, came_back, c, id, gpu);
}

void observe_prefetch_ended(struct cache *c, struct block *b, enum counter how)
{
	TELL(c, prefetch_ended, c, b, how);
}

void observe_gpu_prefetch_ended(struct cache *c, struct vram_slot *s, enum counter how)
{
	TELL(c, gpu_prefetch_ended, s, how);
}

void observe_copies_failed(struct cache *c, const struct gpu *g)
{
	TELL(c, copies_failed, c, g);
}

void observe_load_ended(struct cache *c, struct block *b, enum status s)
{
	TELL(c, load_ended, c, b, s);
}

void observe_memory_spare(struct cache *c)
{
	TELL(c, memory_spare, c);
}

void observe_copies_ended(struct cache *c)
{
	TELL(c, copies_ended, c);
}

void observe_extent_added(struct cache *c)
{
	TELL(c, extent_added, c);
}

void observe_requests_due(struct cache *c, uint32_t keys)
{
	TELL(c, requests_due, c, keys);
}

void observe_uses_due(struct cache *c)
{
	TELL(c, uses_due, c);
}

void observe_policy_made(struct cache *c, const struct learner *l)
{
	TELL(c, policy_made, c, l);
}
