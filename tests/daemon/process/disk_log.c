/* The log of the disk tier: what stands there at the start, each change once, and nothing while nothing changes. */
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/block/wait.h"
#include "daemon/cache.h"
#include "daemon/call/flush.h"
#include "daemon/disk/scrub.h"
#include "daemon/disk/stats.h"
#include "daemon/disk/tier.h"
#include "daemon/process/daemon.h"
#include "daemon/process/disk_log.h"
#include "daemon/process/log.h"
#include "store/ring/ring.h"
#include "store/status.h"
#include "tests/shell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>

static struct shell s;
static struct disk_log seen;
static atomic_int failing; /* what writes fail with */

static int fault(void *arg, const struct ring_request *r, uint32_t *most)
{
	(void)arg;
	(void)most;
	return r->op == RING_WRITE ? atomic_load(&failing) : 0;
}

static const struct ring_calls calls = { .fault = fault };

static void nobody_sleeps(void *arg)
{
	(void)arg;
}

/* What one look says. */
static const char *look(void)
{
	static char text[8192];
	int saved, captured;
	ssize_t n;

	fflush(stderr);
	captured = open(s.folder, O_TMPFILE | O_RDWR, 0600);
	ck_assert_int_ge(captured, 0);
	saved = dup(2);
	dup2(captured, 2);
	disk_log_look(&seen, s.daemon.cache);
	dup2(saved, 2);
	close(saved);
	n = pread(captured, text, sizeof text - 1, 0);
	close(captured);
	text[n > 0 ? n : 0] = 0;
	return text;
}

static void open_shell(const struct ring_calls *disk)
{
	memset(&seen, 0, sizeof seen);
	atomic_store(&failing, 0);
	shell_open_with(&s, disk);
	log_setup(LOG_INFO, LOG_LOGFMT);
}

START_TEST(without_disks_nothing)
{
	open_shell(NULL);
	ck_assert_str_eq(look(), "");
	shell_close(&s);
}
END_TEST

/* Tries to make a block durable until the disk is of that health. */
static void flush_until(const char *key, const char *health)
{
	const struct cache_keys k = { (const uint8_t *)key, 1, 2 };
	struct cache_wait wait = { .ready = nobody_sleeps };
	struct cache_disk_state disk = { .health = "" };
	enum status status;
	const char *why;

	shell_store(&s, key);
	for (int i = 0; i < 5000 && strcmp(disk.health, health); i++) {
		cache_flush(s.daemon.cache, s.session.id, &k, daemon_now_us(), &wait, &status, &why);
		cache_wait_end(s.daemon.cache, &wait);
		cache_tick(s.daemon.cache, daemon_now_us());
		cache_disk_chores(s.daemon.cache);
		cache_chores(s.daemon.cache);
		cache_disks(s.daemon.cache, &disk, 1);
		usleep(1000);
	}
	ck_assert_str_eq(disk.health, health);
}

START_TEST(start_and_changes)
{
	const char *text;

	open_shell(&calls);
	while (!cache_restored(s.daemon.cache))
		usleep(1000);
	text = look();
	ck_assert_ptr_nonnull(strstr(text, "event=catalog found=none rebuilding=0"));
	ck_assert_ptr_nonnull(strstr(text, "event=disks_restored blocks=0"));
	ck_assert_ptr_nonnull(strstr(text, "event=disk disk=0 "));
	ck_assert_ptr_nonnull(strstr(text, "engine=threads engine_reason="));
	ck_assert_ptr_null(strstr(text, "disk_health"));
	ck_assert_ptr_null(strstr(text, "level=warn"));
	ck_assert_str_eq(look(), "");

	atomic_store(&failing, EIO);
	flush_until("k1", "quarantined");
	text = look();
	ck_assert_ptr_nonnull(strstr(text, "level=warn event=disk_health disk=0"));
	ck_assert_ptr_nonnull(strstr(text, "health=quarantined"));
	ck_assert_ptr_null(strstr(text, "reason=\"\""));
	ck_assert_str_eq(look(), "");
	shell_close(&s);
}
END_TEST

