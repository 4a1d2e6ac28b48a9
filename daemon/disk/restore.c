/* What earlier runs left on the disks is taken up, on a thread of its own, while the cache serves.
 *
 *   1. the catalog's layouts become pools, its blocks become blocks on disk: about a microsecond each;
 *   2. if the last run did not end in order, or the catalog was lost, every slot's header is read as well. The header
 *      is the truth: it may name a block whose record was not committed any more, be a tombstone or another block's, or
 *      be missing. The same for a disk that was last used by another run than the one whose end the catalog has:
 *      another daemon's run, or a later one, if the catalog was restored from a backup. (A version that notes no run on
 *      disks is seen by what its stop leaves in the catalog: only if it used this one.);
 *   3. slots that nothing names are free. From now on blocks may be spilled, deleted and flushed.
 *
 * Until 3 those calls wait: a slot is written only if it is known to be free, and a delete must find every copy. A
 * block found on disk wins over one put meanwhile, since it may have been flushed. Of two copies on disk the one with
 * the higher generation wins; the other gets a tombstone. Bytes are checked when they are loaded.
 */
#include "daemon/disk/restore.h"

#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/layout_bytes.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/lost.h"
#include "daemon/disk/open.h"
#include "daemon/disk/restore_order.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/spill.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/disk/transfer.h"
#include "daemon/threads/await.h"
#include "kernels/format.h"
#include "store/catalog/catalog.h"
#include "store/catalog/record.h"
#include "store/clock.h"
#include "store/crash_point.h"
#include "store/index.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	AGAIN_NS = 100 * 1000 * 1000,
};

/* ---- what is found ---- */

/* A copy of a block on a disk, from a record or a header. */
struct found {
	struct index_ident ident;      /* its key is the record's or the header's */
	struct layout_pool *pool;
	struct unit *unit;
	struct disk_place place;
	uint64_t generation, position, stored_unix_ms;
	uint64_t parent;               /* its name as policies know it; 0: none */
	uint32_t tokens;
	bool flushed;                  /* its record says so */
};

struct restore {
	struct cache *cache;
	struct unit *unit;             /* that is being scanned */
	uint64_t unix_ms;              /* when the restorer began, and the cache's time then */
	uint64_t now_us;
	/* from which it is found now, the truth about its slot; NULL: from a record */
	const struct slot_header *header;
	struct restored_notes notes;
};

static uint64_t parent_id(uint32_t tenant, uint64_t layout_id, const uint8_t *key, uint32_t key_bytes)
{
	const struct index_ident parent = {
		.layout_id = layout_id, .tenant = tenant, .key_bytes = key_bytes, .key = key
	};

	return key_bytes ? block_id(&parent) : 0;
}

static void tombstone_copy(struct restore *x, const struct found *f, struct slab_map *r)
{
	CRASH_POINT("restore_tombstone");
	tombstone_begin(x->cache, r, f->place.slot, f->pool, &f->ident, f->generation);
}

/* Whatever else has the name: true if this copy is to live. */
static bool copy_wins(struct restore *x, const struct found *f)
{
	struct index_record *r = index_find(x->cache->index, &f->ident);
	struct block *b = r ? block_of(r) : NULL;

	if (!b)
		return true;
	/* The block was put meanwhile; had the copy been known, the put would have answered EXISTS. Flushed blocks
	 * stay. */
	if ((b->span || b->vram) && !b->slab_map) {
		block_remove(x->cache, b, CACHE_REASON_EVICTED);
		return true;
	}
	if (b->span || b->vram || b->moving || b->generation >= f->generation)
		return false;
	block_remove(x->cache, b, CACHE_REASON_DELETED);
	return true;
}

/* A header tells that a write was begun, and whether the last run vouched for all records its mark says. */
static void doubt(const struct restore *x, struct block *b)
{
	struct tier *t = x->cache->tier;

	if (!x->header && b->generation > t->doubt)
		return;
	slab_map_unverified(b, true);
	if (b->generation > t->doubt)
		t->doubt = b->generation;
}

static struct block *found_block(const struct restore *x, const struct found *f)
{
	struct block *b = block_alloc(f->ident.key_bytes);
	uint64_t age_us = x->unix_ms > f->stored_unix_ms ? (x->unix_ms - f->stored_unix_ms) * 1000 : 0;

