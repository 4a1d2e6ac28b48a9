/* A disk on a file system that really fails (fault/faultfs.c): what the kernel makes of EIO, ENOSPC and
 * delays, through O_DIRECT and both engines. `store_disk_fuse FAULTFS`; exits 77, with a word, where
 * FUSE cannot be mounted.
 */
#include "tests/store/slab/rig.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char mounted[64], backing[64];
static pid_t server;

static bool write_order(const char *order)
{
	char path[96];
	int fd;
	bool well;

	snprintf(path, sizeof(path), "%s/ctl", mounted);
	fd = open(path, O_WRONLY);
	well = fd >= 0 && write(fd, order, strlen(order)) == (ssize_t)strlen(order);
	if (fd >= 0)
		close(fd);
	return well;
}

static void order(const char *text)
{
	ck_assert_msg(write_order(text), "order %s", text);
}

static void calm(void)
{
	static const char *const none[] = { "eio_read 0", "eio_write 0", "eio_sync 0", "enospc 0", "no_fallocate 0", "delay_ms 0" };

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		order(none[i]);
}

/* A disk with one written block on the file system, which is sound. */
static struct disk_place begin(struct rig *r, int engine, uint8_t *slot)
{
	struct disk_place p;

	calm();
	rig_begin(r, rig_engines[engine], mounted);
	r->options.slow_us = 20000;
	rig_open(r);
	p = rig_take(r, RIG_SLOT);
	rig_block(slot, 1, 1);
	ck_assert_int_eq(rig_write(r, p, slot, RIG_SLOT), STATUS_OK);
	return p;
}

static void end(struct rig *r, uint8_t *slot)
{
	calm();
	rig_end(r);
	free(slot);
}

START_TEST(a_sound_one_keeps_blocks)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);

	ck_assert(rig_look(&r).space_promised);
	ck_assert_int_eq(rig_sync(&r), STATUS_OK);
	rig_close(&r);
	rig_open(&r);
	memset(slot, 0, RIG_SLOT);
	ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot, 1, 1), STATUS_OK);
	end(&r, slot);
}
END_TEST

START_TEST(space_that_cannot_be_promised_is_told)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	struct disk_place p;

	calm();
	rig_begin(&r, rig_engines[_i], mounted);
	rig_open(&r);
	order("no_fallocate -1");
	p = rig_take(&r, RIG_SLOT);
	ck_assert(!rig_look(&r).space_promised);
	rig_block(slot, 1, 1);
	ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot, 1, 1), STATUS_OK);
	end(&r, slot);
}
END_TEST

/* Until a disk that is full, which it is for a second, tries again. */
static void full_ends(struct rig *r)
{
	uint64_t until = rig_now_ms() + RIG_NET_MS;

	while (rig_look(r).health == DISK_FULL && rig_now_ms() < until)
		usleep(10000);
	ck_assert_int_eq(rig_look(r).health, DISK_HEALTHY);
}

static const struct {
	const char *order;
	enum ring_op op;
	enum status status;
	enum disk_health health;
} rows[] = {
	{ "eio_read 1", RING_READ, STATUS_IO, DISK_QUARANTINED },
	{ "eio_write 1", RING_WRITE, STATUS_IO, DISK_QUARANTINED },
	{ "eio_sync 1", RING_SYNC, STATUS_IO, DISK_QUARANTINED },
	{ "enospc 1", RING_WRITE, STATUS_EXHAUSTED, DISK_FULL },
};

static enum status fail_once(struct rig *r, int row, struct disk_place p, uint8_t *slot)
{
	order(rows[row].order);
	if (rows[row].op == RING_SYNC)
		return rig_sync(r);
	return rows[row].op == RING_READ ? rig_read(r, p, slot, RIG_SLOT) : rig_write(r, p, slot, RIG_SLOT);
}

