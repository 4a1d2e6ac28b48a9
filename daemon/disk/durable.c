/* What is durable. The catalog is told of each copy on a disk, and of what was flushed; a write is durable when its
 * disk has been synced after it. Calls wait for both: each sync and each commit is a link that is a request of its own.
 */
#include "daemon/disk/durable.h"

#include "daemon/block/block.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/ends.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_bytes.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/wait.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "kernels/format.h"
#include "store/catalog/catalog.h"
#include "store/catalog/record.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

_Static_assert((int)LAYOUT_BYTES_MAX <= (int)SLOT_LAYOUT_MAX, "it stands in the headers of slots");

/* ---- what the catalog is told ---- */

/* Tells the catalog the layouts that it has not heard of. Layout pools are only ever added. */
static void tell_layouts(struct cache *c)
{
	for (; c->tier->layouts_kept < c->pool_count; c->tier->layouts_kept++) {
		const struct layout_pool *p = c->pools[c->tier->layouts_kept];
		struct layout_record l = { .layout_id = p->layout_id, .slot_bytes = p->geometry.need_bytes };
		struct record r;

		l.layout_bytes = layout_pack(&p->layout, l.layout);
		if (layout_record_encode(&l, &r) ||
		    catalog_put(c->tier->catalog, CATALOG_LAYOUTS, r.key, r.key_bytes, r.value, r.value_bytes))
			c->tier->lagging = true;
	}
}

static void block_record_of(const struct index_ident *ident, struct block_record *out)
{
	*out = (struct block_record){ .layout_id = ident->layout_id, .tenant = ident->tenant, .key_bytes = ident->key_bytes };
	memcpy(out->key, ident->key, ident->key_bytes);
}

void catalog_tell(struct cache *c, const struct block *b, const struct slot_header *h)
{
	const bool sound = !slot_header_problem(h);
	const struct index_ident name = block_name(b);
	struct block_record br;
	struct record r;

	tell_layouts(c);
	block_record_of(&name, &br);
	br.disk_id = b->slab_map->class->unit->id;
	br.slab = b->slab_map->slab;
	br.slot = b->slab_map_slot;
	br.generation = b->generation;
	br.slot_bytes = b->pool->geometry.need_bytes;
	br.tokens = b->tokens;
	br.flushed = block_flushed(b);
	if (sound) {
		br.stored_unix_ms = h->stored_unix_ms;
		br.position = h->position;
		br.turn = h->turn;
		br.role = h->role <= BLOCK_RECORD_ROLE_MAX ? h->role : 0;
		br.parent_bytes = h->parent_bytes;
		memcpy(br.parent, h->parent, h->parent_bytes);
	}
	if (block_record_encode(&br, &r) || catalog_put(c->tier->catalog, CATALOG_BLOCKS, r.key, r.key_bytes, r.value, r.value_bytes))
		c->tier->lagging = true;
}

enum status cache_catalog_renew(struct cache *c)
{
	enum status s = STATUS_UNAVAILABLE;

	cache_lock(c);
	if (c->tier) {
		s = !c->tier->restored || c->tier->renewing ? STATUS_BUSY : catalog_empty(c->tier->catalog, CATALOG_BLOCKS);
		c->tier->renewing |= s == STATUS_OK;
		if (s == STATUS_OK)
			c->tier->layouts_kept = 0; /* they are told again with the first block */
	}
	cache_unlock(c);
	return s;
}

void catalog_untell(struct cache *c, const struct index_ident *ident)
{
	struct block_record br;
	uint8_t key[RECORD_KEY_MAX];
	size_t n;

	block_record_of(ident, &br);
	if (block_record_key(&br, key, &n) || catalog_drop(c->tier->catalog, CATALOG_BLOCKS, key, n))
		c->tier->lagging = true;
}

/* ---- what was flushed ---- */

static size_t promise_key(const struct layout_pool *p, uint8_t key[PROMISE_KEY_BYTES_MAX])
{
	memcpy(key, "flsh", 4);
	memcpy(key + 4, &p->layout_id, sizeof(p->layout_id));
	if (p->tenant == tenant_of_number(p->cache, 0))
		return PROMISE_KEY_BYTES;
	memcpy(key + PROMISE_KEY_BYTES, &p->tenant->number, sizeof(p->tenant->number));
	return PROMISE_KEY_BYTES_MAX;
}

/* Notes in the record of a block that memory does not have that the block was flushed. A record that is not committed
 * yet, or is of another copy, stays as it is: then the next run does not know of the flush. */