	if (!b)
		return NULL;
	block_name_set(b, &f->ident);
	b->pool = f->pool;
	b->generation = f->generation;
	b->tokens = (uint16_t)f->tokens;
	b->flushed = f->flushed;
	b->stored_us = x->now_us > age_us ? x->now_us - age_us : 0;
	return b;
}

/* In a read section, with the lock. The slot is marked. */
static void adopt(struct restore *x, const struct found *f, struct slab_map *r)
{
	struct cache *c = x->cache;
	struct block *b;

	f->pool->tenant->active = true;
	if (!copy_wins(x, f)) {
		tombstone_copy(x, f, r);
		return;
	}
	CRASH_POINT("restore_adopt");
	b = found_block(x, f);
	if (!b || block_adopt(c, b, r, f->place.slot, f->position)) {
		free(b);
		tombstone_copy(x, f, r);
		return;
	}
	CRASH_POINT("restore_adopted");
	doubt(x, b);
	restored_note(&x->notes, &(struct restored){ .id = b->node.id, .parent = f->parent, .stored_ms = f->stored_unix_ms,
						     .position = f->position, .slab_map = r, .slot = f->place.slot });
	c->tier->restored_blocks++;
	if (x->header)
		catalog_tell(c, b, x->header);
}

/* In a read section, with the lock: a copy of the name f->ident lies in the place. */
static void take_up(struct restore *x, const struct found *f)
{
	struct slab_map *r = slab_map_get(x->cache, f->unit, f->place.slab);
	struct block *there = r && f->place.slot < r->slots ? r->at[f->place.slot].block : NULL;

	if (!r || f->place.slot >= r->slots || r->class->slot_bytes < f->pool->geometry.need_bytes) {
		if (!x->header && (r || !unit_has_slab(f->unit, f->place.slab)))
			lost_record(x->cache, f->unit, f->place.slab, &f->ident, r != NULL);
		return;
	}
	if (there && there->generation == f->generation) {
		if (x->header && !there->span)
			doubt(x, there);
		return; /* the record was right */
	}
	/* Two records of one slot: its header tells. */
	x->cache->tier->scan |= there && !x->header;
	if (there) {
		const struct index_ident name = block_name(there);

		catalog_untell(x->cache, &name);
		block_remove(x->cache, there, CACHE_REASON_EVICTED);
	} else if (disk_slot_mark(f->unit->disk, f->place, f->pool->geometry.need_bytes)) {
		return; /* taken by something newer */
	}
	adopt(x, f, r);
}

static struct unit *unit_by_id(struct tier *t, uint64_t id)
{
	for (uint32_t i = 0; i < t->unit_count; i++)
		if (t->units[i].id == id)
			return &t->units[i];
	return NULL;
}

static bool restorer_goes_on(const struct restore *x)
{
	return !atomic_load_explicit(&x->cache->tier->restorer_stop, memory_order_relaxed);
}

static void note_generation(struct cache *c, uint64_t generation)
{
	if (generation > c->tier->highest_generation)
		c->tier->highest_generation = generation;
}

/* ---- from the catalog ---- */

static bool on_layout(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct restore *x = arg;
	struct layout_record l;
	struct kv_layout layout;
	const char *why;
	struct layout_pool *p;

	if (layout_record_decode(key, key_bytes, value, value_bytes, &l) ||
	    !layout_unpack(l.layout, l.layout_bytes, &layout) ||
	    kv_layout_id(&layout) != l.layout_id)
		return true;
	cache_lock(x->cache);
	CRASH_POINT("restore_layout");
	layout_pool_get(x->cache, tenant_of_number(x->cache, 0), quota_join(x->cache->quota, NULL), &layout, &p, &why);
	cache_unlock(x->cache);
	return restorer_goes_on(x);
}

/* The catalog has a layout once, whichever tenants have blocks of it: `default` has got it, and gives its form. NULL:
 * there is no such tenant or layout any more, or no memory for another pool. */
