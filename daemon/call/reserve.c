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
#include "daemon/disk/tier.h"
#include "daemon/vram/vram.h"
#include "store/crash_point.h"

#include <stdlib.h>
#include <string.h>

enum { GPU_WAITS_MAX = 100 }; /* for room on a GPU, without any progress: two seconds */

/* ---- claims ---- */

static struct part **claim_bucket(struct cache *c, const struct index_ident *ident)
{
	return &c->claims[ident_hash(ident, c->claim_seed) % CLAIM_BUCKETS];
}

struct part *claim_find(struct cache *c, const struct index_ident *ident)
{
	struct part *p = *claim_bucket(c, ident);

	while (p && !ident_equal(&p->block->record.ident, ident))
		p = p->claim_next;
	return p;
}

static void claim_add(struct cache *c, struct part *p)
{
	struct part **bucket = claim_bucket(c, &p->block->record.ident);

	p->claim_next = *bucket;
	*bucket = p;
	p->claimed = true;
}

static void claim_drop(struct cache *c, struct part *p)
{
	struct part **at = claim_bucket(c, &p->block->record.ident);

	while (*at != p)
		at = &(*at)->claim_next;
	*at = p->claim_next;
	p->claimed = false;
}

/* ---- reservations ---- */

const char *slot_info_problem(const struct slot_info *info, uint32_t block_tokens)
{
	if (info->tokens > block_tokens)
		return "more tokens than the layout has in a block";
	if (info->parent_bytes > SLOT_KEY_MAX)
		return "a parent key has at most 32 bytes";
	_Static_assert(SLOT_KEY_MAX == 32, "the words say so");
	return NULL;
}

/* Which layouts want a slot: OK, EXISTS (none), BUSY (one is being written). In a read section. */
static enum status key_state(struct cache *c, struct pool *const *pools, uint32_t layouts, const uint8_t *key,
			     uint32_t key_bytes, bool *wanted, uint64_t *bytes)
{
	enum status s = STATUS_EXISTS;
	struct index_ident ident;

	*bytes = 0;
	for (uint32_t l = 0; l < layouts; l++) {
		wanted[l] = true;
		if (key) {
			block_ident(pools[l], key, key_bytes, &ident);
			wanted[l] = !index_find(c->index, &ident);
			if (wanted[l] && claim_find(c, &ident))
				return STATUS_BUSY;
		}
		if (wanted[l]) {
			*bytes += pools[l]->geometry.slot_bytes;
			s = STATUS_OK;
		}
	}
	return s;
}

static enum quota_thing pinned_where(const struct reservation *r)
{
	return r->gpu ? QUOTA_GPU_PINNED + r->gpu->number : QUOTA_PINNED;
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
	c->tenant.reserved_bytes += r->gpu ? 0 : r->bytes;
	quota_add(s->holder, pinned_where(r), r->bytes);
	aging_add(&c->reservation_age, &r->aging, now_us);
}

static enum status reservation_fill(struct cache *c, struct reservation *r, struct pool *const *pools,
				    const bool *wanted)
{
	for (uint32_t l = 0; l < r->parts; l++) {
		struct part *p = &r->part[l];
		enum status s;

		if (!wanted[l])
			continue;
		struct policy_event e = { .now_us = c->now_us, .tokens = r->info.tokens, .role = r->info.role,
					  .position = r->info.position / pools[l]->layout.block_tokens };
		struct index_ident ident;

		if (!r->open) {
			block_ident(pools[l], r->key, r->key_bytes, &ident);
			e.id = block_id(&ident);
		}
		s = r->gpu ? vram_block_create(c, r->gpu, pools[l], &p->block)
			   : block_create(c, pools[l], r->open ? NULL : &e, &p->block);
		c->gpu_busy |= r->gpu && s == STATUS_BUSY;
		if (s)
			return s;
		r->slots++;
		r->bytes += pools[l]->geometry.slot_bytes;
		if (!r->open) {
			p->block->record.ident = ident;
			claim_add(c, p);
		}
	}
	return STATUS_OK;
}

