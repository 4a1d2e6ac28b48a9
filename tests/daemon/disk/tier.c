/* The disk tier behind the cache: what memory drops is on disk, comes back whole, and survives restarts. */
#include "daemon/advice/graph.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/disk_class.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/call/flush.h"
#include "daemon/call/lease.h"
#include "daemon/call/settle.h"
#include "daemon/disk/durable.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/slab_map.h"
#include "daemon/process/daemon.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_chain.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HOST = 64, DISK = 512 };

static void open_on(struct rig *r, const struct rig_disks *d, uint32_t disks, uint32_t layouts)
{
	const struct cache_options o = rig_disk_options(d, disks, HOST);

	rig_open(r, &o, layouts);
	rig_restored(r);
}

static void flush_all(struct rig *r)
{
	ck_assert_int_eq(rig_flush(r, 0, 0, NULL), STATUS_OK);
}

START_TEST(test_spilled_blocks_come_back)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, 4 * HOST);
	ck_assert_uint_eq(rig_prefix(&r, 0, 4 * HOST), 4 * HOST);
	ck_assert_double_eq(rig_stat(&r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, 4 * HOST), 4 * HOST);
	ck_assert_double_gt(rig_stat(&r, "terrace_loads_total", "status=ok"), 2 * HOST);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_a_restart_finds_what_was_flushed)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 2);
	rig_put_slowly(&r, 0, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1, 2);
	ck_assert_uint_eq(rig_prefix(&r, 0, HOST), HOST);
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST), HOST);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static void came(void *arg)
{
	atomic_store((_Atomic bool *)arg, true);
}

/* A long flush holds what it is writing, not what it has written. */
START_TEST(test_a_flush_lets_go)
{
	enum { BLOCKS = 16 * HOST, WAITED = 256 }; /* spills of a step, at most */
	_Atomic bool called = false;
	struct cache_wait w = { .ready = came, .arg = &called };
	struct cache_options o;
	double pinned = 0;
	struct rig_disks d;
	struct rig r;
	enum status s;

	rig_disks_make(&d, NULL, 1, 2 * BLOCKS);
	o = rig_disk_options(&d, 1, BLOCKS);
	o.spill_share_milli = 1;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	ck_assert_uint_eq(rig_put(&r, 0, BLOCKS), BLOCKS);
	while ((s = cache_flush(r.c, r.s.id, NULL, r.now, &w, NULL, &r.why)) == STATUS_BUSY) {
		if (pinned < rig_stat(&r, "terrace_pinned_bytes", "tier=host"))
			pinned = rig_stat(&r, "terrace_pinned_bytes", "tier=host");
		RIG_AWAIT((rig_tick(r.c, r.now), w.poll || atomic_exchange(&called, false)));
	}
	cache_wait_end(r.c, &w);
	ck_assert_int_eq(s, STATUS_OK);
	ck_assert_double_gt(pinned, 0);
	ck_assert_double_le(pinned, (WAITED + o.disk_depth) * RIG_SLOT_BYTES);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_a_full_disk_displaces_its_coldest)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 128);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, 512);
	ck_assert_double_gt(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), 200);
	ck_assert_uint_eq(rig_read_all(&r, 512 - 96, 96), 96);
	ck_assert_uint_eq(rig_read_all(&r, 0, 256), 0);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What was put first goes first, in the next run too. Keys fall, since the catalog tells of them in rising order. */
START_TEST(test_a_restart_keeps_the_order)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 128);
	open_on(&r, &d, 1, 1);
	for (uint64_t first = 96; first > 0; first -= 8) {
		rig_put_slowly(&r, first - 8, 8);
		r.now += 10000;
	}
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 1000, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_double_ge(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), 24);
	ck_assert_uint_eq(rig_read_all(&r, 96 - 24, 24), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, 40), 40);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- the order of uses ---- */

enum { CHAINS = 12, CHAIN = 8 };
#define MINUTE_US 60000000ull

static void chain_keys(uint64_t chain, uint64_t keys[CHAIN])
{
	for (uint64_t i = 0; i < CHAIN; i++)
		keys[i] = 100 * chain + i;
}

static void open_remembering(struct rig *r, const struct rig_disks *d, uint64_t now_us)
{
	struct cache_options o = rig_disk_options(d, 1, HOST);

	o.disk_policy = "graph";
	o.graph_nodes = 4096;
	rig_open_at(r, &o, 1, now_us);
	rig_restored(r);
	advisor_pass(r->c);
}

