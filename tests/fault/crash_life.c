/* See crash_life.h. */
#include "tests/fault/crash_life.h"

#include "daemon/block/disk_class.h"
#include "daemon/block/grid.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/flush.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/settle.h"
#include "daemon/call/stream.h"
#include "daemon/call/warm.h"
#include "daemon/disk/compact.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/arena/arena.h"
#include "store/catalog/catalog.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { UNIT = 16, NO_CELL = 4 }; /* of sessions with units */
enum { SLOT = 8192, CALL_KEYS = 8, WAIT_MS = 120000, SHED_MS = 60000, LOCK_MS = 30000, GRAPH_NODES = 256, ADVISOR_MS = 5 };

struct life {
	const struct crash_setting *setting;
	const struct crash_life *plan;
	struct crash_shadow *shadow;
	struct crash_random random;
	struct cache *c;
	struct cache_session_view s[CRASH_CLASSES];
	uint64_t attachment[CRASH_CLASSES];
	pthread_t background;
	pthread_mutex_t pause;         /* held while the background runs, or must not */
	_Atomic bool over;
	_Atomic uint32_t writes;       /* that the disks were asked for */
};

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void nap_us(uint32_t us)
{
	nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL);
}

__attribute__((format(printf, 2, 3))) static _Noreturn void wrong(struct life *l, const char *form, ...)
{
	va_list args;

	va_start(args, form);
	vsnprintf(l->shadow->failure, sizeof(l->shadow->failure), form, args);
	va_end(args);
	if (getenv("CRASH_ABORT"))
		abort();
	_exit(1);
}

/* ---- opening ---- */

static int fault(void *arg, const struct ring_request *r, uint32_t *most)
{
	struct life *l = arg;

	(void)most;
	if (r->op != RING_WRITE || !l->plan->fault)
		return 0;
	return atomic_fetch_add(&l->writes, 1) + 1 == l->plan->fault_at ? l->plan->fault : 0;
}

/* Of the same class of slots as the packed one beside it. */
static struct kv_layout opaque_layout(uint32_t n)
{
	return (struct kv_layout){
		.fingerprint = { 1 }, .first_layer = n, .layers = 5, .block_tokens = 16, .k_format = KV_OPAQUE,
		.layout_version = KV_LAYOUT_VERSION, .opaque_bytes = 5 * 400, .opaque_name = "test/pages/1",
	};
}

static struct kv_layout packed_layout(uint32_t class, uint32_t n)
{
	const uint32_t heads = class ? 16 : 1;

	return (struct kv_layout){
		.fingerprint = { 1 }, .first_layer = n, .layers = 1, .heads = heads, .total_heads = heads,
		.head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16, .k_format = KV_TQ2, .v_format = KV_TQ2,
		.rotation_version = KV_ROTATION_VERSION, .codebook_version = KV_CODEBOOK_VERSION,
		.layout_version = KV_LAYOUT_VERSION,
	};
}

static struct kv_layout layout_of(uint32_t class, uint32_t n)
{
	return n ? opaque_layout(n) : packed_layout(class, n);
}

/* Sessions with units: of the one whole blocks of 4 keys beside states, whole or partial, of 2 keys; of the other
 * blocks of 2 keys in a window. A partial block is opaque, so that all its bytes are kept. */
static const struct {
	uint32_t units, window;
	struct grid_wish wish;
} hybrid[CRASH_CLASSES][CRASH_LAYOUTS] = {
	{ { .units = 4 }, { .units = 2, .wish = { .last = 1, .partial = true, .sparse = true } } },
	{ { .units = 2, .window = 70, .wish = { .sparse = true } } },
};

static void hybrid_of(uint32_t class, uint32_t n, struct kv_layout *layout, struct grid_wish *wish)
{
	layout->block_tokens = hybrid[class][n].units * UNIT;
	if (class) /* of two keys as many bytes as of one with all heads */
		layout->heads = layout->total_heads = layout->heads / hybrid[class][n].units;
	layout->window = hybrid[class][n].window;
	*wish = hybrid[class][n].wish;
}

