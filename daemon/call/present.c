/* See call/present.h. */
#include "daemon/call/present.h"

#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "store/index.h"

uint32_t cache_tenant_layouts(struct cache *c, uint32_t tenant, uint64_t *ids, uint32_t max)
{
	uint32_t n = 0;

	cache_lock(c);
	for (uint32_t i = 0; i < c->pool_count && n < max; i++)
		if (c->pools[i]->tenant->number == tenant)
			ids[n++] = c->pools[i]->layout_id;
	cache_unlock(c);
	return n;
}

void cache_present(struct cache *c, uint32_t tenant, uint64_t layout_id, const struct cache_keys *k, uint8_t *present)
{
	struct index_record *found[FIND_BATCH];

	index_read_lock();
	for (uint32_t at = 0; at < k->count; at += FIND_BATCH) {
		const uint32_t n = k->count - at < FIND_BATCH ? k->count - at : FIND_BATCH;

		index_find_many(c->index, tenant, layout_id, k->bytes + (size_t)at * k->key_bytes, k->key_bytes, n,
				found);
		for (uint32_t i = 0; i < n; i++)
			present[at + i] = found[i] != NULL;
	}
	index_read_unlock();
}