START_TEST(a_failure_has_its_status_and_its_health)
{
	for (int engine = rig_engine_first(); engine < 2; engine++) {
		uint8_t *slot = rig_pages(RIG_SLOT);
		struct rig r;
		struct disk_place p = begin(&r, engine, slot);
		uint64_t before = rig_now_ms();
		enum disk_health health;
		enum status s;

		/* Once more, if the machine did not look while it was full. */
		for (int tries = 0; tries < 10; tries++) {
			before = rig_now_ms();
			s = fail_once(&r, _i, p, slot);
			health = rig_look(&r).health;
			ck_assert_int_eq(s, rows[_i].status);
			if (rows[_i].health != DISK_FULL || rig_now_ms() - before < 900)
				break;
			full_ends(&r);
		}
		ck_assert_int_eq(health, rows[_i].health);
		ck_assert_uint_lt(rig_now_ms() - before, 20000);
		s = rig_read(&r, p, slot, RIG_SLOT);
		ck_assert_int_eq(s, rows[_i].health == DISK_FULL ? STATUS_OK : STATUS_UNAVAILABLE);
		if (rows[_i].health == DISK_QUARANTINED) {
			rig_close(&r);
			rig_open(&r);
			ck_assert(rig_look(&r).wiped);
		}
		end(&r, slot);
	}
}
END_TEST

/* Nothing can be written any more: the marker's name comes all the same, without its text. */
START_TEST(a_dead_disk_is_still_marked)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);

	order("eio_read -1");
	order("eio_write -1");
	order("eio_sync -1");
	ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_IO);
	rig_close(&r);
	ck_assert_int_eq(rig_try(&r), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(r.why, "Input/output error"));
	calm();
	rig_open(&r);
	ck_assert(rig_look(&r).wiped);
	end(&r, slot);
}
END_TEST

START_TEST(a_slab_that_finds_no_room_leaves_nothing)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot), q;
	uint64_t used = rig_look(&r).slab_bytes_used, before;
	enum status first, again;
	enum disk_health health;
	uint32_t tries = 0;
	bool soon;

	/* Once more, if the machine did not ask again while it was full. */
	do {
		full_ends(&r);
		order("enospc 1");
		before = rig_now_ms();
		first = disk_slab_prepare(r.disk, 8192);
		health = rig_look(&r).health;
		again = disk_slab_prepare(r.disk, 8192); /* the file system is not asked, which has room again */
		soon = rig_now_ms() - before < 900;
		tries++;
		if (!soon && again == STATUS_OK)
			ck_assert_int_eq(disk_slab_drop_free(r.disk, RIG_SLOT), STATUS_OK);
	} while (!soon && tries < 10);
	ck_assert(soon);
	ck_assert_int_eq(first, STATUS_EXHAUSTED);
	ck_assert_int_eq(health, DISK_FULL);
	ck_assert_int_eq(again, STATUS_EXHAUSTED);
	ck_assert_uint_eq(rig_look(&r).slab_bytes_used, used);
	ck_assert_int_ne(access(rig_path(&r, "slab-000002.tmp"), F_OK), 0);
	ck_assert_uint_eq(rig_look(&r).full_events, tries);
	/* Slabs that have their space go on. */
	ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(disk_slot_take(r.disk, RIG_SLOT, &q), STATUS_OK);
	usleep(1100000);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 8192), STATUS_OK);
	end(&r, slot);
}
END_TEST

START_TEST(a_slab_that_cannot_be_made_ends_the_disk)
{
	static const char *const orders[] = { "eio_write 1", "eio_sync 1" };
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;

	begin(&r, 1, slot);
	order(orders[_i]);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 8192), STATUS_IO);
	ck_assert_int_eq(rig_look(&r).health, DISK_QUARANTINED);
	ck_assert_int_ne(access(rig_path(&r, "slab-000002.trc"), F_OK), 0);
	end(&r, slot);
}
END_TEST