static void open_cache(struct life *l)
{
	static char folder[2][128], catalog[128];
	static struct cache_disk_options disk[2];
	static struct ring_calls calls;
	const struct crash_setting *s = l->setting;
	const char *policy = l->plan->graph ? "graph" : "lru";
	struct cache_options o = {
		.host_bytes = (uint64_t)s->host_slots * SLOT, .extent_bytes = 128 << 10, .policy = policy,
		.pinned_bytes_max = UINT64_MAX / 4, .sessions_max = 16, .leases_max = 64, .open_blocks_max = 8,
		.session_idle_ms = 600000, .lease_ttl_ms = 600000, .reservation_ttl_ms = 600000, .watch_queue = 64,
		.disks = disk, .disk_count = s->disks, .catalog_folder = catalog, .rebuild = l->plan->rebuild,
		.slab_bytes = (uint64_t)s->disk_slots * SLOT / 8, .disk_depth = s->depth, .disk_slow_ms = 1000,
		.spill_share_milli = 500, .disk_policy = policy, .io = s->threads ? CACHE_IO_THREADS : CACHE_IO_AUTO,
		.io_calls = &calls, .graph_nodes = l->plan->graph ? GRAPH_NODES : 0, .advisor_ms = ADVISOR_MS, .prefetch_bytes = 1 << 20,
		.recompute_growth = l->plan->graph ? 64 : 0,
	};
	const char *why = "";
	enum status st;

	calls = (struct ring_calls){ .fault = fault, .arg = l };
	if (s->power)
		power_log_use(s->power, &calls);
	for (uint32_t i = 0; i < s->disks; i++) {
		snprintf(folder[i], sizeof(folder[i]), "%s/disk%u", s->root, i);
		disk[i] = (struct cache_disk_options){ folder[i], (uint64_t)s->disk_slots * SLOT };
	}
	snprintf(catalog, sizeof(catalog), "%s/catalog", s->root);
	/* The child that looks at a catalog inherits its lock, and dies a moment after its parent. */
	for (uint64_t since = now_us(); (st = cache_create(&o, now_us(), &l->c, &why)) == STATUS_BUSY;) {
		if (now_us() - since > LOCK_MS * 1000ull)
			break;
		nap_us(1000);
	}
	if (st)
		wrong(l, "the cache does not open: %s: %s", status_text(st), why);
}

static void open_session(struct life *l, uint32_t class)
{
	struct grid_wish wishes[CRASH_LAYOUTS] = { { 0 } };
	struct kv_layout layouts[CRASH_LAYOUTS];
	uint32_t n = class ? 1 : 2;
	uint64_t session;
	const char *why;

	for (uint32_t i = 0; i < n; i++) {
		layouts[i] = layout_of(class, i);
		if (l->setting->units)
			hybrid_of(class, i, &layouts[i], &wishes[i]);
	}
	if (cache_session_open(l->c, &(struct cache_open_call){ .tenant = "", .layouts = layouts,
								.layout_count = n, .engine = "crash",
								.unit = l->setting->units ? UNIT : 0, .wishes = wishes,
								.now_us = now_us() }, &l->s[class], &why) ||
	    cache_attach(l->c, l->s[class].token, 1, now_us(), &l->attachment[class], &session, &why))
		wrong(l, "no session: %s", why);
}

static void *background(void *arg)
{
	struct life *l = arg;

	cache_thread_enter();
	while (!atomic_load(&l->over)) {
		pthread_mutex_lock(&l->pause);
		if (cache_tick(l->c, now_us())) {
			cache_disk_chores(l->c);
			cache_chores(l->c);
		}
		pthread_mutex_unlock(&l->pause);
		nap_us(1000);
	}
	cache_thread_leave();
	return NULL;
}

/* ---- calls that wait ---- */

struct waiting {
	struct cache_wait wait;
	sem_t ready;
	uint64_t since;
};

static void wait_ready(void *arg)
{
	sem_post(arg);
}

static void wait_open(struct waiting *w)
{
	memset(w, 0, sizeof(*w));
	sem_init(&w->ready, 0, 0);
	w->wait = (struct cache_wait){ .ready = wait_ready, .arg = &w->ready };
	w->since = now_us();
}

