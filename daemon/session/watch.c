/* Watches: what was stored and removed, in order, for the layouts of a session.
 *
 * Each watch has a bounded ring, which the calls that store or remove blocks fill under the lock. A ring that overflows
 * is emptied and gets a single RESYNC. Sequence numbers are given on the way out, so they count by one.
 *
 * A watch that begins with the present blocks walks the index, a few thousand blocks in a hold of the lock, while the
 * ring collects new events. A block keeps its place in the index when it moves between tiers. The client gets all
 * blocks that the walk finds, then SYNCED, then the ring. The walk may report a block that the ring reports again, or
 * one whose removal the ring reports later. But the ring has the last event of every key that changed, in the order of
 * events, so the client's set is right when it has read the ring. If the ring overflows meanwhile, RESYNC follows
 * SYNCED.
 */
#include "daemon/session/watch.h"

#include "daemon/block/block.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/session/session.h"
#include "store/index.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { DUMP_BLOCKS = 2048 }; /* looked at in one hold of the lock */

static void watch_wake(struct cache_watch *w)
{
	if (w->notify)
		w->notify(w->arg);
}

static void watch_push(struct cache *c, struct cache_watch *w, const struct watch_item *item)
{
	bool was_empty = w->count == 0;

	if (w->count == w->max) {
		cache_count(c, COUNTER_RESYNCS, 1);
		w->ring[w->head] = (struct watch_item){ .kind = CACHE_RESYNC };
		w->count = 1;
		return;
	}
	w->ring[(w->head + w->count++) % w->max] = *item;
	if (was_empty)
		watch_wake(w);
}

static void item_of(const struct block *b, enum cache_watch_kind kind, uint32_t layout, struct watch_item *out)
{
	*out = (struct watch_item){ .kind = kind, .layout = layout, .key_bytes = block_key_bytes(b),
				    .where = atomic_load_explicit(&b->where, memory_order_relaxed) };
	memcpy(out->key, block_key(b), out->key_bytes);
}

static void watch_event(struct cache *c, const struct block *b, enum cache_watch_kind kind, enum cache_reason reason)
{
	const struct layout_pool *p = block_pool(b);
	struct watch_item item;

	if (!p->watches)
		return;
	item_of(b, kind, 0, &item);
	item.reason = reason;
	for (struct cache_watch *w = c->watches; w; w = w->next)
		for (uint32_t l = 0; l < w->layouts && !w->ended; l++)
			if (w->pool[l] == p) {
				item.layout = l;
				watch_push(c, w, &item);
			}
}

void watch_stored(struct cache *c, const struct block *b)
{
	watch_event(c, b, CACHE_STORED, CACHE_REASON_NONE);
}

void watch_moved(struct cache *c, const struct block *b)
{
	watch_event(c, b, CACHE_MOVED, CACHE_REASON_NONE);
}

void watch_removed(struct cache *c, const struct block *b, enum cache_reason reason)
{
	watch_event(c, b, CACHE_REMOVED, reason);
}

void watch_session_ended(struct cache *c, uint64_t session)
{
	for (struct cache_watch *w = c->watches; w; w = w->next)
		if (w->session == session) {
			w->ended = true;
			if (!w->count)
				watch_wake(w);
		}
}

bool watch_is_open(const struct cache *c, uint64_t session)
{
	const struct cache_watch *w = c->watches;

	while (w && w->session != session)
		w = w->next;
	return w;
}

enum status cache_watch_open(struct cache *c, uint64_t session, bool from_now, void (*notify)(void *),
			     void *arg, struct cache_watch **out, const char **why)
{
	enum status status = STATUS_NOT_FOUND;
	struct cache_watch *w;
	struct session *s;

	*why = "no memory for the watch";
	w = calloc(1, sizeof(*w) + c->options.watch_queue * sizeof(w->ring[0]));
	if (!w)
		return STATUS_EXHAUSTED;
	cache_lock(c);
	s = session_get(c, session, why);
	if (s)
		status = quota_take(s->holder, QUOTA_WATCHES, 1, why);
	if (!status) {
		w->holder = quota_join_again(s->holder);
		w->cache = c;
		w->session = session;
		w->layouts = session_layouts(s);
		w->notify = notify;
		w->arg = arg;
		w->dumping = !from_now;
		w->key_bytes_max = SLOT_KEY_MAX;
		w->max = c->options.watch_queue;
		for (uint32_t l = 0; l < w->layouts; l++) {
			w->pool[l] = session_pool(s, l);
			w->pool[l]->watches++;
		}
		w->next = c->watches;
		c->watches = w;
		c->watch_count++;
		atomic_store_explicit(&s->called, true, memory_order_relaxed);
		*out = w;
	}
	cache_unlock(c);
	if (status)
		free(w);
	return status;
}