/* A disk without room is full and healthy by turns, as it is tried again each second: that is told once, and its end when it has lasted. */
START_TEST(what_comes_and_goes_is_told_once)
{
	open_shell(&calls);
	while (!cache_restored(s.daemon.cache))
		usleep(1000);
	look();
	atomic_store(&failing, ENOSPC);
	flush_until("k1", "full");
	ck_assert_ptr_nonnull(strstr(look(), "level=warn event=disk_health disk=0"));
	atomic_store(&failing, 0);
	flush_until("k2", "healthy");
	for (int i = 1; i < DISK_LOG_WELL; i++)
		ck_assert_str_eq(look(), "");
	atomic_store(&failing, ENOSPC);
	flush_until("k3", "full");
	ck_assert_str_eq(look(), "");
	atomic_store(&failing, 0);
	flush_until("k4", "healthy");
	for (int i = 1; i < DISK_LOG_WELL; i++)
		ck_assert_str_eq(look(), "");
	ck_assert_ptr_nonnull(strstr(look(), "health=healthy"));
	ck_assert_str_eq(look(), "");
	seen.failing = true; /* the catalog, in the look before */
	seen.works = 0;
	for (int i = 1; i < DISK_LOG_WELL; i++)
		ck_assert_str_eq(look(), "");
	ck_assert_ptr_nonnull(strstr(look(), "event=catalog_works_again"));
	ck_assert_str_eq(look(), "");
	shell_close(&s);
}
END_TEST

static void flush_all_of_it(const char *key)
{
	const struct cache_keys k = { (const uint8_t *)key, 1, 2 };
	struct cache_wait wait = { .ready = nobody_sleeps };
	enum status status = STATUS_BUSY;
	const char *why;

	shell_store(&s, key);
	for (int i = 0; i < 5000 && cache_flush(s.daemon.cache, s.session.id, &k, daemon_now_us(), &wait, &status, &why) == STATUS_BUSY; i++) {
		cache_tick(s.daemon.cache, daemon_now_us());
		cache_disk_chores(s.daemon.cache);
		cache_chores(s.daemon.cache);
		usleep(1000);
	}
	cache_wait_end(s.daemon.cache, &wait);
	ck_assert_int_eq(status, STATUS_OK);
}

/* Both layouts' blocks are spoilt on the disk, and read there: that is told once. */
START_TEST(wrong_bytes_are_told_of)
{
	struct cache_verified sum = { 0 };
	uint64_t cursor = 0;
	const char *text;
	char path[120];
	int fd;

	open_shell(&calls);
	while (!cache_restored(s.daemon.cache))
		usleep(1000);
	flush_all_of_it("k1");
	look();
	snprintf(path, sizeof path, "%s/disk/slab-000001.trc", s.folder);
	fd = open(path, O_RDWR);
	ck_assert_int_ge(fd, 0);
	for (off_t at = 5000; at < lseek(fd, 0, SEEK_END); at += 4096)
		ck_assert_int_eq(pwrite(fd, "rotten", 6, at), 6);
	close(fd);
	while (cursor != UINT64_MAX)
		cache_verify_disk_step(s.daemon.cache, &cursor, UINT64_MAX, &sum);
	ck_assert_uint_eq(sum.corrupt, 2);
	text = look();
	ck_assert_ptr_nonnull(strstr(text, "level=warn event=disk_corrupt disk=0"));
	ck_assert_ptr_nonnull(strstr(text, " blocks=2 "));
	ck_assert_str_eq(look(), "");
	shell_close(&s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("disk_log");
	TCase *t = tcase_create("disk_log");
	SRunner *r;

	tcase_set_timeout(t, 60);
	tcase_add_test(t, without_disks_nothing);
	tcase_add_test(t, start_and_changes);
	tcase_add_test(t, what_comes_and_goes_is_told_once);
	tcase_add_test(t, wrong_bytes_are_told_of);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