static void wait_some(struct life *l, struct waiting *w, const char *what)
{
	if (w->wait.poll)
		nap_us(500);
	else
		while (sem_trywait(&w->ready) && now_us() - w->since < WAIT_MS * 1000ull)
			nap_us(50);
	if (now_us() - w->since >= WAIT_MS * 1000ull)
		wrong(l, "%s does not end", what);
}

static void wait_close(struct life *l, struct waiting *w)
{
	cache_wait_end(l->c, &w->wait);
	sem_destroy(&w->ready);
}

static struct cache_keys keys_of(uint32_t class, uint32_t first, uint32_t count, uint8_t *bytes)
{
	for (uint32_t i = 0; i < count; i++)
		crash_key_bytes(class, (first + i) % CRASH_KEYS, bytes + i * 16);
	return (struct cache_keys){ bytes, count, 16, first }; /* a key's number is its position */
}

/* ---- looking ---- */

static uint32_t check_block(struct life *l, uint32_t class, uint32_t key, uint32_t layout, const uint8_t *at)
{
	struct crash_key *k = &l->shadow->key[class][key];
	uint32_t v = crash_version(at, l->s[class].block_bytes[layout], class, key, layout);

	l->shadow->blocks_checked++;
	if (!v)
		wrong(l, "wrong bytes: class %u key %u layout %u", class, key, layout);
	if (v < k->floor)
		wrong(l, "deleted in life %llu, and seen again: class %u key %u layout %u version %u of %u..%u",
		      (unsigned long long)k->deleted_in % 1000003, class, key, layout, v, k->floor, k->next);
	if (v > k->next)
		wrong(l, "a version that was never put: class %u key %u layout %u version %u", class, key, layout, v);
	k->current[layout] = v;
	return v;
}

/* 0: a miss. */
static uint32_t read_one(struct life *l, uint32_t class, uint32_t key, uint32_t layout)
{
	uint8_t bytes[16];
	struct cache_read r;
	struct waiting w;
	const char *why;
	enum status st;
	uint32_t v = 0;

	crash_key_bytes(class, key, bytes);
	wait_open(&w);
	while ((st = cache_read_begin(l->c, &(struct cache_stream_call){ .session = l->s[class].id,
			.layout = layout, .key = bytes, .key_bytes = 16, .now_us = now_us() }, &r, &w.wait,
				      &why)) == STATUS_BUSY)
		wait_some(l, &w, "a read");
	if (!st) {
		v = check_block(l, class, key, layout, r.block);
		cache_read_end(l->c, &r);
	} else if (st != STATUS_MISS) {
		wrong(l, "a read answers %s", status_text(st));
	}
	wait_close(l, &w);
	return v;
}

static void look_up(struct life *l, uint32_t class, uint32_t first, uint32_t count, uint8_t *states)
{
	uint8_t bytes[CRASH_KEYS * 16];
	const struct cache_keys k = keys_of(class, first, count, bytes);
	uint32_t prefix;
	const char *why;

	if (cache_lookup(l->c, l->s[class].id, &k, &prefix, states, count * l->s[class].layouts, &why))
		wrong(l, "a lookup fails: %s", why);
	for (uint32_t i = 0; i < count * l->s[class].layouts; i++)
		if (states[i] == NO_CELL)
			states[i] = 0;
}

static void check_key(struct life *l, uint32_t class, uint32_t key, uint32_t layout)
{
	struct crash_key *k = &l->shadow->key[class][key];
	uint32_t v = read_one(l, class, key, layout);
	uint8_t states[CRASH_LAYOUTS];

	l->shadow->deletes_checked += k->floor > 1;
	k->current[layout] = v;
	if (!l->setting->flush_kept || !k->flushed[layout])
		return;
	l->shadow->flushes_checked++;
	/* Memory that must move between layouts first takes some ticks. */
	for (uint64_t since = now_us(); !v && now_us() - since < SHED_MS * 1000ull;) {
		look_up(l, class, key, 1, states);
		if (!states[layout])
			break;
		nap_us(1000);
		v = read_one(l, class, key, layout);
	}
	if (!v)
		wrong(l, "flushed, and lost: class %u key %u layout %u, version %u or later of %u..%u; %llu damaged, %llu dropped",
		      class, key, layout, k->flushed_version[layout], k->floor, k->next,
		      (unsigned long long)atomic_load(&l->c->counters[COUNTER_CORRUPT]),
		      (unsigned long long)atomic_load(&l->c->counters[COUNTER_DROPPED]));
	if (v < k->flushed_version[layout])
		wrong(l, "flushed version %u, found %u: class %u key %u layout %u", k->flushed_version[layout], v, class, key,
		      layout);
}

