/* Disks that cannot be used at the start, and slab files that are gone: the cache starts without them and says so, and nothing that was deleted
 * meanwhile comes back with them. */
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/cache.h"
#include "daemon/call/faults.h"
#include "daemon/call/settle.h"
#include "daemon/disk/compact.h"
#include "daemon/disk/state.h"
#include "daemon/disk/stats.h"
#include "store/slab/disk.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HOST = 64, DISK = 512, BLOCKS = 2 * HOST };

static void open_on(struct rig *r, const struct cache_options *o)
{
	rig_open(r, o, 1);
	rig_restored(r);
}

static void open_both(struct rig *r, const struct rig_disks *d)
{
	const struct cache_options o = rig_disk_options(d, 2, HOST);

	open_on(r, &o);
}

/* BLOCKS blocks, flushed, over two disks. How many are on disk 1. */
static uint32_t fill(const struct rig_disks *d)
{
	uint32_t there;
	struct rig r;

	open_both(&r, d);
	rig_put_slowly(&r, 0, BLOCKS);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	there = (uint32_t)rig_stat(&r, "terrace_disk_blocks", "disk=1");
	ck_assert_uint_ge(there, HOST / 2);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", "disk=0"), BLOCKS - there);
	rig_close(&r);
	return there;
}

static void shell(const char *format, const char *a, const char *b)
{
	char command[512];

	snprintf(command, sizeof(command), format, a, b);
	ck_assert_int_eq(system(command), 0);
}

/* How a disk's folder is broken, and mended. aside: where it is kept. */
static const struct breakage {
	const char *break_it, *mend_it, *why, *remedy;
} breakages[] = {
	{ "mv '%1$s' '%2$s'", "mv '%2$s' '%1$s'", "not mounted now", "mount it" },
	{ "mv '%1$s' '%2$s'; mkdir '%1$s'", "rmdir '%1$s'; mv '%2$s' '%1$s'", "not mounted now", "mount it" },
	{ "mv '%1$s' '%2$s'; echo > '%1$s'", "rm '%1$s'; mv '%2$s' '%1$s'", "Not a directory", "mend the reason" },
	{ "cp -a '%1$s/disk.id' '%2$s'; printf 12345 > '%1$s/disk.id'", "mv '%2$s' '%1$s/disk.id'", "disk.id: is too short", "restore disk.id" },
	{ "cp -a '%1$s/disk.id' '%2$s'; head -c 64 /dev/zero > '%1$s/disk.id'", "mv '%2$s' '%1$s/disk.id'", "disk.id: is no disk.id", "restore disk.id" },
	{ "mv '%1$s/disk.id' '%2$s'", "mv '%2$s' '%1$s/disk.id'", "disk.id: is missing", "restore disk.id" },
	{ "mv '%1$s/disk.id' '%2$s'; ln -s /nowhere '%1$s/disk.id'", "mv '%2$s' '%1$s/disk.id'", "Too many levels of symbolic links", "mend the reason" },
};
enum { BREAKAGES = sizeof(breakages) / sizeof(breakages[0]) };

static void aside_of(const struct rig_disks *d, char aside[96])
{
	snprintf(aside, 96, "%s/aside", d->root);
}

static void break_disk(const struct rig_disks *d, uint32_t disk, const struct breakage *b)
{
	char aside[96];

	aside_of(d, aside);
	shell(b->break_it, d->folder[disk], aside);
}

static void mend_disk(const struct rig_disks *d, uint32_t disk, const struct breakage *b)
{
	char aside[96];

	aside_of(d, aside);
	shell(b->mend_it, d->folder[disk], aside);
}

static void expect_out(struct rig *r, const struct rig_disks *d, uint32_t disk, const struct breakage *b)
{
	struct cache_disk_state disks[2];
	struct cache_fault fault;
	char label[48], number[16];

	ck_assert(cache_degraded(r->c));
	ck_assert_uint_eq(cache_faults(r->c, &fault, 1), 1);
	snprintf(number, sizeof(number), "disk %u ", disk);
	ck_assert_msg(strstr(fault.text, number) && strstr(fault.text, d->folder[disk]) && strstr(fault.text, b->why), "%s", fault.text);
	ck_assert_uint_eq(cache_disks(r->c, disks, 2), 2);
	ck_assert_str_eq(disks[disk].health, "unusable");
	ck_assert_str_eq(disks[disk].folder, d->folder[disk]);
	ck_assert_msg(strstr(disks[disk].why, b->why), "%s", disks[disk].why);
	ck_assert_msg(strstr(disks[disk].remedy, b->remedy), "%s", disks[disk].remedy);
	ck_assert_str_eq(disks[!disk].health, "healthy");
	snprintf(label, sizeof(label), "disk=%u,health=unusable", disk);
	ck_assert_double_eq(rig_stat(r, "terrace_disk_health_info", label), 1);
	snprintf(label, sizeof(label), "disk=%u,health=healthy", !disk);
	ck_assert_double_eq(rig_stat(r, "terrace_disk_health_info", label), 1);
}

