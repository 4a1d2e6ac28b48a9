/* A restart with a million blocks on disk: how long until the cache serves, and until all is taken up; after an ordinary stop, from the
 * catalog; and how long its end takes, once all is on disk. The catalog's records and the slabs are real; the slots were never written,
 * since nobody reads a block here. The baseline of serving is a restart with no blocks.
 */
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/lookup.h"
#include "daemon/call/settle.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/slab_map.h"
#include "daemon/disk/state.h"
#include "daemon/disk/tier.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/catalog/catalog.h"
#include "store/index.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/bench/bench.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef TERRACE_SANITIZED /* what is left would be told as leaked */
enum { BLOCKS = 1 << 13, LEAVES_RECORDS = 0 };
#else
enum { BLOCKS = 1 << 20, LEAVES_RECORDS = 1 };
#endif
enum { BLOCKS_QUICK = 1 << 13, KEY_BYTES = 32, SLOT_BYTES = 8192 };

struct restart {
	char root[96], disk[128], catalog[128];
	struct cache_disk_options disks[1];
	struct cache_options options;
	struct kv_layout layout;
	uint64_t blocks;
	double serves_s, restored_s, ends_s; /* the least of its rounds */
};

static void check(enum status status, const char *what, const char *why)
{
	if (status != STATUS_OK)
		bench_die("%s: %s (%s)", what, status_text(status), why ? why : "");
}

static double seconds(uint64_t since_ns)
{
	return (double)(bench_now_ns() - since_ns) / 1e9;
}

static void prepare(struct restart *b, const char *name)
{
	snprintf(b->root, sizeof(b->root), "%s/%s", bench_options.folder, name);
	snprintf(b->disk, sizeof(b->disk), "%s.disk", b->root);
	snprintf(b->catalog, sizeof(b->catalog), "%s.catalog", b->root);
	b->disks[0] = (struct cache_disk_options){ b->disk, (b->blocks + 4096) * SLOT_BYTES };
	b->options = (struct cache_options){
		.host_bytes = 64 << 20, .extent_bytes = 16 << 20, .policy = "lru", .pinned_bytes_max = 64 << 20,
		.sessions_max = 16, .leases_max = 1024, .open_blocks_max = 16, .session_idle_ms = 3600000,
		.lease_ttl_ms = 60000, .reservation_ttl_ms = 60000, .watch_queue = 16, .disks = b->disks, .disk_count = 1,
		.catalog_folder = b->catalog, .slab_bytes = 256 << 20, .disk_depth = 32, .disk_slow_ms = 1000,
		.spill_share_milli = 250, .disk_policy = "lru",
	};
	b->layout = (struct kv_layout){
		.layers = 1, .heads = 1, .total_heads = 1, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16,
		.k_format = KV_TQ2, .v_format = KV_TQ2, .rotation_version = KV_ROTATION_VERSION,
		.codebook_version = KV_CODEBOOK_VERSION, .layout_version = KV_LAYOUT_VERSION,
	};
}

static struct cache *open_cache(struct restart *b)
{
	const char *why = NULL;
	struct cache *c;

	check(cache_create(&b->options, bench_now_ns() / 1000, &c, &why), "cache", why);
	return c;
}

