/* Reserved slots. A key that is being written is pending: a second writer gets BUSY. The reservation is published as a
 * whole. */
#include "daemon/session/reservation.h"

#include "daemon/block/aging.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/grid.h"
#include "daemon/block/handle.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_bytes.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/slot_at.h"
#include "daemon/block/values.h"
#include "daemon/session/attachment.h"
#include "daemon/session/budget.h"
#include "daemon/session/grants.h"
#include "daemon/session/session.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "eviction/policy.h"
#include "kernels/behind.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdlib.h>
#include <string.h>

static struct part **pending_key_bucket(struct cache *c, const struct index_ident *ident)
{
	return &c->grants->pending_keys[ident_hash(ident, c->pending_key_seed) % PENDING_KEY_BUCKETS];
}

struct part *pending_key_find(struct cache *c, const struct index_ident *ident)
{
	struct part *p = *pending_key_bucket(c, ident);

	for (; p; p = p->pending_key_next) {
		const struct index_ident name = block_name(p->block);

		if (ident_equal(&name, ident))
			break;
	}
	return p;
}

static void pending_key_add(struct cache *c, struct part *p)
{
	const struct index_ident name = block_name(p->block);
	struct part **bucket = pending_key_bucket(c, &name);

	p->pending_key_next = *bucket;
	*bucket = p;
	p->claimed = true;
}

static void pending_key_drop(struct cache *c, struct part *p)
{
	const struct index_ident name = block_name(p->block);
	struct part **at = pending_key_bucket(c, &name);

	while (*at != p)
		at = &(*at)->pending_key_next;
	*at = p->pending_key_next;
	p->claimed = false;
}

const char *slot_info_problem(const struct slot_info *info, uint32_t unit, bool whole)
{
	if (info->tokens > unit)
		return "more tokens than a key has: the unit of the session, which without one is a block";
	if (whole && info->tokens && info->tokens != unit)
		return "fewer tokens than the session's unit: where blocks cover several keys, each key has all its "
		       "tokens";
	if (info->parent_bytes > SLOT_KEY_MAX)
		return "a parent key has at most 64 bytes";
	_Static_assert(SLOT_KEY_MAX == 64, "the words say so");
	return NULL;
}

/* Which layouts want a slot: OK, EXISTS (none), BUSY (one is being written). In a read section. */
static enum status key_state(struct cache *c, const struct reservation_wish *w, bool *wanted, uint64_t *bytes)
{
	struct layout_pool *const *pools = w->pools;
	const uint8_t *key = w->key;
	enum status s = STATUS_EXISTS;
	struct index_ident ident;

	*bytes = 0;
	for (uint32_t l = 0; l < w->layouts; l++) {
		wanted[l] = w->cells >> l & 1;
		if (key && wanted[l]) {
			block_ident(pools[l], key, w->key_bytes, &ident);
			wanted[l] = !index_find(c->index, &ident);
			if (wanted[l] && pending_key_find(c, &ident))
				return STATUS_BUSY;
		}
		if (wanted[l]) {
			*bytes += pools[l]->geometry.need_bytes;
			s = STATUS_OK;
		}
	}
	return s;
}

static void reservation_link(struct cache *c, struct session *s, struct reservation *r, uint64_t now_us)
{
	r->session = s;
	r->next = s->reservations;
	if (s->reservations)
		s->reservations->prev = r;
	s->reservations = r;
	s->open_blocks += r->open;
	s->held_slots += r->slots;
	s->held_bytes += r->bytes;
	session_tenant(s)->reserved_bytes += r->gpu ? 0 : r->bytes;
	aging_add(&c->grants->reservation_age, &r->aging, now_us);
}

static enum status reservation_fill(struct cache *c, struct reservation *r, struct layout_pool *const *pools,
				    const bool *wanted)
{
	const uint32_t key_room = r->open ? SLOT_KEY_MAX : r->key_bytes; /* an open block gets its key at its commit */

	for (uint32_t l = 0; l < r->parts; l++) {
		struct part *p = &r->part[l];
		enum status s;

		if (!wanted[l])
			continue;
		struct policy_event e = { .now_us = c->now_us, .tokens = part_tokens(r, p), .role = r->info.role,
					  .position = r->info.position / pools[l]->layout.block_tokens };
		struct index_ident ident;

		if (!r->open) {
			block_ident(pools[l], r->key, r->key_bytes, &ident);
			e.id = block_id(&ident);
		}
		s = r->gpu ? vram_block_create(c, r->gpu, pools[l], key_room, &p->block)
			   : block_create(c, pools[l], r->open ? NULL : &e, key_room, &p->block);
		c->gpu_busy |= r->gpu && s == STATUS_BUSY;
		if (s)
			return s;
		r->slots++;
		r->bytes += pools[l]->geometry.need_bytes;
		if (!r->open) {
			block_name_set(p->block, &ident);
			pending_key_add(c, p);
		}
	}
	return STATUS_OK;
}

