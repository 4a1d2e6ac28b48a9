/* Puts by borrow: reserve, write in place, commit.
 *
 * A reservation owns unpublished blocks, one for each layout that does not have the key yet. Their names are pending,
 * so that two engines do not write the same block: a second Reserve is BUSY. Open blocks have no key, and no pending
 * key. The index decides: the first commit of a name wins, and a loser's slot is given back at once, since its writer
 * has finished.
 *
 * Sealing computes checksums of all bytes, so it runs without the lock. Meanwhile `committing` keeps all other calls,
 * and the session's end, away from the reservation.
 */
#include "daemon/call/reserve.h"

#include "daemon/block/block.h"
#include "daemon/block/grid.h"
#include "daemon/block/handle.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/tier.h"
#include "daemon/block/values.h"
#include "daemon/exports/exports.h"
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

/* One Reserve call. */
struct reserve {
	const struct cache_reserve_call *q;
	const struct cache_on *on;
	struct gpu *gpu;
	bool exhausted;                /* once memory has run out, the rest of the call is EXHAUSTED */
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	uint32_t done;                 /* keys dealt with */
	bool chained;                  /* a block covers several keys */
	bool exported;                 /* reserve_exports() was called */
	struct cache_keys keys;
	struct grid grid;
	const char *refused;           /* why a key was EXHAUSTED, or had to be tried again; NULL: nothing is known */
};

/* Sets the bits of the layouts in which the next key gets slots. False: one of these layouts cannot have one. */
static bool cells_of(const struct reserve *v, uint64_t *out)
{
	const uint64_t position = (uint64_t)v->keys.first + v->done, asked = v->q->cells ? v->q->cells[v->done] : 0;
	uint64_t full = 0, may = 0;

	for (uint32_t l = 0; l < v->layouts; l++) {
		const struct grid_rule *r = v->keys.grid ? &v->grid.rule[l] : NULL;

		full |= (uint64_t)(!r || grid_is_full(r, position)) << l;
		may |= (uint64_t)(!r || grid_has_cell(r, position)) << l;
	}
	*out = v->q->cells ? asked : full;
	return !(asked & ~may);
}

/* An open block where blocks cover several keys: it begins where a block of each of its layouts does, and grows until
 * the first of them is full. False: it cannot be. */
static bool open_begins(const struct reserve *v, const struct slot_info *info, uint64_t *cells, uint32_t *most)
{
	const uint64_t all = ~0ull >> (64 - v->layouts), unit = v->grid.unit, position = info->position / unit;

	*cells = v->q->cells ? v->q->cells[v->done] : all;
	*most = UINT32_MAX;
	for (uint32_t l = 0; l < v->layouts; l++) {
		const struct grid_rule *r = &v->grid.rule[l];

		if (!(*cells >> l & 1))
			continue;
		if (position % r->units)
			return false;
		if (r->units * unit < *most)
			*most = (uint32_t)(r->units * unit);
	}
	return *cells && !(*cells & ~all) && info->position % unit == 0 && info->tokens <= *most;
}

/* Fills the next key's info, and the bits of the layouts in which it is to have slots. False: they do not fit each
 * other. */
static bool info_of(const struct reserve *v, uint32_t unit, struct slot_info *info, uint64_t *cells, uint32_t *most)
{
	const bool open = v->q->open;

	*info = v->q->info ? v->q->info[v->done] : (struct slot_info){ .tokens = 0 };
	*most = 0;
	if (open && v->chained)
		return open_begins(v, info, cells, most) && !slot_info_problem(info, *most, false);
	if (slot_info_problem(info, unit, v->chained) || !cells_of(v, cells))
		return false;
	if (!info->tokens && !open)
		info->tokens = unit;
	if (v->chained)
		info->position = ((uint64_t)v->keys.first + v->done) * unit;
	return true;
}

