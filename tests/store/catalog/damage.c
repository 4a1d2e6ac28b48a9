/* A catalog whose file has been damaged: the parent lives, and no record comes up with wrong bytes. */
#include <check.h>
#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/store/catalog/rig.h"

#ifdef TERRACE_SANITIZED
enum { FEWER = 3 };
#else
enum { FEWER = 1 };
#endif
enum { RECORDS = 600 };

/* Key and value of record n; the value follows from the key. */
static size_t value_of(const uint8_t *key, uint8_t value[CATALOG_VALUE_MAX])
{
	uint64_t seed;
	size_t n;

	memcpy(&seed, key, sizeof(seed));
	n = seed % 16 == 0 ? 2500 + seed / 16 % 1500 : 20 + seed / 16 % 150;
	for (size_t i = 0; i < n; i++)
		value[i] = (uint8_t)rig_rnd(&seed);
	return n;
}

static void key_of(uint64_t n, uint8_t key[24])
{
	uint64_t seed = (n + 1) * 0x9e3779b97f4a7c15ull;

	for (int i = 0; i < 3; i++) {
		rig_rnd(&seed);
		memcpy(key + 8 * i, &seed, 8);
	}
}

static void put_record(struct rig *r, uint64_t n)
{
	uint8_t key[24], value[CATALOG_VALUE_MAX];
	size_t bytes;

	key_of(n, key);
	bytes = value_of(key, value);
	ck_assert_int_eq(catalog_put(r->c, n % 5 ? CATALOG_BLOCKS : CATALOG_EDGES, key, sizeof(key), value, bytes),
			 STATUS_OK);
}

/* A catalog with a history: several transactions, a list of free pages, overflow pages. */
static void fill(struct rig *r)
{
	uint8_t key[24];

	for (uint64_t n = 0; n < RECORDS; n++) {
		put_record(r, n);
		if (n % 100 == 99)
			ck_assert_int_eq(rig_flush(r), STATUS_OK);
	}
	for (uint64_t n = 0; n < RECORDS; n += 3) {
		key_of(n, key);
		catalog_drop(r->c, n % 5 ? CATALOG_BLOCKS : CATALOG_EDGES, key, sizeof(key));
		if (n % 50 == 0)
			ck_assert_int_eq(rig_flush(r), STATUS_OK);
	}
	rig_put(r, CATALOG_META, "boot", "1");
	ck_assert_int_eq(rig_flush(r), STATUS_OK);
}

struct seen {
	uint64_t records, wrong;
};

static bool check_record(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	uint8_t expected[CATALOG_VALUE_MAX];
	struct seen *s = arg;

	s->records++;
	if (key_bytes != 24 || value_of(key, expected) != value_bytes || memcmp(expected, value, value_bytes) != 0)
		s->wrong++;
	return true;
}

static uint64_t check_records(struct rig *r)
{
	struct seen s = { 0 };

	ck_assert_int_eq(catalog_walk(r->c, CATALOG_BLOCKS, check_record, &s, NULL), STATUS_OK);
	ck_assert_int_eq(catalog_walk(r->c, CATALOG_EDGES, check_record, &s, NULL), STATUS_OK);
	ck_assert_uint_eq(s.wrong, 0);
	return s.records;
}

/* Whatever is found sound can be read, written and emptied. */
static void use(struct rig *r)
{
	check_records(r);
	for (uint64_t n = 0; n < 60; n++)
		put_record(r, 7 * n);
	ck_assert_int_eq(rig_flush(r), STATUS_OK);
	check_records(r);
	for (int t = 0; t < CATALOG_TABLES; t++)
		ck_assert_int_eq(catalog_empty(r->c, (enum catalog_table)t), STATUS_OK);
	ck_assert_int_eq(rig_flush(r), STATUS_OK);
	ck_assert_uint_eq(check_records(r), 0);
	for (uint64_t n = 0; n < 60; n++)
		put_record(r, n);
	ck_assert_int_eq(rig_flush(r), STATUS_OK);
	ck_assert_uint_eq(check_records(r), 60);
}

