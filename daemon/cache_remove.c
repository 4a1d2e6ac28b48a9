/* Delete: out of sight at once, in every layout; the slot comes back with the last release. */
#include "daemon/cache_private.h"

static enum status remove_key(struct cache *c, struct pool *const *pools, uint32_t layouts,
			      const struct cache_keys *one)
{
	struct block *found[CACHE_LAYOUTS_MAX];
	enum status s = STATUS_MISS;

	index_read_lock();
	blocks_find(c, pools, layouts, one, found);
	cache_lock(c);
	for (uint32_t l = 0; l < layouts; l++)
		if (found[l] && block_live(found[l])) {
			block_remove(c, found[l], CACHE_REASON_DELETED);
			cache_count(c, COUNTER_DELETED, 1);
			s = STATUS_OK;
		}
	cache_unlock(c);
	index_read_unlock();
	return s;
}

enum status cache_delete(struct cache *c, uint64_t session, const struct cache_keys *k, enum status *statuses,
			 const char **why)
{
	struct pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = session_pools(c, session, pools);

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return STATUS_NOT_FOUND;
	*why = cache_keys_problem(k, layouts);
	if (*why)
		return STATUS_INVALID;
	for (uint32_t i = 0; i < k->count; i++) {
		const struct cache_keys one = { k->bytes + (size_t)i * k->key_bytes, 1, k->key_bytes };

		statuses[i] = remove_key(c, pools, layouts, &one);
	}
	return STATUS_OK;
}