static void reservation_empty(struct cache *c, struct reservation *r)
{
	for (uint32_t l = 0; l < r->parts; l++) {
		struct part *p = &r->part[l];

		if (p->claimed)
			pending_key_drop(c, p);
		if (p->block)
			block_discard(c, p->block);
		p->block = NULL;
	}
}

/* Charges the session's holder with one reservation more, of that many bytes. EXHAUSTED: it may not have it. */
static enum status reservation_take(struct cache *c, const struct session *s, const struct gpu *gpu, uint64_t bytes,
				    bool open, const char **why)
{
	struct quota_wish w[PINS_WISHES + 1];
	uint32_t count;

	*why = "too many open blocks of this session: commit or abort some, or raise open_blocks_max";
	if (open && s->open_blocks == c->options.open_blocks_max)
		return STATUS_EXHAUSTED;
	count = pins_wish(c, session_tenant(s), gpu ? 0 : bytes, gpu, bytes, w);
	w[count++] = (struct quota_wish){ QUOTA_RESERVATIONS, 1, QUOTA_BY_BOUND, 0 };
	return quota_take_all(s->holder, w, count, why);
}

static void reservation_give(const struct session *s, const struct gpu *gpu, uint64_t bytes)
{
	const struct quota_wish w[] = {
		{ .thing = gpu ? QUOTA_GPU_PINNED + gpu->number : QUOTA_PINNED, .n = bytes },
		{ .thing = QUOTA_RESERVATIONS, .n = 1 },
	};

	quota_give_all(s->holder, w, 2);
}

const char *reservation_no_room(bool gpu)
{
	return gpu ? "the GPU has no room: its slots are held by leases and reservations: release or commit some, or "
		     "raise gpu_bytes"
		   : "host memory has no room: its slots are held by leases and reservations, or wait for a disk: "
		     "release or commit some, or raise host_bytes";
}

/* Asks for the key's state, then charges the quota, then makes the record, then takes the slots. Each step has to be
 * undone if a later one fails, so all are in one function. */
enum status reservation_create(struct cache *c, struct session *s, const struct reservation_wish *w,
			       struct reservation **out, const char **why)
{
	bool wanted[CACHE_LAYOUTS_MAX];
	struct reservation *r;
	uint64_t bytes;
	enum status status;

	index_read_lock();
	status = key_state(c, w, wanted, &bytes);
	index_read_unlock();
	if (status)
		return status;
	status = reservation_take(c, s, w->gpu, bytes, !w->key, why);
	if (status)
		return status;
	*why = reservation_no_room(w->gpu);
	r = calloc(1, sizeof(*r) + w->layouts * sizeof(r->part[0]));
	if (!r) {
		reservation_give(s, w->gpu, bytes);
		return STATUS_EXHAUSTED;
	}
	r->info = *w->info;
	r->gpu = w->gpu;
	r->charged = bytes;
	r->open = !w->key;
	r->stream = w->stream;
	r->call = w->call;
	r->attachment = w->attachment;
	r->parts = w->layouts;
	for (uint32_t l = 0; w->rules && l < w->layouts; l++)
		r->part[l].before = (grid_units_at(&w->rules[l], w->position) - 1) * w->unit;
	r->key_bytes = w->key_bytes;
	if (w->key)
		memcpy(r->key, w->key, w->key_bytes);
	r->handle = handles_give(&c->grants->reservations, &c->grants->random, r);
	status = r->handle ? reservation_fill(c, r, w->pools, wanted) : STATUS_EXHAUSTED;
	if (status) {
		reservation_empty(c, r);
		handles_drop(&c->grants->reservations, r->handle);
		reservation_give(s, w->gpu, bytes);
		free(r);
		return status;
	}
	CRASH_POINT("reserve");
	reservation_link(c, s, r, c->now_us);
	*out = r;
	return STATUS_OK;
}

/* on: from now on the process that writes the reservation may have its slots mapped writable. Else this reservation is
 * no reason for that any more. */
void reservation_writes(struct cache *c, struct reservation *r, bool on)
{
	struct attachment *a = r->attachment && !r->gpu ? attachment_find(c, r->attachment) : NULL;

	for (uint32_t l = 0; a && l < r->parts; l++) {
		struct part *p = &r->part[l];

		if (on && p->block && attachment_writes(a, p->block->span->extent, true))
			p->written = 1 + p->block->span->extent;
		else if (!on && p->written)
			attachment_writes(a, p->written - 1, false);
	}
}