static struct layout_pool *pool_of_record(struct cache *c, uint32_t tenant, uint64_t layout_id)
{
	struct tenant *t = tenant ? tenant_of_number(c, tenant) : NULL;
	struct layout_pool *p = t ? layout_pool_by_id(c, t, layout_id) : NULL, *form;
	const char *why;

	if (p || !t)
		return p;
	form = layout_pool_by_id(c, tenant_of_number(c, 0), layout_id);
	if (!form || layout_pool_get(c, t, quota_join(c->quota, NULL), &form->layout, &p, &why))
		return NULL;
	return p;
}

static bool on_record(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct restore *x = arg;
	struct cache *c = x->cache;
	struct block_record r;
	struct found f;

	if (block_record_decode(key, key_bytes, value, value_bytes, &r)) {
		c->tier->scan = true; /* the slot that it meant is not free */
		return true;
	}
	f = (struct found){
		.ident = { .layout_id = r.layout_id, .tenant = r.tenant, .key_bytes = r.key_bytes, .key = r.key },
		.unit = unit_by_id(c->tier, r.disk_id),
		.place = { r.slab, r.slot },
		.generation = r.generation,
		.position = r.position,
		.stored_unix_ms = r.stored_unix_ms,
		.tokens = r.tokens,
		.flushed = r.flushed
	};
	f.parent = parent_id(r.tenant, r.layout_id, r.parent, r.parent_bytes);
	index_read_lock();
	cache_lock(c);
	CRASH_POINT("restore_record");
	note_generation(c, f.generation);
	f.pool = pool_of_record(c, r.tenant, r.layout_id);
	if (f.pool && f.unit) {
		take_up(x, &f);
	} else {
		c->tier->scan |= f.unit != NULL; /* its layout is lost: the header has it */
		c->tier->found.blocks_absent += !f.unit;
		catalog_untell(c, &f.ident);
	}
	cache_unlock(c);
	index_read_unlock();
	return restorer_goes_on(x);
}

static bool on_promise(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct cache *c = arg;
	uint64_t layout_id, generation;
	struct layout_pool *p;
	uint32_t tenant;

	if (key_bytes < 4 || memcmp(key, "flsh", 4) != 0)
		return false;
	if ((key_bytes != PROMISE_KEY_BYTES && key_bytes != PROMISE_KEY_BYTES_MAX) || value_bytes != sizeof(generation))
		return true;
	tenant = tenant_of_number(c, 0)->number;
	if (key_bytes == PROMISE_KEY_BYTES_MAX)
		memcpy(&tenant, (const uint8_t *)key + PROMISE_KEY_BYTES, sizeof(tenant));
	memcpy(&layout_id, (const uint8_t *)key + 4, sizeof(layout_id));
	memcpy(&generation, value, sizeof(generation));
	cache_lock(c);
	p = pool_of_record(c, tenant, layout_id);
	if (p && p->flushed_generation < generation)
		p->flushed_generation = generation;
	cache_unlock(c);
	return true;
}

/* What earlier runs promised. It comes before the blocks: one is taken up as flushed or not. */
static void promises_recall(struct cache *c)
{
	catalog_walk_from(c->tier->catalog, CATALOG_META, "flsh", 4, on_promise, c, NULL);
}

/* ---- from the headers ---- */

static struct layout_pool *pool_of_header(struct cache *c, const struct slot_header *h)
{
	struct tenant *t = tenant_of_name(c, h->tenant);
	struct layout_pool *p = t ? layout_pool_by_id(c, t, h->layout_id) : NULL;
	struct kv_layout layout;
	const char *why;

	if (!t)
		return NULL;
	if (p || !layout_unpack(h->layout, h->layout_bytes, &layout) || kv_layout_id(&layout) != h->layout_id)
		return p;
	return layout_pool_get(c, t, quota_join(c->quota, NULL), &layout, &p, &why) ? NULL : p;
}

/* A tombstone: the block that a record names in this slot is dead. Other copies of the name are alive: older copies got
 * a tombstone or were displaced before the delete was acknowledged, and a later put may have a lower generation if the
 * catalog was lost. */
static void on_tombstone(struct restore *x, const struct found *f)
{
	struct slab_map *r = slab_map_find(f->unit, f->place.slab);
	struct block *there = r && f->place.slot < r->slots ? r->at[f->place.slot].block : NULL;

	CRASH_POINT("restore_tombstone");
	if (there && !there->moving)
		block_remove(x->cache, there, CACHE_REASON_DELETED);
}