/* Of each kind: the other disk has its blocks and takes new ones. Nothing was deleted: with the disk its blocks are back. */
START_TEST(test_without_one_disk)
{
	const struct breakage *b = &breakages[_i];
	struct rig_disks d;
	uint32_t gone;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	gone = fill(&d);
	break_disk(&d, 1, b);
	for (int run = 0; run < 2; run++) {
		open_both(&r, &d);
		expect_out(&r, &d, 1, b);
		ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS - gone);
		ck_assert_double_eq(rig_stat(&r, "terrace_restore_absent_blocks", ""), run ? 0 : gone);
		rig_put_slowly(&r, 1000 + 16 * run, 16);
		ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
		rig_check_accounting(r.c);
		rig_close(&r);
	}
	mend_disk(&d, 1, b);
	open_both(&r, &d);
	ck_assert(!cache_degraded(r.c));
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS);
	ck_assert_uint_eq(rig_read_all(&r, 1000, 32), 32);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A delete while a disk is out: it is wiped when it comes back, once. From 3 on, of two kinds of breakage, 1: the catalog is lost before; 2: the
 * delete was in an earlier run than the last without the disk. */
START_TEST(test_what_is_deleted_meanwhile)
{
	const struct breakage *b = &breakages[(const int[]){ 0, 1, 3, 0, 3, 0, 3 }[_i]];
	const int kind = _i < 3 ? 0 : 1 + (_i - 3) / 2;
	enum status st[HOST];
	char catalog[128];
	uint32_t left;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	fill(&d);
	break_disk(&d, 1, b);
	open_both(&r, &d);
	expect_out(&r, &d, 1, b);
	ck_assert_int_eq(rig_delete(&r, 0, HOST, st), STATUS_OK);
	left = rig_read_all(&r, HOST, HOST);
	rig_close(&r);
	if (kind == 2) {
		open_both(&r, &d);
		rig_close(&r);
	}
	snprintf(catalog, sizeof(catalog), "%s/data.mdb", d.catalog);
	if (kind == 1)
		ck_assert_int_eq(unlink(catalog), 0);
	mend_disk(&d, 1, b);
	for (int run = 0; run < 2; run++) {
		open_both(&r, &d);
		ck_assert(!cache_degraded(r.c));
		ck_assert_uint_eq(rig_read_all(&r, 0, HOST), 0);
		ck_assert_uint_eq(rig_read_all(&r, HOST, HOST), left);
		if (!run)
			rig_put_slowly(&r, 1000, HOST);
		ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
		ck_assert_uint_eq(rig_read_all(&r, 1000, HOST), HOST);
		rig_check_accounting(r.c);
		rig_close(&r);
	}
	rig_disks_remove(&d);
}
END_TEST