/* Reserves the next key. Long because of the wish, whose fields come from all parts of the call. */
static enum status reserve_one(struct cache *c, struct session *s, struct reserve *v)
{
	const struct cache_reserve_call *q = v->q;
	const uint8_t *key = q->open ? NULL : q->keys->bytes + (size_t)v->done * q->keys->key_bytes;
	const uint32_t unit = v->keys.grid ? v->grid.unit : v->pools[0]->layout.block_tokens;
	struct cache_place *places = &q->places[(size_t)v->done * v->layouts];
	struct slot_info info;
	struct reservation *r;
	uint64_t cells;
	uint32_t open_most;
	const char *why;
	enum status status;

	if (!info_of(v, unit, &info, &cells, &open_most))
		return STATUS_INVALID;
	const struct reservation_wish wish = {
		.gpu = v->gpu,
		.pools = v->pools,
		.layouts = v->layouts,
		.cells = cells,
		.rules = v->keys.grid ? v->grid.rule : NULL,
		.unit = unit,
		.position = open_most ? info.position / unit : (uint64_t)v->keys.first + v->done,
		.key = key,
		.key_bytes = key ? q->keys->key_bytes : 0,
		.info = &info,
		.call = v->on->call,
		.attachment = v->on->attachment,
	};

	status = reservation_create(c, s, &wish, &r, &why);
	if (status == STATUS_EXHAUSTED)
		v->refused = why;
	if (status)
		return status;
	r->unit = v->chained ? unit : 0;
	r->open_most = open_most;
	reservation_writes(c, r, true);
	q->reservations[v->done] = r->handle;
	for (uint32_t l = 0; l < v->layouts; l++) {
		if (!r->part[l].block)
			continue;
		block_place_on(r->part[l].block, v->gpu ? vram_slot_on(r->part[l].block, v->gpu) : NULL, &places[l]);
		places[l].tokens = part_tokens(r, &r->part[l]);
	}
	return STATUS_OK;
}

/* Other members are told of what is stored under some of these keys. A plain session's call may say in its first key's
 * info alone where it begins. */
static void reserve_exports(struct cache *c, struct reserve *v)
{
	const struct slot_info *info = v->q->info;
	struct cache_keys keys = v->keys;

	v->exported = true;
	if (v->q->open)
		return;
	if (!keys.first && info && !keys.grid)
		keys.first = (uint32_t)(info->position / v->pools[0]->layout.block_tokens);
	exports_named(c, &(struct export_chain){ .pools = v->pools,
						 .layouts = v->layouts,
						 .keys = &keys,
						 .parent = info && info->parent_bytes ? info->parent : NULL,
						 .parent_bytes = info ? info->parent_bytes : 0 });
}

/* Reserves slots for some keys in one hold of the lock. Stops early if a class should grow first. */
static enum status reserve_chunk(struct cache *c, struct reserve *v, const char **why)
{
	struct session *s = session_call(c, v->q->session, v->q->now_us, why);

	if (!s)
		return STATUS_NOT_FOUND;
	*why = attachment_problem(c, s, v->on->attachment);
	if (*why)
		return STATUS_PRECONDITION;
	*why = "the GPU is lost";
	if (v->gpu && v->gpu->lost)
		return STATUS_UNAVAILABLE;
	session_on_gpu(s, v->gpu ? (int32_t)v->gpu->number : CACHE_HOST);
	if (c->exports && !v->exported)
		reserve_exports(c, v);
	for (int n = 0; n < CHUNK_KEYS && v->done < v->q->keys->count; n++, v->done++) {
		enum status status = v->exhausted ? STATUS_EXHAUSTED : reserve_one(c, s, v);

		if (c->grow || c->gpu_busy)
			break;
		v->exhausted |= status == STATUS_EXHAUSTED;
		v->q->statuses[v->done] = status;
	}
	return STATUS_OK;
}

