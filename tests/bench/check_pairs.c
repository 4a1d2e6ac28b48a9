/* What --against makes of two builds' figures, with the right values written down: medians and intervals of pairs, and
 * lines of JSON read back.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/line.h"

struct bench_options bench_options;

/* Pairs whose ratios are 1 to n, in an order that is not theirs. */
static struct bench_figure of_pairs(size_t n)
{
	double own[BENCH_PAIRS_MAX], other[BENCH_PAIRS_MAX];
	struct bench_figure f = { .bench = "test" };

	for (size_t i = 0; i < n; i++) {
		other[i] = (double)(n - i);
		own[i] = other[i] * (double)((i * 2 + 1) % n + 1); /* n is odd, or no ratio is there twice */
	}
	bench_figure_of_pairs(&f, own, other, n);
	return f;
}

START_TEST(the_interval_is_that_of_a_median)
{
	static const struct {
		size_t pairs;
		double low, high;
	} cases[] = {
		{ 1, 0, 0 },   { 5, 0, 0 },   { 7, 1, 7 },    { 9, 2, 8 },
		{ 15, 4, 12 }, { 21, 6, 16 }, { 45, 16, 30 }, { 99, 40, 60 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct bench_figure f = of_pairs(cases[i].pairs);

		ck_assert_double_eq(f.ratio, (double)(cases[i].pairs + 1) / 2);
		ck_assert_double_eq(f.low, cases[i].low);
		ck_assert_double_eq(f.high, cases[i].high);
		ck_assert_double_eq(f.baseline, (double)(cases[i].pairs + 1) / 2);
	}
}
END_TEST

/* The median of the ratios is not the ratio of the medians. */
START_TEST(a_ratio_is_that_of_a_pair)
{
	const double own[] = { 10, 100, 1000 }, other[] = { 5, 400, 100 };
	struct bench_figure f = { .bench = "test" };

	bench_figure_of_pairs(&f, own, other, 3);
	ck_assert_double_eq(f.ratio, 2);
	ck_assert_double_eq(f.value, 100);
	ck_assert_double_eq(f.baseline, 100);
	ck_assert_double_eq(own[0], 10);
}
END_TEST

START_TEST(lines_are_read)
{
	struct line l;

	ck_assert(line_read("{\"bench\":\"rpc\",\"case\":\"a / b\",\"value\":47.5,\"unit\":\"us, p50\",\"baseline\":50,"
			    "\"ratio\":0.95}\n", &l));
	ck_assert_str_eq(l.name, "a / b");
	ck_assert_str_eq(l.unit, "us, p50");
	ck_assert_double_eq(l.value, 47.5);
	ck_assert_double_eq(l.ratio, 0.95);
	/* Members in another order, more of them, no baseline of its own, and an infinity as older builds print it. */
	ck_assert(line_read("{\"ratio\":null,\"unit\":\"s\",\"new\":true,\"value\":inf,\"case\":\"c\"}", &l));
	ck_assert(isinf(l.value) && isnan(l.ratio));
}
END_TEST

START_TEST(other_lines_are_none)
{
	static const char *const lines[] = {
		"", "\n", "{", "{}", "no JSON",
		"{\"case\":\"a\",\"value\":1,\"unit\":\"s\",\"ratio\":2,\"ok\":tr", /* cut */
		"{\"case\":\"a\",\"unit\":\"s\",\"ratio\":null}",
		"{\"case\":\"a\",\"value\":,\"unit\":\"s\",\"ratio\":null}",
		"{\"case\":\"a\",\"value\":\"1\",\"unit\":\"s\",\"ratio\":null}",
		"{\"case\":7,\"value\":1,\"unit\":\"s\",\"ratio\":null}",
		"{\"case\":\"a\",\"value\":1 2,\"unit\":\"s\",\"ratio\":null}",
		"{\"case\":\"a\",\"value\":1,\"unit\":\"s\"}",
		"{\"case\":\"a,\"value\":1,\"unit\":\"s\",\"ratio\":nil}",
		"{\"value\":1,\"unit\":\"s\",\"ratio\":1,\"case\":\"a}",
	};
	char longest[LINE_NAME_BYTES + 128] = "{\"value\":1,\"unit\":\"s\",\"ratio\":1,\"case\":\"";
	struct line l;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		ck_assert_msg(!line_read(lines[i], &l), "%s", lines[i]);
	memset(longest + strlen(longest), 'x', LINE_NAME_BYTES);
	strcat(longest, "\"}");
	ck_assert(!line_read(longest, &l));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("bench_pairs");
	TCase *tc = tcase_create("pairs");
	SRunner *runner;
	int failed;

	tcase_add_test(tc, the_interval_is_that_of_a_median);
	tcase_add_test(tc, a_ratio_is_that_of_a_pair);
	tcase_add_test(tc, lines_are_read);
	tcase_add_test(tc, other_lines_are_none);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
