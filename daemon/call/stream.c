/* Puts and gets by stream: the daemon itself writes and reads. A write is a reservation that no client sees; it ends
 * only with cache_write_end, also when its session has ended meanwhile. A read pins the block until it is copied. Only
 * the copy leaves the daemon: no engine can write to it, and it is compared with the commit's checksums. Other members
 * compare what they get themselves, so they get the slot's own bytes, which are pinned until they have left. Both stay
 * until a client has taken them, so all reads together have a bound, and each client has its share of it.
 */
#include "daemon/call/stream.h"

#include "daemon/advice/graph.h"
#include "daemon/block/block.h"
#include "daemon/block/check.h"
#include "daemon/block/grid.h"
#include "daemon/block/handle.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/source.h"
#include "daemon/exports/exports.h"
#include "daemon/memory/evict.h"
#include "daemon/memory/grow.h"
#include "daemon/session/budget.h"
#include "daemon/session/end.h"
#include "daemon/session/grants.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "daemon/vram/placement.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"

/* The layout pool of the block that is put or read; NULL: *status and *why say what is wrong with the call. */
static struct layout_pool *stream_pool(struct cache *c, const struct cache_stream_call *q, struct grid *grid,
				enum status *status, const char **why)
{
	const struct cache_keys one = { NULL, 1, q->key_bytes };
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts = session_shape(c, q->session, pools, grid);

	*status = STATUS_NOT_FOUND;
	*why = "no such session: it was never opened, or it has ended";
	if (!layouts)
		return NULL;
	*status = STATUS_INVALID;
	*why = cache_keys_problem(&one, 1);
	if (*why)
		return NULL;
	*why = "the session has no such layout";
	return q->layout < layouts ? pools[q->layout] : NULL;
}

static const char *write_refusal(enum status s)
{
	switch (s) {
	case STATUS_EXISTS:
		return "the block is stored already";
	case STATUS_BUSY:
		return "another client is writing the block: wait for its commit, or take it as stored";
	default:
		return "no slot can be had now";
	}
}

/* What is wrong with a put's info and position; NULL: nothing. Fills in the tokens. */
static const char *write_problem(const struct cache_stream_call *q, const struct layout_pool *p, const struct grid *g,
				 struct slot_info *full)
{
	const uint32_t unit = g->unit ? g->unit : p->layout.block_tokens;
	const bool chained = g->unit && g->chained;
	const char *problem = slot_info_problem(full, unit, chained);

	if (!problem && q->position > GRID_FIRST_MAX)
		problem = "position: it is at most 2147483648";
	if (!problem && g->unit && !grid_has_cell(&g->rule[q->layout], q->position))
		problem = "position: the layout has no block there: its blocks end at each block_tokens / "
			  "unit_tokens-th key, and it has no partial ones";
	if (!full->tokens)
		full->tokens = unit;
	if (chained)
		full->position = q->position * unit;
	return problem;
}

/* Other members may be told of the block. With the lock. */
static void write_exports(struct cache *c, const struct cache_stream_call *q, struct layout_pool *p,
			  const struct grid *grid, const struct slot_info *full)
{
	const uint64_t position = grid->unit ? q->position : full->position / p->layout.block_tokens;
	const struct cache_keys key = { q->key, 1, q->key_bytes, (uint32_t)position, grid->unit ? grid : NULL };

	exports_named(c, &(struct export_chain){ .pools = &p, .layouts = 1, .keys = &key,
		      .parent = full->parent_bytes ? full->parent : NULL, .parent_bytes = full->parent_bytes });
}

/* Checks without the lock, then tries to reserve until memory has grown enough or does not grow any more. The wish is
 * filled once, for all attempts. */
