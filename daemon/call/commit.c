/* Commits: the items are marked under the lock, sealed without it, and all published in one hold of it. A lease of what
 * is stored now is taken in that same hold, so that nothing can be evicted in between.
 */
#include "daemon/call/commit.h"

#include "daemon/advice/graph.h"
#include "daemon/block/block.h"
#include "daemon/block/grid.h"
#include "daemon/block/handle.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/spill.h"
#include "daemon/session/attachment.h"
#include "daemon/session/budget.h"
#include "daemon/session/grants.h"
#include "daemon/session/lease.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

struct commit {
	struct cache *cache;
	const struct cache_commit_call *q;
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	const struct grid *grid;
	struct lease *lease;           /* NULL: none wanted, or it did not fit */
	struct cache_leased leased;
	struct reservation **reservation; /* [items] to publish; NULL: dealt with */
	struct block **published;      /* [items * layouts] */
};

/* The most tokens that the key of the reservation may have. */
static uint32_t tokens_most(const struct commit *m, const struct reservation *r)
{
	return r->open_most ? r->open_most : r->unit ? r->unit : m->pools[0]->layout.block_tokens;
}

/* Whether an open block of that many tokens ends with a unit, and where each of its layouts has a cell. */
static bool open_ends(const struct commit *m, const struct reservation *r, uint32_t tokens)
{
	const uint64_t position = (r->info.position + tokens) / m->grid->unit - 1;

	if (!tokens || tokens % m->grid->unit)
		return false;
	for (uint32_t l = 0; l < r->parts; l++)
		if (r->part[l].block && !grid_has_cell(&m->grid->rule[l], position))
			return false;
	return true;
}

static enum status item_check(const struct commit *m, const struct reservation *r, const struct cache_commit_item *item,
			      struct slot_info *info)
{
	*info = item->info ? *item->info : r->info;
	if (item->tokens)
		info->tokens = item->tokens;
	else if (!info->tokens)
		info->tokens = r->info.tokens;
	if (slot_info_problem(info, tokens_most(m, r), r->unit && !r->open))
		return STATUS_INVALID;
	if (r->unit)
		info->position = r->info.position;
	if (!r->open)
		return item->keep_open || item->key_bytes ? STATUS_INVALID : STATUS_OK;
	if (info->tokens < r->info.tokens) /* an open block only grows */
		return STATUS_INVALID;
	if (item->keep_open)
		return item->key_bytes ? STATUS_INVALID : STATUS_OK;
	if (r->open_most && !open_ends(m, r, info->tokens))
		return STATUS_INVALID;
	return item->key_bytes && item->key_bytes <= SLOT_KEY_MAX && info->tokens ? STATUS_OK
										  : STATUS_INVALID;
}

/* *out: the reservation to seal and publish, or NULL if nothing is left to do for the item. */
static enum status item_begin(struct commit *m, const struct cache_commit_item *item,
			      struct reservation **out)
{
	struct reservation *r = handles_find(&m->cache->grants->reservations, item->reservation);
	struct slot_info info;
	enum status s;

	*out = NULL;
	if (!r || r->stream || r->session->handle != m->q->session)
		return STATUS_NOT_FOUND;
	if (r->committing)
		return STATUS_BUSY;
	s = item_check(m, r, item, &info);
	if (s)
		return s;
	r->info = info;
	if (item->keep_open)
		return STATUS_OK;
	if (r->open) {
		memcpy(r->key, item->key, item->key_bytes);
		r->key_bytes = item->key_bytes;
	}
	r->committing = true;
	*out = r;
	return STATUS_OK;
}

static void lease_give_up(struct commit *m)
{
	lease_unpin(m->lease);
	free(m->lease);
	m->lease = NULL;
}

/* Pins the blocks that are stored under the key now; for blocks that were stored before, this is a use. In a read
 * section. */
static void lease_gather(struct commit *m, const struct reservation *from, struct block *const *published,
			 struct cache_place *places)
{
	for (uint32_t l = 0; m->lease && l < m->layouts; l++) {
		struct index_ident ident;
		struct index_record *r;
		struct block *b;

		block_ident(m->pools[l], from->key, from->key_bytes, &ident);
		r = index_find(m->cache->index, &ident);
		if (!r)
			continue;
		b = block_of(r);
		struct vram_slot *copy = vram_leasable(b, from->gpu);

		if (!b->span && !copy) /* the winner is on disk only, or on another GPU */
			continue;
		if (!copy && block_pin_bytes(b) > pins_free(m->cache, b->pool->tenant)) {
			lease_give_up(m);
			return;
		}
		lease_pin(m->lease, b, copy, false);
		if (b != published[l])
			block_use_on(m->cache, b, copy ? from->gpu : NULL);
		block_place_on(b, copy, &places[l]);
	}
}

/* The lease's blocks are pinned already, so the free bytes do not include them. */
static enum status commit_lease_ask(struct commit *m, const struct session *s)
{
	struct lease *l = m->lease;
	struct quota_wish w[PINS_WISHES];
	uint64_t bytes = 0, gpu_bytes = 0;
	uint32_t count;
	const char *why;

	for (uint32_t i = 0; i < l->count; i++)
		*(lease_on_gpu(l)[i] ? &gpu_bytes : &bytes) += block_pool(l->block[i])->geometry.need_bytes;
	count = pins_wish(m->cache, session_tenant(s), bytes, l->gpu, gpu_bytes, w);
	for (uint32_t i = 0; i < count; i++)
		w[i].free += w[i].n;
	return lease_ask(m->cache, s, w, count, &why);
}