/* ---- books ---- */

static uint64_t disk_blocks(const struct unit *u)
{
	uint64_t blocks = 0;

	for (const struct disk_class *k = u->classes; k; k = k->next)
		blocks += k->blocks;
	return blocks;
}

/* With the lock, and nothing on its way. */
static void compare_disk(struct life *l, struct unit *u)
{
	struct disk_slab_view v = { .slab = 0 };
	struct disk_view view;

	if (u->failed || atomic_load(&l->c->counters[COUNTER_TOMBSTONES_FAILED]))
		return;
	disk_look(u->disk, &view);
	if (view.slots_used != disk_blocks(u))
		wrong(l, "disk %u: %llu slots are taken, by %llu blocks", u->number, (unsigned long long)view.slots_used,
		      (unsigned long long)disk_blocks(u));
	while (disk_slab_next(u->disk, v.slab, &v))
		if (v.closed)
			wrong(l, "disk %u: slab %u stays closed", u->number, v.slab);
}

static void compare_memory(struct life *l)
{
	for (uint32_t i = 0; i < l->c->class_count; i++)
		for (const struct span_map *s = l->c->classes[i]->spans; s; s = s->next) {
			uint32_t blocks = 0;

			for (uint32_t n = 0; n < s->slots; n++)
				blocks += s->at[n] != NULL;
			if (blocks != s->taken || s->place->held)
				wrong(l, "a span: %u slots are taken, %u held, by %u blocks", s->taken, s->place->held, blocks);
		}
}

/* Once nothing moves and nobody holds anything. */
static void check_books(struct life *l)
{
	uint64_t since = now_us();
	bool quiet = false;

	while (!quiet) {
		pthread_mutex_lock(&l->pause);
		cache_lock(l->c);
		quiet = l->c->tier->transfer_count == 0;
		for (uint32_t i = 0; quiet && i < l->c->tier->unit_count; i++)
			compare_disk(l, &l->c->tier->units[i]);
		if (quiet)
			compare_memory(l);
		cache_unlock(l->c);
		pthread_mutex_unlock(&l->pause);
		if (!quiet && now_us() - since > WAIT_MS * 1000ull)
			wrong(l,
			      "transfers do not end: %u; loads wait for memory %d, tombstones for a disk %d; disk 0: %u spills, %u loads, failed %d",
			      l->c->tier->transfer_count, l->c->tier->waiting_for_memory != NULL,
			      l->c->tier->waiting_tombstones != NULL,
			      l->c->tier->units[0].spilling, l->c->tier->units[0].loading, l->c->tier->units[0].failed);
		if (!quiet)
			nap_us(500);
	}
}

/* ---- working ---- */

static uint8_t *slot_at(struct life *l, const struct cache_place *p)
{
	const struct memory_extent *e;

	cache_lock(l->c);
	e = memory_extent_find(l->c, p->extent);
	cache_unlock(l->c);
	return e->base + p->offset + SLOT_HEADER_BYTES;
}

/* Of a key in a session with units: what it has a whole block in, and at times a partial one. */
static uint64_t cells_of(struct life *l, uint32_t class, uint32_t key)
{
	uint64_t cells = 0;

	for (uint32_t n = 0; n < l->s[class].layouts; n++) {
		const bool whole = (key + 1) % hybrid[class][n].units == 0;

		if (whole || (hybrid[class][n].wish.partial && crash_below(&l->random, 2)))
			cells |= 1ull << n;
	}
	return cells;
}

