/* The catalog by its contract: round trips, order, versions, the lock, flushes, bounds, a growing map,
 * a full file system. */
#include "store/catalog/catalog.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <lmdb.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/store/catalog/rig.h"

static struct rig rig;

static void setup(void)
{
	rig_init(&rig);
}

static void teardown(void)
{
	rig_fini(&rig);
}

START_TEST(records_outlive_restarts)
{
	struct catalog_view view;

	rig_open(&rig, CATALOG_FRESH);
	rig_put(&rig, CATALOG_BLOCKS, "a", "one");
	rig_put(&rig, CATALOG_BLOCKS, "b", "two");
	rig_put(&rig, CATALOG_EDGES, "a", "an edge");
	rig_put(&rig, CATALOG_META, "boot", "1");
	rig_put(&rig, CATALOG_BLOCKS, "b", "three");
	rig_put(&rig, CATALOG_TENANTS, "none", "");
	rig_close(&rig); /* commits what is queued */

	rig_open(&rig, CATALOG_FOUND);
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "a"), "one");
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "b"), "three");
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "a"), "an edge");
	ck_assert_str_eq(rig_get(&rig, CATALOG_META, "boot"), "1");
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "b"), "");
	catalog_look(rig.c, &view);
	ck_assert_uint_eq(view.records[CATALOG_BLOCKS], 2);
	ck_assert_uint_eq(view.records[CATALOG_EDGES], 1);
	ck_assert_uint_eq(view.records[CATALOG_TENANTS], 1);
	ck_assert_uint_eq(view.records[CATALOG_META], 1);
	ck_assert_uint_eq(view.queued_bytes, 0);
	ck_assert_uint_gt(view.used_bytes, 0);
	ck_assert_int_eq(catalog_drop(rig.c, CATALOG_BLOCKS, "a", 1), STATUS_OK);
	ck_assert_int_eq(catalog_drop(rig.c, CATALOG_BLOCKS, "never", 5), STATUS_OK);
	ck_assert_int_eq(catalog_empty(rig.c, CATALOG_EDGES), STATUS_OK);
	ck_assert_int_eq(catalog_empty(rig.c, CATALOG_META), STATUS_OK);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	rig_close(&rig);

	rig_open(&rig, CATALOG_FOUND); /* the format version has outlived the emptying of its table */
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "a"), "");
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "b"), "three");
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "a"), "");
	ck_assert_str_eq(rig_get(&rig, CATALOG_META, "boot"), "");
}
END_TEST

START_TEST(changes_of_one_batch_keep_their_order)
{
	rig.options.batch_ms = 10000;
	rig_open(&rig, CATALOG_FRESH);
	rig_put(&rig, CATALOG_BLOCKS, "k", "1");
	catalog_drop(rig.c, CATALOG_BLOCKS, "k", 1);
	rig_put(&rig, CATALOG_BLOCKS, "k", "2");
	rig_put(&rig, CATALOG_BLOCKS, "gone", "1");
	catalog_drop(rig.c, CATALOG_BLOCKS, "gone", 4);
	rig_put(&rig, CATALOG_EDGES, "before", "1");
	catalog_empty(rig.c, CATALOG_EDGES);
	rig_put(&rig, CATALOG_EDGES, "behind", "1");
	rig_put(&rig, CATALOG_EDGES, "a", "1");
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK); /* does not wait for batch_ms */
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "k"), "2");
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "gone"), "");
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "before"), "");
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "behind"), "1");
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "a"), "1");
}
END_TEST

