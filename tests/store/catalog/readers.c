/* Readers of the catalog in other processes: one that is killed is forgotten, one that lasts is told of. */
#include "store/catalog/catalog.h"

#include <check.h>
#include <lmdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/store/catalog/rig.h"

enum { LOOK_MS = 10, OLD_MS = 100, WAIT_MS = 60000, COMMITS = 200 };

static struct rig rig;
static struct reader {
	pid_t pid;
	int begin, begun;
} reader;

/* Reads the catalog's folder and never comes to an end. */
static void read_for_ever(int begin, int begun)
{
	MDB_env *env;
	MDB_txn *txn;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(begin, &byte, 1) != 1 || mdb_env_create(&env) || mdb_env_open(env, rig.folder, MDB_RDONLY, 0600) ||
	    mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) || write(begun, "r", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* The reader is forked before the process has a catalog: LMDB's environments do not survive a fork. */
static void setup(void)
{
	int begin[2], begun[2];

	rig_init(&rig);
	rig.options.reader_look_ms = LOOK_MS;
	rig.options.reader_old_ms = OLD_MS;
	ck_assert_int_eq(pipe(begin), 0);
	ck_assert_int_eq(pipe(begun), 0);
	reader = (struct reader){ fork(), begin[1], begun[0] };
	ck_assert_int_ge(reader.pid, 0);
	if (!reader.pid)
		read_for_ever(begin[0], begun[1]);
	rig_open(&rig, CATALOG_FRESH);
	rig_put(&rig, CATALOG_META, "first", "v");
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
}

static void reader_kill(void)
{
	if (reader.pid) {
		kill(reader.pid, SIGKILL);
		waitpid(reader.pid, NULL, 0);
	}
	reader.pid = 0;
}

static void teardown(void)
{
	reader_kill();
	rig_fini(&rig);
}

static void reader_begin(void)
{
	char byte;

	ck_assert_int_eq(write(reader.begin, "b", 1), 1);
	ck_assert_int_eq(read(reader.begun, &byte, 1), 1);
}

static void nap(long ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static struct catalog_view look(void)
{
	struct catalog_view v;

	catalog_look(rig.c, &v);
	return v;
}

/* Changes of the same few records: a file whose pages are used again does not grow by them. */
static uint64_t grown_by_commits(void)
{
	const uint64_t before = look().used_bytes;
	char value[2000];

	for (int i = 0; i < COMMITS; i++) {
		memset(value, 'a' + i % 26, sizeof(value) - 1);
		value[sizeof(value) - 1] = 0;
		rig_put(&rig, CATALOG_EDGES, "a", value);
		rig_put(&rig, CATALOG_EDGES, "b", value);
		ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	}
	return look().used_bytes - before;
}

/* Nothing is written when it dies, and nothing while it is cleared: the catalog's thread looks without being asked. */
START_TEST(a_killed_reader_is_forgotten)
{
	uint64_t kept, free_again;
	int ms = 0;

	reader_begin();
	kept = grown_by_commits();
	ck_assert_uint_eq(look().readers_cleared, 0);
	reader_kill();
	for (; look().readers_cleared == 0 && ms < WAIT_MS; ms++)
		nap(1);
	ck_assert_uint_eq(look().readers_cleared, 1);
	free_again = grown_by_commits();
	ck_assert_msg(kept >= COMMITS * 4096 && free_again < kept / 4, "%llu bytes with the reader, %llu without", (unsigned long long)kept,
		      (unsigned long long)free_again);
	nap(5 * LOOK_MS);
	ck_assert_uint_eq(look().readers_cleared, 1);
}
END_TEST

START_TEST(a_reader_that_lasts_is_told_of)
{
	struct catalog_view v;
	int ms = 0;

	reader_begin();
	do {
		grown_by_commits();
		v = look();
	} while (!(v.reader_pid && v.reader_grown_bytes) && ms++ < WAIT_MS);
	ck_assert_int_eq(v.reader_pid, reader.pid);
	ck_assert_uint_ge(v.reader_us, OLD_MS * 1000);
	ck_assert_uint_gt(v.reader_grown_bytes, 0);
	ck_assert_uint_eq(v.readers_cleared, 0);
	reader_kill();
	for (ms = 0; look().reader_pid && ms < WAIT_MS; ms++)
		nap(1);
	v = look();
	ck_assert_int_eq(v.reader_pid, 0);
	ck_assert_uint_eq(v.reader_us + v.reader_grown_bytes, 0);
	ck_assert_uint_eq(v.readers_cleared, 1);
}
END_TEST

/* It keeps no page that anything else wants. */
START_TEST(a_reader_of_the_last_state_is_let_be)
{
	reader_begin();
	nap(5 * OLD_MS);
	ck_assert_int_eq(look().reader_pid, 0);
	ck_assert_uint_eq(look().readers_cleared, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_catalog_readers");
	TCase *tc = tcase_create("readers");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_killed_reader_is_forgotten);
	tcase_add_test(tc, a_reader_that_lasts_is_told_of);
	tcase_add_test(tc, a_reader_of_the_last_state_is_let_be);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
