/* Puts by borrow: reserve, write in place, commit.
 *
 * A reservation owns unpublished blocks, one a layout that does not have the key yet, and *claims* their
 * names, so that two engines do not write the same block twice: a second Reserve is BUSY. Open blocks have
 * no key and claim nothing. What decides is the index: the first commit of a name wins, and a loser's slot
 * goes back at once (its writer has said that it is done).
 *
 * Sealing computes checksums of all bytes, so it happens outside the lock; `committing` keeps everybody
 * else off meanwhile, the end of the session too.
 */
#include "daemon/call/reserve.h"

#include "daemon/block/block.h"
#include "daemon/block/handle.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/memory/evict.h"
#include "daemon/memory/grow.h"
#include "daemon/session/attachment.h"
#include "daemon/session/budget.h"
#include "daemon/session/grants.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/arena/arena.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

enum {
	GPU_WAIT_US = 2 * 1000 * 1000, /* for room on a GPU, without any progress */
	COMES_AGAIN_US = 500,          /* pages are being taken: one step takes about twice as long */
};

/* ---- claims ---- */

/* ---- reservations ---- */

/* ---- reserve ---- */

static enum status reserve_one(struct cache *c, struct session *s, struct gpu *gpu, struct pool *const *pools,
			       uint32_t layouts, const uint8_t *key, uint32_t key_bytes,
			       const struct slot_info *given, uint64_t call, uint64_t attachment, uint64_t *reservation,
			       struct cache_place *places)
{
	uint32_t block_tokens = pools[0]->layout.block_tokens;
	struct slot_info info = { .tokens = 0 };
	struct reservation *r;
	const char *why; /* a key's refusal is a number: its reason is counted */
	enum status status;

	if (given)
		info = *given;
	if (slot_info_problem(&info, block_tokens))
		return STATUS_INVALID;
	if (!info.tokens && key)
		info.tokens = block_tokens;
	status = reservation_create(c, s, gpu, pools, layouts, key, key_bytes, &info, false, c->now_us, &r, &why);
	if (status)
		return status;
	r->call = call;
	r->attachment = attachment;
	reservation_writes(c, r, true);
	*reservation = r->handle;
	for (uint32_t l = 0; l < layouts; l++) {
		if (!r->part[l].block)
			continue;
		block_place_on(r->part[l].block, gpu ? vram_slot_on(r->part[l].block, gpu) : NULL, &places[l]);
		places[l].tokens = info.tokens;
	}
	return STATUS_OK;
}

/* One Reserve call. */
struct reserve {
	uint64_t session, attachment, call, now_us;
	const struct cache_keys *keys;
	const struct slot_info *info;
	bool open;
	struct gpu *gpu;
	uint64_t *again_us;            /* NULL: it waits for pages that come */
	bool exhausted;                /* memory that has run out stays out for the rest of the call */
	struct pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	uint32_t done;                 /* keys dealt with */
	enum status *statuses;
	uint64_t *reservations;
	struct cache_place *places;
};

/* Some keys, in one hold of the lock; stops early when a class should grow first. */
static enum status reserve_chunk(struct cache *c, struct reserve *v, const char **why)
{
	struct session *s = session_call(c, v->session, v->now_us, why);
	const struct cache_keys *k = v->keys;

	if (!s)
		return STATUS_NOT_FOUND;
	*why = attachment_problem(c, s, v->attachment);
	if (*why)
		return STATUS_PRECONDITION;
	*why = "the GPU is lost";
	if (v->gpu && v->gpu->lost)
		return STATUS_UNAVAILABLE;
	session_on_gpu(s, v->gpu ? (int32_t)v->gpu->number : CACHE_HOST);
	for (int n = 0; n < CHUNK_KEYS && v->done < k->count; n++, v->done++) {
		const uint8_t *key = v->open ? NULL : k->bytes + (size_t)v->done * k->key_bytes;
		enum status status = STATUS_EXHAUSTED;

		if (!v->exhausted)
			status = reserve_one(c, s, v->gpu, v->pools, v->layouts, key, key ? k->key_bytes : 0,
					     v->info ? &v->info[v->done] : NULL, v->call, v->attachment, &v->reservations[v->done],
					     &v->places[(size_t)v->done * v->layouts]);
		if (c->grow || c->gpu_busy)
			break;
		v->exhausted |= status == STATUS_EXHAUSTED;
		v->statuses[v->done] = status;
	}
	return STATUS_OK;
}

static const char *reserve_problem(const struct cache_keys *k, bool open, uint32_t layouts,
				   uint32_t places_max)
{
	const struct cache_keys nameless = { NULL, k->count, 1 };
	const char *problem = cache_keys_problem(open ? &nameless : k, layouts);

	if (!problem && (uint64_t)k->count * layouts > places_max)
		problem = "no room for the places";
	return problem;
}