START_TEST(sizes_are_bounded)
{
	static char big[CATALOG_VALUE_MAX + 1], back[CATALOG_VALUE_MAX];
	char key[CATALOG_KEY_MAX + 1];
	size_t n;

	memset(big, 'x', sizeof(big));
	memset(key, 'k', sizeof(key));
	rig_open(&rig, CATALOG_FRESH);
	ck_assert_int_eq(catalog_put(rig.c, CATALOG_BLOCKS, key, 0, big, 1), STATUS_INVALID);
	ck_assert_int_eq(catalog_put(rig.c, CATALOG_BLOCKS, key, sizeof(key), big, 1), STATUS_INVALID);
	ck_assert_int_eq(catalog_put(rig.c, CATALOG_BLOCKS, key, 1, big, sizeof(big)), STATUS_INVALID);
	ck_assert_int_eq(catalog_put(rig.c, CATALOG_TABLES, key, 1, big, 1), STATUS_INVALID);
	ck_assert_int_eq(catalog_put(rig.c, CATALOG_META, "format", 6, big, 1), STATUS_INVALID);
	ck_assert_int_eq(catalog_drop(rig.c, CATALOG_META, "format", 6), STATUS_INVALID);
	ck_assert_int_eq(catalog_empty(rig.c, CATALOG_TABLES), STATUS_INVALID);
	ck_assert_int_eq(catalog_put(rig.c, CATALOG_BLOCKS, key, CATALOG_KEY_MAX, big, CATALOG_VALUE_MAX), STATUS_OK);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	n = CATALOG_VALUE_MAX - 1;
	ck_assert_int_eq(catalog_get(rig.c, CATALOG_BLOCKS, key, CATALOG_KEY_MAX, back, &n), STATUS_INVALID);
	ck_assert_uint_eq(n, CATALOG_VALUE_MAX - 1);
	n = sizeof(back);
	ck_assert_int_eq(catalog_get(rig.c, CATALOG_BLOCKS, key, CATALOG_KEY_MAX, back, &n), STATUS_OK);
	ck_assert_uint_eq(n, CATALOG_VALUE_MAX);
	ck_assert_mem_eq(back, big, n);
	ck_assert_int_eq(catalog_get(rig.c, CATALOG_BLOCKS, key, 3, back, &n), STATUS_MISS);
}
END_TEST

struct order {
	char last[CATALOG_KEY_MAX + 1];
	int seen, stop;
};

static bool rises(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct order *o = arg;
	char text[CATALOG_KEY_MAX + 1] = "";

	(void)value;
	(void)value_bytes;
	memcpy(text, key, key_bytes);
	ck_assert_str_lt(o->last, text);
	strcpy(o->last, text);
	return ++o->seen != o->stop;
}

START_TEST(a_walk_is_in_order_and_may_stop)
{
	struct order o = { "", 0, 0 };
	uint64_t damaged = 7;
	char key[16];

	rig_open(&rig, CATALOG_FRESH);
	for (int i = 0; i < 500; i++) {
		snprintf(key, sizeof(key), "key %d", i * 7919 % 500);
		rig_put(&rig, CATALOG_META, key, "v");
	}
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	ck_assert_int_eq(catalog_walk(rig.c, CATALOG_META, rises, &o, &damaged), STATUS_OK);
	ck_assert_int_eq(o.seen, 500);
	ck_assert_uint_eq(damaged, 0);
	o = (struct order){ "", 0, 10 };
	ck_assert_int_eq(catalog_walk(rig.c, CATALOG_META, rises, &o, NULL), STATUS_OK);
	ck_assert_int_eq(o.seen, 10);
}
END_TEST

