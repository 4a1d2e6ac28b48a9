/* Warm: finds what a lease would find, brings it to where a lease would want it, and holds nothing. */
#include "daemon/call/warm.h"

#include "daemon/block/block.h"
#include "daemon/block/grid.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/call/admission.h"
#include "daemon/call/arrival.h"
#include "daemon/session/lease.h"
#include "daemon/session/session.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/state.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <stdlib.h>

enum {
	PREFETCH_OF = 256,             /* a call for so many keys, or more, */
	PREFETCH_SHARE = 4,            /* the first quarter of the keys begins before the others are searched, */
	PREFETCH_KEYS = 256,           /* but no more than so many, */
	PREFETCH_BYTES = 32 << 20,     /* of so many bytes */
};

/* Whether everything that an earlier step began has come and is still there: no new search is needed. */
static bool warm_came(const struct admission *a)
{
	const struct cache_wait *w = a->wait;
	uint32_t there = 0;

	if (!w || !w->warmed || w->shed || w->worst || w->outstanding)
		return false;
	/* What came to a GPU has been pinned since. */
	if (a->want.gpu && w->warmed_since == a->cache->pinned_lost)
		return w->linked == w->warmed_links;
	for (const struct cache_wait_link *l = w->links; l; l = l->next) {
		if (l->next && l->next->pinned)
			block_hint(l->next->pinned);
		if (!l->pinned || !block_live(l->pinned) || !vram_placed(l->pinned, &a->want))
			return false;
		there++;
	}
	return there == w->warmed_links;
}

/* One search: *blocks is the keys of the prefix; BUSY if loads of some of it are under way. */
static enum status warm_step(struct admission *a, struct lease *l, uint32_t *blocks)
{
	struct cache *c = a->cache;
	struct cache_wait *w = a->wait;
	const uint64_t since = a->prefetched ? w->warmed_since : a->cache->pinned_lost;
	const bool first = w && !w->stage, wait = (c->tier || c->vram || c->sources_by_name) && wait_wanted(w);
	uint64_t gpu_bytes;
	bool comes;

	*blocks = admit_prefix(a, a->keys->count, wait, l);
	comes = wait && c->sources_by_name && !a->local && *blocks < a->keys->count && arrivals_begin(a, l);
	admit_trim(a, *blocks, l, &gpu_bytes);
	if ((!wait || !bring_begin(a, *blocks, l->block, RING_PREFETCH, true)) && !comes)
		return STATUS_OK;
	w->warmed = first && !comes ? *blocks : 0; /* what arrives makes the prefix longer */
	w->warmed_links = 0;
	w->warmed_since = since;
	for (uint32_t i = 0; i < *blocks * a->layouts; i++)
		w->warmed_links += l->block[i] != NULL;
	return STATUS_BUSY;
}

/* How many keys to begin with early. 0 with a windowed layout or a grid: a prefix there may not need its first
 * blocks. */
static uint32_t prefetch_keys(const struct admission *a)
{
	uint64_t bytes = 0;
	uint32_t n = a->keys->count / PREFETCH_SHARE;

	if (a->keys->grid)
		return 0;
	for (uint32_t i = 0; i < a->layouts; i++) {
		if (a->pools[i]->layout.window)
			return 0;
		bytes += a->pools[i]->geometry.block_bytes;
	}
	if (n > PREFETCH_KEYS)
		n = PREFETCH_KEYS;
	if (n > PREFETCH_BYTES / bytes)
		n = (uint32_t)(PREFETCH_BYTES / bytes);
	return a->keys->count < PREFETCH_OF ? 0 : n;
}

/* Without the lock: begins the first copies of a long call before its other blocks are searched. Returns how many keys
 * it found for that. If copies have begun, the call's wait does not end until the call goes on, and the submission
 * thread knows that more follow. */
static uint32_t warm_prefetch(struct admission *a, uint64_t session, struct gpu *gpu, uint64_t now_us, struct lease *l)
{
	const struct cache_keys *k = a->keys;
	const uint32_t more = prefetch_keys(a);
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
		a->wait->outstanding += bring_prefetch(a, n, l);
	}
	cache_unlock(a->cache);
	return n;
}

/* Begins the copies of the first keys by warm_prefetch, then finds all blocks. Returns the GPU whose submission thread
 * has been told that more copies follow, or NULL. */
static struct gpu *warm_begin(struct admission *a, const struct cache_warm_call *q, struct lease *l)
{
	const struct vram_search search = { q->gpu, a->pools, a->layouts, a->keys, l->block };
	struct gpu *g = vram_find_last(a->cache, &search);
	const uint32_t found = g ? warm_prefetch(a, q->session, g, q->now_us, l) : 0;

	return vram_find_rest(a->cache, &search, g, found);
}

/* Steps until something begun must be waited for. found: the blocks have just been searched. If a copy that
 * warm_prefetch began has failed, all of its copies are waited for first. */
static enum status warm_steps(struct admission *a, struct lease *l, bool found, uint32_t *blocks)
{
	struct cache_wait *w = a->wait;
	enum status s = STATUS_BUSY;

	if (warm_came(a)) {
		*blocks = w->warmed;
		return STATUS_OK;
	}
	if (a->prefetched)
		*blocks = a->prefetched;
	for (; s == STATUS_BUSY && (!wait_goes_on(w) || (a->prefetched && !w->shed)); a->prefetched = 0,
	    found = false) {
		if (!found)
			blocks_find(a->cache, a->pools, a->layouts, a->keys, l->block);
		s = warm_step(a, l, blocks);
	}
	return s;
}

/* As cache_lease: checks without the lock, then in one read section the search without the lock and the steps under it.
 * The record of a lease is used as the list of blocks and freed in the end. */
enum status cache_warm(struct cache *c, const struct cache_warm_call *q, struct cache_wait *w, uint32_t *blocks,
		       const char **why)
{
	const struct cache_on on = { .gpu = q->gpu };
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct grid grid;
	uint32_t layouts = session_shape(c, q->session, pools, &grid);
	const struct cache_keys with_grid = keys_on(q->keys, layouts ? &grid : NULL), *k = &with_grid;
	struct admission a = { .cache = c, .pools = pools, .layouts = layouts, .keys = k, .wait = w, .ahead = true };
	const bool found = !w || !w->warmed;
	struct gpu *announced = NULL;
	enum status status;
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
		announced = warm_begin(&a, q, l);
	else if (found)
		blocks_find(c, pools, layouts, k, l->block);
	cache_lock(c);
	cache_time(c, q->now_us);
	if (a.prefetched)
		w->outstanding--;
	s = session_get(c, q->session, why);
	if (s) {
		session_on_gpu(s, q->gpu);
		a.local = s->local;
		a.tokens_a_second = s->tokens_a_second;
	}
	status = admit_want(&a, &on, why);
	a.want.may_begin = false;
	if (!status)
		status = warm_steps(&a, l, found, blocks);
	if (a.coming)
		vram_more_ended(announced);
	cache_unlock(c);
	vram_call_ended(announced);
	index_read_unlock();
	free(l);
	return status;
}