static const char *reserve_problem(const struct reserve *v)
{
	const struct cache_reserve_call *q = v->q;
	const struct cache_keys nameless = { NULL, q->keys->count, 1 };
	const char *problem = cache_keys_problem(q->open ? &nameless : &v->keys, v->layouts);

	if (!problem && (uint64_t)q->keys->count * v->layouts > q->places_max)
		problem = "no room for the places";
	if (!problem && q->open && q->cells && !v->chained)
		problem = "cells: an open block has a slot in every layout, unless blocks cover several keys";
	return problem;
}

/* Ends the reservations that this call was given. With the lock. */
static void reserve_undo(struct cache *c, const struct reserve *v)
{
	for (uint32_t i = 0; i < v->done; i++) {
		struct reservation *r = handles_find(&c->grants->reservations, v->q->reservations[i]);

		if (r && !r->committing)
			reservation_end(c, r);
	}
}

/* False for a large reserve: it would lose the slots that it has got, and never find as many free at once. */
static bool may_come_again(const struct reserve *v)
{
	uint64_t bytes = 0;

	for (uint32_t l = 0; l < v->layouts; l++)
		bytes += v->q->keys->count * v->pools[l]->geometry.need_bytes;
	return bytes <= ARENA_STEP_BYTES;
}

/* Reserves until all keys are dealt with. Between holds of the lock memory grows, or a GPU makes room. */
static enum status reserve_all(struct cache *c, struct reserve *v, const char **why)
{
	const bool may_grow = v->q->may_grow;
	enum status status = STATUS_OK;
	uint64_t since_us = 0; /* since when it has waited for a GPU without progress; 0: it does not wait */
	uint32_t done = 0, vain = 0;

	while (v->done < v->q->keys->count && !status) {
		struct memory_class *grow;
		bool busy, comes;

		cache_lock(c);
		status = reserve_chunk(c, v, why);
		grow = room_wants(c);
		busy = c->gpu_busy;
		c->gpu_busy = false;
		comes = grow && !status && v->on->again_us && room_comes(c, grow) && may_come_again(v);
		if (comes)
			*v->on->again_us = COMES_AGAIN_US;
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

/* What had run out when the first key was EXHAUSTED, which ended the call's search. NULL: no key is EXHAUSTED. */
static const char *refusal(const struct reserve *v)
{
	for (uint32_t i = 0; i < v->q->keys->count; i++)
		if (v->q->statuses[i] == STATUS_EXHAUSTED)
			return v->refused ? v->refused : reservation_no_room(v->gpu);
	return NULL;
}

enum status cache_reserve(struct cache *c, const struct cache_reserve_call *q, const char **why)
{
	const struct cache_on *on = q->on ? q->on : &cache_on_host;
	struct reserve v = { .q = q, .on = on, .gpu = on->gpu < 0 ? NULL : vram_gpu(c, (uint32_t)on->gpu) };
	enum status status;

	v.layouts = session_shape(c, q->session, v.pools, &v.grid);
	*why = "no such session: it was never opened, or it has ended";
	if (!v.layouts)
		return STATUS_NOT_FOUND;
	v.keys = keys_on(q->keys, &v.grid);
	v.chained = v.keys.grid && v.grid.chained;
	*why = reserve_problem(&v);
	if (!*why && on->gpu >= 0 && !v.gpu)
		*why = "the daemon has no such GPU";
	if (*why || (v.gpu && !fit_gpu(c, v.gpu, v.pools, v.layouts, why)))
		return STATUS_INVALID;
	*why = "the daemon is draining";
	if (cache_draining(c))
		return STATUS_UNAVAILABLE;
	for (uint32_t i = 0; i < q->keys->count; i++) {
		q->statuses[i] = STATUS_CANCELLED;
		q->reservations[i] = 0;
		for (uint32_t l = 0; l < v.layouts; l++)
			place_none(&q->places[(size_t)i * v.layouts + l]);
	}
	status = reserve_all(c, &v, why);
	for (uint32_t i = 0; i < q->keys->count && !status; i++)
		reserve_count(c, q->statuses[i]);
	if (!status)
		*why = refusal(&v);
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
