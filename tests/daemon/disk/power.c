/* Power cuts: what the kernel, or a disk, has taken and not made durable is gone. */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/call/flush.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"
#include "tests/daemon/disk/power_log.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HOST = 16, DISK = 7 };

static struct power_log *power;

static void open_on(struct rig *r, const struct rig_disks *d, uint32_t disks)
{
	static struct ring_calls calls;
	struct cache_options o = rig_disk_options(d, disks, HOST);

	power_log_use(power, &calls);
	o.io = CACHE_IO_THREADS;
	o.io_calls = &calls;
	o.slab_bytes = d->disk[0].bytes;
	o.spill_share_milli = 1000;
	rig_open(r, &o, 1);
	rig_restored(r);
}

/* A process that does this with a cache, and is killed when it has. */
static void live(const struct rig_disks *d, uint32_t disks, void (*work)(struct rig *r))
{
	int status = 1;
	pid_t pid = fork();
	struct rig r;

	if (!pid) {
		open_on(&r, d, disks);
		work(&r);
		kill(getpid(), SIGKILL);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void setup(void)
{
	power = power_log_make();
	ck_assert_ptr_nonnull(power);
}

static void put_slowly(struct rig *r, uint64_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 4) {
		ck_assert_uint_eq(rig_put(r, first + i, 4), 4);
		rig_quiet(r);
	}
}

static void flush_keys(struct rig *r, uint64_t first, uint32_t count)
{
	enum status st[32];

	ck_assert_int_eq(rig_flush(r, first, count, st), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(st[i], STATUS_OK);
}

static void put_eight(struct rig *r)
{
	put_slowly(r, 0, 8);
	ck_assert_double_eq(rig_stat(r, "terrace_disk_blocks", "disk=0"), 8);
}

static void flush_eight(struct rig *r)
{
	flush_keys(r, 0, 8);
}

/* What a daemon wrote that was killed, the next one finds and has not written itself. */
START_TEST(test_a_flush_is_of_what_an_earlier_run_wrote)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	live(&d, 1, put_eight);
	live(&d, 1, flush_eight);
	power_log_cut(power);
	open_on(&r, &d, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* The catalog is told, and committed, of what no sync has made durable. */
static void put_eight_recorded(struct rig *r)
{
	put_eight(r);
	RIG_AWAIT(rig_stat(r, "terrace_catalog_records", "") == 8 && rig_stat(r, "terrace_catalog_queued_bytes", "") == 0);
}

/* What the catalog names, and the power has taken, is not there: no flush promises it. */
START_TEST(test_a_record_without_a_slot_is_none)
{
	struct rig_disks d;
	enum status st[8];
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	live(&d, 1, put_eight_recorded);
	ck_assert_uint_ge(power_log_cut(power), 8);
	open_on(&r, &d, 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", "disk=0"), 0);
	ck_assert_int_eq(rig_flush(&r, 0, 8, st), STATUS_OK);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(st[i], STATUS_MISS);
	ck_assert_uint_eq(rig_put(&r, 0, 8), 8);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Of the last write of a slot that has been taken the first page came through, and not the rest. */
static void tear_one(const struct rig_disks *d)
{
	uint8_t page[SLOT_HEADER_BYTES];
	char path[160];
	off_t at = DISK_SLAB_HEADER_BYTES + 3 * RIG_SLOT_BYTES;
	int fd;

	snprintf(path, sizeof(path), "%s/slab-000001.trc", d->folder[0]);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pread(fd, page, sizeof(page), at), sizeof(page));
	ck_assert_ptr_null(slot_header_problem((const struct slot_header *)page));
	memset(page, 0, sizeof(page));
	ck_assert_int_eq(pwrite(fd, page, sizeof(page), at + SLOT_HEADER_BYTES), sizeof(page));
	close(fd);
}

/* No flush promises what a crash has left before it was looked at. */
START_TEST(test_a_torn_write_is_not_flushed)
{
	uint32_t durable = 0, missing = 0;
	struct rig_disks d;
	enum status st[8];
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	live(&d, 1, put_eight);
	power_log_forget(power);
	tear_one(&d);
	open_on(&r, &d, 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_disk_blocks", "disk=0"), 8);
	ck_assert_int_eq(rig_flush(&r, 0, 8, st), STATUS_OK);
	for (int i = 0; i < 8; i++) {
		durable += st[i] == STATUS_OK;
		missing += st[i] == STATUS_MISS;
	}
	ck_assert_uint_eq(durable, 7);
	ck_assert_uint_eq(missing, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 7);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

static double unverified(struct rig *r)
{
	return rig_stat(r, "terrace_disk_doubted_blocks", "disk=0");
}

/* What a crash has left, a torn write in it. */
static void torn(struct rig *r, struct rig_disks *d)
{
	rig_disks_make(d, NULL, 1, DISK);
	live(d, 1, put_eight);
	power_log_forget(power);
	tear_one(d);
	open_on(r, d, 1);
	ck_assert_double_eq(unverified(r), 8);
	rig_check_accounting(r->c);
}

static void torn_gone(struct rig *r, const struct rig_disks *d)
{
	ck_assert_double_eq(unverified(r), 0);
	ck_assert_double_eq(rig_stat(r, "terrace_disk_blocks", "disk=0"), 7);
	ck_assert_uint_eq(rig_read_all(r, 0, 8), 7);
	rig_check_accounting(r->c);
	rig_close(r);
	rig_disks_remove((struct rig_disks *)d);
}

static void wake_nobody(void *arg)
{
	(void)arg;
}

/* A flush of everything is not over before all of it was looked at; until then it can tell how much is left. */
START_TEST(test_a_flush_of_everything_looks_at_it)
{
	struct cache_wait w = { .ready = wake_nobody };
	struct rig_disks d;
	const char *why;
	struct rig r;

	torn(&r, &d);
	RIG_AWAIT(cache_flush(r.c, r.s.id, NULL, r.now, &w, NULL, &why) == STATUS_BUSY && w.unverified);
	ck_assert_uint_le(w.unverified, 8);
	cache_wait_end(r.c, &w);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	torn_gone(&r, &d);
}
END_TEST

/* And without a flush, as time passes. */
START_TEST(test_what_a_crash_left_is_looked_at)
{
	struct rig_disks d;
	struct rig r;

	torn(&r, &d);
	rig_tick(r.c, r.now);
	ck_assert_double_eq(unverified(&r), 8);
	r.now += 1000; /* enough for 256 KB */
	for (int i = 0; i < 60000 && unverified(&r); i++) {
		rig_tick(r.c, r.now);
		usleep(1000);
	}
	torn_gone(&r, &d);
}
END_TEST

/* A run that ends in order has not looked at it for that. */
START_TEST(test_doubts_outlive_an_orderly_stop)
{
	struct rig_disks d;
	enum status st[8];
	struct rig r;

	torn(&r, &d);
	ck_assert_uint_eq(rig_put(&r, 8, 4), 4);
	flush_keys(&r, 8, 4);
	rig_close(&r);
	open_on(&r, &d, 1);
	ck_assert_double_eq(rig_stat(&r, "terrace_restore_scanned_disks", ""), 0);
	ck_assert_double_eq(unverified(&r), rig_stat(&r, "terrace_disk_blocks", "disk=0") - 4);
	ck_assert_int_eq(rig_flush(&r, 0, 8, st), STATUS_OK);
	for (int i = 0; i < 8; i++)
		ck_assert(st[i] == STATUS_OK || st[i] == STATUS_MISS);
	for (uint64_t n = 0; n < 8; n++)
		ck_assert_uint_eq(rig_read_all(&r, n, 1), st[n] == STATUS_OK);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_close(&r);
	open_on(&r, &d, 1);
	ck_assert_double_eq(unverified(&r), 0);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Block 0 is durable, then displaced by what is not; then it is deleted. */
static void displace_and_delete(struct rig *r)
{
	enum status st = STATUS_INTERNAL;

	put_slowly(r, 0, 4);
	flush_keys(r, 0, 4);
	put_slowly(r, 100, 2 * (HOST + DISK + 8) / 4 * 4);
	ck_assert_uint_eq(rig_prefix(r, 0, 1), 0);
	ck_assert_int_eq(rig_delete(r, 0, 1, &st), STATUS_OK);
	ck_assert_int_eq(st, STATUS_MISS);
}

/* Who is told that a block is not there, or not any more, does not meet it again: its header may have been overwritten by another's, and
 * that write is not durable by itself. */
START_TEST(test_a_delete_is_of_what_was_displaced_too)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	live(&d, 1, displace_and_delete);
	power_log_cut(power);
	open_on(&r, &d, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 1), 0);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* ---- the log itself ---- */

static int file_with(const char *path, char byte)
{
	const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	char bytes[512];

	memset(bytes, byte, sizeof(bytes));
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	return fd;
}

/* A cut undoes writes of a file. One that has got the name since, as after a wipe, keeps what it has. */
START_TEST(test_a_cut_is_of_files_and_not_of_names)
{
	char path[] = "/tmp/terrace-power-XXXXXX", byte = 'b';
	struct ring_calls calls = { 0 };
	int fd = mkstemp(path);

	power_log_use(power, &calls);
	close(fd);
	fd = file_with(path, 'a');
	ck_assert_int_eq(calls.pwrite(fd, &byte, 1, 0), 1);
	unlink(path);
	close(file_with(path, 'c'));
	close(fd); /* not earlier, or both could be one inode that was born within one tick of the clock */
	ck_assert_uint_eq(power_log_cut(power), 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(pread(fd, &byte, 1, 0), 1);
	ck_assert_int_eq(byte, 'c');
	byte = 'd';
	ck_assert_int_eq(calls.pwrite(fd, &byte, 1, 0), 1);
	ck_assert_uint_eq(power_log_cut(power), 1);
	ck_assert_int_eq(pread(fd, &byte, 1, 0), 1);
	ck_assert_int_eq(byte, 'c');
	close(fd);
	unlink(path);
}
END_TEST

/* ---- whatever is done ---- */

enum { KEYS = 24, STEPS = 60, SEEDS = 6, ROOM = 2 * KEYS };
enum told { NOTHING, DURABLE, GONE };

static _Atomic uint8_t *told;      /* of each key, what was acknowledged last; shared with the process that is killed */
static uint64_t seed;

static uint32_t draw(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % below;
}

static void flush_some(struct rig *r, uint32_t n, uint32_t count)
{
	enum status st[4];

	ck_assert_int_eq(rig_flush(r, n, count, st), STATUS_OK);
	for (uint32_t i = 0; i < count; i++)
		if (st[i] == STATUS_OK)
			told[n + i] = DURABLE;
}

static void do_anything(struct rig *r)
{
	for (int i = 0; i < STEPS; i++) {
		const uint32_t n = draw(KEYS - 3), what = draw(5);
		enum status st;

		if (what < 2) {
			told[n] = told[n] == GONE ? NOTHING : told[n];
			rig_put(r, n, 1);
		} else if (what == 2) {
			flush_some(r, n, 1 + draw(4));
		} else if (what == 3) {
			told[n] = NOTHING;
			ck_assert_int_eq(rig_delete(r, n, 1, &st), STATUS_OK);
			told[n] = GONE;
		} else {
			rig_quiet(r);
		}
	}
}

/* One disk or two, with room for all, or for some: what was flushed is there, unless it was displaced, and what was deleted is not. A disk is
 * synced only for what may not be durable on it. */
START_TEST(test_what_was_acknowledged_holds)
{
	const uint32_t disks = 1 + (uint32_t)_i % 2;
	const bool roomy = _i < SEEDS;
	struct rig_disks d;
	struct rig r;

	told = mmap(NULL, KEYS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(told, MAP_FAILED);
	seed = (uint64_t)_i + 1;
	rig_disks_make(&d, NULL, disks, roomy ? ROOM : 1);
	live(&d, disks, do_anything);
	power_log_cut(power);
	open_on(&r, &d, disks);
	for (uint32_t n = 0; n < KEYS; n++)
		if (told[n] == GONE || (told[n] == DURABLE && roomy))
			ck_assert_msg(rig_read_all(&r, n, 1) == (told[n] == DURABLE), "key %u, %s", n, told[n] == GONE ? "deleted" : "flushed");
	rig_close(&r);
	rig_disks_remove(&d);
	munmap((void *)told, KEYS);
}
END_TEST

static void stop_in_order(struct rig *r)
{
	put_eight(r);
	rig_close(r);
}

/* The catalog's word of an orderly stop is believed: it is not to be more durable than what it is of. */
START_TEST(test_an_orderly_stop_leaves_what_its_catalog_says)
{
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, DISK);
	live(&d, 1, stop_in_order);
	power_log_cut(power);
	open_on(&r, &d, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
	ck_assert_double_eq(rig_stat(&r, "terrace_corrupt_blocks_total", ""), 0);
	ck_assert_double_eq(rig_stat(&r, "terrace_restore_scanned_disks", ""), 0);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_disk_power");
	TCase *tc = tcase_create("power");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, test_a_flush_is_of_what_an_earlier_run_wrote);
	tcase_add_test(tc, test_a_record_without_a_slot_is_none);
	tcase_add_test(tc, test_a_torn_write_is_not_flushed);
	tcase_add_test(tc, test_a_flush_of_everything_looks_at_it);
	tcase_add_test(tc, test_what_a_crash_left_is_looked_at);
	tcase_add_test(tc, test_doubts_outlive_an_orderly_stop);
	tcase_add_test(tc, test_a_cut_is_of_files_and_not_of_names);
	tcase_add_test(tc, test_a_delete_is_of_what_was_displaced_too);
	tcase_add_test(tc, test_an_orderly_stop_leaves_what_its_catalog_says);
	tcase_add_loop_test(tc, test_what_was_acknowledged_holds, 0, 2 * SEEDS);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