enum status cache_write_begin(struct cache *c, const struct cache_stream_call *q, struct cache_write *out,
			      const char **why)
{
	enum status status;
	struct grid grid;
	struct layout_pool *p = stream_pool(c, q, &grid, &status, why);
	struct slot_info full = { .tokens = 0 };
	struct reservation *r;
	struct session *s;
	struct memory_class *grow;
	uint32_t vain = 0;

	if (!p)
		return status;
	if (q->info)
		full = *q->info;
	*why = write_problem(q, p, &grid, &full);
	if (*why)
		return STATUS_INVALID;
	*why = "the daemon is draining";
	if (cache_draining(c))
		return STATUS_UNAVAILABLE;
	const struct reservation_wish wish = {
		.pools = &p,
		.layouts = 1,
		.cells = 1,
		.rules = grid.unit ? &grid.rule[q->layout] : NULL,
		.unit = grid.unit,
		.position = q->position,
		.key = q->key,
		.key_bytes = q->key_bytes,
		.info = &full,
		.stream = true,
	};

	do {
		cache_lock(c);
		s = session_call(c, q->session, q->now_us, why);
		status = STATUS_NOT_FOUND;
		if (s && c->exports)
			write_exports(c, q, p, &grid, &full);
		if (s) {
			status = reservation_create(c, s, &wish, &r, why);
			if (status != STATUS_EXHAUSTED)
				*why = write_refusal(status);
		}
		if (!status)
			*out = (struct cache_write){ r->handle,
						     block_slot_at(r->part[0].block) + SLOT_HEADER_BYTES,
						     p->geometry.block_bytes };
		grow = room_wants(c);
		cache_unlock(c);
		if (grow)
			room_grow(c, grow, vain++ >= ROOM_VAIN_MAX);
	} while (grow);
	reserve_count(c, status);
	return status;
}

/* Ends the write's reservation, and its session, too, if that is detached and waited for this write only. */
static void write_over(struct cache *c, struct reservation *r)
{
	struct session *s = r->session;
	uint32_t probes = 16;

	reservation_end(c, r);
	if (s->state == SESSION_DETACHED)
		session_detached_try(c, s, &probes);
}

/* Whether the sealed block has this checksum. The checksum is of what was sealed; the slot may have been written to
 * since. */
static bool sealed_as(const struct reservation *r, const uint32_t *crc32c)
{
	struct slot_header h;

	return !crc32c || (memory_header(r->part[0].block, &h) && slot_block_crc(&h) == *crc32c);
}

/* Ends a write. crc32c: the checksum of a whole block; NULL: it is not known. */
static enum status write_end(struct cache *c, uint64_t session, const struct cache_write *w, bool whole, const uint32_t *crc32c, uint64_t now_us,
			     uint64_t unix_ms)
{
	enum status status = STATUS_CANCELLED;
	struct block *published;
	struct reservation *r;

	cache_lock(c);
	cache_time(c, now_us);
	r = handles_find(&c->grants->reservations, w->reservation);
	if (!r || !r->stream || r->committing || r->session->handle != session) {
		cache_unlock(c);
		return STATUS_NOT_FOUND;
	}
	r->committing = true;
	cache_unlock(c);
	if (whole) {
		reservation_seal(c, r, unix_ms);
		whole = sealed_as(r, crc32c);
		status = whole ? status : STATUS_CORRUPT;
	}
	if (whole)
		graph_feed_commit(c, r);
	cache_lock(c);
	if (whole) {
		index_read_lock();
		status = reservation_publish(c, r, c->now_us, &published);
		if (published)
			block_enter_policy(c, published, r->info.position);
		index_read_unlock();
	} else {
		cache_count(c, COUNTER_ABORTS, 1);
	}
	write_over(c, r);
	cache_unlock(c);
	return status;
}

enum status cache_write_end(struct cache *c, uint64_t session, const struct cache_write *w, bool whole, uint64_t now_us, uint64_t unix_ms)
{
	return write_end(c, session, w, whole, NULL, now_us, unix_ms);
}

enum status cache_write_end_summed(struct cache *c, uint64_t session, const struct cache_write *w, uint32_t crc32c, uint64_t now_us,
				   uint64_t unix_ms)
{
	return write_end(c, session, w, true, &crc32c, now_us, unix_ms);
}

/* Charges the holder with room for the copy of a block. A single read always has room for any block. With the lock. */
static enum status copy_room(struct cache *c, struct quota_holder *h, uint64_t bytes, const char **why)
{
	if (quota_used(c->quota, QUOTA_COPIES))
		return quota_take(h, QUOTA_COPIES, bytes, why);
	quota_add(h, QUOTA_COPIES, bytes);
	return STATUS_OK;
}