static void put(struct life *l, uint32_t class, uint32_t first, uint32_t count)
{
	uint8_t bytes[CRASH_KEYS * 16];
	const struct cache_keys k = keys_of(class, first, count, bytes);
	struct cache_place places[CRASH_KEYS * CRASH_LAYOUTS];
	struct cache_commit_item item[CRASH_KEYS] = { { .reservation = 0 } };
	uint32_t layouts = l->s[class].layouts, items = 0, which[CRASH_KEYS];
	uint64_t id[CRASH_KEYS], cells[CRASH_KEYS];
	enum status st[CRASH_KEYS];
	const char *why = "";

	for (uint32_t i = 0; i < count; i++)
		cells[i] = l->setting->units ? cells_of(l, class, first + i) : 0;
	if (cache_reserve(l->c, &(struct cache_reserve_call){ .session = l->s[class].id, .keys = &k,
							      .cells = l->setting->units ? cells : NULL,
							      .on = &(struct cache_on){
			.attachment = l->attachment[class], .gpu = CACHE_HOST }, .may_grow = true,
							      .now_us = now_us(), .statuses = st,
							      .reservations = id, .places = places,
							      .places_max = count * layouts }, &why))
		wrong(l, "a reserve fails: %s", why);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t key = (first + i) % CRASH_KEYS;

		if (st[i])
			continue;
		l->shadow->key[class][key].next++;
		for (uint32_t n = 0; n < layouts; n++)
			if (places[i * layouts + n].extent != (uint32_t)CACHE_EXTENT_NONE)
				crash_fill(slot_at(l, &places[i * layouts + n]), l->s[class].block_bytes[n], class, key, n,
					   l->shadow->key[class][key].next);
		which[items] = i;
		item[items++].reservation = id[i];
	}
	if (cache_commit(l->c, &(struct cache_commit_call){ .session = l->s[class].id, .items = item,
							    .count = items, .now_us = now_us(),
							    .unix_ms = (uint64_t)time(NULL) * 1000,
							    .statuses = st }, NULL, &why))
		wrong(l, "a commit fails: %s", why);
	for (uint32_t i = 0; i < items; i++) {
		struct crash_key *key = &l->shadow->key[class][(first + which[i]) % CRASH_KEYS];

		for (uint32_t n = 0; n < layouts && !st[i]; n++)
			if (places[which[i] * layouts + n].extent != (uint32_t)CACHE_EXTENT_NONE)
				key->current[n] = key->next;
		l->shadow->puts += !st[i];
	}
}

static void lease(struct life *l, uint32_t class, uint32_t first, uint32_t count)
{
	uint8_t bytes[CRASH_KEYS * 16];
	const struct cache_keys k = keys_of(class, first, count, bytes);
	struct cache_place places[CRASH_KEYS * CRASH_LAYOUTS];
	struct cache_leased leased;
	struct waiting w;
	const char *why;
	enum status st;

	wait_open(&w);
	while ((st = cache_lease(l->c, &(struct cache_lease_call){ .session = l->s[class].id, .keys = &k,
			.on = &(struct cache_on){ .attachment = l->attachment[class], .gpu = CACHE_HOST },
			.now_us = now_us(), .places = places, .places_max = count * l->s[class].layouts },
				 &leased, &w.wait, &why)) == STATUS_BUSY)
		wait_some(l, &w, "a lease");
	wait_close(l, &w);
	if (st)
		return;
	for (uint32_t i = 0; i < leased.blocks; i++)
		for (uint32_t n = 0; n < leased.layouts; n++)
			if (places[i * leased.layouts + n].extent != (uint32_t)CACHE_EXTENT_NONE)
				check_block(l, class, (first + i) % CRASH_KEYS, n, slot_at(l, &places[i * leased.layouts + n]));
	cache_release(l->c, l->s[class].id, leased.lease);
}

static void flushed(struct life *l, uint32_t class, uint32_t first, uint32_t count, const enum status *st)
{
	uint8_t states[CRASH_KEYS * CRASH_LAYOUTS];
	uint32_t layouts = l->s[class].layouts;

	look_up(l, class, first, count, states);
	for (uint32_t i = 0; i < count; i++) {
		struct crash_key *k = &l->shadow->key[class][(first + i) % CRASH_KEYS];

		for (uint32_t n = 0; n < layouts; n++) {
			if (!states[i * layouts + n] || (st && st[i]))
				continue;
			if (k->current[n] > k->flushed_version[n])
				k->flushed_version[n] = k->current[n];
			k->flushed[n] = true;
		}
	}
}

