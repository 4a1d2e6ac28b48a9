/* Who a folder is: disk.id, slab headers, versions, locks, what a cut-off start leaves, and the wipe
 * after a quarantine. */
#include "tests/store/slab/rig.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bytes of disk.id and of a slab header that the tests change. */
enum { VERSION_AT = 8, CRC_AT = 12, DISK_ID_AT = 16, SLOT_BYTES_AT = 24, NUMBER_AT = 32, SLOTS_AT = 36 };

static void file_read(struct rig *r, const char *name, void *at, size_t bytes)
{
	int fd = open(rig_path(r, name), O_RDONLY);

	ck_assert_int_eq(pread(fd, at, bytes, 0), (ssize_t)bytes);
	close(fd);
}

static void file_write(struct rig *r, const char *name, const void *at, size_t bytes)
{
	int fd = open(rig_path(r, name), O_WRONLY | O_CREAT, 0600);

	ck_assert_int_eq(pwrite(fd, at, bytes, 0), (ssize_t)bytes);
	close(fd);
}

/* Sets a field and makes the checksum right; crc false: 0 in its place. */
static void patch(struct rig *r, const char *name, size_t bytes, size_t at, const void *value,
		  size_t value_bytes, bool crc)
{
	uint8_t record[4096];
	uint32_t sum = 0;

	file_read(r, name, record, bytes);
	memcpy(record + at, value, value_bytes);
	memcpy(record + CRC_AT, &sum, 4);
	sum = crc ? slot_crc32c(0, record, bytes) : 0;
	memcpy(record + CRC_AT, &sum, 4);
	file_write(r, name, record, bytes);
}

static bool exists(struct rig *r, const char *name)
{
	return access(rig_path(r, name), F_OK) == 0;
}

/* A disk with one block of number 1 in slab 1, closed. */
static struct disk_place one_block(struct rig *r)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct disk_place p;

	rig_begin(r, RING_THREADS, NULL);
	rig_open(r);
	p = rig_take(r, RIG_SLOT);
	rig_block(slot, 1, 1);
	ck_assert_int_eq(rig_write(r, p, slot, RIG_SLOT), STATUS_OK);
	rig_close(r);
	free(slot);
	return p;
}