static void wait_restored(struct cache *c)
{
	while (!cache_restored(c))
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

static uint64_t open_session(struct restart *b, struct cache *c)
{
	struct cache_session_view view;
	const char *why = NULL;

	check(cache_session_open(c, &(struct cache_open_call){ .tenant = "", .layouts = &b->layout,
							       .layout_count = 1, .engine = "bench restart",
							       .now_us = bench_now_ns() / 1000 }, &view, &why),
	      "session", why);
	return view.id;
}

static void key_of(uint64_t n, uint8_t key[KEY_BYTES])
{
	for (int i = 0; i < KEY_BYTES / 8; i++) {
		uint64_t x = (n * 4 + i + 1) * 0x9e3779b97f4a7c15ull;

		x ^= x >> 29;
		memcpy(key + 8 * i, &x, 8);
	}
}

/* A block on disk as a spill leaves it in the books, without the write. */
static bool plant(struct cache *c, uint64_t n)
{
	struct unit *u = &c->tier->units[0];
	struct layout_pool *p = c->pools[0];
	struct slot_header h = { .magic = 0 };
	struct disk_place place;
	uint8_t key[KEY_BYTES];
	struct index_ident ident;
	struct block *b;
	bool planted;

	if (disk_slot_take(u->disk, SLOT_BYTES, &place)) {
		check(disk_slab_prepare(u->disk, SLOT_BYTES), "slab", NULL);
		check(disk_slot_take(u->disk, SLOT_BYTES, &place), "slot", NULL);
	}
	b = block_alloc(KEY_BYTES);
	key_of(n, key);
	block_ident(p, key, KEY_BYTES, &ident);
	block_name_set(b, &ident);
	b->pool = p;
	b->generation = n + 1;
	b->tokens = 16;
	index_read_lock();
	cache_lock(c);
	planted = !block_adopt(c, b, slab_map_get(c, u, place.slab), place.slot, 0);
	if (planted)
		catalog_tell(c, b, &h);
	cache_unlock(c);
	index_read_unlock();
	return planted;
}

static void fill(struct restart *b)
{
	struct cache *c = open_cache(b);

	wait_restored(c);
	open_session(b, c);
	for (uint64_t n = 0; n < b->blocks; n++) {
		struct catalog_view v;

		if (!plant(c, n))
			bench_die("block %llu cannot be planted", (unsigned long long)n);
		if (n % 65536)
			continue;
		do /* the queue is bounded */
			catalog_look(c->tier->catalog, &v);
		while (v.queued_bytes > 8 << 20 && !nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL));
	}
	cache_settle(c, UINT64_MAX, NULL);
	cache_destroy(c);
}

/* Serving: a session is open and a lookup answered. */
static void restart(struct restart *b)
{
	uint64_t began = bench_now_ns(), session;
	struct cache *c = open_cache(b);
	const char *why = NULL;
	uint8_t key[KEY_BYTES];
	const struct cache_keys one = { key, 1, KEY_BYTES };
	uint32_t prefix = 0;

	key_of(b->blocks - 1, key);
	session = open_session(b, c);
	check(cache_lookup(c, session, &one, &prefix, NULL, 0, &why), "lookup", why);
	b->serves_s = fmin(b->serves_s, seconds(began));
	wait_restored(c);
	b->restored_s = fmin(b->restored_s, seconds(began));
	check(cache_lookup(c, session, &one, &prefix, NULL, 0, &why), "lookup", why);
	if (prefix != (b->blocks > 0))
		bench_die("the last block is not there after the restart");
	cache_settle(c, UINT64_MAX, NULL);
	began = bench_now_ns();
	cache_destroy(c);
	b->ends_s = fmin(b->ends_s, seconds(began));
}

int bench_restart(void)
{
	struct restart b = { .blocks = bench_options.quick ? BLOCKS_QUICK : BLOCKS }, none = { .blocks = 0 };
	unsigned rounds = bench_options.quick ? 1 : 3;

	cache_thread_enter();
	prepare(&b, "restart");
	prepare(&none, "restart-none");
	fill(&b);
	b.serves_s = b.restored_s = b.ends_s = none.serves_s = none.restored_s = none.ends_s = INFINITY;
	for (unsigned i = 0; i < rounds; i++) {
		restart(&b);
		restart(&none);
	}
	/* As the daemon ends: the records are the kernel's. */
	const double freed_s = b.ends_s;

	b.options.leaves_records = LEAVES_RECORDS;
	b.ends_s = INFINITY;
	for (unsigned i = 0; i < rounds; i++)
		restart(&b);
	cache_thread_leave();
	bench_report(&(struct bench_figure){ .bench = "restart", .name = "1 M blocks on disk: until it serves / with none", .unit = "s",
					     .value = b.serves_s, .baseline = none.serves_s, .goal = BENCH_AT_MOST, .target = 2,
					     .of_value = true });
	bench_report(&(struct bench_figure){ .bench = "restart", .name = "1 M blocks on disk: until all are found", .unit = "s",
					     .value = b.restored_s, .baseline = NAN });
	bench_report(&(struct bench_figure){ .bench = "restart", .name = "1 M blocks on disk: the cache's end / with each record freed", .unit = "s",
					     .value = b.ends_s, .baseline = freed_s, .goal = BENCH_AT_MOST, .target = 0.5 });
	return 0;
}
