/* A disk whose file system is really full: a tmpfs of 4 MiB, a fresh one a test, in a mount namespace
 * of its own. Exits 77, with a word, where none can be mounted.
 */
#include "tests/store/slab/rig.h"

#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static char small[64];

static bool mount_one(void)
{
	return mount("tmpfs", small, "tmpfs", 0, "size=4m") == 0;
}

START_TEST(a_full_file_system_stops_growth_and_nothing_else)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct disk_place p = { 0 }, q;
	uint64_t slots = 0;
	enum disk_health health;
	uint32_t tries = 0;
	struct rig r;
	enum status s;

	ck_assert(mount_one());
	rig_begin(&r, rig_engines[_i], small);
	rig_open(&r);
	while ((s = disk_slab_prepare(r.disk, RIG_SLOT)) == STATUS_OK)
		while (disk_slot_take(r.disk, RIG_SLOT, &q) == STATUS_OK) {
			rig_block(slot, slots, 1);
			ck_assert_int_eq(rig_write(&r, q, slot, RIG_SLOT), STATUS_OK);
			if (slots++ == 0)
				p = q;
		}
	ck_assert_int_eq(s, STATUS_EXHAUSTED);
	ck_assert_uint_ge(slots, 3 * 63);
	/* For a second: again, if the machine did not look in that. */
	while ((health = rig_look(&r).health) != DISK_FULL && ++tries < 10)
		ck_assert_int_eq(disk_slab_prepare(r.disk, RIG_SLOT), STATUS_EXHAUSTED);
	ck_assert_int_eq(health, DISK_FULL);
	ck_assert_uint_eq(rig_look(&r).full_events, 1 + tries);
	ck_assert_ptr_nonnull(strstr(rig_look(&r).why, "the file system is full (No space left on device)"));
	ck_assert(rig_look(&r).space_promised);
	/* Its own slots are read, written again, synced. */
	ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot, 0, 1), STATUS_OK);
	rig_block(slot, 0, 2);
	ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_sync(&r), STATUS_OK);
	/* Room comes from a slab that is dropped. */
	ck_assert_int_eq(disk_slab_drop(r.disk, q.slab), STATUS_OK);
	usleep(1100000);
	ck_assert_int_eq(rig_look(&r).health, DISK_HEALTHY);
	ck_assert_int_eq(disk_slab_prepare(r.disk, 8192), STATUS_OK);
	rig_close(&r);
	rig_open(&r);
	ck_assert_uint_eq(rig_look(&r).slabs_damaged, 0);
	ck_assert_int_eq(rig_read(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot, 0, 2), STATUS_OK);
	rig_end(&r);
	free(slot);
}
END_TEST

/* No room even for disk.id. */
START_TEST(a_folder_that_cannot_be_begun_is_refused)
{
	static const uint8_t zero[1 << 16];
	char filler[96];
	struct rig r;
	int fd;

	ck_assert(mount_one());
	rig_begin(&r, rig_engines[_i], small);
	snprintf(filler, sizeof(filler), "%s/filler", small);
	fd = open(filler, O_WRONLY | O_CREAT, 0600);
	while (write(fd, zero, sizeof(zero)) > 0)
		continue;
	close(fd);
	ck_assert_int_eq(rig_try(&r), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(r.why, "No space left"));
	unlink(filler);
	rig_open(&r); /* a start that was cut off */
	rig_end(&r);
}
END_TEST

static bool may_mount(void)
{
	snprintf(small, sizeof(small), "/tmp/store_disk_full.XXXXXX");
	if (!mkdtemp(small))
		return false;
	return (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
	       mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount_one();
}

int main(void)
{
	int first = rig_engine_first();
	SRunner *runner;
	Suite *suite;
	TCase *tc;
	int failed;

	if (!may_mount()) {
		printf("skipped: no tmpfs can be mounted here\n");
		rmdir(small);
		return 77;
	}
	suite = suite_create("store_disk_full");
	tc = tcase_create("full");
	tcase_add_loop_test(tc, a_full_file_system_stops_growth_and_nothing_else, first, 2);
	tcase_add_loop_test(tc, a_folder_that_cannot_be_begun_is_refused, first, 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	while (umount2(small, MNT_DETACH) == 0)
		continue;
	rmdir(small);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