/* Who walks in parts begins each at the key at which the last one stopped. */
START_TEST(a_walk_goes_on_from_a_key)
{
	static const struct {
		const char *from, *first;
		int seen;
	} table[] = {
		{ "key 000", "key 000", 100 }, { "a", "key 000", 100 }, { "key 040", "key 040", 60 }, { "key 0405", "key 041", 59 },
		{ "key 099", "key 099", 1 }, { "key 1", "", 0 }, { "", "key 000", 100 },
	};
	char key[CATALOG_KEY_MAX + 1] = { 'k' };
	struct order o;

	rig_open(&rig, CATALOG_FRESH);
	for (int i = 0; i < 100; i++) {
		snprintf(key, sizeof(key), "key %03d", i);
		rig_put(&rig, CATALOG_EDGES, key, "v");
	}
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		o = (struct order){ "", 0, 1 };
		ck_assert_int_eq(catalog_walk_from(rig.c, CATALOG_EDGES, table[i].from, strlen(table[i].from), rises, &o, NULL), STATUS_OK);
		ck_assert_str_eq(o.last, table[i].first);
		o = (struct order){ "", 0, 0 };
		ck_assert_int_eq(catalog_walk_from(rig.c, CATALOG_EDGES, table[i].from, strlen(table[i].from), rises, &o, NULL), STATUS_OK);
		ck_assert_int_eq(o.seen, table[i].seen);
	}
	ck_assert_int_eq(catalog_walk_from(rig.c, CATALOG_EDGES, key, sizeof(key), rises, &o, NULL), STATUS_INVALID);
	ck_assert_int_eq(catalog_walk_from(rig.c, CATALOG_BLOCKS, "k", 1, rises, &o, NULL), STATUS_OK);
}
END_TEST

START_TEST(one_process_a_folder)
{
	struct rig second;
	int how;
	pid_t pid;

	rig_open(&rig, CATALOG_FRESH);
	second = rig;
	ck_assert_int_eq(rig_try(&second), STATUS_BUSY);
	ck_assert_ptr_nonnull(strstr(second.why, "another process"));
	pid = fork();
	if (pid == 0)
		_exit(rig_try(&second));
	ck_assert_int_eq(waitpid(pid, &how, 0), pid);
	ck_assert_int_eq(WEXITSTATUS(how), STATUS_BUSY);
	rig_close(&rig);
	rig_open(&rig, CATALOG_FOUND);
}
END_TEST

START_TEST(files_are_the_owners_alone)
{
	static const char *const names[] = { "", "lock", "data.mdb", "lock.mdb" };
	char path[128], folder[96];
	struct stat st;

	snprintf(folder, sizeof(folder), "%s/sub", rig.folder);
	rig.options.folder = folder;
	rig_open(&rig, CATALOG_FRESH);
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		ck_assert_int_eq(stat(path, &st), 0);
		ck_assert_int_eq(st.st_mode & 0777, i == 0 ? 0700 : 0600);
	}
	rig_close(&rig);
	for (int i = 3; i > 0; i--) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		ck_assert_int_eq(unlink(path), 0);
	}
	rig.options.folder = "/nonexistent/parent/folder";
	ck_assert_int_eq(rig_try(&rig), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(rig.why, "No such file"));
}
END_TEST

/* Writes the record "format", and one more as version 1 would, behind the catalog's back. */
static void set_format(const void *format, size_t bytes, bool old_record)
{
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi meta, blocks;
	MDB_val key = { 6, "format" }, value = { bytes, (void *)(uintptr_t)format }, k = { 3, "old" }, v = { 6, "record" };

	ck_assert_int_eq(mdb_env_create(&env), 0);
	mdb_env_set_maxdbs(env, 8);
	ck_assert_int_eq(mdb_env_open(env, rig.folder, 0, 0600), 0);
	ck_assert_int_eq(mdb_txn_begin(env, NULL, 0, &txn), 0);
	ck_assert_int_eq(mdb_dbi_open(txn, "meta", 0, &meta), 0);
	ck_assert_int_eq(mdb_dbi_open(txn, "blocks", 0, &blocks), 0);
	ck_assert_int_eq(mdb_put(txn, meta, &key, &value, 0), 0);
	if (old_record)
		ck_assert_int_eq(mdb_put(txn, blocks, &k, &v, 0), 0);
	ck_assert_int_eq(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
}

START_TEST(version_1_is_migrated)
{
	static const uint32_t one = 1;
	struct catalog_view view;

	rig_open(&rig, CATALOG_FRESH);
	rig_close(&rig);
	set_format(&one, sizeof(one), true);
	rig_open(&rig, CATALOG_FOUND);
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "old"), "record");
	rig_put(&rig, CATALOG_BLOCKS, "new", "entry");
	rig_close(&rig);
	ck_assert(!rig_exists(&rig, "new.mdb"));
	rig_open(&rig, CATALOG_FOUND);
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "old"), "record");
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "new"), "entry");
	catalog_look(rig.c, &view);
	ck_assert_uint_eq(view.records[CATALOG_BLOCKS], 2);
}
END_TEST