/* Neither catalog nor other disks know the id of a disk that is out: what lies in its folder is wiped all the same. */
START_TEST(test_a_disk_of_unknown_id)
{
	enum status st[HOST];
	char aside[128];
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	fill(&d);
	/* The catalog and the note of the other disk are another daemon's: it has never seen disk 1. */
	snprintf(aside, sizeof(aside), "%s/catalog.other", d.root);
	shell("mv '%s' '%s'", d.catalog, aside);
	break_disk(&d, 1, &breakages[3]);
	open_both(&r, &d);
	expect_out(&r, &d, 1, &breakages[3]);
	ck_assert_int_eq(rig_delete(&r, 0, HOST, st), STATUS_OK);
	rig_close(&r);
	mend_disk(&d, 1, &breakages[3]);
	open_both(&r, &d);
	ck_assert_uint_eq(rig_read_all(&r, 0, HOST), 0);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A disk keeps its number when one before it is out. */
START_TEST(test_numbers_are_those_of_the_options)
{
	struct rig_disks d;
	uint64_t freed;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	const uint32_t there = fill(&d);

	break_disk(&d, 0, &breakages[0]);
	open_both(&r, &d);
	expect_out(&r, &d, 0, &breakages[0]);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", "disk=1"), there);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), there);
	ck_assert_int_eq(cache_compact_step(r.c, 0, 1, &freed), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_compact_step(r.c, 1, 1, &freed), STATUS_OK);
	ck_assert_uint_gt(freed, 0);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Memory alone: nothing can be made durable, the reason is told, and all else is served. */
START_TEST(test_without_any_disk)
{
	enum status st[8];
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	fill(&d);
	chdir(d.root);
	shell("mv '%s' '%s'", d.folder[0], "zero");
	shell("mv '%s' '%s'", d.folder[1], "one");
	open_both(&r, &d);
	ck_assert_uint_eq(cache_faults(r.c, NULL, 0), 2);
	ck_assert_uint_eq(rig_put(&r, 5000, HOST / 2), HOST / 2);
	ck_assert_uint_eq(rig_read_all(&r, 5000, HOST / 2), HOST / 2);
	ck_assert_int_eq(rig_flush(&r, 5000, 8, st), STATUS_UNAVAILABLE);
	ck_assert_str_eq(r.why, "no disk is in use");
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_UNAVAILABLE);
	for (uint64_t n = 6000; n < 6000 + 4 * HOST; n += 8) {
		ck_assert_uint_eq(rig_put(&r, n, 8), 8); /* the oldest go: there is nowhere to spill to */
		rig_tick(r.c, r.now += 100000);
	}
	ck_assert_uint_eq(rig_warm(&r, 6000 + 4 * HOST - 8, 8), 8);
	ck_assert_int_eq(rig_delete(&r, 6000 + 4 * HOST - 8, 4, st), STATUS_OK);
	ck_assert_uint_eq(rig_read_all(&r, 6000 + 4 * HOST - 8, 8), 4);
	rig_check_accounting(r.c);
	ck_assert(!cache_settle(r.c, 100000, NULL));
	rig_close(&r);
	shell("mv '%2$s' '%1$s'", d.folder[0], "zero");
	shell("mv '%2$s' '%1$s'", d.folder[1], "one");
	open_both(&r, &d);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), 0); /* something was deleted */
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static enum status try(const struct cache_options *o, const char **why)
{
	struct cache *c = NULL;
	enum status s;

	cache_thread_enter();
	s = cache_create(o, 1, &c, why);
	if (!s)
		ck_assert(cache_destroy(c));
	cache_thread_leave();
	return s;
}

/* What is asked for is kept, a start that fails costs nothing. */
START_TEST(test_required)
{
	const char *why = "";
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	fill(&d);
	o = rig_disk_options(&d, 2, HOST);
	break_disk(&d, 1, &breakages[0]);
	o.disks_required = CACHE_REQUIRE_ALL;
	ck_assert_int_eq(try(&o, &why), STATUS_UNAVAILABLE);
	ck_assert_msg(strstr(why, "require_disks is all: 1 of 2 disks") && strstr(why, d.folder[1]), "%s", why);
	o.disks_required = CACHE_REQUIRE_ONE;
	for (int i = 0; i < 8; i++) /* stopped while it begins to take up */
		ck_assert_int_eq(try(&o, &why), STATUS_OK);
	o.host_bytes = 1; /* after the disks something else fails */
	ck_assert_int_ne(try(&o, &why), STATUS_OK);
	o = rig_disk_options(&d, 2, HOST);
	chdir(d.root);
	shell("mv '%s' '%s'", d.folder[0], "zero");
	o.disks_required = CACHE_REQUIRE_ONE;
	ck_assert_int_eq(try(&o, &why), STATUS_UNAVAILABLE);
	ck_assert_msg(strstr(why, "require_disks is one: 2 of 2 disks"), "%s", why);
	shell("mv '%2$s' '%1$s'", d.folder[0], "zero");
	mend_disk(&d, 1, &breakages[0]);
	o.disks_required = CACHE_REQUIRE_ALL;
	open_on(&r, &o);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A folder that was emptied is told of as what it is, and becomes a disk anew when it is asked for. */
START_TEST(test_a_new_disk_in_the_folder)
{
	struct cache_catalog_state s;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	const uint32_t gone = fill(&d);

	shell("rm -r '%s' && mkdir '%1$s'", d.folder[1], "");
	open_both(&r, &d);
	expect_out(&r, &d, 1, &breakages[1]);
	rig_close(&r);
	shell("test ! -e '%s/disk.id' && touch '%1$s/disk.id'", d.folder[1], "");
	open_both(&r, &d);
	ck_assert(!cache_degraded(r.c));
	ck_assert(cache_catalog(r.c, &s));
	ck_assert_uint_eq(s.left_out_count, 1);
	ck_assert_str_eq(s.left_out[0].folder, d.folder[1]);
	ck_assert_msg(strstr(s.left_out[0].why, "another disk now"), "%s", s.left_out[0].why);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS - gone);
	rig_put_slowly(&r, 1000, HOST);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- slab files ---- */

static const struct {
	const char *command, *problem;
} losses[] = {
	{ "rm '%s/slab-000001.trc'", "is missing" },
	{ "truncate -s 20000 '%s/slab-000001.trc'", "has not the size that its header tells" },
	{ "truncate -s 100 '%s/slab-000001.trc'", "is too short" },
	{ "printf x | dd of='%s/slab-000001.trc' conv=notrunc status=none", "is no slab" },
};
enum { LOSSES = sizeof(losses) / sizeof(losses[0]) };

/* _i / LOSSES: 1: after a run that did not end in order. */
START_TEST(test_a_slab_that_is_lost)
{
	const int unsure = _i / LOSSES;
	struct cache_catalog_state s;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	fill(&d);
	shell(losses[_i % LOSSES].command, d.folder[1], "");
	if (unsure)
		shell("rm '%s/run'", d.folder[1], "");
	open_both(&r, &d);
	ck_assert(cache_catalog(r.c, &s));
	ck_assert_uint_eq(s.slabs_lost, 1);
	ck_assert_uint_gt(s.lost[0].blocks, 0);
	ck_assert_uint_eq(s.lost[0].blocks, s.blocks_lost);
	ck_assert_uint_eq(s.lost[0].disk, 1);
	ck_assert_uint_eq(s.lost[0].slab, 1);
	ck_assert_str_eq(s.lost[0].problem, losses[_i % LOSSES].problem);
	ck_assert_int_eq(s.lost[0].sure, !unsure);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_lost_slabs", "disk=1"), 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_lost_blocks", "disk=1"), (double)s.blocks_lost);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_lost_slabs", "disk=0"), 0);
	ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), BLOCKS - s.blocks_lost);
	ck_assert(!cache_degraded(r.c));
	rig_close(&r);
	/* That is told once: the catalog names them no more. */
	open_both(&r, &d);
	ck_assert(cache_catalog(r.c, &s));
	ck_assert_uint_eq(s.slabs_lost, 0);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* A file that was lost, and comes back after something was deleted: it is deleted before it is believed, also by a start that reads all headers; and
 * no other file has its number meanwhile. _i 1: nothing was deleted either; it is deleted all the same, once. */
