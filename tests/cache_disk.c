/* The disk tier behind the cache: what memory drops is on disk, comes back whole, and survives restarts. */
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

int main(void)
{
	const TTest *const tests[] = {
		test_spilled_blocks_come_back, test_a_restart_finds_what_was_flushed,
		test_a_full_disk_displaces_its_coldest, test_deleted_blocks_stay_dead, test_two_disks_share_the_work,
		test_warm_brings_ahead,
	};

	return rig_main("cache_disk", tests, sizeof(tests) / sizeof(tests[0]));
}
