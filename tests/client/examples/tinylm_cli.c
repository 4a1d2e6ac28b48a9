/* tinylm's command line: exit codes and the words that come with them. */
#include <check.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Runs tinylm with those arguments; returns its exit code, its stdout and stderr together in out. */
static int run(const char *arguments, char *out, size_t room)
{
	char command[2048];
	size_t got;
	FILE *f;
	int status;

	snprintf(command, sizeof(command), "%s %s 2>&1 </dev/null", TINYLM, arguments);
	f = popen(command, "r");
	ck_assert_ptr_nonnull(f);
	got = fread(out, 1, room - 1, f);
	out[got] = 0;
	status = pclose(f);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

#define MODEL "--model " TEST_DATA "/tinylm-8m "

static const struct {
	const char *arguments;
	int code;
	const char *says;
} rows[] = {
	{ "--help", 0, "--formats F,F,..." },
	{ "", 2, "one of --ppl, --generate and --demo" },
	{ "--ppl", 2, "--model" },
	{ MODEL "--ppl --demo", 2, "not two" },
	{ MODEL "--pp", 2, "unknown option \"--pp\"" },
	{ MODEL "--ppl --windows", 2, "--windows needs N" },
	{ MODEL "--ppl --windows 0", 2, "--windows" },
	{ MODEL "--ppl --windows 2x", 2, "--windows" },
	{ MODEL "--ppl --windows -1", 2, "--windows" },
	{ MODEL "--ppl --windows 99999999999999999999", 2, "--windows" },
	{ MODEL "--ppl --formats tq4,tq9", 2, "unknown format \"tq9\"" },
	{ MODEL "--ppl --formats opaque", 2, "unknown format \"opaque\"" },
	{ MODEL "--ppl --block-tokens 24", 2, "multiple of 16" },
	{ MODEL "--generate x --temperature nan", 2, "--temperature" },
	{ MODEL "--demo", 2, "--daemon" },
	{ MODEL "--demo --daemon unix:x --format fp32", 2, "packed" },
	{ MODEL "--ppl --tokens /dev/null", 1, "not a regular file" },
	{ MODEL "--ppl --window-tokens 2049", 1, "more than the context" },
	{ MODEL "--ppl --windows 1 --window-tokens 40 --formats fp32,tq4", 0, "tq4 " },
	{ MODEL "--ppl --windows 1000", 1, "1000 windows" },
	{ "--model /nowhere --ppl", 1, "/nowhere/config.json" },
#ifndef TERRACE_SANITIZED /* it warms up for seconds first */
	{ MODEL "--demo --daemon unix:/nowhere/terraced.sock", 1, "cannot connect" },
#endif
	{ MODEL "--generate - -n 3 --format fp32", 0, "1 prompt tokens" },
	{ MODEL "--generate \"$(seq 1 720)\" -n 1", 1, "the prompt has 2109 tokens, the context is 2048" },
#ifdef TERRACE_TESTS_SMALL /* arithmetic, seconds of it */
	{ MODEL "--generate \"$(seq 1 60)\" -n 1 --context 2400", 0, " prompt tokens" },
#else
	{ MODEL "--generate \"$(seq 1 720)\" -n 1 --context 2400", 0, "2109 prompt tokens" },
#endif
	{ MODEL "--generate x --context 15", 2, "--context" },
};

START_TEST(test_row)
{
	char out[8192];
	int code = run(rows[_i].arguments, out, sizeof(out));

	ck_assert_msg(code == rows[_i].code, "tinylm %s: exit code %d, not %d:\n%s", rows[_i].arguments, code, rows[_i].code,
		      out);
	ck_assert_msg(strstr(out, rows[_i].says) != NULL, "tinylm %s said:\n%s", rows[_i].arguments, out);
}
END_TEST

/* The line of --json's text, which starts behind any warnings. */
static char *text_line(char *out)
{
	char *line = strstr(out, "\"text\":");

	ck_assert_msg(line != NULL, "no text in:\n%s", out);
	line[strcspn(line, "\n")] = 0;
	return line;
}

/* A daemon that is not there costs a word, not the text. */
START_TEST(test_no_daemon)
{
	char without[8192], with[8192];

	ck_assert_int_eq(run(MODEL "--generate 'The file' -n 8 --json", without, sizeof(without)), 0);
	ck_assert_int_eq(run(MODEL "--generate 'The file' -n 8 --json --daemon unix:/nowhere/t.sock", with, sizeof(with)), 0);
	ck_assert_ptr_nonnull(strstr(with, "going on without it"));
	ck_assert_str_eq(text_line(with), text_line(without));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tinylm_cli");
	TCase *cases = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_set_timeout(cases, 60);
	tcase_add_loop_test(cases, test_row, 0, sizeof(rows) / sizeof(rows[0]));
	tcase_add_test(cases, test_no_daemon);
	suite_add_tcase(suite, cases);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