/* With the lock. */
static void reserve_undo(struct cache *c, const struct reserve *v)
{
	for (uint32_t i = 0; i < v->done; i++) {
		struct reservation *r = handles_find(&c->grants->reservations, v->reservations[i]);

		if (r && !r->committing)
			reservation_end(c, r);
	}
}

/* A large one would lose what it has got so far, and never see as much free at once. */
static bool may_come_again(const struct reserve *v)
{
	uint64_t bytes = 0;

	for (uint32_t l = 0; l < v->layouts; l++)
		bytes += v->keys->count * v->pools[l]->geometry.need_bytes;
	return bytes <= ARENA_STEP_BYTES;
}

/* Until all keys are dealt with. */
static enum status reserve_all(struct cache *c, struct reserve *v, bool may_grow, const char **why)
{
	enum status status = STATUS_OK;
	uint64_t since_us = 0; /* it has waited for a GPU, without progress; 0: it does not wait */
	uint32_t done = 0, vain = 0;

	while (v->done < v->keys->count && !status) {
		struct memory_class *grow;
		bool busy, comes;

		cache_lock(c);
		status = reserve_chunk(c, v, why);
		grow = room_wants(c);
		busy = c->gpu_busy;
		c->gpu_busy = false;
		comes = grow && !status && v->again_us && room_comes(c, grow) && may_come_again(v);
		if (comes)
			*v->again_us = COMES_AGAIN_US;
		if (comes || ((grow || busy) && !may_grow))
			status = STATUS_BUSY;
		if (status)
			reserve_undo(c, v);
		cache_unlock(c);
		vain = done == v->done ? vain : 0;
		if (grow && may_grow && !comes)
			room_grow(c, grow, vain++ >= ROOM_VAIN_MAX * v->layouts); /* of a key each may need some */
		since_us = busy && (!since_us || done != v->done) ? vram_clock_us() : busy ? since_us : 0;
		done = v->done;
		v->exhausted |= busy && vram_clock_us() - since_us > GPU_WAIT_US;
		if (busy && may_grow && !v->exhausted)
			vram_room_wait(c);
	}
	return status;
}

enum status cache_reserve(struct cache *c, uint64_t session, const struct cache_keys *k,
			  const struct slot_info *info, bool open, uint64_t attachment, bool may_grow,
			  uint64_t now_us, enum status *statuses, uint64_t *reservations,
			  struct cache_place *places, uint32_t places_max, const char **why)
{
	const struct cache_on host = { .attachment = attachment, .gpu = CACHE_HOST };

	return cache_reserve_on(c, session, k, info, open, &host, may_grow, now_us, statuses, reservations, places, places_max, why);
}

enum status cache_reserve_on(struct cache *c, uint64_t session, const struct cache_keys *k, const struct slot_info *info, bool open,
			     const struct cache_on *on, bool may_grow, uint64_t now_us, enum status *statuses,
			     uint64_t *reservations, struct cache_place *places, uint32_t places_max, const char **why)
{
	struct reserve v = { .session = session,
			     .attachment = on->attachment,
			     .call = on->call,
			     .again_us = on->again_us,
			     .gpu = on->gpu < 0 ? NULL : vram_gpu(c, (uint32_t)on->gpu),
			     .now_us = now_us,
			     .keys = k,
			     .info = info,
			     .open = open,
			     .statuses = statuses,
			     .reservations = reservations,
			     .places = places };
	enum status status;

	v.layouts = session_pools(c, session, v.pools);
	*why = "no such session: it was never opened, or it has ended";
	if (!v.layouts)
		return STATUS_NOT_FOUND;
	*why = reserve_problem(k, open, v.layouts, places_max);
	if (!*why && on->gpu >= 0 && !v.gpu)
		*why = "the daemon has no such GPU";
	if (*why || (v.gpu && !fit_gpu(c, v.gpu, v.pools, v.layouts, why)))
		return STATUS_INVALID;
	*why = "the daemon is draining";
	if (cache_draining(c))
		return STATUS_UNAVAILABLE;
	for (uint32_t i = 0; i < k->count; i++) {
		statuses[i] = STATUS_CANCELLED;
		reservations[i] = 0;
		for (uint32_t l = 0; l < v.layouts; l++)
			place_none(&places[(size_t)i * v.layouts + l]);
	}
	status = reserve_all(c, &v, may_grow, why);
	for (uint32_t i = 0; i < k->count && !status; i++)
		reserve_count(c, statuses[i]);
	return status;
}

enum status cache_abort(struct cache *c, uint64_t session, uint64_t reservation)
{
	enum status status = STATUS_OK;
	struct reservation *r;

	cache_lock(c);
	r = handles_find(&c->grants->reservations, reservation);
	if (!r || r->stream || r->session->handle != session) {
		status = STATUS_NOT_FOUND;
	} else if (r->committing) {
		status = STATUS_BUSY;
	} else {
		reservation_end(c, r);
		cache_count(c, COUNTER_ABORTS, 1);
	}
	cache_unlock(c);
	return status;
}
