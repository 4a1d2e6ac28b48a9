/* Leases. Finding is lock-free and comes first; then, in one hold of the lock, which is the one admission
 * step: what is still alive is counted as present, the prefix is computed, the tenant's bound is checked,
 * and the blocks are pinned. So two leases never hold half each and wait for one another.
 *
 * If some of the prefix is on disk only, a first step pins what memory has of it and begins the loads, both in the name of the
 * call's wait; the lease itself is admitted by the step that finds everything in memory.
 */
#include "daemon/cache_advice.h"
#include "daemon/cache_tier.h"

#include <stdlib.h>

struct lease *lease_alloc(uint32_t blocks)
{
	struct lease *l = malloc(sizeof(*l) + blocks * sizeof(l->block[0]));

	if (l)
		*l = (struct lease){ .count = 0 };
	return l;
}

bool lease_fits(const struct cache *c, uint64_t more_bytes)
{
	const struct tenant *t = &c->tenant;

	/* Moves pin blocks too; that is not the tenant's doing. */
	return t->pinned_bytes + t->reserved_bytes + more_bytes <=
	       c->options.pinned_bytes_max + (c->tier ? c->tier->moving_bytes : 0);
}

enum status lease_record(struct cache *c, struct session *s, struct lease *l, uint64_t now_us)
{
	l->id = tickets_give(&c->leases, l);
	if (!l->id)
		return STATUS_EXHAUSTED;
	l->session = s;
	l->session_number = s->number;
	l->prev = NULL;
	l->next = s->leases;
	if (s->leases)
		s->leases->prev = l;
	s->leases = l;
	for (uint32_t i = 0; i < l->count; i++)
		l->bytes += block_pool(l->block[i])->geometry.slot_bytes;
	s->held_slots += l->count;
	s->held_bytes += l->bytes;
	aging_add(&c->lease_age, &l->aging, now_us);
	cache_count(c, COUNTER_LEASES, 1);
	cache_count(c, COUNTER_LEASED_BLOCKS, l->count);
	return STATUS_OK;
}

void lease_end(struct cache *c, struct lease *l)
{
	struct session *s = l->session;

	if (l->prev)
		l->prev->next = l->next;
	else
		s->leases = l->next;
	if (l->next)
		l->next->prev = l->prev;
	s->held_slots -= l->count;
	s->held_bytes -= l->bytes;
	aging_remove(&c->lease_age, &l->aging);
	tickets_drop(&c->leases, l->id);
	for (uint32_t i = 0; i < l->count; i++)
		block_unpin(l->block[i]);
	free(l);
}

/* l->block holds what was found, [key][layout]; dead ones become NULL, and those that are on disk only unless they may be
 * waited for. */
static uint32_t admit_prefix(struct pool *const *pools, uint32_t layouts, uint32_t keys, bool disk, struct lease *l)
{
	struct prefix_run run;
	struct prefix p;

	prefix_begin(&p, keys);
	for (uint32_t j = 0; j < layouts; j++) {
		prefix_layout(&run, pools[j]);
		for (uint32_t i = 0; i < keys; i++) {
			struct block **b = &l->block[(size_t)i * layouts + j];

			if (*b && (!block_live(*b) || !((*b)->shelf || disk)))
				*b = NULL;
			prefix_feed(&p, &run, *b);
		}
	}
	return prefix_longest(&p);
}

/* Leaves only what a lease of the first n keys uses; the bytes that pinning it would add. */
static uint64_t admit_trim(struct pool *const *pools, uint32_t layouts, uint32_t n, struct lease *l)
{
	struct prefix_run run;
	uint64_t bytes = 0;

	for (uint32_t j = 0; j < layouts; j++) {
		prefix_layout(&run, pools[j]);
		for (uint32_t i = 0; i < n; i++) {
			struct block **b = &l->block[(size_t)i * layouts + j];

			if (i < prefix_first(n, run.need))
				*b = NULL;
			if (*b)
				bytes += block_pin_bytes(*b);
		}
	}
	return bytes;
}

/* Pins, writes the places, packs l->block, and tells the policy. */
static void admit_pin(struct cache *c, uint32_t blocks, struct lease *l, struct cache_place *places)
{
	for (uint32_t i = 0; i < blocks; i++) {
		struct block *b = l->block[i];

		if (!b) {
			place_none(&places[i]);
			continue;
		}
		block_pin(b);
		block_place(b, &places[i]);
		l->block[l->count++] = b;
	}
	for (uint32_t i = l->count; i > 0; i--)
		block_use(c, l->block[i - 1]);
}

/* Most of what was looked for may not be there: keep no room for it. */
static struct lease *admit_shrink(struct lease *l)
{
	struct lease *smaller = realloc(l, sizeof(*l) + l->count * sizeof(l->block[0]));

	return smaller ? smaller : l;
}

/* Pins in w's name what memory has of n blocks, then begins the loads of the others. False: all of them are in memory. */
static bool fetch(struct cache *c, uint32_t n, struct block **block, enum ring_priority priority, struct cache_wait *w)
{
	uint32_t absent = 0;

	for (uint32_t i = 0; i < n; i++)
		absent += block[i] && !block[i]->shelf;
	if (!absent)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (block[i] && block[i]->shelf && !wait_pin(c, w, block[i]))
			w->shed++;
	for (uint32_t i = 0; i < n; i++)
		if (block[i] && !block[i]->shelf) {
			if (!block[i]->moving)
				block[i]->ahead = false; /* it was not loaded ahead after all */
			w->shed += load_begin(c, block[i], priority, w) != STATUS_OK;
		}
	return true;
}