static struct rig rig;
static uint8_t *whole;
static size_t whole_bytes;
static char file[128];

static void setup(void)
{
	rig_init(&rig);
	rig.options.batch_ms = 600000; /* flushes alone commit: the file is the same each time */
	rig_open(&rig, CATALOG_FRESH);
	fill(&rig);
	rig_close(&rig);
	rig_path(&rig, "data.mdb", file);
	whole = rig_read(file, &whole_bytes);
}

static void teardown(void)
{
	free(whole);
	rig_fini(&rig);
}

/* Opens what stands in the file now, uses it; true if it was found damaged. */
static bool trial(void)
{
	enum status s = rig_try(&rig);
	bool damaged = rig.state == CATALOG_DAMAGED;

	ck_assert_msg(s == STATUS_OK, "%s: %s", status_name(s), rig.why);
	if (damaged)
		ck_assert_str_ne(rig.why, "");
	use(&rig);
	rig_close(&rig);
	return damaged;
}

START_TEST(a_whole_file_is_sound)
{
	rig_open(&rig, CATALOG_FOUND);
	ck_assert_uint_eq(check_records(&rig), RECORDS - RECORDS / 3);
	use(&rig);
}
END_TEST

START_TEST(truncated_anywhere)
{
	uint64_t rng = 11;
	int damaged = 0;

	for (int i = 0; i < 60; i++) {
		size_t n = i < 20 ? 1 + (size_t)i * 700 : 1 + rig_rnd(&rng) % (whole_bytes - 1);

		rig_write(file, whole, n);
		damaged += trial();
	}
	ck_assert_int_ge(damaged, 50);
}
END_TEST

START_TEST(ranges_zeroed_or_replaced_by_garbage)
{
	uint64_t rng = 0x1234567 + (uint64_t)_i;
	uint8_t *copy = malloc(whole_bytes);
	int damaged = 0;

	for (int i = 0; i < 120 / FEWER; i++) {
		size_t at = rig_rnd(&rng) % whole_bytes, n = 1 + rig_rnd(&rng) % 9000;

		if (n > whole_bytes - at)
			n = whole_bytes - at;
		memcpy(copy, whole, whole_bytes);
		for (size_t k = 0; k < n; k++)
			copy[at + k] = _i == 0 ? 0 : (uint8_t)rig_rnd(&rng);
		rig_write(file, copy, whole_bytes);
		damaged += trial();
	}
	free(copy);
	ck_assert_int_ge(damaged, 20 / FEWER);
}
END_TEST

/* Single bits and small numbers, mostly where LMDB keeps its own: the heads of pages and their tables
 * of offsets. */
START_TEST(bits_and_numbers_changed)
{
	uint64_t rng = 0x7654321 + (uint64_t)_i * 77;
	uint8_t *copy = malloc(whole_bytes);
	int damaged = 0;

	for (int i = 0; i < 150 / FEWER; i++) {
		memcpy(copy, whole, whole_bytes);
		for (int k = 0; k < 1 + i % 3; k++) {
			size_t page = rig_rnd(&rng) % (whole_bytes / 4096);
			size_t at = page * 4096 + rig_rnd(&rng) % (i % 2 ? 64 : 4096);

			if (i % 5 == 0)
				copy[at] = (uint8_t)(rig_rnd(&rng) % 4);
			else
				copy[at] ^= (uint8_t)(1u << rig_rnd(&rng) % 8);
		}
		rig_write(file, copy, whole_bytes);
		damaged += trial();
	}
	free(copy);
	ck_assert_int_ge(damaged, 20 / FEWER);
}
END_TEST

/* Pages that change places carry sound records to where they do not belong. */
START_TEST(pages_exchanged)
{
	uint64_t rng = 99;
	uint8_t *copy = malloc(whole_bytes);
	size_t pages = whole_bytes / 4096;

	for (int i = 0; i < 150 / FEWER; i++) {
		size_t a = rig_rnd(&rng) % pages, b = rig_rnd(&rng) % pages;

		memcpy(copy, whole, whole_bytes);
		memcpy(copy + a * 4096, whole + b * 4096, 4096);
		if (i % 2)
			memcpy(copy + b * 4096, whole + a * 4096, 4096);
		rig_write(file, copy, whole_bytes);
		trial();
	}
	free(copy);
}
END_TEST

