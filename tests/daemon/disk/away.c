/* What a start believes: catalogs that are another's or older than their disks, disks that were away, or are there twice. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/disk/state.h"
#include "daemon/disk/stats.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/catalog/catalog.h"
#include "store/catalog/record.h"
#include "store/slab/disk.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

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

/* ---- a word of order is of one run ---- */

static void copy_file(const char *from, const char *to)
{
	static uint8_t bytes[1 << 22];
	FILE *f = fopen(from, "r");
	size_t n;

	ck_assert_ptr_nonnull(f);
	n = fread(bytes, 1, sizeof(bytes), f);
	ck_assert_uint_lt(n, sizeof(bytes));
	fclose(f);
	f = fopen(to, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
	fclose(f);
}

/* Of a run in which all ended in order: the catalog alone is read. */
START_TEST(test_an_orderly_start_reads_no_header)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, HOST);
	flush_all(&r);
	rig_close(&r);
	/* A disk more: the other is believed. */
	for (uint32_t disks = 1; disks <= 2; disks++) {
		open_on(&r, &d, disks, 1);
		ck_assert(!r.c->tier->scan && !r.c->tier->units[0].scan);
		ck_assert_uint_eq(rig_read_all(&r, 0, HOST), HOST);
		rig_close(&r);
	}
	rig_disks_remove(&d);
}
END_TEST

/* The catalog of another daemon, that ended in order too: what is on the disk is found, what was deleted before stays dead. */
START_TEST(test_a_catalog_of_another_is_not_believed)
{
	enum status st[16];
	struct rig_disks d, other;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	rig_disks_make(&other, NULL, 1, DISK);
	open_on(&r, &other, 1, 1);
	rig_put_slowly(&r, 5000, HOST);
	flush_all(&r);
	rig_close(&r);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, HOST);
	flush_all(&r);
	rig_close(&r);
	memcpy(d.catalog, other.catalog, sizeof(d.catalog));
	open_on(&r, &d, 1, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST), HOST);
	ck_assert_int_eq(rig_delete(&r, 0, 16, st), STATUS_OK);
	rig_close(&r);
	for (int rebuild = 0; rebuild < 2; rebuild++) {
		struct cache_options o = rig_disk_options(&d, 1, HOST);

		o.rebuild = rebuild;
		rig_open(&r, &o, 1);
		rig_restored(&r);
		ck_assert_uint_eq(rig_read_all(&r, 0, 16), 0);
		ck_assert_uint_eq(rig_read_all(&r, 16, HOST - 16), HOST - 16);
		rig_close(&r);
	}
	rig_disks_remove(&d);
	rig_disks_remove(&other);
}
END_TEST

/* Its own, of an earlier end, put back: what was flushed since is found, and what was deleted since is not. */
START_TEST(test_an_older_catalog_is_not_believed)
{
	char now[160], then[160];
	enum status st[16];
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	snprintf(now, sizeof(now), "%s/data.mdb", d.catalog);
	snprintf(then, sizeof(then), "%s/then", d.root);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, HOST);
	flush_all(&r);
	rig_close(&r);
	copy_file(now, then);
	open_on(&r, &d, 1, 1);
	ck_assert_int_eq(rig_delete(&r, 0, 16, st), STATUS_OK);
	rig_put_slowly(&r, 1000, HOST);
	flush_all(&r);
	rig_close(&r);
	copy_file(then, now);
	open_on(&r, &d, 1, 1);
	ck_assert_uint_eq(rig_prefix(&r, 0, 1), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, 16), 0);
	ck_assert_uint_eq(rig_read_all(&r, 16, HOST - 16), HOST - 16);
	ck_assert_uint_eq(rig_read_all(&r, 1000, HOST), HOST);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- a disk that was away ---- */

struct told {
	uint32_t bans, disks;
};

static bool count_told(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct told *t = arg;

	(void)value;
	(void)value_bytes;
	t->disks += key_bytes == 8;
	t->bans += key_bytes == 12 && !memcmp(key, "wipe", 4);
	return true;
}

/* What the catalog says of disks; first told of so many more, which nobody has. */
static struct told disks_told(const struct rig_disks *d, uint64_t more)
{
	const struct catalog_options o = { .folder = d->catalog };
	struct told t = { 0, 0 };
	enum catalog_state state;
	struct catalog *catalog;
	char why[160];

	ck_assert_int_eq(catalog_open(&o, &catalog, &state, why, sizeof(why)), STATUS_OK);
	for (uint64_t i = 1; i <= more; i++) {
		const struct disk_record absent = { .disk_id = i, .folder = "/gone" };
		struct record r;

		ck_assert_int_eq(disk_record_encode(&absent, &r), STATUS_OK);
		ck_assert_int_eq(catalog_put(catalog, CATALOG_SLABS, r.key, r.key_bytes, r.value, r.value_bytes), STATUS_OK);
	}
	ck_assert_int_eq(catalog_walk(catalog, CATALOG_SLABS, count_told, &t, NULL), STATUS_OK);
	ck_assert_int_eq(catalog_walk(catalog, CATALOG_META, count_told, &t, NULL), STATUS_OK);
	catalog_close(catalog);
	return t;
}

/* Its pages can be read, or not: as if their disk hung. */
static void catalog_readable(bool is)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	uint32_t n = 0;

	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to;

		if (!strstr(line, "/data.mdb") || sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		ck_assert_int_eq(mprotect((void *)from, to - from, is ? PROT_READ : PROT_NONE), 0);
		n++;
	}
	fclose(maps);
	ck_assert_uint_gt(n, 0);
}