/* A slot without a header: a record that names it was committed, but its write was not durable when the power went. If
 * the block were kept until a load, a flush could promise it. */
static void on_none(struct restore *x, struct disk_place place)
{
	struct cache *c = x->cache;
	struct slab_map *r;
	struct block *there;

	index_read_lock();
	cache_lock(c);
	r = slab_map_find(x->unit, place.slab);
	there = r && place.slot < r->slots ? r->at[place.slot].block : NULL;
	if (there && !there->moving)
		block_remove(c, there, CACHE_REASON_CORRUPT);
	cache_unlock(c);
	index_read_unlock();
}

static bool on_header(struct restore *x, struct disk_place place, uint64_t slot_bytes, const struct slot_header *h)
{
	struct cache *c = x->cache;
	struct found f = { .ident = { .layout_id = h->layout_id,
				      .key_bytes = h->key_bytes,
				      .key = h->key },
			   .unit = x->unit,
			   .place = place,
			   .generation = h->generation,
			   .position = h->position,
			   .stored_unix_ms = h->stored_unix_ms,
			   .tokens = h->tokens };

	x->header = h;
	index_read_lock();
	cache_lock(c);
	CRASH_POINT("restore_header");
	note_generation(c, f.generation);
	f.pool = pool_of_header(c, h);
	f.ident.tenant = f.pool ? f.pool->tenant->number : 0;
	f.parent = parent_id(f.ident.tenant, h->layout_id, h->parent, h->parent_bytes);
	if (f.pool && f.pool->geometry.need_bytes <= slot_bytes) {
		if (h->tombstone)
			on_tombstone(x, &f);
		else
			take_up(x, &f);
	}
	cache_unlock(c);
	index_read_unlock();
	return restorer_goes_on(x);
}

static bool on_slot(void *arg, struct disk_place place, uint64_t slot_bytes, const struct slot_header *h)
{
	struct restore *x = arg;

	if (h)
		return on_header(x, place, slot_bytes, h);
	on_none(x, place);
	return restorer_goes_on(x);
}

/* ---- the thread ---- */

static void scan_all(struct restore *x)
{
	struct tier *t = x->cache->tier;

	for (uint32_t i = 0; i < t->unit_count && restorer_goes_on(x); i++) {
		enum status s;

		if (!t->scan && !t->units[i].scan)
			continue;
		x->unit = &t->units[i];
		while ((s = disk_scan(x->unit->disk, on_slot, x, NULL)) && restorer_goes_on(x)) {
			cache_lock(x->cache);
			unit_failed(x->cache, x->unit);
			cache_unlock(x->cache);
			if (x->unit->failed)
				break;
			/* A slot that was not looked at is not free: for lack of memory the scan begins anew. */
			nanosleep(&(struct timespec){ .tv_nsec = AGAIN_NS }, NULL);
		}
	}
}

/* With the lock. A lost catalog cannot say what generations it had promised: those to come are above all that lie on
 * the disks. */
static void lift_generations(struct cache *c)
{
	struct tier *t = c->tier;
	struct boot_record boot = { .boots = 1, .epoch = c->epoch };
	struct record r;

	if (t->highest_generation < t->first_generation)
		return;
	c->generation_lift = t->highest_generation + 1 - t->first_generation;
	boot.generation_reserved = t->highest_generation + GENERATIONS_RESERVED;
	if (!boot_record_encode(&boot, &r))
		catalog_put(t->catalog, CATALOG_META, r.key, r.key_bytes, r.value, r.value_bytes);
}

/* The run that ended in order, and left the catalog as it is; 0: none, or of a version that did not say which. *doubt:
 * as of its tier. */
static uint64_t run_ended(struct catalog *catalog, uint64_t *doubt)
{
	uint64_t mark[2] = { 0, 0 };
	size_t n = sizeof(mark);

	if (catalog_get(catalog, CATALOG_META, "clean", 5, mark, &n) || (n != sizeof(mark[0]) && n != sizeof(mark)))
		return 0;
	*doubt = mark[1];
	return mark[0];
}