/* Records the lease that the commit asked for, or gives it up. With the lock. */
static void commit_lease(struct commit *m, uint32_t count)
{
	const char *why;
	struct session *s = session_get(m->cache, m->q->session, &why);

	if (m->lease && (!s || !m->lease->count || commit_lease_ask(m, s) || lease_record(m->cache, s, m->lease, m->cache->now_us)))
		lease_give_up(m);
	if (m->lease)
		m->leased = (struct cache_leased){ m->lease->handle, count, m->layouts };
}

static void commit_begin_items(struct commit *m)
{
	cache_lock(m->cache);
	cache_time(m->cache, m->q->now_us);
	for (uint32_t i = 0; i < m->q->count; i++)
		m->q->statuses[i] = item_begin(m, &m->q->items[i], &m->reservation[i]);
	cache_unlock(m->cache);
}

/* Publishes everything that was sealed, in the order of the items. The policy must hear of the deepest block of a chain
 * first. */
static void commit_publish(struct commit *m)
{
	const uint32_t count = m->q->count;
	struct cache *c = m->cache;

	cache_lock(c);
	index_read_lock();
	for (uint32_t i = 0; i < count; i++)
		if (m->reservation[i])
			m->q->statuses[i] = reservation_publish(c, m->reservation[i], c->now_us,
							  &m->published[(size_t)i * m->layouts]);
	for (uint32_t i = count; i-- > 0;)
		for (uint32_t l = 0; m->reservation[i] && l < m->layouts; l++)
			if (m->published[(size_t)i * m->layouts + l])
				block_enter_policy(c, m->published[(size_t)i * m->layouts + l],
						   m->reservation[i]->info.position);
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t l = 0; m->reservation[i] && m->reservation[i]->gpu && l < m->layouts; l++)
			if (m->published[(size_t)i * m->layouts + l] && !m->reservation[i]->session->write_back)
				vram_queue_down(m->published[(size_t)i * m->layouts + l]);
	for (uint32_t i = count; i-- > 0;)
		if (m->reservation[i] && m->lease)
			lease_gather(m, m->reservation[i], &m->published[(size_t)i * m->layouts],
				     &m->q->places[(size_t)i * m->layouts]);
	for (uint32_t i = 0; i < count; i++)
		if (m->reservation[i])
			reservation_end(c, m->reservation[i]);
	index_read_unlock();
	commit_lease(m, count);
	vram_pump(c);
	spill_pump(c);
	cache_unlock(c);
}

static void commit_end(struct commit *m)
{
	free(m->reservation);
	free(m->published);
}

static enum status commit_begin(struct commit *m, const char **why)
{
	const struct cache_on *on = m->q->on ? m->q->on : &cache_on_host;
	const uint32_t count = m->q->count;
	bool want_lease = m->q->want_lease;
	struct cache *c = m->cache;
	enum status status = STATUS_OK;
	struct session *s;

	cache_lock(c);
	s = session_call(c, m->q->session, m->q->now_us, why);
	if (!s) {
		status = STATUS_NOT_FOUND;
	} else if (want_lease) {
		*why = attachment_problem(c, s, on->attachment);
		status = *why ? STATUS_PRECONDITION : STATUS_OK;
	}
	cache_unlock(c);
	if (status)
		return status;
	*why = "no memory for the commit";
	m->reservation = calloc(count + 1, sizeof(m->reservation[0]));
	m->published = calloc((size_t)count * m->layouts + 1, sizeof(m->published[0]));
	want_lease = want_lease && !cache_draining(c);
	if (want_lease)
		m->lease = lease_alloc(count * m->layouts);
	if (m->lease)
		m->lease->call = on->call;
	if (m->reservation && m->published && (m->lease || !want_lease))
		return STATUS_OK;
	commit_end(m);
	free(m->lease);
	return STATUS_EXHAUSTED;
}

enum status cache_commit(struct cache *c, const struct cache_commit_call *q, struct cache_leased *leased,
			 const char **why)
{
	struct cache_keys nameless = { NULL, q->count, 1 };
	struct grid grid;
	struct commit m = { .cache = c, .q = q, .grid = &grid };
	enum status status;
	uint32_t places;

	m.layouts = m.leased.layouts = session_shape(c, q->session, m.pools, &grid);
	*why = "no such session: it was never opened, or it has ended";
	if (!m.layouts)
		return STATUS_NOT_FOUND;
	nameless.grid = m.layouts && grid.unit ? &grid : NULL; /* each Reserve has counted the cells of its keys */
	*why = cache_keys_problem(&nameless, m.layouts);
	if (!*why && q->want_lease && (uint64_t)q->count * m.layouts > q->places_max)
		*why = "no room for the places";
	if (*why)
		return STATUS_INVALID;
	status = commit_begin(&m, why);
	if (status)
		return status;
	if (m.lease)
		m.lease->main = grid.unit ? m.pools[grid.main] : NULL;
	places = q->want_lease ? q->count * m.layouts : 0;
	for (uint32_t i = 0; i < places; i++)
		place_none(&q->places[i]);
	commit_begin_items(&m);
	CRASH_POINT("commit_seal");
	for (uint32_t i = 0; i < q->count; i++)
		if (m.reservation[i]) {
			reservation_seal(c, m.reservation[i], q->unix_ms);
			graph_feed_commit(c, m.reservation[i]);
		}
	CRASH_POINT("commit_publish");
	commit_publish(&m);
	for (uint32_t i = 0; !m.leased.lease && i < places; i++)
		place_none(&q->places[i]);
	if (q->want_lease)
		*leased = m.leased;
	CRASH_POINT("commit_end");
	commit_end(&m);
	return STATUS_OK;
}
