/* Power cuts: what the kernel, or a disk, has taken and not made durable is gone.
 *
 * A life is a process with a cache. Its writes go through a log of what they replaced, which outlives it; a sync of a file makes those
 * to it durable. A cut gives the files back what was replaced and not synced, the latest first.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cache_rig.h"

enum { HOST = 16, DISK = 7, WRITES = 512, PATH = 160 };

struct replaced {
	char path[PATH];               /* "": it is durable */
	off_t offset;
	size_t bytes;
	_Alignas(4096) uint8_t was[RIG_SLOT_BYTES];
};

static struct {
	uint32_t count;
	struct replaced at[WRITES];
} *log_;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void path_of(int fd, char path[PATH])
{
	char link[32];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, PATH - 1);
	ck_assert(n > 0 && n < PATH - 1);
	path[n] = 0;
}

static ssize_t write_noted(int fd, const void *at, size_t bytes, off_t offset)
{
	struct replaced *r;
	ssize_t n;

	pthread_mutex_lock(&lock);
	ck_assert_uint_lt(log_->count, WRITES);
	r = &log_->at[log_->count++];
	r->offset = offset;
	r->bytes = bytes;
	ck_assert_uint_le(bytes, sizeof(r->was));
	ck_assert_int_eq(pread(fd, r->was, bytes, offset), (ssize_t)bytes);
	path_of(fd, r->path);
	n = pwrite(fd, at, bytes, offset);
	pthread_mutex_unlock(&lock);
	return n;
}

static int sync_noted(int fd)
{
	char path[PATH];

	path_of(fd, path);
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < log_->count; i++)
		if (!strcmp(log_->at[i].path, path))
			log_->at[i].path[0] = 0;
	pthread_mutex_unlock(&lock);
	return fdatasync(fd);
}

static void power_cut(void)
{
	while (log_->count) {
		const struct replaced *r = &log_->at[--log_->count];
		int fd = r->path[0] ? open(r->path, O_WRONLY | O_CLOEXEC) : -1;

		if (fd < 0)
			continue;
		ck_assert_int_eq(pwrite(fd, r->was, r->bytes, r->offset), (ssize_t)r->bytes);
		close(fd);
	}
}

static const struct ring_calls calls = { .pwrite = write_noted, .fdatasync = sync_noted };

static void open_on(struct rig *r, const struct rig_disks *d, uint32_t disks)
{
	struct cache_options o = rig_disk_options(d, disks, HOST);

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
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void setup(void)
{
	log_ = mmap(NULL, sizeof(*log_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(log_, MAP_FAILED);
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
	power_cut();
	open_on(&r, &d, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 8), 8);
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
	power_cut();
	open_on(&r, &d, 1);
	ck_assert_uint_eq(rig_read_all(&r, 0, 1), 0);
	rig_close(&r);
	rig_disks_remove(&d);
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
	power_cut();
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
	tcase_add_test(tc, test_a_delete_is_of_what_was_displaced_too);
	tcase_add_test(tc, test_an_orderly_stop_leaves_what_its_catalog_says);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