/* Minutes since the last use of a block that is on the disk. */
static double idle_minutes(struct rig *r, uint64_t n)
{
	const struct block *b;
	uint8_t key[RIG_KEY_BYTES];
	double minutes;

	rig_key(key, n);
	cache_lock(r->c);
	b = by_id_find(r->c, policy_id(key_name(key, sizeof(key)), r->c->pools[0]->layout_id));
	ck_assert_ptr_nonnull(b);
	ck_assert_ptr_nonnull(b->slab_map);
	minutes = (double)(r->c->now_us - b->slab_map->at[b->slab_map_slot].node.last_use_us) / (double)MINUTE_US;
	cache_unlock(r->c);
	return minutes;
}

/* A policy that remembers uses: what was used last stays longest after a restart, whenever it was put (of ages so near to each other that the
 * policy itself does not tell them apart), and though the machine was started anew in between and its clock begins again. */
START_TEST(test_a_restart_remembers_uses)
{
	uint64_t keys[CHAIN];
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 128);
	open_remembering(&r, &d, DAEMON_CLOCK_BASE_US + 600 * MINUTE_US);
	for (uint64_t i = 0; i < 2 * CHAINS; i++) {
		chain_keys(i < CHAINS ? i : 2 * CHAINS - 1 - i, keys);
		chain_lookup(&r, keys, CHAIN);
		chain_serve(&r, keys, CHAIN);
		rig_quiet(&r);
		rig_tick(r.c, r.now += i < CHAINS ? MINUTE_US : MINUTE_US / 60);
	}
	chain_keys(CHAINS, keys);
	r.now += 10 * MINUTE_US;
	chain_lookup(&r, keys, CHAIN);
	flush_all(&r);
	rig_close(&r);
	open_remembering(&r, &d, DAEMON_CLOCK_BASE_US + MINUTE_US);
	for (uint64_t i = 0; i < CHAINS; i++)
		ck_assert_double_eq_tol(idle_minutes(&r, 100 * i), 10, 0.5);
	rig_put_slowly(&r, 5000, HOST);
	flush_all(&r);
	ck_assert_double_ge(rig_stat(&r, "terrace_dropped_blocks_total", ""), 3 * CHAIN);
	ck_assert_double_lt(rig_stat(&r, "terrace_dropped_blocks_total", ""), 6 * CHAIN);
	for (uint64_t i = 0; i < CHAINS - 6; i++)
		ck_assert_uint_eq(rig_prefix(&r, 100 * i, CHAIN), CHAIN);
	for (uint64_t i = CHAINS - 3; i < CHAINS; i++)
		ck_assert_uint_eq(rig_prefix(&r, 100 * i, CHAIN), 0);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_deleted_blocks_stay_dead)
{
	enum status st[16];
	struct rig_disks d;
	struct rig r;

	for (int rebuild = 0; rebuild < 2; rebuild++) {
		struct cache_options o;

		rig_disks_make(&d, NULL, 1, DISK);
		open_on(&r, &d, 1, 1);
		rig_put_slowly(&r, 0, HOST);
		ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
		ck_assert_int_eq(rig_delete(&r, 16, 16, st), STATUS_OK);
		for (int i = 0; i < 16; i++)
			ck_assert_int_eq(st[i], STATUS_OK);
		rig_close(&r);
		o = rig_disk_options(&d, 1, HOST);
		o.rebuild = rebuild;
		rig_open(&r, &o, 1);
		rig_restored(&r);
		ck_assert_uint_eq(rig_read_all(&r, 0, 16), 16);
		ck_assert_uint_eq(rig_read_all(&r, 16, 16), 0);
		ck_assert_uint_eq(rig_read_all(&r, 32, HOST - 32), HOST - 32);
		rig_close(&r);
		rig_disks_remove(&d);
	}
}
END_TEST