static uint64_t number(const uint8_t *at, size_t n)
{
	uint64_t v = 0;

	memcpy(&v, at, n);
	return v;
}

/* The list of free pages, in its leaf, with one number changed to that of a page in use: a writer
 * would take the page. */
START_TEST(a_page_in_use_among_the_free_ones)
{
	size_t transaction = 16 + 24 + 2 * 48 + 8; /* of a meta page; the newer one counts */
	size_t meta = number(whole + transaction, 8) < number(whole + 4096 + transaction, 8) ? 4096 : 0;
	uint64_t root = number(whole + meta + 16 + 24 + 40, 8), nodes;
	uint8_t *copy = malloc(whole_bytes), *leaf = copy + root * 4096;
	int trials = 0;

	memcpy(copy, whole, whole_bytes);
	ck_assert_uint_eq(number(leaf + 10, 2), 2);
	nodes = (number(leaf + 12, 2) - 16) / 2;
	for (uint64_t i = 0; i < nodes; i++) {
		uint8_t *list = leaf + number(leaf + 16 + 2 * i, 2) + 8 + 8;
		uint64_t count = number(list, 8);

		for (uint64_t k = 1; k <= count; k++) {
			uint64_t page = number(list + 8 * k, 8), less = page - 1;

			if (page == 2 || (k < count && number(list + 8 * (k + 1), 8) == less))
				continue;
			memcpy(list + 8 * k, &less, 8);
			rig_write(file, copy, whole_bytes);
			rig_open(&rig, CATALOG_DAMAGED);
			ck_assert_ptr_nonnull(strstr(rig.why, "free twice, or free and in use"));
			rig_close(&rig);
			memcpy(list + 8 * k, &page, 8);
			trials++;
		}
	}
	free(copy);
	ck_assert_int_gt(trials, 0);
}
END_TEST