/* count 0: all of the session. */
static void flush(struct life *l, uint32_t class, uint32_t first, uint32_t count)
{
	uint8_t bytes[CRASH_KEYS * 16];
	const struct cache_keys k = keys_of(class, first, count, bytes);
	enum status st, statuses[CRASH_KEYS];
	struct waiting w;
	const char *why;

	wait_open(&w);
	while ((st = cache_flush(l->c, l->s[class].id, count ? &k : NULL, now_us(), &w.wait, statuses, &why)) == STATUS_BUSY)
		wait_some(l, &w, "a flush");
	wait_close(l, &w);
	if (!st)
		flushed(l, class, count ? first : 0, count ? count : CRASH_KEYS, count ? statuses : NULL);
	l->shadow->flushes += !st;
	l->shadow->odd_flushes += st != 0;
}

static void delete(struct life *l, uint32_t class, uint32_t first, uint32_t count)
{
	uint8_t bytes[CRASH_KEYS * 16];
	const struct cache_keys k = keys_of(class, first, count, bytes);
	enum status st, statuses[CRASH_KEYS];
	struct waiting w;
	const char *why;

	for (uint32_t i = 0; i < count; i++) {
		struct crash_key *key = &l->shadow->key[class][(first + i) % CRASH_KEYS];

		memset(key->flushed, 0, sizeof(key->flushed));
		memset(key->flushed_version, 0, sizeof(key->flushed_version));
		memset(key->current, 0, sizeof(key->current));
	}
	wait_open(&w);
	while ((st = cache_delete(l->c, l->s[class].id, &k, statuses, &w.wait, &why)) == STATUS_BUSY)
		wait_some(l, &w, "a delete");
	wait_close(l, &w);
	for (uint32_t i = 0; i < count && !st; i++) {
		struct crash_key *key = &l->shadow->key[class][(first + i) % CRASH_KEYS];

		key->floor = key->next + 1;
		key->deleted_in = l->plan->seed;
	}
	l->shadow->deletes += !st;
	l->shadow->odd_deletes += st != 0;
}

/* Half of them are not waited for. */
static void warm(struct life *l, uint32_t class, uint32_t first, uint32_t count)
{
	uint8_t bytes[CRASH_KEYS * 16];
	const struct cache_keys k = keys_of(class, first, count, bytes);
	bool patient = crash_below(&l->random, 2);
	struct waiting w;
	const char *why;
	uint32_t blocks;

	wait_open(&w);
	while (cache_warm(l->c, &(struct cache_warm_call){ .session = l->s[class].id, .keys = &k,
							   .gpu = CACHE_HOST, .now_us = now_us() }, &w.wait,
			  &blocks, &why) == STATUS_BUSY && patient)
		wait_some(l, &w, "a warm");
	wait_close(l, &w);
}

static void tend(struct life *l)
{
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0, freed, all = (uint64_t)l->setting->disk_slots * SLOT;

	cache_verify_disk_step(l->c, &cursor, 64 * SLOT, &sum);
	if (!l->setting->flush_kept)
		cache_compact_step(l->c, crash_below(&l->random, l->setting->disks),
				   crash_below(&l->random, 3) ? all : all / 2, &freed);
}

static void step(struct life *l)
{
	uint32_t what = crash_below(&l->random, 100), class = crash_below(&l->random, 4) == 0;
	uint32_t first = crash_below(&l->random, CRASH_KEYS), count = 1 + crash_below(&l->random, CALL_KEYS);
	const uint32_t left = l->setting->units ? CRASH_KEYS - first : CRASH_KEYS; /* a sequence has an end */

	count = count < left ? count : left;
	if (what < 40)
		put(l, class, first, count);
	else if (what < 60)
		lease(l, class, first, count);
	else if (what < 70)
		flush(l, class, first, crash_below(&l->random, 3) ? count : 0);
	else if (what < 82)
		delete(l, class, first, crash_below(&l->random, 8) ? count : left);
	else if (what < 92)
		warm(l, class, first, count);
	else if (what < 96)
		tend(l);
	else
		nap_us(crash_below(&l->random, 4000));
}