/* A slab of a TiB has more of the smallest slots than 24 bits count. */
START_TEST(test_a_walk_goes_write_through_the_largest_slab)
{
	const uint32_t slots = (1u << 27) - 1, places[] = { 1000, (1u << 24) - 1, (1u << 24) + 50, slots - 1 };
	const size_t bytes = sizeof(struct slab_map) + slots * sizeof(struct slab_map_slot);
	struct slab_map *r = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
	    0);
	struct disk_class k = { .slab_maps = r };
	struct unit u = { .number = CACHE_DISKS_MAX - 1, .classes = &k, .slab_maps = r };
	struct block b[4];
	uint64_t cursor;

	ck_assert_ptr_ne(r, MAP_FAILED);
	r->slab = UINT32_MAX;
	r->slots = slots;
	for (int i = 0; i < 4; i++)
		r->at[places[i]].block = &b[i];
	for (int i = 0; i < 4; i++) {
		uint32_t budget = 8;

		cursor = slab_map_cursor(u.number, r->slab, places[i] - 2);
		ck_assert_ptr_eq(unit_next_block(&u, &cursor, &budget), &b[i]);
		ck_assert_uint_eq(cursor, slab_map_cursor(u.number, r->slab, places[i] + 1));
		ck_assert_uint_eq(slab_map_cursor_unit(cursor), u.number);
		budget = 8;
		ck_assert_ptr_null(unit_next_block(&u, &cursor, &budget));
		ck_assert_uint_eq(budget, i < 3 ? 0 : 8);
	}
	munmap(r, bytes);
}
END_TEST