/* The number in the record "format", behind the catalog's back. */
static uint32_t format_now(void)
{
	MDB_val key = { 6, "format" }, value;
	uint32_t version;
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi meta;

	ck_assert_int_eq(mdb_env_create(&env), 0);
	mdb_env_set_maxdbs(env, 8);
	ck_assert_int_eq(mdb_env_open(env, rig.folder, MDB_RDONLY, 0600), 0);
	ck_assert_int_eq(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), 0);
	ck_assert_int_eq(mdb_dbi_open(txn, "meta", 0, &meta), 0);
	ck_assert_int_eq(mdb_get(txn, meta, &key, &value), 0);
	memcpy(&version, value.mv_data, sizeof(version));
	mdb_txn_abort(txn);
	mdb_env_close(env);
	return version;
}

/* An older daemon refuses the file from its first opening on, whatever is written to it. */
START_TEST(version_2_is_raised)
{
	/* Version 2 and the CRC-32C of 05 "format" 02 00 00 00. */
	static const uint8_t sealed[] = { 2, 0, 0, 0, 0xbe, 0x02, 0xc9, 0xe1 };

	rig_open(&rig, CATALOG_FRESH);
	rig_put(&rig, CATALOG_BLOCKS, "old", "record");
	rig_close(&rig);
	set_format(sealed, sizeof(sealed), false);
	rig_open(&rig, CATALOG_FOUND);
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "old"), "record");
	rig_close(&rig);
	ck_assert_uint_eq(format_now(), CATALOG_VERSION);
	rig_open(&rig, CATALOG_FOUND);
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "old"), "record");
}
END_TEST

START_TEST(a_newer_version_is_left_alone)
{
	/* Version 4 and the CRC-32C of 05 "format" 04 00 00 00. */
	static const uint8_t sealed[] = { 4, 0, 0, 0, 0xcc, 0x10, 0x8c, 0x25 };
	uint8_t flipped[sizeof(sealed)], *before, *after;
	size_t before_bytes, after_bytes;
	char path[128];

	rig_open(&rig, CATALOG_FRESH);
	rig_close(&rig);
	set_format(sealed, sizeof(sealed), false);
	rig_path(&rig, "data.mdb", path);
	before = rig_read(path, &before_bytes);
	ck_assert_int_eq(rig_try(&rig), STATUS_UNSUPPORTED);
	ck_assert_ptr_nonnull(strstr(rig.why, "version 4"));
	after = rig_read(path, &after_bytes);
	ck_assert_uint_eq(before_bytes, after_bytes);
	ck_assert_mem_eq(before, after, before_bytes);
	ck_assert(!rig_exists(&rig, "damaged-1.mdb"));
	free(before);
	free(after);

	/* A number that is wrong is not a newer version. */
	memcpy(flipped, sealed, sizeof(flipped));
	flipped[0] = 7;
	set_format(flipped, sizeof(flipped), false);
	rig_open(&rig, CATALOG_DAMAGED);
}
END_TEST

