/* Digests: equal of equal sets in any order, and the buckets that differ are those of the names that do. */
#include "daemon/directory/digest.h"

#include "tests/daemon/directory/rig.h"

START_TEST(counts_of_buckets)
{
	static const uint32_t invalid[] = { 0, 3, 6, DIGEST_BUCKETS_MAX - 1, 2 * DIGEST_BUCKETS_MAX, UINT32_MAX };

	ck_assert_uint_eq(digest_buckets_for(0), 1);
	ck_assert_uint_eq(digest_buckets_for(DIGEST_NAMES_A_BUCKET), 1);
	ck_assert_uint_eq(digest_buckets_for(DIGEST_NAMES_A_BUCKET + 1), 2);
	ck_assert_uint_eq(digest_buckets_for(UINT32_MAX), DIGEST_BUCKETS_MAX);
	for (uint32_t i = 0; i < sizeof invalid / sizeof *invalid; i++)
		ck_assert(!digest_buckets_valid(invalid[i]));
	for (uint32_t b = 1; b <= DIGEST_BUCKETS_MAX; b *= 2)
		ck_assert(digest_buckets_valid(b));
}
END_TEST

START_TEST(differences_are_found)
{
	uint64_t seed = (uint64_t)_i;
	const uint32_t n = rig_below(&seed, 2000), buckets = 1u << rig_below(&seed, 11);
	bool expected[DIGEST_BUCKETS_MAX] = { false };
	struct digest a, b;
	struct digest_set set;
	uint32_t differ = 0;

	digest_begin(&a, buckets);
	digest_begin(&b, buckets);
	for (uint32_t i = 0; i < n; i++) {
		const struct public_name forth = rig_name(i), back = rig_name(n - 1 - i);

		digest_add(&a, &forth);
		digest_add(&b, &back);
	}
	ck_assert_uint_eq(digest_compare(&a, &b, &set), 0);
	ck_assert(digest_set_empty(&set));
	ck_assert_uint_eq(a.total, n);
	for (uint32_t i = 0; i < 5; i++) {
		const struct public_name name = rig_name(n + i);

		digest_add(i % 2 ? &a : &b, &name);
		expected[digest_bucket(&name, buckets)] = true;
	}
	for (uint32_t i = 0; i < buckets; i++)
		differ += expected[i];
	ck_assert_uint_eq(digest_compare(&a, &b, &set), differ);
	for (uint32_t i = 0; i < 5000; i++) {
		const struct public_name name = rig_name(i);

		ck_assert_int_eq(digest_set_has(&set, &name), expected[digest_bucket(&name, buckets)]);
	}
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("digest");

	tcase_add_test(tc, counts_of_buckets);
	tcase_add_loop_test(tc, differences_are_found, 0, 20);
	return rig_main(tc, "directory digests");
}