/* What policies have learned is at hand: who needs a new one holds the cache's lock, and waits for no disk. */
START_TEST(test_a_new_layout_does_not_wait_for_the_catalog)
{
	const struct kv_layout l = rig_layout(40, 0);
	struct cache_session_view s;
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	o = rig_disk_options(&d, 1, HOST);
	o.policy = o.disk_policy = "graph";
	o.graph_nodes = 4096;
	rig_open(&r, &o, 1);
	rig_restored(&r);
	rig_put_slowly(&r, 0, 8);
	flush_all(&r);
	catalog_readable(false);
	ck_assert_int_eq(cache_session_open(r.c, &(struct cache_open_call){ .tenant = "", .layouts = &l,
			.layout_count = 1, .engine = "", .now_us = r.now }, &s, &r.why), STATUS_OK);
	catalog_readable(true);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* What was deleted while it was away could not be tombstoned there: it is wiped when it comes back. _i 1: and the catalog, which knew of it, is lost
 * before that. */
START_TEST(test_a_disk_that_was_away_is_wiped)
{
	char catalog[128];
	enum status st[2 * HOST];
	uint32_t left;
	struct rig_disks d;
	struct told t;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 2, 1);
	rig_put_slowly(&r, 0, 2 * HOST);
	flush_all(&r);
	ck_assert_double_ge(rig_stat(&r, "terrace_disk_blocks", "disk=1"), HOST / 2);
	rig_close(&r);
	t = disks_told(&d, 0);
	ck_assert_uint_eq(t.disks, 2);
	ck_assert_uint_eq(t.bans, 0);
	open_on(&r, &d, 1, 1);
	left = rig_read_all(&r, 0, 2 * HOST);
	ck_assert_uint_gt(left, HOST / 2);
	ck_assert_uint_lt(left, 2 * HOST);
	rig_delete(&r, 0, HOST, st);
	left = rig_read_all(&r, HOST, HOST);
	rig_close(&r);
	ck_assert_uint_eq(disks_told(&d, 0).bans, 1);
	snprintf(catalog, sizeof(catalog), "%s/data.mdb", d.catalog);
	if (_i)
		ck_assert_int_eq(unlink(catalog), 0);
	for (int run = 0; run < 2; run++) {
		open_on(&r, &d, 2, 1);
		ck_assert_uint_eq(rig_read_all(&r, 0, HOST), 0);
		ck_assert_uint_eq(rig_read_all(&r, HOST, HOST), left);
		ck_assert_double_eq(rig_stat(&r, "terrace_disk_health_info", "disk=1,health=healthy"), 1);
		rig_check_accounting(r.c);
		rig_close(&r);
	}
	/* Its old name is forgotten, and it serves under a new one. */
	t = disks_told(&d, 0);
	ck_assert_uint_eq(t.disks, 2);
	ck_assert_uint_eq(t.bans, 0);
	rig_disks_remove(&d);
}
END_TEST

/* However many are away. */
START_TEST(test_all_who_are_away_are_banned)
{
	enum { AWAY = 4 * CACHE_DISKS_MAX + 6 };
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	open_on(&r, &d, 1, 1);
	rig_close(&r);
	disks_told(&d, AWAY);
	for (int i = 0; i < 2; i++) {
		struct cache_catalog_state s;

		open_on(&r, &d, 1, 1);
		ck_assert(cache_catalog(r.c, &s));
		ck_assert_uint_eq(s.left_out_count, i ? 0 : AWAY); /* that is told once */
		ck_assert_str_eq(s.left_out[0].folder, i ? "" : "/gone");
		ck_assert(i || strstr(s.left_out[0].why, "does not name it"));
		rig_close(&r);
	}
	ck_assert_uint_eq(disks_told(&d, 0).bans, AWAY);
	rig_disks_remove(&d);
}
END_TEST

/* What is deleted would get a tombstone in one of the two. */
START_TEST(test_a_copy_of_a_disk_is_refused)
{
	struct cache_options o;
	char command[256];
	const char *why;
	struct cache *c;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	open_on(&r, &d, 1, 1);
	rig_put_slowly(&r, 0, 8);
	flush_all(&r);
	rig_close(&r);
	snprintf(command, sizeof(command), "cp -a '%s' '%s'", d.folder[0], d.folder[1]);
	ck_assert_int_eq(system(command), 0);
	o = rig_disk_options(&d, 2, HOST);
	cache_thread_enter();
	ck_assert_int_eq(cache_create(&o, 1, &c, &why), STATUS_INVALID);
	cache_thread_leave();
	ck_assert_ptr_nonnull(strstr(why, d.folder[0]));
	ck_assert_ptr_nonnull(strstr(why, d.folder[1]));
	open_on(&r, &d, 1, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
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
		{ test_an_orderly_start_reads_no_header, 1 }, { test_a_catalog_of_another_is_not_believed, 1 }, { test_an_older_catalog_is_not_believed, 1 },
		{ test_a_new_layout_does_not_wait_for_the_catalog, 1 }, { test_a_disk_that_was_away_is_wiped, 2 }, { test_all_who_are_away_are_banned, 1 },
		{ test_a_copy_of_a_disk_is_refused, 1 },
	};
	Suite *suite = suite_create("cache_disk_away");
	TCase *tc = tcase_create("away");
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