START_TEST(the_map_grows)
{
	char key[32], value[1001];
	struct catalog_view view;

	memset(value, 'v', 1000);
	value[1000] = 0;
	rig.options.map_bytes = 1 << 20;
	rig_open(&rig, CATALOG_FRESH);
	for (int i = 0; i < 5000; i++) {
		snprintf(key, sizeof(key), "%d", i);
		rig_put(&rig, CATALOG_EDGES, key, value);
		if (i % 100 == 0)
			ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "none"), "");
		if (i % 1000 == 999)
			ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	}
	catalog_look(rig.c, &view);
	ck_assert_uint_ge(view.map_grown, 3);
	ck_assert_uint_ge(view.map_bytes, 8 << 20);
	ck_assert_uint_eq(view.records[CATALOG_EDGES], 5000);
	rig_close(&rig);
	rig_open(&rig, CATALOG_FOUND); /* with a smaller map than the file */
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "4999"), value);
}
END_TEST

/* No batch begins before a flush wants it: a count of records is one of flushes. */
static void commit_by_flushes_alone(void)
{
	rig.options.batch_ms = 600000;
}

/* Fills the catalog until a flush fails; what was flushed before is there, and nothing else. */
static void until_full(enum status expected, const char *words)
{
	static char value[3001];
	struct catalog_view view;
	char key[32];
	int flushed = 0;
	enum status s = STATUS_OK;

	memset(value, 'v', 3000);
	for (int i = 0; s == STATUS_OK && i < 100; i++) {
		for (int k = 0; k < 200; k++) {
			snprintf(key, sizeof(key), "%d", i * 200 + k);
			rig_put(&rig, CATALOG_EDGES, key, value);
		}
		s = rig_flush(&rig);
		flushed += s == STATUS_OK;
	}
	ck_assert_msg(s == expected, "%s", status_name(s));
	ck_assert_int_gt(flushed, 0);
	catalog_look(rig.c, &view);
	ck_assert_int_eq(view.failed, expected);
	ck_assert_msg(strstr(view.why, rig.folder) && strstr(view.why, words), "%s", view.why);
	ck_assert_uint_gt(view.queued_bytes, 0);
	ck_assert_uint_eq(view.records[CATALOG_EDGES], (uint64_t)flushed * 200);
	snprintf(key, sizeof(key), "%d", flushed * 200 - 1);
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, key), value);
	while ((s = catalog_put(rig.c, CATALOG_EDGES, "more", 4, value, 3000)) == STATUS_OK)
		continue;
	ck_assert_int_eq(s, STATUS_UNAVAILABLE);
}

START_TEST(a_map_that_may_not_grow)
{
	rig.options.map_bytes = 1 << 20;
	rig.options.map_bytes_max = 4 << 20;
	rig.options.queue_bytes_max = 2 << 20;
	commit_by_flushes_alone();
	rig_open(&rig, CATALOG_FRESH);
	until_full(STATUS_EXHAUSTED, "as large as it may be");
	ck_assert_int_eq(rig_flush(&rig), STATUS_EXHAUSTED);
	rig_close(&rig);
	rig_open(&rig, CATALOG_FOUND);
	ck_assert_str_ne(rig_get(&rig, CATALOG_EDGES, "0"), "");
}
END_TEST

START_TEST(a_file_that_may_not_grow_recovers)
{
	struct rlimit limit;

	signal(SIGXFSZ, SIG_IGN);
	rig.options.queue_bytes_max = 2 << 20;
	commit_by_flushes_alone();
	rig_open(&rig, CATALOG_FRESH);
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = 6 << 20;
	setrlimit(RLIMIT_FSIZE, &limit);
	until_full(STATUS_EXHAUSTED, "a file may not be that large"); /* a write cut short, with room on the disk */
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_FSIZE, &limit);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK); /* after the next retry */
	ck_assert_str_ne(rig_get(&rig, CATALOG_EDGES, "more"), "");
	rig_put(&rig, CATALOG_EDGES, "even more", "v");
	rig_close(&rig);
	rig_open(&rig, CATALOG_FOUND);
	ck_assert_str_eq(rig_get(&rig, CATALOG_EDGES, "even more"), "v");
}
END_TEST

