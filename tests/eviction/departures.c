/* How many of the coldest blocks are said to leave soon (eviction/departures.h): by the rate of late, which rises at
 * once and falls slowly; at most DEPARTURES_MOST, and at most a part of the blocks. */
#include "eviction/departures.h"

#include <check.h>
#include <stdlib.h>

#define SECOND 1000000ull
enum { MANY = 1000 * 1000 };

START_TEST(as_many_as_have_left)
{
	struct departures d = { 0 };
	uint64_t now = 5 * SECOND;
	uint32_t soon = 0, before;

	ck_assert_uint_eq(departures_soon(&d, MANY, now), 0);
	departures_note(&d, 10);
	ck_assert_uint_eq(departures_soon(&d, MANY, now), 20); /* a second that is not over yet counts */
	for (uint32_t i = 0; i < 40; i++) {
		now += SECOND / 4;
		departures_note(&d, 100);
		soon = departures_soon(&d, MANY, now);
	}
	ck_assert_uint_ge(soon, 800);
	ck_assert_uint_le(soon, 900);
	for (uint32_t i = 0; i < 30 && soon; i++) {
		before = soon;
		soon = departures_soon(&d, MANY, now += SECOND);
		ck_assert_uint_lt(soon, before);
		ck_assert_uint_ge(soon + 2, before / 2);
	}
	ck_assert_uint_eq(soon, 0);
	departures_note(&d, 1000 * 1000);
	ck_assert_uint_eq(departures_soon(&d, 80, now), 80 / DEPARTURES_PART);
	ck_assert_uint_eq(departures_soon(&d, MANY, now), DEPARTURES_MOST);
	ck_assert_uint_eq(departures_soon(&d, MANY, now + SECOND), DEPARTURES_MOST);
	ck_assert_uint_eq(departures_soon(&d, MANY, now + 1000 * SECOND), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("departures");
	TCase *t = tcase_create("departures");
	SRunner *runner;
	int failures;

	tcase_add_test(t, as_many_as_have_left);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
