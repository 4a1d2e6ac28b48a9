/* The words for a write that finds no room. */
#include "store/shortage.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	int error;
	bool shortage;
	const char *cause, *step;
} cases[] = {
	{ ENOSPC, true, "the file system is full (No space left on device)", "free room there" },
	{ EDQUOT, true, "the quota is used up (Disk quota exceeded)", "raise the quota" },
	{ EFBIG, true, "a file may not be that large (File too large)", "ulimit -f, LimitFSIZE" },
	{ EROFS, false, "the file system is read-only (Read-only file system)", "mount it for writing" },
	{ EIO, false, "Input/output error", "" },
	{ 0, false, "Success", "" },
	{ 12345, false, "Unknown error 12345", "" },
};

START_TEST(words)
{
	char text[SHORTAGE_WORDS_MAX];

	ck_assert_int_eq(shortage_is(cases[_i].error), cases[_i].shortage);
	ck_assert_ptr_eq(shortage_words(cases[_i].error, text, sizeof(text)), text);
	ck_assert_msg(!strncmp(text, cases[_i].cause, strlen(cases[_i].cause)) && strstr(text, cases[_i].step), "%s", text);
	ck_assert_uint_lt(strlen(text), sizeof(text) - 1); /* none is cut */
}
END_TEST

START_TEST(room_is_bounded)
{
	char text[9] = "12345678";

	shortage_words(ENOSPC, text, 5);
	ck_assert_str_eq(text, "the ");
	ck_assert_str_eq(text + 5, "678");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_shortage");
	TCase *tc = tcase_create("words");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(tc, words, 0, (int)(sizeof(cases) / sizeof(cases[0])));
	tcase_add_test(tc, room_is_bounded);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