START_TEST(test_two_disks_share_the_work)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2, 1);
	rig_put_slowly(&r, 0, 4 * HOST);
	ck_assert_double_gt(rig_stat(&r, "terrace_disk_blocks", "disk=0"), HOST);
	ck_assert_double_gt(rig_stat(&r, "terrace_disk_blocks", "disk=1"), HOST);
	ck_assert_uint_eq(rig_read_all(&r, 0, 4 * HOST), 4 * HOST);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_warm_brings_prefetch)
{
	struct rig_disks d;
	struct cache_place places[32];
	struct cache_leased leased;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, 4 * HOST);
	ck_assert_int_eq(rig_lease(&r, 0, 32, true, places, &leased), STATUS_MISS);
	ck_assert_uint_eq(rig_warm(&r, 0, 32), 32);
	ck_assert_int_eq(rig_lease(&r, 0, 32, true, places, &leased), STATUS_OK);
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Flips one bit of every slot of the slab files: in the header (even slots) or the block (odd ones). Returns how many. */
static uint32_t flip_bits(const char *folder, uint64_t block_bytes)
{
	uint64_t seed = 4711;
	uint32_t flipped = 0;
	struct dirent *e;
	DIR *dir = opendir(folder);

	while ((e = readdir(dir))) {
		char path[400];
		uint8_t byte;
		FILE *f;

		if (!strstr(e->d_name, ".trc"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		f = fopen(path, "r+");
		fseek(f, 0, SEEK_END);
		const long slots = (ftell(f) - 4096) / RIG_SLOT_BYTES;

		for (long i = 0; i < slots; i++) {
			const uint64_t within = i % 2 ? SLOT_HEADER_BYTES + (seed >> 8) % block_bytes : (seed >> 8) % SLOT_HEADER_BYTES;
			const long at = (long)(4096 + (uint64_t)i * RIG_SLOT_BYTES + within);

			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			fseek(f, at, SEEK_SET);
			ck_assert_uint_eq(fread(&byte, 1, 1, f), 1);
			byte ^= (uint8_t)(1 << (seed >> 60 & 7));
			fseek(f, at, SEEK_SET);
			ck_assert_uint_eq(fwrite(&byte, 1, 1, f), 1);
			flipped++;
		}
		fclose(f);
	}
	closedir(dir);
	return flipped;
}

START_TEST(test_rotten_bits_are_misses)
{
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, 4 * HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	const uint64_t block_bytes = r.s.block_bytes[0];

	rig_close(&r);
	ck_assert_uint_ge(flip_bits(d.folder[0], block_bytes), 4 * HOST);
	open_on(&r, &d, 1, 1);
	if (_i) {
		while (cursor != UINT64_MAX)
			cache_verify_disk_step(r.c, &cursor, UINT64_MAX, &sum);
		ck_assert_uint_eq(sum.corrupt, sum.blocks);
		ck_assert_uint_eq(rig_prefix(&r, 0, 1), 0);
	}
	ck_assert_uint_eq(rig_read_all(&r, 0, 4 * HOST), 0);
	/* Their names can be put anew, and last. */
	rig_put_slowly(&r, 0, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST), HOST);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A bit of every other block that memory alone has, in the block or in its header. */
static void rot_in_memory(struct rig *r, uint32_t count)
{
	uint64_t seed = 815;

	for (uint32_t n = 1; n < count; n += 2) {
		struct cache_place place;
		struct cache_leased leased;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		ck_assert_int_eq(rig_lease(r, n, 1, true, &place, &leased), STATUS_OK);
		if (n % 4 == 1)
			rig_block(r, &place)[(seed >> 8) % r->s.block_bytes[0]] ^= (uint8_t)(1 << (seed >> 60 & 7));
		else
			(rig_block(r, &place) - SLOT_HEADER_BYTES)[(seed >> 8) % SLOT_HEADER_BYTES] ^= (uint8_t)(1 << (seed >> 60 & 7));
		ck_assert_int_eq(cache_release(r->c, r->s.id, leased.lease), STATUS_OK);
	}
}

/* What goes to a disk is not looked at: the sums beside it are those of its put, and whoever reads it goes by them, be it in the same run, after
 * an orderly stop, or without a catalog. */
START_TEST(test_what_memory_damaged_is_a_miss)
{
	enum { BLOCKS = 32 };
	struct cache_options o;
	struct rig_disks d;
	char path[256];
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, HOST);
	o.spill_share_milli = 1;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	ck_assert_uint_eq(rig_put(&r, 0, BLOCKS), BLOCKS);
	ck_assert_double_eq(rig_stat(&r, "terrace_dirty_blocks", "tier=host"), BLOCKS);
	rot_in_memory(&r, BLOCKS);
	flush_all(&r);
	if (_i == 0)
		rig_put_slowly(&r, 1000, 2 * HOST);
	if (_i > 0)
		rig_close(&r);
	snprintf(path, sizeof(path), "%s/data.mdb", d.catalog);
	if (_i == 2)
		ck_assert_int_eq(unlink(path), 0);
	if (_i > 0)
		open_on(&r, &d, 1, 1);
	for (uint32_t n = 0; n < BLOCKS; n++)
		ck_assert_uint_eq(rig_read_all(&r, n, 1), n % 2 == 0);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* The catalog made anew while it serves: an orderly stop and a start that trusts it find everything. */
START_TEST(test_the_catalog_can_be_renewed)
{
	struct cache_verified sum = { .blocks = 0 };
	uint64_t cursor = 0;
	enum status st[8];
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2, 2);
	rig_put_slowly(&r, 0, 2 * HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_int_eq(cache_catalog_renew(r.c), STATUS_OK);
	ck_assert_int_eq(cache_catalog_renew(r.c), STATUS_BUSY);
	rig_delete(&r, 0, 8, st);
	rig_put_slowly(&r, 1000, 8);
	while (cursor != UINT64_MAX)
		cache_verify_disk_step(r.c, &cursor, 8192, &sum);
	ck_assert_uint_eq(sum.corrupt, 0);
	ck_assert_int_eq(cache_catalog_renew(r.c), STATUS_OK); /* the first is over */
	cursor = 0;
	while (cursor != UINT64_MAX && !_i)
		cache_verify_disk_step(r.c, &cursor, UINT64_MAX, &sum);
	rig_quiet(&r);
	ck_assert(cache_settle(r.c, UINT64_MAX, NULL));
	rig_close(&r);
	/* With _i the second was not finished: the start scans, and finds the same. */
	open_on(&r, &d, 2, 2);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 0);
	ck_assert_uint_eq(rig_read_all(&r, 8, 2 * HOST - 8), 2 * HOST - 8);
	ck_assert_uint_eq(rig_read_all(&r, 1000, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_tmpfs_does_too)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, "/dev/shm", 1, DISK);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, 2 * HOST);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_direct", "disk=0"), 0);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 2 * HOST), 2 * HOST);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	const struct {
		const TTest *test;
		int times;
	} tests[] = {
		{ test_spilled_blocks_come_back, 1 }, { test_a_restart_finds_what_was_flushed, 1 }, { test_a_flush_lets_go, 1 },
		{ test_a_restart_keeps_the_order, 1 }, { test_a_restart_remembers_uses, 1 }, { test_a_full_disk_displaces_its_coldest, 1 },
		{ test_deleted_blocks_stay_dead, 1 }, { test_a_walk_goes_write_through_the_largest_slab, 1 },
		    { test_two_disks_share_the_work, 1 },
		{ test_warm_brings_prefetch, 1 }, { test_rotten_bits_are_misses, 2 },
		    { test_what_memory_damaged_is_a_miss, 3 },
		{ test_the_catalog_can_be_renewed, 2 }, { test_tmpfs_does_too, 1 },
	};
	Suite *suite = suite_create("cache_disk");
	TCase *tc = tcase_create("disk");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		tcase_add_loop_test(tc, tests[i].test, 0, tests[i].times);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