/* Takes slots and bytes off what the reservation, its session and its tenant hold. */
static void reservation_shed(struct reservation *r, uint32_t slots, uint64_t bytes)
{
	r->slots -= slots;
	r->bytes -= bytes;
	r->session->held_slots -= slots;
	r->session->held_bytes -= bytes;
	session_tenant(r->session)->reserved_bytes -= r->gpu ? 0 : bytes;
}

void reservation_end(struct cache *c, struct reservation *r)
{
	struct session *s = r->session;

	if (r->prev)
		r->prev->next = r->next;
	else
		s->reservations = r->next;
	if (r->next)
		r->next->prev = r->prev;
	s->open_blocks -= r->open;
	reservation_writes(c, r, false);
	reservation_shed(r, r->slots, r->bytes);
	reservation_give(s, r->gpu, r->charged);
	aging_remove(&c->grants->reservation_age, &r->aging);
	handles_drop(&c->grants->reservations, r->handle);
	reservation_empty(c, r);
	free(r);
}

/* Zeroes what an engine has left as it was: bytes behind the valid tokens, and behind the block up to the slot's end,
 * which may be another block's. A stream brings all bytes of its block. The daemon does not know where tokens end in an
 * opaque block: all its bytes count. */
static void zero_rest(const struct reservation *r, const struct block *b, uint32_t tokens)
{
	const struct layout_pool *p = block_pool(b);
	uint8_t *block = block_slot_at(b) + SLOT_HEADER_BYTES;

	if (!r->stream && !kv_is_opaque(&p->layout))
		kv_zero_behind(&p->layout, &p->geometry, block, tokens);
	memset(block + p->geometry.block_bytes, 0, -p->geometry.block_bytes % KV_SLOT_ALIGN);
}

void reservation_seal(struct cache *c, struct reservation *r, uint64_t unix_ms)
{
	for (uint32_t l = 0; l < r->parts; l++) {
		struct block *b = r->part[l].block;
		const struct layout_pool *p = b ? block_pool(b) : NULL;
		struct slot_info info = r->info;

		if (!b)
			continue;
		info.tokens = part_tokens(r, &r->part[l]);
		info.position -= r->part[l].before;
		if (r->gpu) {
			if (!r->sealed)
				r->sealed = vram_zero_behind(c, b, info.tokens);
			vram_remember_info(b->vram, &info, unix_ms);
			continue;
		}
		uint8_t layout[LAYOUT_BYTES_MAX];
		struct slot_ident ident;

		block_slot_ident(p, r->key, r->key_bytes, &ident);
		ident.layout = layout;
		ident.layout_bytes = layout_pack(&p->layout, layout);
		zero_rest(r, b, info.tokens);
		block_header_keep(b, slot_seal(block_slot_at(b), &ident, &info, b->generation, unix_ms));
	}
}

/* A published block leaves the reservation. A block that was not published stays in it, and ends with it. */
enum status reservation_publish(struct cache *c, struct reservation *r, uint64_t now_us,
				struct block **published)
{
	const bool lost = r->sealed || (r->gpu && r->gpu->lost);
	enum status status = r->sealed ? r->sealed : lost ? STATUS_UNAVAILABLE : STATUS_EXISTS;

	for (uint32_t l = 0; l < r->parts; l++) {
		struct part *p = &r->part[l];
		struct index_ident ident;

		published[l] = NULL;
		if (!p->block || lost)
			continue;
		if (p->claimed)
			pending_key_drop(c, p);
		block_ident(block_pool(p->block), r->key, r->key_bytes, &ident);
		block_name_set(p->block, &ident);
		p->block->tokens = part_tokens(r, p);
		p->block->role = r->info.role < POLICY_ROLES ? r->info.role : POLICY_ROLE_UNKNOWN;
		p->block->turn = r->info.turn < UINT16_MAX ? r->info.turn : UINT16_MAX;
		if (block_publish(c, p->block, now_us))
			continue;
		published[l] = p->block;
		reservation_shed(r, 1, block_pool(p->block)->geometry.need_bytes);
		p->block = NULL;
		status = STATUS_OK;
	}
	cache_count(c, status ? COUNTER_COMMIT_EXISTS : COUNTER_COMMITTED, 1);
	return status;
}

void reserve_count(struct cache *c, enum status s)
{
	if (s == STATUS_OK)
		cache_count(c, COUNTER_RESERVED, 1);
	else if (s == STATUS_EXISTS)
		cache_count(c, COUNTER_RESERVE_EXISTS, 1);
	else if (s == STATUS_BUSY)
		cache_count(c, COUNTER_RESERVE_BUSY, 1);
	else if (s == STATUS_EXHAUSTED)
		cache_count(c, COUNTER_RESERVE_EXHAUSTED, 1);
}