#ifndef TERRACE_SANITIZED /* sanitizers live on address space */
static void address_space_leave(uint64_t bytes)
{
	struct rlimit limit;
	uint64_t pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%" SCNu64, &pages), 1);
	fclose(f);
	ck_assert_int_eq(getrlimit(RLIMIT_AS, &limit), 0);
	limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : pages * (uint64_t)sysconf(_SC_PAGESIZE) + bytes;
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

/* LMDB unmaps the file before it maps more of it. */
START_TEST(a_map_that_finds_no_address_space_recovers)
{
	static char value[3000];
	size_t bytes = sizeof(value);
	enum status s = STATUS_OK, got;
	int i = 0;

	rig.options.map_bytes = 1 << 20;
	rig.options.queue_bytes_max = 2 << 20;
	commit_by_flushes_alone();
	rig_open(&rig, CATALOG_FRESH);
	address_space_leave(6 << 20);
	for (; s == STATUS_OK && i < 20000; i++) {
		ck_assert_int_eq(catalog_put(rig.c, CATALOG_EDGES, &i, sizeof(i), value, sizeof(value)), STATUS_OK);
		s = i % 200 == 199 ? rig_flush(&rig) : STATUS_OK;
	}
	ck_assert_int_eq(s, STATUS_IO);
	got = catalog_get(rig.c, CATALOG_EDGES, "none", 4, value, &bytes);
	ck_assert_msg(got == STATUS_MISS || got == STATUS_IO, "%s", status_name(got));
	address_space_leave(RLIM_INFINITY);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK); /* after the next retry */
	bytes = sizeof(value);
	i--;
	ck_assert_int_eq(catalog_get(rig.c, CATALOG_EDGES, &i, sizeof(i), value, &bytes), STATUS_OK);
}
END_TEST
#endif