/* *lp may move; recorded and no longer the caller's when OK. */
static enum status admit(struct cache *c, struct session *s, struct pool *const *pools, uint32_t layouts,
			 uint32_t keys, bool all, struct lease **lp, struct cache_place *places,
			 struct cache_leased *out, struct cache_wait *w, const char **why)
{
	const bool disk = c->tier && wait_wanted(w);
	struct lease *l = *lp;
	uint32_t n = admit_prefix(pools, layouts, keys, disk, l);

	*why = all ? "not every key is present" : "no prefix is present";
	if (n == 0 || (all && n < keys)) {
		cache_count(c, COUNTER_LEASE_MISSES, 1);
		return STATUS_MISS;
	}
	*why = c->leases.used == c->leases.max ? "too many leases"
					       : "too many pinned bytes: release some leases";
	if (c->leases.used == c->leases.max || !lease_fits(c, admit_trim(pools, layouts, n, l))) {
		cache_count(c, COUNTER_LEASE_EXHAUSTED, 1);
		return STATUS_EXHAUSTED;
	}
	if (disk && fetch(c, n * layouts, l->block, RING_URGENT, w))
		return STATUS_BUSY;
	admit_pin(c, n * layouts, l, places);
	l = *lp = admit_shrink(l);
	lease_record(c, s, l, c->now_us);
	*out = (struct cache_leased){ .lease = l->id, .blocks = n, .layouts = layouts };
	return STATUS_OK;
}

/* Once a lease: its first call. In a read section. */
static void lease_ask(struct cache *c, uint64_t session, struct pool *const *pools, uint32_t layouts,
		      const struct cache_keys *k, struct block *const *found)
{
	uint32_t n = k->count;
	uint16_t turn;

	while (n && !found[(size_t)(n - 1) * layouts])
		n--;
	turn = n ? atomic_load_explicit(&found[(size_t)(n - 1) * layouts]->turn, memory_order_relaxed) : 0;
	const struct asking q = { .kind = REQUEST_LEASE, .session = session, .turn = turn_after(turn, n < k->count) };

	advice_ask(c, &q, pools, layouts, k);
}

enum status cache_lease(struct cache *c, uint64_t session, const struct cache_keys *k, bool all,
			uint64_t attachment, uint64_t now_us, struct cache_place *places, uint32_t places_max,
			struct cache_leased *out, struct cache_wait *w, const char **why)
{
	struct pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = session_pools(c, session, pools);
	enum status status = STATUS_NOT_FOUND;
	struct session *s;
	struct lease *l;

	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return status;
	*why = cache_keys_problem(k, layouts);
	if (!*why && (uint64_t)k->count * layouts > places_max)
		*why = "no room for the places";
	if (*why)
		return STATUS_INVALID;
	*why = "the daemon is draining";
	if (cache_draining(c))
		return STATUS_UNAVAILABLE;
	*why = "no memory for the lease";
	l = lease_alloc(k->count * layouts);
	if (!l)
		return STATUS_EXHAUSTED;
	index_read_lock();
	blocks_find(c, pools, layouts, k, l->block);
	if (!w || !w->stage)
		lease_ask(c, session, pools, layouts, k, l->block);
	cache_lock(c);
	s = session_call(c, session, now_us, why);
	advice_read(c, READ_A_CALL);
	if (s) {
		status = STATUS_PRECONDITION;
		*why = attachment_problem(c, s, attachment);
		if (!*why)
			status = wait_goes_on(w) ? STATUS_BUSY : admit(c, s, pools, layouts, k->count, all, &l, places, out, w, why);
		/* Nothing of what was begun is under way: no event would come. */
		while (status == STATUS_BUSY && !w->outstanding) {
			blocks_find(c, pools, layouts, k, l->block);
			status = admit(c, s, pools, layouts, k->count, all, &l, places, out, w, why);
		}
	}
	cache_unlock(c);
	index_read_unlock();
	if (status)
		free(l);
	return status;
}

/* One look: the keys of the prefix; BUSY if loads of some of it are under way. */
static enum status warm_step(struct cache *c, struct pool *const *pools, uint32_t layouts, const struct cache_keys *k,
			     struct lease *l, struct cache_wait *w, uint32_t *blocks)
{
	const bool disk = c->tier && wait_wanted(w);

	blocks_find(c, pools, layouts, k, l->block);
	*blocks = admit_prefix(pools, layouts, k->count, disk, l);
	admit_trim(pools, layouts, *blocks, l);
	return disk && fetch(c, *blocks * layouts, l->block, RING_AHEAD, w) ? STATUS_BUSY : STATUS_OK;
}

enum status cache_warm(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
		       struct cache_wait *w, uint32_t *blocks, const char **why)
{
	struct pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = session_pools(c, session, pools);
	enum status status = STATUS_BUSY;
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
	cache_lock(c);
	cache_time(c, now_us);
	while (status == STATUS_BUSY && !wait_goes_on(w))
		status = warm_step(c, pools, layouts, k, l, w, blocks);
	cache_unlock(c);
	index_read_unlock();
	free(l);
	return status;
}

enum status cache_release(struct cache *c, uint64_t session, uint64_t lease)
{
	enum status status = STATUS_OK;
	struct lease *l;

	cache_lock(c);
	l = tickets_find(&c->leases, lease);
	if (!l) {
		status = STATUS_NOT_FOUND;
	} else if (session && l->session_number != session) {
		status = STATUS_DENIED;
	} else {
		atomic_store_explicit(&l->session->called, true, memory_order_relaxed);
		lease_end(c, l);
		cache_count(c, COUNTER_RELEASES, 1);
	}
	cache_unlock(c);
	return status;
}