/* Which disks' headers are to be read. */
static void trust(struct tier *t)
{
	const uint64_t run = run_ended(t->catalog, &t->doubt);

	t->scan = t->rebuild || !run;
	for (uint32_t i = 0; i < t->unit_count; i++)
		t->units[i].scan = disk_run(t->units[i].disk) != run;
}

/* After this one, no older word of the catalog's is true of the disks. */
static void run_begins(const struct restore *x)
{
	struct tier *t = x->cache->tier;

	for (uint32_t i = 0; i < t->unit_count && restorer_goes_on(x); i++)
		if (disk_run_set(t->units[i].disk, x->cache->epoch)) {
			cache_lock(x->cache);
			unit_failed(x->cache, &t->units[i]);
			cache_unlock(x->cache);
		}
}

static bool goes_on(const void *x)
{
	return restorer_goes_on(x);
}

static enum status unclean_once(const struct restore *x)
{
	enum status s = catalog_drop(x->cache->tier->catalog, CATALOG_META, "clean", 5);

	return s ? s : tier_commit(x->cache->tier, goes_on, x);
}

/* From now on this run counts as not ended in order, until it ends; that is on disk before anything is spilled. If the
 * catalog does not take it, it is asked again, while the cache serves without its disks. */
static void unclean(const struct restore *x)
{
	while (restorer_goes_on(x) && unclean_once(x))
		nanosleep(&(struct timespec){ .tv_nsec = AGAIN_NS }, NULL);
}

/* A catalog that cannot be read to its end, or has damaged records, does not say which slots are free. */
static void read_catalog(struct restore *x)
{
	struct tier *t = x->cache->tier;
	uint64_t layouts = 0, blocks = 0;
	enum status s;

	lost_return(x->cache);
	s = catalog_walk(t->catalog, CATALOG_LAYOUTS, on_layout, x, &layouts);

	t->scan |= s != STATUS_OK || layouts;
	promises_recall(x->cache);
	s = catalog_walk(t->catalog, CATALOG_BLOCKS, on_record, x, &blocks);
	t->scan |= s != STATUS_OK || blocks;
}

static bool over_budget(struct disk *d)
{
	struct disk_view v;

	disk_look(d, &v);
	return v.slab_bytes_used > v.budget_bytes;
}

/* The restore from top to bottom. After each step a crash can be recovered from what is on the disks, so the order of
 * the steps matters. */
void *restore_main(void *arg)
{
	struct cache *c = arg;
	struct tier *t = c->tier;
	struct restore x = { .cache = c, .unix_ms = clock_unix_ms() };
	uint64_t began = clock_us();

	cache_thread_enter();
	cache_lock(c);
	x.now_us = c->now_us;
	cache_unlock(c);
	CRASH_POINT("restore_begin");
	trust(t);
	CRASH_POINT("restore_dirty");
	unclean(&x);
	run_begins(&x);
	/* A restorer that must stop may not have noted the new run: the note of the run before stays, and the catalog
	 * must still fit that run. */
	if (restorer_goes_on(&x) && t->rebuild)
		t->lagging |= catalog_empty(t->catalog, CATALOG_BLOCKS) != STATUS_OK;
	else if (restorer_goes_on(&x))
		read_catalog(&x);
	lost_judge(c);
	CRASH_POINT("restore_walked");
	scan_all(&x);
	CRASH_POINT("restore_scanned");
	restored_order(c, &x.notes);
	restored_notes_free(&x.notes);
	cache_lock(c);
	if (restorer_goes_on(&x)) {
		for (uint32_t i = 0; i < t->unit_count; i++) {
			disk_slot_free_unmarked(t->units[i].disk);
			t->units[i].look_us = c->now_us;
			t->units[i].over = over_budget(t->units[i].disk);
			unit_sweep_anew(&t->units[i]); /* a disk that failed meanwhile may have got blocks after its
						        * blocks were given up */
		}
		CRASH_POINT("restore_freed");
		lift_generations(c);
		t->restored = true;
		t->restored_us = clock_us() - began;
		spill_pump(c);
	}
	cache_unlock(c);
	cache_thread_leave();
	await_answer(t->restorer_end);
	return NULL;
}