static void record_promise(struct cache *c, const struct block *b)
{
	const struct index_ident name = block_name(b);
	uint8_t value[RECORD_VALUE_MAX];
	struct block_record br;
	size_t n = sizeof(value);
	struct record r;

	block_record_of(&name, &br);
	if (block_record_key(&br, r.key, &r.key_bytes) ||
	    catalog_get(c->tier->catalog, CATALOG_BLOCKS, r.key, r.key_bytes, value, &n) ||
	    block_record_decode(r.key, r.key_bytes, value, n, &br))
		return;
	if (br.generation != b->generation || br.disk_id != b->slab_map->class->unit->id ||
	    br.slab != b->slab_map->slab ||
	    br.slot != b->slab_map_slot)
		return;
	br.flushed = true;
	if (!block_record_encode(&br, &r))
		(void)catalog_put(c->tier->catalog, CATALOG_BLOCKS, r.key, r.key_bytes, r.value, r.value_bytes);
}

void promise_block(struct cache *c, struct block *b, const struct slot_header *h)
{
	if (block_flushed(b))
		return;
	b->flushed = true;
	if (!b->slab_map)
		return; /* its spill tells */
	slab_map_promise(b->slab_map, b->slab_map_slot);
	if (h)
		catalog_tell(c, b, h);
	else
		record_promise(c, b);
}

void promise_pool(struct cache *c, struct layout_pool *p)
{
	const uint64_t generation = c->tier->attached_generation;
	uint8_t key[PROMISE_KEY_BYTES_MAX];

	if (p->flushed_generation >= generation)
		return;
	p->flushed_generation = generation;
	(void)catalog_put(c->tier->catalog, CATALOG_META, key, promise_key(p, key), &generation, sizeof(generation));
}

/* ---- syncs and commits ---- */

/* A link that is a request of its own. */
struct sync_request {
	struct cache_wait_link link;   /* first */
	struct end end;
	enum status status;            /* the catalog's, or the disk's, when it has ended */
	struct cache *cache;
	struct disk_request sync;
	uint64_t covers;               /* the unit's `written` when it began */
};

static struct sync_request *sync_request_of_end(struct end *e)
{
	return (struct sync_request *)((char *)e - offsetof(struct sync_request, end));
}

static struct sync_request *sync_request(struct cache *c, struct cache_wait *w)
{
	struct sync_request *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->cache = c;
	e->link.sync_request = true;
	wait_link_in(w, &e->link);
	return e;
}

/* Frees a request for a sync that was not begun. */
static void sync_request_drop(struct cache_wait *w, struct sync_request *e)
{
	wait_link_out(w, &e->link);
	free(e);
}

static void catalog_over(struct cache *c, struct end *end)
{
	struct sync_request *e = sync_request_of_end(end);

	wait_link_done(c, &e->link, e->status);
}

static void catalog_done(void *arg, enum status s)
{
	struct sync_request *e = arg;

	e->status = s;
	e->end.run = catalog_over;
	ends_arrive(e->cache, &e->end);
}

enum status wait_catalog(struct cache *c, struct cache_wait *w)
{
	struct sync_request *e = sync_request(c, w);
	enum status s;

	if (!e)
		return STATUS_EXHAUSTED;
	wait_link_part(w, &e->link, WAIT_CATALOG);
	s = catalog_flush(c->tier->catalog, catalog_done, e);
	if (s) {
		sync_request_drop(w, e);
		w->uncommitted = s;
	}
	return s;
}

static void sync_over(struct cache *c, struct end *end)
{
	struct sync_request *e = sync_request_of_end(end);

	for (uint32_t i = 0; i < c->tier->unit_count; i++) {
		struct unit *u = &c->tier->units[i];

		if (u->disk != e->sync.disk)
			continue;
		if (e->status)
			unit_failed(c, u);
		else if (u->synced < e->covers)
			u->synced = e->covers;
	}
	wait_link_done(c, &e->link, e->status);
}

static void sync_done(struct disk_request *q)
{
	struct sync_request *e = (struct sync_request *)((char *)q - offsetof(struct sync_request, sync));

	e->status = q->ring.status;
	e->end.run = sync_over;
	ends_arrive(e->cache, &e->end);
}

enum status wait_sync(struct cache *c, struct cache_wait *w, struct unit *u)
{
	struct sync_request *e = sync_request(c, w);
	enum status s;

	if (!e)
		return STATUS_EXHAUSTED;
	e->sync.done = sync_done;
	e->covers = u->written;
	wait_link_part(w, &e->link, u->number);
	s = disk_sync(u->disk, &e->sync);
	if (s)
		sync_request_drop(w, e);
	return s;
}

/* ---- what is durable ---- */

static uint64_t *unsynced_bucket(const struct unit *u, const struct index_ident *ident)
{
	return (uint64_t *)&u->unsynced[ident_hash(ident, 0) % UNSYNCED_BUCKETS];
}

void unit_wrote(struct unit *u, const struct index_ident *ident)
{
	*unsynced_bucket(u, ident) = ++u->written;
}

bool unit_unsynced(const struct unit *u, const struct index_ident *ident)
{
	const uint64_t last = *unsynced_bucket(u, ident);

	return (last ? last : 1) > u->synced;
}
