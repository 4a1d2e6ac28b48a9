/* Warm: what a lease would find is brought to where it would want it, and nothing is held. */
#include "daemon/cache_admit.h"
#include "daemon/cache_tier.h"

#include <stdlib.h>

/* All that an earlier step began has come, and is there still: nobody need be looked for again. */
static bool warm_came(const struct admission *a)
{
	const struct cache_wait *w = a->wait;
	uint32_t there = 0;

	if (!w || !w->warmed || w->shed || w->worst || w->outstanding)
		return false;
	for (const struct cache_wait_link *l = w->links; l; l = l->next) {
		if (l->next && l->next->pinned)
			block_fetch_ahead(l->next->pinned);
		if (!l->pinned || !block_live(l->pinned) || !vram_placed(l->pinned, &a->want))
			return false;
		there++;
	}
	return there == w->warmed_links;
}

/* One look at what was found: the keys of the prefix; BUSY if loads of some of it are under way. */
static enum status warm_step(struct admission *a, struct lease *l, uint32_t *blocks)
{
	struct cache *c = a->cache;
	struct cache_wait *w = a->wait;
	const bool first = w && !w->stage, wait = (c->tier || c->vram) && wait_wanted(w);
	uint64_t gpu_bytes;

	*blocks = admit_prefix(a, a->keys->count, wait, l);
	admit_trim(a->pools, a->layouts, *blocks, &a->want, l, &gpu_bytes);
	if (!wait || !bring_begin(a, *blocks, l->block, RING_AHEAD, true))
		return STATUS_OK;
	w->warmed = first ? *blocks : 0;
	w->warmed_links = 0;
	for (uint32_t i = 0; i < *blocks * a->layouts; i++)
		w->warmed_links += l->block[i] != NULL;
	return STATUS_BUSY;
}

enum status cache_warm(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
		       struct cache_wait *w, uint32_t *blocks, const char **why)
{
	return cache_warm_on(c, session, k, CACHE_HOST, now_us, w, blocks, why);
}

enum status cache_warm_on(struct cache *c, uint64_t session, const struct cache_keys *k, int32_t gpu, uint64_t now_us,
			  struct cache_wait *w, uint32_t *blocks, const char **why)
{
	const struct cache_on on = { .gpu = gpu };
	struct pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = session_pools(c, session, pools);
	struct admission a = { .cache = c, .pools = pools, .layouts = layouts, .keys = k, .wait = w };
	enum status status = STATUS_BUSY, refused;
	bool found = !w || !w->warmed;
	struct gpu *expecting = NULL;
	struct session *s;
	struct lease *l;

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return STATUS_NOT_FOUND;
	*why = cache_keys_problem(k, layouts);
	if (*why)
		return STATUS_INVALID;
	*why = "no memory for the call";
	l = lease_alloc(k->count * layouts);
	if (!l)
		return STATUS_EXHAUSTED;
	index_read_lock();
	if (!w || !w->stage)
		expecting = vram_find(c, gpu, pools, layouts, k, l->block);
	else if (found)
		blocks_find(c, pools, layouts, k, l->block);
	cache_lock(c);
	cache_time(c, now_us);
	s = session_get(c, session, why);
	if (s)
		session_on_gpu(s, gpu);
	refused = admit_want(c, &on, &a.want, why);
	if (refused)
		status = refused;
	a.want.may_begin = false;
	if (status == STATUS_BUSY && warm_came(&a)) {
		*blocks = w->warmed;
		status = STATUS_OK;
	}
	for (; status == STATUS_BUSY && !wait_goes_on(w); found = false) {
		if (!found)
			blocks_find(c, pools, layouts, k, l->block);
		status = warm_step(&a, l, blocks);
	}
	cache_unlock(c);
	vram_brought(expecting);
	index_read_unlock();
	free(l);
	return status;
}