static void reservation_empty(struct cache *c, struct reservation *r)
{
	for (uint32_t l = 0; l < r->parts; l++) {
		struct part *p = &r->part[l];

		if (p->claimed)
			claim_drop(c, p);
		if (p->block)
			block_discard(c, p->block);
		p->block = NULL;
	}
}

/* Whether the session's holder may have one more, of so many bytes: OK takes its place among the reservations. */
static enum status reservation_ask(struct cache *c, const struct session *s, const struct gpu *gpu, uint64_t bytes, bool open, const char **why)
{
	enum status status;

	*why = "too many open blocks of this session: commit or abort some, or raise open_blocks_max";
	if (open && s->open_blocks == c->options.open_blocks_max)
		return STATUS_EXHAUSTED;
	status = pins_ask(c, s, gpu ? 0 : bytes, gpu, bytes, why);
	return status ? status : quota_take(s->holder, QUOTA_RESERVATIONS, 1, why);
}

enum status reservation_create(struct cache *c, struct session *s, struct gpu *gpu, struct pool *const *pools,
			       uint32_t layouts, const uint8_t *key, uint32_t key_bytes,
			       const struct slot_info *info, bool stream, uint64_t now_us,
			       struct reservation **out, const char **why)
{
	bool wanted[CACHE_LAYOUTS_MAX];
	struct reservation *r;
	uint64_t bytes;
	enum status status;

	index_read_lock();
	status = key_state(c, pools, layouts, key, key_bytes, wanted, &bytes);
	index_read_unlock();
	if (status)
		return status;
	status = reservation_ask(c, s, gpu, bytes, !key, why);
	if (status)
		return status;
	*why = "no slot can be had now";
	r = calloc(1, sizeof(*r) + layouts * sizeof(r->part[0]));
	if (!r) {
		quota_give(s->holder, QUOTA_RESERVATIONS, 1);
		return STATUS_EXHAUSTED;
	}
	r->info = *info;
	r->gpu = gpu;
	r->open = !key;
	r->stream = stream;
	r->parts = layouts;
	r->key_bytes = key_bytes;
	if (key)
		memcpy(r->key, key, key_bytes);
	r->handle = handles_give(&c->reservations, &c->random, r);
	status = r->handle ? reservation_fill(c, r, pools, wanted) : STATUS_EXHAUSTED;
	if (status) {
		reservation_empty(c, r);
		handles_drop(&c->reservations, r->handle);
		quota_give(s->holder, QUOTA_RESERVATIONS, 1);
		free(r);
		return status;
	}
	CRASH_POINT("reserve");
	reservation_link(c, s, r, now_us);
	*out = r;
	return STATUS_OK;
}

/* The process that writes it may have the memory of its slots mapped writable from now on, or (on false) not for its sake any more. */
static void reservation_writes(struct cache *c, struct reservation *r, bool on)
{
	struct attachment *a = r->attachment && !r->gpu ? attachment_find(c, r->attachment) : NULL;

	for (uint32_t l = 0; a && l < r->parts; l++) {
		struct part *p = &r->part[l];

		if (on && p->block && attachment_writes(a, p->block->shelf->extent, true))
			p->written = 1 + p->block->shelf->extent;
		else if (!on && p->written)
			attachment_writes(a, p->written - 1, false);
	}
}

/* It owns so much less. */
static void reservation_shed(struct cache *c, struct reservation *r, uint32_t slots, uint64_t bytes)
{
	r->slots -= slots;
	r->bytes -= bytes;
	r->session->held_slots -= slots;
	r->session->held_bytes -= bytes;
	c->tenant.reserved_bytes -= r->gpu ? 0 : bytes;
	quota_give(r->session->holder, pinned_where(r), bytes);
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
	reservation_shed(c, r, r->slots, r->bytes);
	quota_give(s->holder, QUOTA_RESERVATIONS, 1);
	aging_remove(&c->reservation_age, &r->aging);
	handles_drop(&c->reservations, r->handle);
	reservation_empty(c, r);
	free(r);
}