START_TEST(a_full_file_system_recovers)
{
	char path[128];
	struct catalog_view view;

	rig.options.queue_bytes_max = 2 << 20;
	commit_by_flushes_alone();
	ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
	ck_assert_int_eq(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	ck_assert_int_eq(mount("none", rig.folder, "tmpfs", 0, "size=6m"), 0);
	rig_path(&rig, "ballast", path);
	rig_open(&rig, CATALOG_FRESH);
	{
		static uint8_t ballast[2 << 20];

		rig_write(path, ballast, sizeof(ballast));
	}
	until_full(STATUS_EXHAUSTED, "the file system is full (No space left on device): free room there");
	ck_assert_int_eq(rig_flush(&rig), STATUS_EXHAUSTED);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	catalog_look(rig.c, &view);
	ck_assert_int_eq(view.failed, STATUS_OK);
	rig_close(&rig);
	rig_open(&rig, CATALOG_FOUND);
	rig_close(&rig);
	umount(rig.folder);
}
END_TEST

struct gate {
	sem_t entered, leave;
	enum status s;
	int told;
};

static void hold(void *arg, enum status s)
{
	struct gate *g = arg;

	g->s = s;
	sem_post(&g->entered);
	sem_wait(&g->leave);
}

static void count(void *arg, enum status s)
{
	struct gate *g = arg;

	ck_assert_int_eq(s, STATUS_OK);
	__atomic_add_fetch(&g->told, 1, __ATOMIC_SEQ_CST);
}

START_TEST(the_queue_is_bounded)
{
	struct gate g = { .s = STATUS_INTERNAL };
	struct catalog_view view;
	uint64_t queued = 0;
	char key[32];
	enum status s;

	sem_init(&g.entered, 0, 0);
	sem_init(&g.leave, 0, 0);
	rig.options.queue_bytes_max = 1 << 20;
	rig.options.batch_ms = 10000;
	rig_open(&rig, CATALOG_FRESH);
	ck_assert_int_eq(catalog_flush(rig.c, hold, &g), STATUS_OK);
	sem_wait(&g.entered); /* the thread stands in done */
	ck_assert_int_eq(g.s, STATUS_OK);
	for (;; queued++) {
		snprintf(key, sizeof(key), "%u", (unsigned)queued);
		s = catalog_put(rig.c, CATALOG_BLOCKS, key, strlen(key), "value", 5);
		if (s != STATUS_OK)
			break;
	}
	ck_assert_int_eq(s, STATUS_EXHAUSTED);
	ck_assert_uint_ge(queued, 10000);
	catalog_look(rig.c, &view);
	ck_assert_uint_le(view.queued_bytes, 1 << 20);
	for (int i = 0; i < 100; i++) /* there is room for flushes beyond */
		ck_assert_int_eq(catalog_flush(rig.c, count, &g), STATUS_OK);
	sem_post(&g.leave);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	ck_assert_int_eq(__atomic_load_n(&g.told, __ATOMIC_SEQ_CST), 100);
	catalog_look(rig.c, &view);
	ck_assert_uint_eq(view.queued_bytes, 0);
	ck_assert_uint_eq(view.records[CATALOG_BLOCKS], queued);
	rig_put(&rig, CATALOG_BLOCKS, "again", "v");
}
END_TEST

static void again(void *arg, enum status s)
{
	(void)s;
	if (rig.c && catalog_put(rig.c, CATALOG_BLOCKS, "from done", 9, "v", 1) == STATUS_OK)
		catalog_flush(rig.c, count, arg);
}

START_TEST(done_may_queue)
{
	struct gate g = { 0 };

	rig_open(&rig, CATALOG_FRESH);
	ck_assert_int_eq(catalog_flush(rig.c, again, &g), STATUS_OK);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	while (__atomic_load_n(&g.told, __ATOMIC_SEQ_CST) == 0)
		sched_yield();
	ck_assert_str_eq(rig_get(&rig, CATALOG_BLOCKS, "from done"), "v");
}
END_TEST

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Queues more than the map takes, and reads on while the catalog's thread wants to move it. */
static bool read_beside_growth(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	static char more[CATALOG_VALUE_MAX];
	const uint64_t until = now_ms() + 50;
	char name[32];

	for (int i = 0; i < 512; i++) {
		snprintf(name, sizeof(name), "more %d", i);
		ck_assert_int_eq(catalog_put(rig.c, CATALOG_EDGES, name, strlen(name), more, sizeof(more)), STATUS_OK);
	}
	ck_assert_int_eq(catalog_flush(rig.c, count, arg), STATUS_OK);
	while (now_ms() < until) {
		uint8_t back[8];
		size_t n = sizeof(back);

		ck_assert_int_eq(catalog_get(rig.c, CATALOG_BLOCKS, key, key_bytes, back, &n), STATUS_OK);
		ck_assert_uint_eq(n, value_bytes);
		ck_assert_mem_eq(back, value, n);
	}
	return false;
}

/* Who walks a table may hold up the map. He must not be held up by that himself, nor anybody whom he waits for. */
START_TEST(a_walker_reads_while_the_map_wants_to_grow)
{
	struct gate g = { 0 };
	struct catalog_view view;

	rig.options.map_bytes = 1 << 20;
	rig_open(&rig, CATALOG_FRESH);
	rig_put(&rig, CATALOG_BLOCKS, "block", "v");
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	ck_assert_int_eq(catalog_walk(rig.c, CATALOG_BLOCKS, read_beside_growth, &g, NULL), STATUS_OK);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	ck_assert_int_eq(__atomic_load_n(&g.told, __ATOMIC_SEQ_CST), 1);
	catalog_look(rig.c, &view);
	ck_assert_uint_ge(view.map_grown, 1);
	ck_assert_uint_eq(view.records[CATALOG_EDGES], 512);
}
END_TEST

/* Writers, readers, walkers and flushers at the same time, over a map that grows. */
struct worker {
	pthread_t thread;
	int number, puts;
};

static bool same(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	(void)arg;
	return key_bytes <= value_bytes && memcmp(key, value, key_bytes) == 0;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	char key[32], value[600], back[CATALOG_VALUE_MAX];

	for (int i = 0; i < 1500; i++) {
		size_t n = sizeof(back);

		snprintf(key, sizeof(key), "%d of %d", i, w->number);
		memset(value, 'x', sizeof(value));
		memcpy(value, key, strlen(key));
		while (catalog_put(rig.c, CATALOG_BLOCKS, key, strlen(key), value, sizeof(value)) == STATUS_EXHAUSTED)
			sched_yield();
		w->puts++;
		if (catalog_get(rig.c, CATALOG_BLOCKS, key, strlen(key), back, &n) == STATUS_OK)
			ck_assert_mem_eq(value, back, n);
		if (i % 300 == 0)
			ck_assert_int_eq(catalog_walk(rig.c, CATALOG_BLOCKS, same, NULL, NULL), STATUS_OK);
		if (i % 500 == 0)
			ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	}
	return NULL;
}

START_TEST(many_threads)
{
	struct worker w[6] = { 0 };
	struct catalog_view view;

	rig.options.map_bytes = 1 << 20;
	rig.options.queue_bytes_max = 256 << 10;
	rig.options.batch_ms = 1;
	rig_open(&rig, CATALOG_FRESH);
	for (int i = 0; i < 6; i++) {
		w[i].number = i;
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (int i = 0; i < 6; i++)
		pthread_join(w[i].thread, NULL);
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	catalog_look(rig.c, &view);
	ck_assert_uint_eq(view.records[CATALOG_BLOCKS], 6 * 1500);
	ck_assert_uint_ge(view.map_grown, 2);
}
END_TEST

/* Whether this process may mount a file system of its own. */
static bool may_mount(void)
{
	int how = 1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
		      mount("none", "/mnt", "tmpfs", 0, "size=1m") != 0);
	waitpid(pid, &how, 0);
	return how == 0;
}

int main(int argc, char **argv)
{
	bool full = argc == 2 && strcmp(argv[1], "full") == 0;
	SRunner *sr;
	TCase *tc;
	Suite *s;
	int failed;

	if (full && !may_mount()) {
		printf("skipped: no file system may be mounted here\n");
		return 77;
	}
	s = suite_create("store_catalog");
	tc = tcase_create("catalog");
	tcase_set_timeout(tc, 100);
	tcase_add_checked_fixture(tc, setup, teardown);
	if (full) {
		tcase_add_test(tc, a_full_file_system_recovers);
	} else {
		tcase_add_test(tc, records_outlive_restarts);
		tcase_add_test(tc, changes_of_one_batch_keep_their_order);
		tcase_add_test(tc, sizes_are_bounded);
		tcase_add_test(tc, a_walk_is_in_order_and_may_stop);
		tcase_add_test(tc, a_walk_goes_on_from_a_key);
		tcase_add_test(tc, one_process_a_folder);
		tcase_add_test(tc, files_are_the_owners_alone);
		tcase_add_test(tc, version_1_is_migrated);
		tcase_add_test(tc, version_2_is_raised);
		tcase_add_test(tc, a_newer_version_is_left_alone);
		tcase_add_test(tc, the_map_grows);
		tcase_add_test(tc, a_map_that_may_not_grow);
		tcase_add_test(tc, a_file_that_may_not_grow_recovers);
#ifndef TERRACE_SANITIZED
		tcase_add_test(tc, a_map_that_finds_no_address_space_recovers);
#endif
		tcase_add_test(tc, the_queue_is_bounded);
		tcase_add_test(tc, done_may_queue);
		tcase_add_test(tc, a_walker_reads_while_the_map_wants_to_grow);
		tcase_add_test(tc, many_threads);
	}
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