/* Pins a block in memory for a read. The holder stays charged until the read's end. With the lock. */
static enum status read_pin(struct cache *c, struct quota_holder *h, struct block *b, struct cache_read *out,
			    const char **why)
{
	const uint64_t bytes = b->pool->geometry.need_bytes, copy = b->pool->geometry.block_bytes;
	enum status status = copy_room(c, h, copy, why);

	if (status)
		return status;
	block_pin(b);
	quota_add(h, QUOTA_PINNED, bytes);
	c->read_bytes += bytes;
	*out = (struct cache_read){ .block = block_slot_at(b) + SLOT_HEADER_BYTES, .block_bytes = copy, .tokens = b->tokens, .pin = b,
				    .holder = quota_join_again(h), .copy_bytes = copy };
	return STATUS_OK;
}

enum status read_block(struct cache *c, struct block *b, struct quota_holder *holder, struct cache_read *out,
		       struct cache_wait *w, const char **why)
{
	*why = "no such block";
	if (!block_live(b))
		return STATUS_MISS;
	if (b->span)
		return read_pin(c, holder, b, out, why);
	if (wait_goes_on(w) || (wait_wanted(w) && !source_bring(c, b, RING_URGENT, w)))
		return STATUS_BUSY;
	return STATUS_MISS;
}

/* read_block for a session, which must still be open and may pin so much. With the lock. */
static enum status read_for_session(struct cache *c, uint64_t session, struct block *b, struct cache_read *out,
				    struct cache_wait *w, const char **why)
{
	struct session *s = session_get(c, session, why);
	enum status status = STATUS_NOT_FOUND;

	if (s)
		status = b->span ? pins_ask(c, s, block_pin_bytes(b), NULL, 0, why) : STATUS_OK;
	if (!status)
		status = read_block(c, b, s->holder, out, w, why);
	if (!status)
		block_use(c, b);
	return status;
}

/* Ends the pin of a read, which does not need the block any more. With the lock. */
static void read_unpin(struct cache *c, struct cache_read *r)
{
	struct block *b = r->pin;
	const uint64_t bytes = b->pool->geometry.need_bytes;

	quota_give(r->holder, QUOTA_PINNED, bytes);
	c->read_bytes -= bytes;
	block_unpin(b);
	r->pin = NULL;
}

enum status cache_read_begin(struct cache *c, const struct cache_stream_call *q, struct cache_read *out,
			     struct cache_wait *w, const char **why)
{
	enum status status;
	struct grid grid;
	struct layout_pool *p = stream_pool(c, q, &grid, &status, why);
	struct index_record *found;
	struct index_ident ident;

	if (!p)
		return status;
	block_ident(p, q->key, q->key_bytes, &ident);
	*why = "no such block";
	status = STATUS_MISS;
	index_read_lock();
	found = index_find(c->index, &ident);
	if (found) {
		cache_lock(c);
		cache_time(c, q->now_us);
		status = read_for_session(c, q->session, block_of(found), out, w, why);
		cache_unlock(c);
	}
	index_read_unlock();
	if (status == STATUS_BUSY || status == STATUS_EXHAUSTED)
		return status;
	cache_count(c, status ? COUNTER_READ_MISSES : COUNTER_READS, 1);
	return status;
}

/* Drops a block that was found damaged. */
static void read_damaged(struct cache *c, struct cache_read *r)
{
	cache_lock(c);
	if (block_live(r->pin))
		memory_damaged(c, r->pin, COUNTER_MEMORY_WRONG_GET);
	read_unpin(c, r);
	cache_unlock(c);
}

enum status cache_read_copy(struct cache *c, struct cache_read *r, uint8_t *to, uint32_t *crc32c)
{
	struct slot_header h;

	if (!memory_copy(r->pin, &h, to, crc32c)) {
		read_damaged(c, r);
		return STATUS_CORRUPT;
	}
	cache_lock(c);
	read_unpin(c, r);
	cache_unlock(c);
	return STATUS_OK;
}

enum status cache_read_check(struct cache *c, struct cache_read *r, struct slot_header *h)
{
	if (memory_sound(r->pin, h))
		return STATUS_OK;
	read_damaged(c, r);
	return STATUS_CORRUPT;
}

void cache_read_end(struct cache *c, struct cache_read *r)
{
	cache_lock(c);
	if (r->pin)
		read_unpin(c, r);
	if (r->holder) {
		quota_give(r->holder, QUOTA_COPIES, r->copy_bytes);
		quota_leave(r->holder);
	}
	cache_unlock(c);
	*r = (struct cache_read){ .pin = NULL };
}