void reservation_seal(const struct reservation *r, const char *tenant, uint64_t unix_ms)
{
	for (uint32_t l = 0; l < r->parts; l++) {
		struct block *b = r->part[l].block;
		const struct pool *p = b ? block_pool(b) : NULL;

		if (!b)
			continue;
		if (r->gpu) {
			vram_remember_info(b->vram, &r->info, unix_ms);
			continue;
		}
		uint8_t layout[LAYOUT_BYTES];
		struct slot_ident ident;

		layout_pack(&p->layout, layout);
		block_slot_ident(p, tenant, r->key, r->key_bytes, &ident);
		ident.layout = layout;
		ident.layout_bytes = LAYOUT_BYTES;
		block_header_keep(b, slot_seal(block_slot_at(b), &ident, &r->info, b->generation, unix_ms));
	}
}

/* What was published is no longer the reservation's; what lost is, and goes back with it. */
enum status reservation_publish(struct cache *c, struct reservation *r, uint64_t now_us,
				struct block **published)
{
	const bool lost = r->gpu && r->gpu->lost;
	enum status status = lost ? STATUS_UNAVAILABLE : STATUS_EXISTS;

	for (uint32_t l = 0; l < r->parts; l++) {
		struct part *p = &r->part[l];

		published[l] = NULL;
		if (!p->block || lost)
			continue;
		if (p->claimed)
			claim_drop(c, p);
		block_ident(block_pool(p->block), r->key, r->key_bytes, &p->block->record.ident);
		p->block->tokens = r->info.tokens;
		p->block->role = r->info.role < POLICY_ROLES ? r->info.role : POLICY_ROLE_UNKNOWN;
		p->block->turn = r->info.turn < UINT16_MAX ? r->info.turn : UINT16_MAX;
		if (block_publish(c, p->block, now_us))
			continue;
		published[l] = p->block;
		reservation_shed(c, r, 1, block_pool(p->block)->geometry.slot_bytes);
		p->block = NULL;
		status = STATUS_OK;
	}
	cache_count(c, status ? COUNTER_COMMIT_EXISTS : COUNTER_COMMITTED, 1);
	return status;
}

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

/* One Reserve call. */
struct reserve {
	uint64_t session, attachment, call, now_us;
	const struct cache_keys *keys;
	const struct slot_info *info;
	bool open;
	struct gpu *gpu;
	bool exhausted;                /* memory that has run out stays out for the rest of the call */
	struct pool *pools[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	uint32_t done;                 /* keys dealt with */
	enum status *statuses;
	uint64_t *reservations;
	struct cache_place *places;
};

/* Some keys, in one hold of the lock; stops early when a pool should grow first. */
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
		struct reservation *r = handles_find(&c->reservations, v->reservations[i]);

		if (r && !r->committing)
			reservation_end(c, r);
	}
}

/* Until all keys are dealt with. */
static enum status reserve_all(struct cache *c, struct reserve *v, bool may_grow, const char **why)
{
	enum status status = STATUS_OK;
	uint32_t waits = 0, done = 0;

	while (v->done < v->keys->count && !status) {
		struct pool *grow;
		bool busy;

		cache_lock(c);
		status = reserve_chunk(c, v, why);
		grow = room_wants(c);
		busy = c->gpu_busy;
		c->gpu_busy = false;
		if ((grow || busy) && !may_grow)
			status = STATUS_BUSY;
		if (status)
			reserve_undo(c, v);
		cache_unlock(c);
		if (grow && may_grow)
			room_grow(c, grow, 1);
		waits = done == v->done ? waits : 0;
		done = v->done;
		v->exhausted |= busy && waits == GPU_WAITS_MAX;
		if (busy && may_grow && waits++ < GPU_WAITS_MAX)
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
	if (*why)
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
	room_retire_flush(c);
	return status;
}

enum status cache_abort(struct cache *c, uint64_t session, uint64_t reservation)
{
	enum status status = STATUS_OK;
	struct reservation *r;

	cache_lock(c);
	r = handles_find(&c->reservations, reservation);
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