START_TEST(test_a_slab_that_comes_back)
{
	char path[128], aside[128];
	enum status st[BLOCKS];
	struct cache_catalog_state s;
	uint32_t slab = 0, left;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 2, DISK);
	fill(&d);
	open_both(&r, &d);
	for (struct disk_slab_view v = { .slab = 0 }; disk_slab_next(r.c->tier->units[1].disk, v.slab, &v);)
		slab = v.used ? v.slab : slab;
	rig_close(&r);
	ck_assert_uint_gt(slab, 0);
	snprintf(path, sizeof(path), "%s/slab-%06u.trc", d.folder[1], slab); /* the last: its number would be the next new one's */
	snprintf(aside, sizeof(aside), "%s/aside", d.root);
	shell("mv '%s' '%s'", path, aside);
	open_both(&r, &d);
	ck_assert(cache_catalog(r.c, &s));
	ck_assert_uint_eq(s.slabs_lost, 1);
	ck_assert_uint_gt(s.blocks_lost, 0);
	if (!_i)
		ck_assert_int_eq(rig_delete(&r, 0, BLOCKS, st), STATUS_OK);
	left = _i ? BLOCKS - (uint32_t)s.blocks_lost : 0;
	rig_close(&r);
	open_both(&r, &d); /* another start, that knows it by the catalog alone */
	rig_put_slowly(&r, 1000, BLOCKS);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	ck_assert(access(path, F_OK));
	shell("cp '%2$s' '%1$s'", path, aside);
	shell("rm '%s/run'", d.folder[1], ""); /* all headers are read */
	for (int run = 0; run < 2; run++) {
		open_both(&r, &d);
		ck_assert(cache_catalog(r.c, &s));
		ck_assert_uint_eq(s.slabs_lost, !run);
		ck_assert(run || (s.lost[0].disk == 1 && s.lost[0].slab == slab && strstr(s.lost[0].problem, "was deleted")));
		ck_assert_uint_eq(rig_read_all(&r, 0, BLOCKS), left);
		ck_assert_uint_eq(rig_read_all(&r, 1000, BLOCKS), BLOCKS);
		rig_check_accounting(r.c);
		rig_close(&r);
	}
	ck_assert(access(path, F_OK));
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	const struct {
		const TTest *test;
		int times;
	} tests[] = {
		{ test_without_one_disk, BREAKAGES }, { test_what_is_deleted_meanwhile, 7 }, { test_a_disk_of_unknown_id, 1 },
		{ test_numbers_are_those_of_the_options, 1 }, { test_without_any_disk, 1 }, { test_required, 1 }, { test_a_new_disk_in_the_folder, 1 },
		{ test_a_slab_that_is_lost, LOSSES + 1 }, { test_a_slab_that_comes_back, 2 },
	};
	Suite *suite = suite_create("cache_disk_out");
	TCase *tc = tcase_create("out");
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
