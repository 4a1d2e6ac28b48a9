/* Adaptive polling: what a look costs, and when there is none. */
#include "proto/adaptive_poll.h"

#include <check.h>
#include <stdlib.h>

enum { LONG_US = 100000, WAITS = 100000 };

static uint64_t random_next(uint64_t *rng)
{
	*rng ^= *rng << 13;
	*rng ^= *rng >> 7;
	*rng ^= *rng << 17;
	return *rng;
}

/* Looks, then sleeps until the wait is over. How long it looked in vain. */
static uint64_t wait_for(struct adaptive_poll *p, uint64_t us)
{
	const uint64_t looks = adaptive_poll_us(p);

	adaptive_poll_learn(p, us);
	ck_assert_uint_le(adaptive_poll_us(p), ADAPTIVE_POLL_US_MAX);
	return us > looks ? looks : 0;
}

START_TEST(short_waits_are_looked_through)
{
	for (uint64_t us = 0; us <= ADAPTIVE_POLL_US_MAX; us++) {
		struct adaptive_poll p = {0};

		ck_assert_uint_eq(adaptive_poll_us(&p), 0);
		for (int i = 0; i < 20; i++)
			wait_for(&p, us);
		ck_assert_uint_eq(wait_for(&p, us), 0);
		ck_assert_uint_ge(adaptive_poll_us(&p), us);
		ck_assert_uint_le(adaptive_poll_us(&p), 2 * us + ADAPTIVE_POLL_US_MORE);
		/* One that is twice as long, too. */
		ck_assert(2 * us > ADAPTIVE_POLL_US_MAX || !wait_for(&p, 2 * us));
	}
}
END_TEST

START_TEST(long_waits_are_slept_through)
{
	struct adaptive_poll p = {0};
	uint64_t in_vain = 0;
	int looks = 0;

	while (adaptive_poll_us(&p) < ADAPTIVE_POLL_US_MAX)
		wait_for(&p, ADAPTIVE_POLL_US_MAX);
	for (; adaptive_poll_us(&p); looks++)
		in_vain += wait_for(&p, LONG_US);
	ck_assert_int_le(looks, 20);
	ck_assert_uint_le(in_vain, 4 * ADAPTIVE_POLL_US_MAX + 20);
	ck_assert_uint_eq(wait_for(&p, UINT64_MAX), 0);
	ck_assert_uint_eq(adaptive_poll_us(&p), 0);
}
END_TEST

/* Whatever comes: what is looked in vain, for what takes long, is four times at most what short waits have taught. */
START_TEST(a_look_costs_little)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t rng = seed, in_vain = 0, learned = 0;
		struct adaptive_poll p = {0};

		for (int i = 0; i < WAITS; i++) {
			const uint64_t us = random_next(&rng) % 4 ? LONG_US : random_next(&rng) % 400, before = adaptive_poll_us(&p);
			const uint64_t looked = wait_for(&p, us);

			in_vain += us > ADAPTIVE_POLL_US_MAX ? looked : 0;
			learned += adaptive_poll_us(&p) > before ? adaptive_poll_us(&p) - before : 0;
		}
		ck_assert_uint_gt(learned, 0);
		ck_assert_uint_le(in_vain, 4 * learned);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("adaptive_poll");
	TCase *t = tcase_create("adaptive_poll");
	SRunner *r;
	int failed;

	tcase_add_test(t, short_waits_are_looked_through);
	tcase_add_test(t, long_waits_are_slept_through);
	tcase_add_test(t, a_look_costs_little);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_ENV);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
