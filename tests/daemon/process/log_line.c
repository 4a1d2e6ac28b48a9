/* Log lines: escaping, cutting, and that a JSON line stays JSON whatever is in it. */
#include "daemon/process/log.h"
#include "daemon/process/log_unwritten.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char line[LOG_LINE_MAX];

static size_t make(size_t size, enum log_format format, const struct log_field *fields)
{
	return log_line(line, size, format, 1700000000123456ull, LOG_WARN, "thing_done", fields);
}

START_TEST(logfmt_quotes_what_needs_it)
{
	const struct log_field f[] = { LOG_TEXT("plain", "a/b.c"), LOG_TEXT("space", "a b"), LOG_TEXT("none", ""),
				       LOG_TEXT("hard", "q\"\\\n\t\x01\xff="), LOG_NUM("n", -5), { 0 } };

	make(sizeof line, LOG_LOGFMT, f);
	ck_assert_str_eq(line, "time=2023-11-14T22:13:20.123456Z level=warn event=thing_done plain=a/b.c space=\"a b\" "
			       "none=\"\" hard=\"q\\\"\\\\\\n\\t\\u0001\\u00ff=\" n=-5\n");
}
END_TEST

/* Names in UTF-8 are what they are to whoever reads the JSON; what is none is told byte by byte, each as the character of its number. */
START_TEST(characters)
{
	static const char *const sound[] = { "k\u00e4se", "\u65e5\u672c", "\U0001f600!", "\xc2\x85" };
	static const char *const broken[] = { "\xc3", "\xc3(", "\xc0\xaf", "\xed\xa0\x80", "\xe0\x80\xaf", "\xf4\x90\x80\x80", "\xff\x80",
					      "\xf0\x9f\x98", "\xf0\x80\x80\xaf", "\x80" };
	enum { SOUND = sizeof sound / sizeof sound[0], ALL = SOUND + sizeof broken / sizeof broken[0] };

	for (size_t i = 0; i < ALL; i++) {
		const char *text = i < SOUND ? sound[i] : broken[i - SOUND];
		const struct log_field f[] = { LOG_TEXT("t", text), { 0 } };
		const size_t n = make(sizeof line, LOG_JSON, f);
		json_t *j = json_loadb(line, n, 0, NULL);
		char want[32] = "";

		for (const unsigned char *p = (const unsigned char *)text; *p && i >= SOUND; p++)
			snprintf(want + strlen(want), 3, *p < 0x80 ? "%c" : "%c%c", *p < 0x80 ? *p : 0xc0 | *p >> 6, 0x80 | (*p & 0x3f));
		ck_assert_msg(j != NULL, "%s", line);
		ck_assert_str_eq(json_string_value(json_object_get(j, "t")), i < SOUND ? text : want);
		for (size_t at = 0; at < n - 1; at++)
			ck_assert(line[at] >= ' ' && line[at] < 0x7f);
		json_decref(j);
	}
}
END_TEST

START_TEST(json_is_json)
{
	const struct log_field f[] = { LOG_TEXT("t", "q\"\\\n\x01\xc3 }"), LOG_NUM("n", INT64_MIN), { 0 } };
	size_t n = make(sizeof line, LOG_JSON, f);
	json_error_t e;
	json_t *j = json_loadb(line, n, 0, &e);

	ck_assert_msg(j != NULL, "%s: %s", e.text, line);
	ck_assert_str_eq(json_string_value(json_object_get(j, "event")), "thing_done");
	ck_assert_str_eq(json_string_value(json_object_get(j, "level")), "warn");
	ck_assert(json_integer_value(json_object_get(j, "n")) == INT64_MIN);
	json_decref(j);
}
END_TEST