static void expect_block(struct rig *r, struct disk_place p)
{
	uint8_t *slot = rig_pages(RIG_SLOT);

	ck_assert_int_eq(rig_read(r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_judge(slot, 1, 1), STATUS_OK);
	free(slot);
}

START_TEST(a_folder_is_made_for_its_owner_alone)
{
	struct rig r;
	struct stat st;

	rig_begin(&r, RING_THREADS, NULL);
	ck_assert_int_eq(rmdir(r.folder), 0);
	rig_open(&r);
	ck_assert_uint_ne(disk_id(r.disk), 0);
	ck_assert_int_eq(disk_slab_prepare(r.disk, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(stat(r.folder, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0700);
	ck_assert_int_eq(stat(rig_path(&r, "disk.id"), &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	ck_assert_int_eq(stat(rig_path(&r, "slab-000001.trc"), &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
	rig_end(&r);
	/* Its parent must be there, and it must be a folder. */
	rig_begin(&r, RING_THREADS, NULL);
	strcat(r.folder, "/no/such");
	ck_assert_int_eq(rig_try(&r), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(r.why, "No such file"));
	r.folder[strlen(r.folder) - 8] = '\0';
	file_write(&r, "file", "x", 1);
	strcat(r.folder, "/file");
	ck_assert_int_eq(rig_try(&r), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(r.why, "Not a directory"));
	r.folder[strlen(r.folder) - 5] = '\0';
	rig_end(&r);
}
END_TEST

START_TEST(a_folder_has_one_process)
{
	struct rig r;
	struct disk *other = NULL;
	int ready[2];
	char byte;
	pid_t child;

	rig_begin(&r, RING_THREADS, NULL);
	ck_assert_int_eq(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		byte = rig_try(&r) == STATUS_OK ? 'y' : 'n';
		if (write(ready[1], &byte, 1) == 1)
			pause();
		_exit(0);
	}
	ck_assert_int_eq(read(ready[0], &byte, 1), 1);
	ck_assert_int_eq(byte, 'y');
	ck_assert_int_eq(rig_try(&r), STATUS_BUSY);
	ck_assert_ptr_nonnull(strstr(r.why, "another process"));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	rig_open(&r);
	ck_assert_int_eq(disk_open(&r.options, &other, r.why, sizeof(r.why)), STATUS_BUSY);
	ck_assert_ptr_null(other);
	rig_end(&r);
	close(ready[0]);
	close(ready[1]);
}
END_TEST

/* A killed owner leaves the folder free at once, also when its ring was the kernel's. */
START_TEST(a_lock_ends_with_its_process)
{
	if (rig_engine_first() != 0)
		return;
	for (int round = 0; round < 20; round++) {
		struct rig r;
		int ready[2];
		char byte;
		pid_t child;

		rig_begin(&r, RING_URING, NULL);
		ck_assert_int_eq(pipe(ready), 0);
		child = fork();
		if (child == 0) {
			byte = rig_try(&r) == STATUS_OK ? 'y' : 'n';
			if (write(ready[1], &byte, 1) == 1)
				pause();
			_exit(0);
		}
		ck_assert_int_eq(read(ready[0], &byte, 1), 1);
		ck_assert_int_eq(byte, 'y');
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		rig_open(&r);
		rig_close(&r);
		rig_open(&r);
		rig_end(&r);
		close(ready[0]);
		close(ready[1]);
	}
}
END_TEST

START_TEST(a_damaged_identity_is_refused_and_nothing_touched)
{
	uint8_t id[64], bad[64];
	struct disk_place p;
	struct stat st;
	struct rig r;

	p = one_block(&r);
	file_read(&r, "disk.id", id, 64);
	file_write(&r, "slab-000009.tmp", "x", 1);
	for (int bit = 0; bit < 512; bit++) {
		memcpy(bad, id, 64);
		bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
		file_write(&r, "disk.id", bad, 64);
		ck_assert_int_eq(rig_try(&r), STATUS_CORRUPT);
		ck_assert_ptr_nonnull(strstr(r.why, "disk.id"));
	}
	ck_assert_int_eq(truncate(rig_path(&r, "disk.id"), 63), 0);
	ck_assert_int_eq(rig_try(&r), STATUS_CORRUPT);
	ck_assert_int_eq(truncate(rig_path(&r, "disk.id"), 0), 0);
	ck_assert_int_eq(rig_try(&r), STATUS_CORRUPT); /* there are slabs */
	ck_assert_int_eq(stat(rig_path(&r, "disk.id"), &st), 0);
	ck_assert_int_eq(st.st_size, 0);
	ck_assert_int_eq(unlink(rig_path(&r, "disk.id")), 0);
	ck_assert_int_eq(rig_try(&r), STATUS_CORRUPT);
	ck_assert(!exists(&r, "disk.id"));
	ck_assert(exists(&r, "slab-000009.tmp"));
	file_write(&r, "disk.id", id, 64);
	rig_open(&r);
	ck_assert(!exists(&r, "slab-000009.tmp"));
	expect_block(&r, p);
	rig_end(&r);
}
END_TEST

START_TEST(a_start_that_was_cut_off_is_begun_again)
{
	struct rig r;

	rig_begin(&r, RING_THREADS, NULL);
	file_write(&r, "disk.id", "", 0);
	rig_open(&r);
	ck_assert_uint_ne(disk_id(r.disk), 0);
	rig_end(&r);
}
END_TEST

/* A mount point without its disk, or an emptied folder: no disk is made there, and the word for it says how it is asked for. */
START_TEST(a_disk_that_must_exist_is_not_made)
{
	uint64_t id;
	struct rig r;

	one_block(&r);
	rig_open(&r);
	id = disk_id(r.disk);
	rig_close(&r);
	r.options.must_exist = true;
	rig_open(&r);
	ck_assert_uint_eq(disk_id(r.disk), id);
	rig_close(&r);
	ck_assert_int_eq(unlink(rig_path(&r, "disk.id")), 0);
	ck_assert_int_eq(rig_try(&r), STATUS_CORRUPT); /* there are slabs */
	ck_assert_int_eq(unlink(rig_path(&r, "slab-000001.trc")), 0);
	ck_assert_int_eq(rig_try(&r), STATUS_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(r.why, "/disk.id: is missing"));
	ck_assert(!exists(&r, "disk.id"));
	ck_assert_int_eq(rmdir(r.folder), 0);
	ck_assert_int_eq(rig_try(&r), STATUS_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(r.why, r.folder));
	ck_assert(access(r.folder, F_OK));
	ck_assert_int_eq(mkdir(r.folder, 0700), 0);
	file_write(&r, "disk.id", "", 0);
	rig_open(&r);
	ck_assert_uint_ne(disk_id(r.disk), id);
	rig_end(&r);
}
END_TEST

START_TEST(a_slab_file_has_its_problem_told)
{
	struct rig r;

	one_block(&r);
	rig_open(&r);
	ck_assert_ptr_null(disk_slab_problem(r.disk, 1));
	ck_assert_str_eq(disk_slab_problem(r.disk, 2), "is missing");
	rig_close(&r);
	ck_assert_int_eq(truncate(rig_path(&r, "slab-000001.trc"), 5000), 0);
	rig_open(&r);
	ck_assert_str_eq(disk_slab_problem(r.disk, 1), "has not the size that its header tells");
	ck_assert_int_eq(truncate(rig_path(&r, "slab-000001.trc"), 50), 0);
	ck_assert_str_eq(disk_slab_problem(r.disk, 1), "is too short");
	ck_assert_int_eq(unlink(rig_path(&r, "slab-000001.trc")), 0);
	ck_assert_int_eq(symlink("slab-000009.trc", rig_path(&r, "slab-000001.trc")), 0);
	ck_assert_str_eq(disk_slab_problem(r.disk, 1), "cannot be opened");
	rig_end(&r);
}
END_TEST

START_TEST(a_newer_disk_is_refused)
{
	const uint32_t newer = DISK_VERSION + 1;
	struct rig r;

	one_block(&r);
	patch(&r, "disk.id", 64, VERSION_AT, &newer, 4, true);
	ck_assert_int_eq(rig_try(&r), STATUS_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(r.why, "newer"));
	ck_assert(exists(&r, "slab-000001.trc"));
	rig_end(&r);
}
END_TEST

START_TEST(version_2_is_opened_and_made_the_present_one)
{
	const uint32_t two = 2;
	struct disk_place p;
	uint32_t version;
	uint8_t id[64];
	struct rig r;

	p = one_block(&r);
	patch(&r, "disk.id", 64, VERSION_AT, &two, 4, true);
	patch(&r, "slab-000001.trc", 4096, VERSION_AT, &two, 4, true);
	rig_open(&r);
	ck_assert_uint_eq(rig_look(&r).slabs_damaged, 0);
	expect_block(&r, p);
	rig_close(&r);
	file_read(&r, "disk.id", id, 64);
	memcpy(&version, id + VERSION_AT, 4);
	ck_assert_uint_eq(version, DISK_VERSION);
	rig_open(&r);
	expect_block(&r, p);
	rig_end(&r);
}
END_TEST

START_TEST(version_1_is_opened_and_made_the_present_one)
{
	const uint32_t one = 1, ten = 10, two = 2;
	struct disk_place p;
	uint32_t version;
	uint8_t id[64];
	struct rig r;

	p = one_block(&r);
	patch(&r, "disk.id", 64, VERSION_AT, &one, 4, true);
	patch(&r, "slab-000001.trc", 4096, VERSION_AT, &one, 4, false);
	rig_open(&r);
	ck_assert_uint_eq(rig_look(&r).slabs, 1);
	ck_assert_uint_eq(rig_look(&r).slabs_damaged, 0);
	expect_block(&r, p);
	rig_close(&r);
	file_read(&r, "disk.id", id, 64);
	memcpy(&version, id + VERSION_AT, 4);
	ck_assert_uint_eq(version, DISK_VERSION);
	rig_open(&r);
	expect_block(&r, p);
	rig_close(&r);
	/* Without a checksum, the file's size must agree. */
	patch(&r, "slab-000001.trc", 4096, SLOTS_AT, &ten, 4, false);
	rig_open(&r);
	ck_assert_uint_eq(rig_look(&r).slabs_damaged, 1);
	rig_close(&r);
	/* Version 2 must have one. */
	patch(&r, "slab-000001.trc", 4096, VERSION_AT, &two, 4, false);
	rig_open(&r);
	ck_assert_uint_eq(rig_look(&r).slabs_damaged, 1);
	rig_end(&r);
}
END_TEST

/* Fields of a slab header that are false under a right checksum. */
static const struct {
	size_t at, bytes;
	uint64_t value;
} false_fields[] = {
	{ 0, 8, 1 },
	{ VERSION_AT, 4, 0 },
	{ VERSION_AT, 4, DISK_VERSION + 1 },
	{ DISK_ID_AT, 8, 4711 },
	{ SLOT_BYTES_AT, 8, 0 },
	{ SLOT_BYTES_AT, 8, 4097 },
	{ SLOT_BYTES_AT, 8, 8192 },
	{ SLOT_BYTES_AT, 8, (uint64_t)SLOT_BYTES_MAX + 4096 },
	{ NUMBER_AT, 4, 2 },
	{ SLOTS_AT, 4, 0 },
	{ SLOTS_AT, 4, 64 },
	{ 4095, 1, 1 },
};

static void expect_left_alone(struct rig *r)
{
	struct disk_slab_view v;
	struct disk_place p;
	struct stat st;

	rig_open(r);
	ck_assert_uint_eq(rig_look(r).slabs_damaged, 1);
	ck_assert_uint_eq(rig_look(r).slabs, 0);
	ck_assert(!disk_slab_next(r->disk, 0, &v));
	ck_assert_int_eq(stat(rig_path(r, "slab-000001.trc"), &st), 0);
	ck_assert_uint_eq(rig_look(r).slab_bytes_used, (uint64_t)st.st_size);
	p = rig_take(r, RIG_SLOT);
	ck_assert_uint_gt(p.slab, 1);
	ck_assert_int_eq(disk_slab_drop(r->disk, p.slab), STATUS_OK);
	rig_close(r);
}

START_TEST(a_damaged_slab_is_left_alone)
{
	uint8_t header[4096], bad[4096];
	struct disk_place p;
	uint64_t rng = 5;
	struct rig r;

	p = one_block(&r);
	file_read(&r, "slab-000001.trc", header, 4096);
	for (size_t i = 0; i < sizeof(false_fields) / sizeof(false_fields[0]); i++) {
		patch(&r, "slab-000001.trc", 4096, false_fields[i].at, &false_fields[i].value,
		      false_fields[i].bytes, true);
		expect_left_alone(&r);
		file_write(&r, "slab-000001.trc", header, 4096);
	}
	for (int i = 0; i < 50; i++) {
		uint64_t bit = i < 40 ? (uint64_t)i * 8 + rig_next(&rng) % 8 : rig_next(&rng) % (4096 * 8);

		memcpy(bad, header, 4096);
		bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
		file_write(&r, "slab-000001.trc", bad, 4096);
		expect_left_alone(&r);
	}
	file_write(&r, "slab-000001.trc", header, 4096);
	rig_open(&r);
	expect_block(&r, p);
	rig_close(&r);
	ck_assert_int_eq(truncate(rig_path(&r, "slab-000001.trc"), 4096 + 5 * RIG_SLOT), 0);
	expect_left_alone(&r);
	ck_assert_int_eq(truncate(rig_path(&r, "slab-000001.trc"), 100), 0);
	expect_left_alone(&r);
	rig_end(&r);
}
END_TEST

START_TEST(strange_files_are_left_alone)
{
	static const char *const names[] = {
		"slab-1.trc", "slab-000000.trc", "slab-0000001.trc", "slab-+00001.trc", "slab-000001.trc~",
		"slab-99999999999.trc", "notes", "slab-00001x.tmp", "slab-.tmp",
	};
	struct disk_place p;
	struct rig r;

	rig_begin(&r, RING_THREADS, NULL);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		file_write(&r, names[i], "x", 1);
	rig_open(&r);
	ck_assert_uint_eq(rig_look(&r).slabs_damaged, 0);
	p = rig_take(&r, RIG_SLOT);
	ck_assert_uint_eq(p.slab, 1);
	rig_close(&r);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		ck_assert(exists(&r, names[i]));
	rig_end(&r);
}
END_TEST

/* Makes, fills and drops slabs until it is killed. */
static void make_and_drop(struct rig *r)
{
	uint64_t rng = (uint64_t)getpid();

	if (rig_try(r) != STATUS_OK)
		_exit(1);
	disk_slot_free_unmarked(r->disk);
	for (;;) {
		struct disk_place p;
		uint64_t bytes = 4096 * (1 + rig_next(&rng) % 4);

		if (disk_slab_prepare(r->disk, bytes) == STATUS_OK)
			while (disk_slot_take(r->disk, bytes, &p) == STATUS_OK && rig_next(&rng) % 8 != 0)
				continue;
		if (rig_next(&rng) % 2 == 0)
			disk_slab_drop(r->disk, p.slab);
		if (disk_slab_prepare(r->disk, 20480) == STATUS_EXHAUSTED)
			disk_slab_drop_free(r->disk, 4096);
	}
}

START_TEST(a_killed_maker_leaves_whole_slabs)
{
	uint64_t rng = 77, id = 0;
	struct rig r;

	rig_begin(&r, rig_engines[_i], NULL);
	r.options.budget_bytes = 2 << 20;
	r.options.slab_bytes = 128 << 10;
	for (int round = 0; round < 25; round++) {
		pid_t child = fork();

		if (child == 0)
			make_and_drop(&r);
		usleep((useconds_t)(5000 + rig_next(&rng) % 60000));
		ck_assert_int_eq(waitpid(child, NULL, WNOHANG), 0);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		rig_open(&r);
		ck_assert_uint_eq(rig_look(&r).slabs_damaged, 0);
		ck_assert_uint_le(rig_look(&r).slab_bytes_used, r.options.budget_bytes);
		ck_assert(id == 0 || disk_id(r.disk) == id);
		id = disk_id(r.disk);
		rig_close(&r);
	}
	rig_end(&r);
}
END_TEST

/* Killed after the slab with the highest number lost its name, and before it lost its bytes: they count in no budget. */
START_TEST(a_killed_dropper_leaves_no_bytes)
{
	char slab[256], gone[256], name[40];
	struct disk_place p;
	struct stat st;
	struct rig r;

	rig_begin(&r, RING_THREADS, NULL);
	rig_open(&r);
	p = rig_take(&r, RIG_SLOT);
	rig_close(&r);
	snprintf(name, sizeof(name), "slab-%06u.trc", p.slab);
	snprintf(slab, sizeof(slab), "%s", rig_path(&r, name));
	snprintf(name, sizeof(name), "slab-%06u.gone", p.slab);
	snprintf(gone, sizeof(gone), "%s", rig_path(&r, name));
	ck_assert_int_eq(rename(slab, gone), 0);
	ck_assert_int_eq(stat(gone, &st), 0);
	ck_assert_int_gt(st.st_size, 0);
	rig_open(&r);
	ck_assert_uint_eq(rig_look(&r).slabs, 0);
	ck_assert_int_eq(stat(gone, &st), 0);
	ck_assert_int_eq(st.st_size, 0);
	ck_assert_uint_gt(rig_take(&r, RIG_SLOT).slab, p.slab);
	rig_end(&r);
}
END_TEST

START_TEST(a_quarantined_disk_is_wiped_at_its_next_open)
{
	struct disk_place p;
	uint64_t id;
	struct rig r;

	p = one_block(&r);
	file_write(&r, "notes", "x", 1);
	rig_open(&r);
	id = disk_id(r.disk);
	expect_block(&r, p);
	disk_quarantine(r.disk, "an operator said so");
	disk_quarantine(r.disk, "and another");
	ck_assert_int_eq(rig_look(&r).health, DISK_QUARANTINED);
	ck_assert_str_eq(rig_look(&r).why, "an operator said so");
	rig_close(&r);
	ck_assert(exists(&r, "quarantine"));
	ck_assert(exists(&r, "slab-000001.trc"));
	rig_open(&r);
	ck_assert(rig_look(&r).wiped);
	ck_assert_uint_eq(rig_look(&r).wiped_id, id);
	ck_assert_int_eq(rig_look(&r).health, DISK_HEALTHY);
	ck_assert_uint_eq(rig_look(&r).slabs, 0);
	ck_assert_uint_ne(disk_id(r.disk), id);
	ck_assert(!exists(&r, "slab-000001.trc"));
	ck_assert(!exists(&r, "quarantine"));
	ck_assert(exists(&r, "notes"));
	id = disk_id(r.disk);
	rig_close(&r);
	rig_open(&r);
	ck_assert(!rig_look(&r).wiped);
	ck_assert_uint_eq(disk_id(r.disk), id);
	rig_end(&r);
}
END_TEST

/* ---- the run that used it last ---- */

START_TEST(the_last_run_is_known_until_there_is_doubt)
{
	uint8_t run[32], bad[32];
	struct rig r, other;

	one_block(&r);
	rig_open(&r);
	ck_assert_uint_eq(disk_run(r.disk), 0);
	ck_assert_int_eq(disk_run_set(r.disk, 4711), STATUS_OK);
	ck_assert_int_eq(disk_run_set(r.disk, 4712), STATUS_OK);
	rig_close(&r);
	rig_open(&r);
	ck_assert_uint_eq(disk_run(r.disk), 4712);
	file_read(&r, "run", run, sizeof(run));
	for (size_t bit = 0; bit < 8 * sizeof(run); bit++) {
		memcpy(bad, run, sizeof(run));
		bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
		file_write(&r, "run", bad, sizeof(bad));
		ck_assert_uint_eq(disk_run(r.disk), 0);
	}
	file_write(&r, "run", run, 31);
	ck_assert_uint_eq(disk_run(r.disk), 0);
	file_write(&r, "run", run, sizeof(run));
	ck_assert_uint_eq(disk_run(r.disk), 4712);
	/* Of another disk. */
	rig_begin(&other, RING_THREADS, NULL);
	rig_open(&other);
	file_write(&other, "run", run, sizeof(run));
	ck_assert_uint_eq(disk_run(other.disk), 0);
	rig_end(&other);
	/* Nor is it known any more after a wipe. */
	disk_quarantine(r.disk, "a test");
	rig_close(&r);
	rig_open(&r);
	ck_assert_uint_eq(disk_run(r.disk), 0);
	rig_end(&r);
}
END_TEST

/* A list of absent disks is as it was set, also after a wipe; what is none is empty. */
START_TEST(absent_disks_are_known)
{
	static uint64_t ids[DISK_ABSENT_MAX + 1], back[DISK_ABSENT_MAX];
	static const struct {
		off_t at;              /* a byte that is changed, or where the file is cut */
		bool cut;
	} damage[] = { { 0, false }, { 8, false }, { 12, false }, { 16 + 8, false }, { 15, true }, { 40, true } };
	struct rig r;
	FILE *f;

	for (uint32_t i = 0; i <= DISK_ABSENT_MAX; i++)
		ids[i] = 1000 + i;
	rig_begin(&r, RING_THREADS, NULL);
	rig_open(&r);
	ck_assert_uint_eq(disk_absent(r.disk, back), 0);
	ck_assert_int_eq(disk_absent_set(r.disk, ids, DISK_ABSENT_MAX + 1), STATUS_OK);
	ck_assert_uint_eq(disk_absent(r.disk, back), DISK_ABSENT_MAX);
	ck_assert_mem_eq(back, ids, sizeof(back));
	disk_quarantine(r.disk, "a test");
	rig_close(&r);
	rig_open(&r);
	ck_assert(rig_look(&r).wiped);
	ck_assert_uint_eq(disk_absent(r.disk, back), DISK_ABSENT_MAX);
	for (size_t i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
		ck_assert_int_eq(disk_absent_set(r.disk, ids, 7), STATUS_OK);
		ck_assert_uint_eq(disk_absent(r.disk, back), 7);
		f = fopen(rig_path(&r, "absent"), "r+");
		if (damage[i].cut) {
			ck_assert_int_eq(ftruncate(fileno(f), damage[i].at), 0);
		} else {
			ck_assert_int_eq(fseek(f, damage[i].at, SEEK_SET), 0);
			ck_assert_int_eq(fputc(0xee, f), 0xee);
		}
		fclose(f);
		ck_assert_uint_eq(disk_absent(r.disk, back), 0);
	}
	ck_assert_int_eq(disk_absent_set(r.disk, ids, 0), STATUS_OK);
	ck_assert_uint_eq(disk_absent(r.disk, back), 0);
	rig_end(&r);
}
END_TEST

START_TEST(a_run_that_cannot_be_noted)
{
	struct rig r;

	one_block(&r);
	rig_open(&r);
	ck_assert_int_eq(symlink("elsewhere", rig_path(&r, "run")), 0);
	ck_assert_int_eq(disk_run_set(r.disk, 1), STATUS_OK); /* what was there is gone, and nothing is there */
	ck_assert_uint_eq(disk_run(r.disk), 0);
	ck_assert(!exists(&r, "run") && !exists(&r, "elsewhere"));
	ck_assert_int_eq(disk_run_set(r.disk, 2), STATUS_OK);
	ck_assert_uint_eq(disk_run(r.disk), 2);
	ck_assert_int_eq(unlink(rig_path(&r, "run")), 0);
	ck_assert_int_eq(mkfifo(rig_path(&r, "run"), 0600), 0);
	ck_assert_uint_eq(disk_run(r.disk), 0); /* neither waits for who is at the other end */
	ck_assert_int_eq(disk_run_set(r.disk, 3), STATUS_OK);
	ck_assert(!exists(&r, "run"));
	ck_assert_int_eq(mkdir(rig_path(&r, "run"), 0700), 0);
	ck_assert_int_eq(disk_run_set(r.disk, 4), STATUS_UNAVAILABLE);
	ck_assert_int_eq(rig_look(&r).health, DISK_QUARANTINED);
	ck_assert_ptr_nonnull(strstr(rig_look(&r).why, strerror(EISDIR)));
	ck_assert_int_eq(rmdir(rig_path(&r, "run")), 0);
	rig_end(&r);
}
END_TEST

/* tmpfs: no O_DIRECT, all else the same. */
START_TEST(a_folder_in_memory_works_without_o_direct)
{
	uint8_t *slot = rig_pages(RIG_SLOT);
	struct disk_place p;
	struct rig r;

	rig_begin(&r, rig_engines[_i], "/dev/shm");
	rig_open(&r);
	ck_assert(!rig_look(&r).direct);
	p = rig_take(&r, RIG_SLOT);
	rig_block(slot, 1, 1);
	ck_assert_int_eq(rig_write(&r, p, slot, RIG_SLOT), STATUS_OK);
	ck_assert_int_eq(rig_sync(&r), STATUS_OK);
	rig_close(&r);
	rig_open(&r);
	expect_block(&r, p);
	rig_end(&r);
	free(slot);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_disk_identity");
	TCase *tc = tcase_create("identity");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_folder_is_made_for_its_owner_alone);
	tcase_add_test(tc, a_folder_has_one_process);
	tcase_add_test(tc, a_lock_ends_with_its_process);
	tcase_add_test(tc, a_damaged_identity_is_refused_and_nothing_touched);
	tcase_add_test(tc, a_start_that_was_cut_off_is_begun_again);
	tcase_add_test(tc, a_disk_that_must_exist_is_not_made);
	tcase_add_test(tc, a_slab_file_has_its_problem_told);
	tcase_add_test(tc, a_newer_disk_is_refused);
	tcase_add_test(tc, version_1_is_opened_and_made_the_present_one);
	tcase_add_test(tc, version_2_is_opened_and_made_the_present_one);
	tcase_add_test(tc, a_damaged_slab_is_left_alone);
	tcase_add_test(tc, strange_files_are_left_alone);
	tcase_add_loop_test(tc, a_killed_maker_leaves_whole_slabs, rig_engine_first(), 2);
	tcase_add_test(tc, a_killed_dropper_leaves_no_bytes);
	tcase_add_test(tc, a_quarantined_disk_is_wiped_at_its_next_open);
	tcase_add_test(tc, the_last_run_is_known_until_there_is_doubt);
	tcase_add_test(tc, absent_disks_are_known);
	tcase_add_test(tc, a_run_that_cannot_be_noted);
	if (access("/dev/shm", W_OK) == 0)
		tcase_add_loop_test(tc, a_folder_in_memory_works_without_o_direct, rig_engine_first(), 2);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