void cache_watch_bound(struct cache_watch *w, uint32_t key_bytes_max)
{
	cache_lock(w->cache);
	w->key_bytes_max = key_bytes_max;
	cache_unlock(w->cache);
}

/* Which of the watch's layouts the block is of. False: none. */
static bool layout_of(const struct cache_watch *w, const struct block *b, uint32_t *layout)
{
	for (*layout = 0; *layout < w->layouts; ++*layout)
		if (w->pool[*layout] == b->pool)
			return true;
	return false;
}

/* The next block of the watch's layouts in the first look. NULL with *budget 0: go on from there; NULL with some
 * left: no more. */
static const struct block *dump_next(struct cache_watch *w, uint32_t *layout, uint32_t *budget)
{
	struct index_record *r = NULL;

	index_read_lock();
	for (; *budget && (r = index_walk_next(w->cache->index, &w->dump)); --*budget)
		if (layout_of(w, block_of(r), layout) && block_key_bytes(block_of(r)) <= w->key_bytes_max)
			break;
	index_read_unlock(); /* the cache's lock keeps the block */
	return r && *budget ? block_of(r) : NULL;
}

/* One hold of the lock's worth of walking. False: neither a block found nor the end reached. */
static bool dump_step(struct cache_watch *w, struct watch_item *item)
{
	uint32_t budget = DUMP_BLOCKS, layout;
	const struct block *b = dump_next(w, &layout, &budget);

	if (b) {
		item_of(b, CACHE_STORED, layout, item);
		return true;
	}
	if (!budget)
		return false;
	w->dumping = false;
	*item = (struct watch_item){ .kind = CACHE_SYNCED };
	return true;
}

static bool watch_pop(struct cache_watch *w, struct watch_item *item)
{
	while (w->count) {
		*item = w->ring[w->head];
		w->head = (w->head + 1) % w->max;
		w->count--;
		if (item->key_bytes <= w->key_bytes_max)
			return true;
	}
	return false;
}

static void watch_tell(struct cache_watch *w, const struct watch_item *item, struct cache_watch_event *out)
{
	*out = (struct cache_watch_event){ .sequence = ++w->sequence,
					   .kind = item->kind,
					   .reason = item->reason,
					   .tier = item->kind == CACHE_STORED || item->kind == CACHE_MOVED ? block_tiers(item->where) : "",
					   .layout = item->layout,
					   .key_bytes = item->key_bytes };
	memcpy(out->key, item->key, sizeof(out->key));
}

enum status cache_watch_next(struct cache_watch *w, struct cache_watch_event *out)
{
	struct cache *c = w->cache;
	struct watch_item item;
	enum status status;

	cache_lock(c);
	if (w->dumping && !w->ended)
		status = dump_step(w, &item) ? STATUS_OK : STATUS_BUSY;
	else
		status = watch_pop(w, &item) ? STATUS_OK : w->ended ? STATUS_UNAVAILABLE : STATUS_MISS;
	if (status == STATUS_OK)
		watch_tell(w, &item, out);
	cache_unlock(c);
	return status;
}

void cache_watch_close(struct cache_watch *w)
{
	struct cache_watch **at;
	struct cache *c;

	if (!w)
		return;
	c = w->cache;
	cache_lock(c);
	for (at = &c->watches; *at != w;)
		at = &(*at)->next;
	*at = w->next;
	c->watch_count--;
	for (uint32_t l = 0; l < w->layouts; l++)
		w->pool[l]->watches--;
	cache_unlock(c);
	quota_give(w->holder, QUOTA_WATCHES, 1);
	quota_leave(w->holder);
	free(w);
}