START_TEST(long_lines_are_cut_whole)
{
	char text[600];
	json_error_t e;

	for (size_t i = 0; i < sizeof text - 1; i++)
		text[i] = i % 7 ? 'x' : '"';
	text[sizeof text - 1] = 0;
	const struct log_field f[] = { LOG_TEXT("first", text), LOG_NUM("second", 7), { 0 } };

	for (size_t size = 256; size < 900; size++) {
		size_t n = make(size, LOG_JSON, f);
		json_t *j = json_loadb(line, n, 0, &e);

		ck_assert_uint_lt(n, size);
		ck_assert_msg(j != NULL, "%zu: %s: %s", size, e.text, line);
		json_decref(j);
		n = make(size, LOG_LOGFMT, f);
		ck_assert_uint_lt(n, size);
		ck_assert_int_eq(line[n - 1], '\n');
		ck_assert_int_eq(line[n], 0);
	}
}
END_TEST

START_TEST(repeats_are_held_back)
{
	struct log_again a = { 0 };
	const uint64_t begin = 50;
	uint64_t held = 7;

	ck_assert(log_again(&a, begin, &held));
	ck_assert_uint_eq(held, 0);
	for (uint64_t i = 0; i < 5; i++)
		ck_assert(!log_again(&a, begin + i * (LOG_AGAIN_US / 5), &held));
	ck_assert(log_again(&a, begin + LOG_AGAIN_US, &held));
	ck_assert_uint_eq(held, 5);
	ck_assert(!log_again(&a, begin + LOG_AGAIN_US + 1, &held));
	ck_assert(log_again(&a, begin + 3 * (uint64_t)LOG_AGAIN_US, &held));
	ck_assert_uint_eq(held, 1);
}
END_TEST

static char *read_back(const char *path)
{
	static char text[4096];
	FILE *f = fopen(path, "r");

	ck_assert_ptr_nonnull(f);
	text[fread(text, 1, sizeof text - 1, f)] = 0;
	fclose(f);
	return text;
}

/* To a full file system first, then to a file that is full before the line's end, then with room. */
START_TEST(lines_that_cannot_be_written_are_told_of)
{
	char path[] = "/tmp/terrace-log-XXXXXX", *text, *at;
	const int before = dup(STDERR_FILENO), file = mkstemp(path), full = open("/dev/full", O_WRONLY);
	const uint64_t lost = log_lost();
	struct rlimit limit, small;

	ck_assert(before >= 0 && file >= 0 && full >= 0);
	ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
	small = limit;
	small.rlim_cur = 40;
	signal(SIGXFSZ, SIG_IGN);
	dup2(full, STDERR_FILENO);
	log_error("nowhere", LOG_NUM("n", 1));
	log_error("nowhere", LOG_NUM("n", 2));
	dup2(file, STDERR_FILENO);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
	log_error("cut_short", LOG_TEXT("text", "as the file may not be that large"));
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_assert_uint_eq(log_lost() - lost, 3);
	log_error("whole", LOG_NUM("n", 4));
	log_error("whole", LOG_NUM("n", 5));
	dup2(before, STDERR_FILENO);
	text = read_back(path);
	unlink(path);
	ck_assert_ptr_null(strstr(text, "nowhere"));
	ck_assert_ptr_eq(strchr(text, '\n'), text + 40); /* what there was room for, as a line of its own */
	ck_assert_ptr_nonnull(at = strstr(text, "event=whole n=4\n"));
	ck_assert_ptr_nonnull(at = strstr(at, "level=warn event=log_lost lines=3 "));
	ck_assert_ptr_nonnull(at = strstr(at, "event=whole n=5\n"));
	ck_assert_ptr_null(strstr(at, "log_lost"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log_line");
	TCase *t = tcase_create("log_line");
	SRunner *r;

	tcase_add_test(t, logfmt_quotes_what_needs_it);
	tcase_add_test(t, characters);
	tcase_add_test(t, json_is_json);
	tcase_add_test(t, long_lines_are_cut_whole);
	tcase_add_test(t, repeats_are_held_back);
	tcase_add_test(t, lines_that_cannot_be_written_are_told_of);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