/* ---- a life ---- */

static void come_back(struct life *l)
{
	uint64_t since = now_us(), took;

	while (!cache_restored(l->c)) {
		if (crash_below(&l->random, 4) == 0)
			put(l, 0, crash_below(&l->random, CRASH_KEYS), 1);
		if (now_us() - since > WAIT_MS * 1000ull)
			wrong(l, "the disks are not taken up");
		nap_us(200);
	}
	took = (now_us() - since) / 1000;
	if (took > l->shadow->reopened_ms_max)
		l->shadow->reopened_ms_max = took;
}

static void check_all(struct life *l)
{
	for (uint32_t class = 0; class < CRASH_CLASSES; class++)
		for (uint32_t key = 0; key < CRASH_KEYS; key++)
			for (uint32_t n = 0; n < l->s[class].layouts; n++)
				check_key(l, class, key, n);
	check_books(l);
}

void crash_live(const struct crash_setting *s, const struct crash_life *plan, struct crash_shadow *shadow)
{
	struct life l = { .setting = s, .plan = plan, .shadow = shadow, .random = { plan->seed } };

	atomic_store(&shadow->phase, CRASH_OPENING);
	cache_thread_enter();
	pthread_mutex_init(&l.pause, NULL);
	open_cache(&l);
	for (uint32_t class = 0; class < CRASH_CLASSES; class++)
		open_session(&l, class);
	if (pthread_create(&l.background, NULL, background, &l))
		wrong(&l, "no thread");
	come_back(&l);
	atomic_store(&shadow->phase, CRASH_CHECKING);
	check_all(&l);
	atomic_store(&shadow->phase, CRASH_WORKING);
	for (uint32_t i = 0; i < plan->steps; i++)
		step(&l);
	atomic_store(&shadow->phase, CRASH_ENDING);
	if (plan->settle)
		cache_settle(l.c, 2000000, NULL);
	check_books(&l);
	atomic_store(&l.over, true);
	pthread_join(l.background, NULL);
	cache_destroy(l.c);
	cache_thread_leave();
	_exit(0);
}

/* ---- a catalog that grows ---- */

struct grown {
	uint64_t seen;
};

static bool count_record(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct grown *g = arg;
	uint64_t n;

	(void)value;
	if (key_bytes != sizeof(n) || value_bytes != 2048)
		return false;
	memcpy(&n, key, sizeof(n));
	g->seen++;
	return true;
}

static void told(void *arg, enum status s)
{
	if (!s)
		sem_post(arg);
}

void crash_grow(const char *folder, struct crash_shadow *shadow)
{
	const struct catalog_options o = { .folder = folder, .map_bytes = 1 << 20, .batch_ms = 1 };
	static uint8_t value[2048];
	struct life l = { .shadow = shadow };
	struct grown g = { 0 };
	enum catalog_state state;
	enum status st;
	struct catalog *c;
	char why[160];
	sem_t done;

	sem_init(&done, 0, 0);
	while ((st = catalog_open(&o, &c, &state, why, sizeof(why))) == STATUS_BUSY)
		nap_us(1000);
	if (st || state == CATALOG_DAMAGED)
		wrong(&l, "a catalog does not open after a kill: %s", why);
	if (catalog_walk(c, CATALOG_BLOCKS, count_record, &g, NULL) || g.seen < shadow->grow_acked)
		wrong(&l, "a catalog had %llu records committed, and has %llu", (unsigned long long)shadow->grow_acked,
		      (unsigned long long)g.seen);
	for (uint64_t n = g.seen; n < g.seen + 1500; n++) {
		uint8_t key[8];

		for (int i = 0; i < 8; i++)
			key[i] = (uint8_t)(n >> (56 - 8 * i));
		if (catalog_put(c, CATALOG_BLOCKS, key, sizeof(key), value, sizeof(value)))
			wrong(&l, "a catalog takes no record");
		if (n % 50 != 49)
			continue;
		if (catalog_flush(c, told, &done))
			wrong(&l, "a catalog does not flush");
		while (sem_wait(&done))
			;
		shadow->grow_acked = n + 1;
	}
	catalog_close(c);
	_exit(0);
}