START_TEST(a_disk_of_100_ms_is_slow_and_serves)
{
	uint8_t *slot = rig_pages(2 * RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);
	struct rig_wait w, v;
	enum disk_health health;
	enum status ahead;
	uint64_t before;

	order("delay_ms 100");
	/* Once more, if the machine did not let it look while the read was under way. */
	for (int tries = 0; tries < 50; tries++) {
		before = rig_now_ms();
		rig_wait_begin(&w);
		ck_assert_int_eq(disk_read(r.disk, p, slot, RIG_SLOT, RING_NONE, RING_IDLE, &w.q), STATUS_OK);
		while (rig_look(&r).health != DISK_SLOW && rig_now_ms() - before < 100)
			usleep(1000);
		health = rig_look(&r).health;
		rig_wait_begin(&v);
		ahead = disk_read(r.disk, p, slot + RIG_SLOT, RIG_SLOT, RING_NONE, RING_PREFETCH, &v.q);
		if (rig_now_ms() - before < 100)
			break;
		ck_assert_int_eq(rig_wait_end(&w), STATUS_OK);
		if (ahead == STATUS_OK)
			ck_assert_int_eq(rig_wait_end(&v), STATUS_OK);
	}
	ck_assert_int_eq(health, DISK_SLOW);
	ck_assert_int_eq(ahead, STATUS_BUSY);
	ck_assert_int_eq(rig_read(&r, p, slot + RIG_SLOT, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_wait_end(&w), STATUS_OK);
	ck_assert_uint_lt(rig_now_ms() - before, 10000);
	ck_assert_int_eq(rig_judge(slot, 1, 1), STATUS_OK);
	order("delay_ms 0");
	usleep(2000);
	ck_assert_int_eq(rig_look(&r).health, DISK_HEALTHY);
	end(&r, slot);
}
END_TEST

START_TEST(an_identity_that_cannot_be_read_refuses_the_disk)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct rig r;
	struct disk_place p = begin(&r, _i, slot);

	rig_close(&r);
	order("eio_read 1");
	ck_assert_int_eq(rig_try(&r), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(r.why, "disk.id"));
	order("eio_read 0");
	rig_open(&r);
	ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot, 1, 1), STATUS_OK);
	end(&r, slot);
}
END_TEST

/* ---- the file system's life ---- */

static bool start(const char *faultfs)
{
	char *arguments[] = { (char *)(uintptr_t)faultfs, backing, mounted, NULL };
	uint64_t until;

	snprintf(backing, sizeof(backing), "/tmp/faultfs_back.XXXXXX");
	snprintf(mounted, sizeof(mounted), "/tmp/faultfs_mount.XXXXXX");
	if (!mkdtemp(backing) || !mkdtemp(mounted) || posix_spawn(&server, faultfs, NULL, NULL, arguments, environ) != 0)
		return false;
	until = rig_now_ms() + RIG_NET_MS;
	while (rig_now_ms() < until) {
		if (write_order("delay_ms 0"))
			return true;
		if (waitpid(server, NULL, WNOHANG) == server) {
			server = 0;
			return false;
		}
		usleep(10000);
	}
	return false;
}

static void stop(void)
{
	if (server > 0) {
		kill(server, SIGTERM); /* it unmounts */
		waitpid(server, NULL, 0);
	}
	rmdir(mounted);
	rmdir(backing);
}

int main(int argc, char **argv)
{
	int first = rig_engine_first();
	SRunner *runner;
	Suite *suite;
	TCase *tc;
	int failed;

	if (argc != 2 || !start(argv[1])) {
		printf("skipped: the fault file system cannot be mounted here\n");
		stop();
		return 77;
	}
	suite = suite_create("store_disk_fuse");
	tc = tcase_create("fuse");
	tcase_set_timeout(tc, 100);
	tcase_add_loop_test(tc, a_sound_one_keeps_blocks, first, 2);
	tcase_add_loop_test(tc, space_that_cannot_be_promised_is_told, first, 2);
	tcase_add_loop_test(tc, a_failure_has_its_status_and_its_health, 0, sizeof(rows) / sizeof(rows[0]));
	tcase_add_loop_test(tc, a_dead_disk_is_still_marked, first, 2);
	tcase_add_loop_test(tc, a_slab_that_finds_no_room_leaves_nothing, first, 2);
	tcase_add_loop_test(tc, a_slab_that_cannot_be_made_ends_the_disk, 0, 2);
	tcase_add_loop_test(tc, a_disk_of_100_ms_is_slow_and_serves, first, 2);
	tcase_add_loop_test(tc, an_identity_that_cannot_be_read_refuses_the_disk, first, 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	stop();
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
