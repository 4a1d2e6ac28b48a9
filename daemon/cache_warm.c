/* Warm: what a lease would find is brought to where it would want it, and nothing is held. */
#include "daemon/cache_admit.h"
#include "daemon/cache_tier.h"

#include <stdlib.h>

enum {
	AHEAD_OF = 256,                /* a call for so many keys, or more, */
	AHEAD_SHARE = 4,               /* begins with a quarter of them before it looks for the others, */
	AHEAD_KEYS = 256,              /* but no more than so many, */
	AHEAD_BYTES = 32 << 20,        /* of so many bytes */
};

/* All that an earlier step began has come, and is there still: nobody need be looked for again. */
static bool warm_came(const struct admission *a)
{
	const struct cache_wait *w = a->wait;
	uint32_t there = 0;

	if (!w || !w->warmed || w->shed || w->worst || w->outstanding)
		return false;
	/* What came to a GPU is pinned since. */
	if (a->want.gpu && w->warmed_since == a->cache->pinned_lost)
		return w->linked == w->warmed_links;
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
	const uint64_t since = a->ahead ? w->warmed_since : a->cache->pinned_lost;
	const bool first = w && !w->stage, wait = (c->tier || c->vram) && wait_wanted(w);
	uint64_t gpu_bytes;

	*blocks = admit_prefix(a, a->keys->count, wait, l);
	admit_trim(a->pools, a->layouts, *blocks, &a->want, l, &gpu_bytes);
	if (!wait || !bring_begin(a, *blocks, l->block, RING_AHEAD, true))
		return STATUS_OK;
	w->warmed = first ? *blocks : 0;
	w->warmed_links = 0;
	w->warmed_since = since;
	for (uint32_t i = 0; i < *blocks * a->layouts; i++)
		w->warmed_links += l->block[i] != NULL;
	return STATUS_BUSY;
}

/* How many of its keys: the first ones of a prefix may be nobody's in a layout with a window. */
static uint32_t ahead_keys(const struct admission *a)
{
	uint64_t bytes = 0;
	uint32_t n = a->keys->count / AHEAD_SHARE;

	for (uint32_t i = 0; i < a->layouts; i++) {
		if (a->pools[i]->layout.window)
			return 0;
		bytes += a->pools[i]->geometry.block_bytes;
	}
	if (n > AHEAD_KEYS)
		n = AHEAD_KEYS;
	if (n > AHEAD_BYTES / bytes)
		n = (uint32_t)(AHEAD_BYTES / bytes);
	return a->keys->count < AHEAD_OF ? 0 : n;
}

/* Without the lock: the first copies of a long call begin before it looks for its other blocks. How many keys it has found for that; if they have
 * begun, the call's wait does not end until it goes on, and the mover knows that more comes. */
static uint32_t warm_ahead(struct admission *a, uint64_t session, struct gpu *gpu, uint64_t now_us, struct lease *l)
{
	const struct cache_keys *k = a->keys;
	const uint32_t more = ahead_keys(a);
	const char *why;
	uint32_t n = 0;
	bool come = false;

	if (!more || !a->wait || a->wait->last || a->wait->links)
		return 0;
	for (; !come && n < k->count / 2; n += more) { /* a prefix leaves a GPU from its end */
		const struct cache_keys next = { k->bytes + (size_t)n * k->key_bytes, more, k->key_bytes };
		struct block **found = l->block + (size_t)n * a->layouts;

		blocks_find(a->cache, a->pools, a->layouts, &next, found);
		come = vram_some_come(a->cache, more * a->layouts, found);
	}
	if (!come)
		return n;
	cache_lock(a->cache);
	cache_time(a->cache, now_us);
	a->want = (struct vram_want){ .gpu = gpu };
	if (session_get(a->cache, session, &why) && !gpu->lost) {
		a->wait->warmed_since = a->cache->pinned_lost;
		a->wait->outstanding += bring_ahead(a, n, l);
	}
	cache_unlock(a->cache);
	return n;
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
	uint32_t ahead = 0;
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
	if (!w || !w->stage) {
		expecting = vram_find_last(c, gpu, pools, layouts, k, l->block);
		ahead = expecting ? warm_ahead(&a, session, expecting, now_us, l) : 0;
		expecting = vram_find_rest(c, expecting, gpu, pools, layouts, k, ahead, l->block);
	} else if (found) {
		blocks_find(c, pools, layouts, k, l->block);
	}
	cache_lock(c);
	cache_time(c, now_us);
	if (a.ahead)
		w->outstanding--;
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
	/* If some of what has begun has failed already, all of it is waited for first. */
	for (; status == STATUS_BUSY && (!wait_goes_on(w) || (a.ahead && !w->shed)); a.ahead = 0, found = false) {
		if (!found)
			blocks_find(c, pools, layouts, k, l->block);
		status = warm_step(&a, l, blocks);
	}
	if (a.coming)
		vram_more_came(expecting);
	cache_unlock(c);
	vram_brought(expecting);
	index_read_unlock();
	free(l);
	return status;
}
