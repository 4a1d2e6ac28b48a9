/* Many block records: written, validated by the child, walked and decoded, with the time of each on
 * standard output. The number of records is the argument; times are told, not judged: machines and
 * sanitizers differ. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/catalog/record.h"
#include "tests/store/catalog/rig.h"

static uint64_t records = 50000;
static struct rig rig;

static void setup(void)
{
	rig_init(&rig);
	rig.options.queue_bytes_max = 64 << 20;
	rig.options.batch_ms = 100;
}

static void teardown(void)
{
	rig_fini(&rig);
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static struct block_record block_of(uint64_t n)
{
	struct block_record b = { .layout_id = 77, .tenant = 1 + (uint32_t)(n % 3), .key_bytes = 32, .disk_id = 5,
				  .slab = 1 + (uint32_t)(n / 1000), .slot = (uint32_t)(n % 1000), .generation = n + 1,
				  .slot_bytes = 8192, .stored_unix_ms = n, .position = 16 * n, .tokens = 16,
				  .parent_bytes = 32 };
	uint64_t rng = (n + 1) * 0x9e3779b97f4a7c15ull;

	for (int i = 0; i < 4; i++) {
		rig_rnd(&rng);
		memcpy(b.key + 8 * i, &rng, 8);
		memcpy(b.parent + 8 * i, &rng, 8);
	}
	return b;
}

/* Puts them all in the random order of their keys; how long until they are committed. */
static double put_all(uint64_t shift)
{
	double begun = now();

	for (uint64_t n = 0; n < records; n++) {
		struct block_record b = block_of(n);
		struct record r;
		enum status s;

		b.turn = (uint32_t)shift;
		ck_assert_int_eq(block_record_encode(&b, &r), STATUS_OK);
		while ((s = catalog_put(rig.c, CATALOG_BLOCKS, r.key, r.key_bytes, r.value, r.value_bytes)) != STATUS_OK) {
			const struct timespec nap = { 0, 1000000 };

			ck_assert_int_eq(s, STATUS_EXHAUSTED);
			nanosleep(&nap, NULL);
		}
	}
	ck_assert_int_eq(rig_flush(&rig), STATUS_OK);
	return now() - begun;
}

struct seen {
	uint64_t records, wrong;
};

static bool decode(void *arg, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
	struct block_record b, expected;
	struct seen *s = arg;

	s->records++;
	if (block_record_decode(key, key_bytes, value, value_bytes, &b) != STATUS_OK || b.stored_unix_ms >= records) {
		s->wrong++;
		return true;
	}
	expected = block_of(b.stored_unix_ms);
	expected.turn = 2;
	s->wrong += memcmp(&b, &expected, sizeof(b)) != 0;
	return true;
}

START_TEST(many_blocks)
{
	struct catalog_view view;
	struct seen s = { 0 };
	double fresh, again, opened, walked, begun;

	rig_open(&rig, CATALOG_FRESH);
	fresh = put_all(1);
	again = put_all(2);
	catalog_look(rig.c, &view);
	ck_assert_uint_eq(view.records[CATALOG_BLOCKS], records);
	rig_close(&rig);

	begun = now();
	rig_open(&rig, CATALOG_FOUND);
	opened = now() - begun;
	begun = now();
	ck_assert_int_eq(catalog_walk(rig.c, CATALOG_BLOCKS, decode, &s, NULL), STATUS_OK);
	walked = now() - begun;
	ck_assert_uint_eq(s.records, records);
	ck_assert_uint_eq(s.wrong, 0);
	printf("records %llu, file %.0f MiB, batches %llu, longest %.0f ms\n"
	       "put %.0f /s, put again %.0f /s, validated and opened %.3f s, walked and decoded %.3f s\n",
	       (unsigned long long)records, (double)view.used_bytes / 1048576, (unsigned long long)view.batches,
	       (double)view.commit_us_max / 1000, (double)records / fresh, (double)records / again, opened, walked);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("store_catalog_speed");
	TCase *tc = tcase_create("speed");
	SRunner *sr;
	int failed;

	if (argc > 1)
		records = strtoull(argv[1], NULL, 10);
	tcase_set_timeout(tc, 110);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, many_blocks);
	suite_add_tcase(s, tc);
	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
