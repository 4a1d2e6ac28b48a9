/* For operators: one block in detail, and the scrub. Both pin a block, check it without the lock, and unpin it. */
#include "daemon/call/inspect.h"

#include "daemon/block/block.h"
#include "daemon/block/check.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/scrub_target.h"
#include "daemon/session/reservation.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "store/arena/arena.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"

#include <string.h>

enum { VERIFY_BLOCKS = 256, VERIFY_LOOKS = 2048 };

static void view_common(const struct block *b, struct cache_block_view *v)
{
	const struct layout_pool *p = block_pool(b);

	*v = (struct cache_block_view){
		.layout_id = p->layout_id, .generation = b->generation, .block_bytes = p->geometry.block_bytes,
		.extent = (uint32_t)CACHE_EXTENT_NONE, .tokens = b->tokens, .layout = p->layout,
		.tier = *block_tier(b) ? block_tier(b) : b->span ? "host" : "gpu",
	};
	if (b->span) {
		v->extent = b->span->extent;
		v->offset = b->span->offset + b->index * b->span->stride;
	} else if (b->vram) {
		v->extent = b->vram->span->place->extent;
		v->offset = vram_offset(b->vram);
	}
}

static void view_stored(const struct cache *c, const struct block *b, struct cache_block_view *v)
{
	view_common(b, v);
	v->state = "stored";
	v->pins = block_pins(b) & ~INDEX_DEAD;
	const struct policy_node *n = block_node(b);

	v->uses = n->uses;
	v->age_ms = (c->now_us - b->stored_us) / 1000;
	v->idle_ms = (c->now_us - n->last_use_us) / 1000;
}

/* copy: given if the block is on disk only. A block on a GPU only is brought to memory. Without the lock. */
static void view_header(struct cache *c, const struct block *b, const struct scrub_target *copy, struct cache_block_view *v)
{
	struct slot_header h = { .magic = 0 };

	if (copy->disk)
		v->checksum_ok = scrub_copy(b, copy, &h) == STATUS_OK;
	else
		v->checksum_ok = (!c->vram || vram_bring(c, (struct block *)b, false)) && memory_sound(b, &h);
	if (copy->disk ? slot_header_problem(&h) != NULL : !slot_header_is(&h, block_header_crc(b)))
		return;
	v->position = h.position;
	v->turn = h.turn;
	v->role = h.role;
	v->parent_bytes = h.parent_bytes;
	memcpy(v->parent, h.parent, sizeof(v->parent));
}

static bool inspect_pool(struct cache *c, struct layout_pool *p, const uint8_t *key, uint32_t key_bytes,
			 struct cache_block_view *out)
{
	struct index_record *found;
	struct index_ident ident;
	struct scrub_target copy = { .disk = NULL };
	struct block *b = NULL;
	struct part *pending_key;
	bool shown = false;

	block_ident(p, key, key_bytes, &ident);
	index_read_lock();
	cache_lock(c);
	found = index_find(c->index, &ident);
	pending_key = found ? NULL : pending_key_find(c, &ident);
	if (found) {
		b = block_of(found);
		view_stored(c, b, out);
		block_pin(b);
		if (!b->span && b->slab_map)
			copy = scrub_target_of(b);
		shown = true;
	} else if (pending_key) {
		view_common(pending_key->block, out);
		out->state = "reserved";
		shown = true;
	}
	cache_unlock(c);
	index_read_unlock();
	if (b) {
		view_header(c, b, &copy, out);
		cache_lock(c);
		block_unpin(b);
		cache_unlock(c);
	}
	return shown;
}

enum status cache_inspect(struct cache *c, const struct cache_block_name *name, uint64_t now_us,
			  struct cache_block_view *out, uint32_t max, uint32_t *n, const char **why)
{
	const struct cache_keys one = { name->key, 1, name->key_bytes };
	uint32_t pools, shown = 0;

	const struct tenant *t = *name->tenant ? tenant_of_name(c, name->tenant) : NULL;

	*why = "unknown tenant: there is none of that name";
	if (*name->tenant && !t)
		return STATUS_DENIED;
	*why = cache_keys_problem(&one, 1);
	if (*why)
		return STATUS_INVALID;
	cache_lock(c);
	cache_time(c, now_us);
	pools = c->pool_count;
	cache_unlock(c);
	/* Pools are only ever added, at the end. */
	for (uint32_t i = 0; i < pools && shown < max; i++)
		if ((!t || c->pools[i]->tenant == t) &&
		    (!name->layout_id || c->pools[i]->layout_id == name->layout_id))
			shown += inspect_pool(c, c->pools[i], name->key, name->key_bytes, &out[shown]);
	*n = shown;
	return STATUS_OK;
}

/* ---- scrub ---- */

/* The next block in memory, or on GPUs alone, pinned. NULL at the end, or with *looks 0. With the lock. */
static struct block *verify_next(struct cache *c, struct index_walk *w, uint32_t *looks)
{
	struct block *b = NULL;
	struct index_record *r;

	index_read_lock();
	for (; *looks && !b && (r = index_walk_next(c->index, w)); --*looks)
		if (block_of(r)->span || vram_has_alone(block_of(r)))
			b = block_of(r);
	index_read_unlock();
	if (b)
		block_pin(b);
	return b;
}

static void verify_block(struct cache *c, struct block *b, struct cache_verified *sum)
{
	struct slot_header h;

	if (c->vram && !vram_bring(c, b, c->tier)) { /* it was on a GPU alone, and could not be brought */
		cache_lock(c);
		sum->unread += block_live(b);
		block_unpin(b);
		cache_unlock(c);
		return;
	}
	const bool sound = memory_sound(b, &h);

	sum->blocks++;
	sum->bytes += block_pool(b)->geometry.block_bytes;
	sum->corrupt += !sound;
	cache_lock(c);
	if (!sound && block_live(b))
		memory_damaged(c, b, COUNTER_MEMORY_WRONG_VERIFY);
	block_unpin(b);
	cache_unlock(c);
}

uint64_t cache_verify_blocks(struct cache *c)
{
	uint64_t n = 0;

	cache_lock(c);
	for (uint32_t i = 0; i < c->pool_count; i++)
		n += c->pools[i]->blocks + c->pools[i]->disk_blocks + vram_only_blocks(c, c->pools[i]);
	cache_unlock(c);
	return n;
}

uint32_t cache_layouts(struct cache *c, struct cache_layout_view *out, uint32_t max)
{
	uint32_t n;

	cache_lock(c);
	for (n = 0; n < c->pool_count && n < max; n++) {
		const struct layout_pool *p = c->pools[n];

		out[n] = (struct cache_layout_view){ .layout_id = p->layout_id, .block_bytes = p->geometry.block_bytes,
						     .host_blocks = p->blocks, .disk_blocks = p->disk_blocks,
						     .dirty_blocks = p->dirty, .layout = p->layout };
	}
	cache_unlock(c);
	return n;
}

enum status cache_verify_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes,
			      struct cache_verified *sum)
{
	struct index_walk w = { .place = *cursor };
	const uint64_t from = sum->bytes;
	uint32_t looks = VERIFY_LOOKS;
	struct block *b = NULL;

	for (int i = 0; i < VERIFY_BLOCKS && looks; i++) {
		cache_lock(c);
		b = verify_next(c, &w, &looks);
		cache_unlock(c);
		if (b)
			verify_block(c, b, sum);
		if (!b || sum->bytes - from >= max_bytes)
			break;
	}
	*cursor = b || !looks ? index_walk_behind(&w) : UINT64_MAX;
	return STATUS_OK;
}
