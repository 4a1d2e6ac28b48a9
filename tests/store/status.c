/* The outcome list: every number has a name and a text of its own, and numbers outside it are
 * answered. */
#include "store/status.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(every_status_has_its_own_name_and_text)
{
	ck_assert_int_eq(STATUS_OK, 0);
	for (int i = 0; i < STATUS_COUNT; i++) {
		ck_assert_str_ne(status_name((enum status)i), "UNKNOWN");
		ck_assert_str_ne(status_text((enum status)i), "unknown status");
		for (int j = 0; j < i; j++) {
			ck_assert_str_ne(status_name((enum status)i), status_name((enum status)j));
			ck_assert_str_ne(status_text((enum status)i), status_text((enum status)j));
		}
	}
	ck_assert_str_eq(status_name(STATUS_EXHAUSTED), "EXHAUSTED");
	ck_assert_str_eq(status_text(STATUS_EXHAUSTED), "resource exhausted");
}
END_TEST

START_TEST(numbers_outside_are_unknown)
{
	static const int outside[] = { STATUS_COUNT, STATUS_COUNT + 1, 255, -1 };

	for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
		ck_assert_str_eq(status_name((enum status)outside[i]), "UNKNOWN");
		ck_assert_str_eq(status_text((enum status)outside[i]), "unknown status");
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_status");
	TCase *tc = tcase_create("status");
	SRunner *runner;
	int failed;

	tcase_add_test(tc, every_status_has_its_own_name_and_text);
	tcase_add_test(tc, numbers_outside_are_unknown);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
