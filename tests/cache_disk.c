/* The disk tier behind the cache: what memory drops is on disk, comes back whole, and survives restarts. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cache_rig.h"

enum { HOST = 64, DISK = 512 };

static void open_on(struct rig *r, const struct rig_disks *d, uint32_t disks, uint32_t layouts)
{
	const struct cache_options o = rig_disk_options(d, disks, HOST);

	rig_open(r, &o, layouts);
	rig_restored(r);
}

/* Puts that leave the spills time. */
static void put_slowly(struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 8) {
		ck_assert_uint_eq(rig_put(r, first + i, 8), 8);
		rig_quiet(r);
	}
}

START_TEST(test_spilled_blocks_come_back)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 1);
	put_slowly(&r, 0, 4 * HOST);
	ck_assert_uint_eq(rig_prefix(&r, 0, 4 * HOST), 4 * HOST);
	ck_assert_double_eq(rig_stat(&r, "terrace_dropped_blocks_total", ""), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, 4 * HOST), 4 * HOST);
	ck_assert_double_gt(rig_stat(&r, "terrace_loads_total", "status=ok"), 2 * HOST);
	rig_check_books(r.c);
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
	put_slowly(&r, 0, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1, 2);
	ck_assert_uint_eq(rig_prefix(&r, 0, HOST), HOST);
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST), HOST);
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
	put_slowly(&r, 0, 512);
	ck_assert_double_gt(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), 200);
	ck_assert_uint_eq(rig_read_all(&r, 512 - 96, 96), 96);
	ck_assert_uint_eq(rig_read_all(&r, 0, 256), 0);
	rig_check_books(r.c);
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
		put_slowly(&r, first - 8, 8);
		r.now += 10000;
	}
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1, 1);
	put_slowly(&r, 1000, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_double_ge(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), 24);
	ck_assert_uint_eq(rig_read_all(&r, 96 - 24, 24), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, 40), 40);
	rig_check_books(r.c);
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
		put_slowly(&r, 0, HOST);
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

START_TEST(test_two_disks_share_the_work)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2, 1);
	put_slowly(&r, 0, 4 * HOST);
	ck_assert_double_gt(rig_stat(&r, "terrace_disk_blocks", "disk=0"), HOST);
	ck_assert_double_gt(rig_stat(&r, "terrace_disk_blocks", "disk=1"), HOST);
	ck_assert_uint_eq(rig_read_all(&r, 0, 4 * HOST), 4 * HOST);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(test_warm_brings_ahead)
{
	struct rig_disks d;
	struct cache_place places[32];
	struct cache_leased leased;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 1);
	put_slowly(&r, 0, 4 * HOST);
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
	put_slowly(&r, 0, 4 * HOST);
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
	put_slowly(&r, 0, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST), HOST);
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
	put_slowly(&r, 0, 2 * HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	ck_assert_int_eq(cache_catalog_renew(r.c), STATUS_OK);
	ck_assert_int_eq(cache_catalog_renew(r.c), STATUS_BUSY);
	rig_delete(&r, 0, 8, st);
	put_slowly(&r, 1000, 8);
	while (cursor != UINT64_MAX)
		cache_verify_disk_step(r.c, &cursor, 8192, &sum);
	ck_assert_uint_eq(sum.corrupt, 0);
	ck_assert_int_eq(cache_catalog_renew(r.c), STATUS_OK); /* the first is over */
	cursor = 0;
	while (cursor != UINT64_MAX && !_i)
		cache_verify_disk_step(r.c, &cursor, UINT64_MAX, &sum);
	rig_quiet(&r);
	ck_assert(cache_settle(r.c, UINT64_MAX));
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
	put_slowly(&r, 0, 2 * HOST);
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
		{ test_spilled_blocks_come_back, 1 }, { test_a_restart_finds_what_was_flushed, 1 },
		{ test_a_restart_keeps_the_order, 1 }, { test_a_full_disk_displaces_its_coldest, 1 }, { test_deleted_blocks_stay_dead, 1 },
		{ test_two_disks_share_the_work, 1 }, { test_warm_brings_ahead, 1 }, { test_rotten_bits_are_misses, 2 },
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