START_TEST(what_is_no_catalog_is_put_aside)
{
	static const char text[] = "this is no database\n";
	char other[128], path[128];
	MDB_env *env;
	MDB_txn *txn;
	MDB_dbi dbi;
	MDB_val k = { 3, "key" }, v = { 5, "value" };

	rig_write(file, text, sizeof(text));
	rig_open(&rig, CATALOG_DAMAGED);
	ck_assert(rig_exists(&rig, "damaged-1.mdb"));
	rig_close(&rig);

	rig_path(&rig, "other.mdb", other);
	ck_assert_int_eq(mdb_env_create(&env), 0);
	mdb_env_set_maxdbs(env, 4);
	ck_assert_int_eq(mdb_env_open(env, other, MDB_NOSUBDIR | MDB_NOLOCK, 0600), 0);
	ck_assert_int_eq(mdb_txn_begin(env, NULL, 0, &txn), 0);
	ck_assert_int_eq(mdb_dbi_open(txn, _i ? "meta" : NULL, _i ? MDB_CREATE | MDB_DUPSORT : 0, &dbi), 0);
	ck_assert_int_eq(mdb_put(txn, dbi, &k, &v, 0), 0);
	ck_assert_int_eq(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
	ck_assert_int_eq(rename(other, file), 0);
	rig_open(&rig, CATALOG_DAMAGED);
	ck_assert(rig_exists(&rig, "damaged-2.mdb"));
	use(&rig);
	rig_close(&rig);

	unlink(file);
	ck_assert_int_eq(mkdir(file, 0700), 0);
	rig_open(&rig, CATALOG_DAMAGED);
	rig_close(&rig);
	rig_path(&rig, "damaged-3.mdb", path);
	ck_assert_int_eq(rmdir(path), 0);

	unlink(file);
	rig_open(&rig, CATALOG_FRESH);
	rig_close(&rig);
	rig_write(file, "", 0);
	rig_open(&rig, CATALOG_FRESH);
	ck_assert(!rig_exists(&rig, "damaged-4.mdb"));
}
END_TEST

START_TEST(three_damaged_files_are_kept)
{
	char path[128], text[32];
	size_t n;

	for (int i = 1; i <= 5; i++) {
		snprintf(text, sizeof(text), "number %d", i);
		rig_write(file, text, strlen(text));
		rig_open(&rig, CATALOG_DAMAGED);
		rig_close(&rig);
	}
	for (int i = 1; i <= 3; i++) {
		uint8_t *data;

		snprintf(text, sizeof(text), "damaged-%d.mdb", i);
		rig_path(&rig, text, path);
		data = rig_read(path, &n);
		snprintf(text, sizeof(text), "number %d", i + 2);
		ck_assert_uint_eq(n, strlen(text));
		ck_assert_mem_eq(data, text, n);
		free(data);
	}
	ck_assert(!rig_exists(&rig, "damaged-4.mdb"));
}
END_TEST

START_TEST(a_garbled_lock_file_does_no_harm)
{
	uint64_t rng = 5;
	char path[128];

	rig_path(&rig, "lock.mdb", path);
	for (int i = 0; i < 20; i++) {
		size_t n = rig_rnd(&rng) % 20000;
		uint8_t *junk = malloc(n + 1);

		for (size_t k = 0; k < n; k++)
			junk[k] = (uint8_t)rig_rnd(&rng);
		rig_write(file, whole, whole_bytes);
		rig_write(path, junk, n);
		free(junk);
		rig_open(&rig, CATALOG_FOUND);
		use(&rig);
		rig_close(&rig);
	}
}
END_TEST

START_TEST(a_child_that_hangs_or_cannot_start)
{
	char path[128], data[128];

	rig_path(&rig, "hang.sh", path);
	rig_write(path, "#!/bin/sh\nexec sleep 100\n", 25);
	ck_assert_int_eq(chmod(path, 0700), 0);
	rig.options.child = path;
	rig.options.check_timeout_ms = 300;
	rig_open(&rig, CATALOG_DAMAGED);
	ck_assert_ptr_nonnull(strstr(rig.why, "300 ms"));
	rig_close(&rig);

	/* A long file is given longer. */
	rig_path(&rig, "data.mdb", data);
	ck_assert_int_eq(truncate(data, 4 << 20), 0);
	rig_open(&rig, CATALOG_DAMAGED);
	ck_assert_ptr_nonnull(strstr(rig.why, "500 ms"));
	rig_close(&rig);

	rig.options.child = "/nonexistent/program";
	ck_assert_int_eq(rig_try(&rig), STATUS_IO);
	ck_assert_ptr_nonnull(strstr(rig.why, "No such file"));
	rig.options.child = "/proc/self/exe";
	rig.options.check_timeout_ms = 20000;
	rig_open(&rig, CATALOG_FOUND);
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *sr;
	TCase *tc;
	Suite *s;
	int failed;

	if (argc == 3 && strcmp(argv[1], "catalog-check") == 0)
		return catalog_check(argv[2]);
	s = suite_create("store_catalog_damage");
	tc = tcase_create("damage");
	tcase_set_timeout(tc, 100);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_whole_file_is_sound);
	tcase_add_test(tc, truncated_anywhere);
	tcase_add_loop_test(tc, ranges_zeroed_or_replaced_by_garbage, 0, 2);
	tcase_add_loop_test(tc, bits_and_numbers_changed, 0, 3);
	tcase_add_test(tc, pages_exchanged);
	tcase_add_test(tc, a_page_in_use_among_the_free_ones);
	tcase_add_loop_test(tc, what_is_no_catalog_is_put_aside, 0, 2);
	tcase_add_test(tc, three_damaged_files_are_kept);
	tcase_add_test(tc, a_garbled_lock_file_does_no_harm);
	tcase_add_test(tc, a_child_that_hangs_or_cannot_start);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
