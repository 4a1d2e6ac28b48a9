/* Which class a layout joins. */
#include "store/class_rule.h"

#include <check.h>
#include <stdlib.h>

enum { CLASSES = 4 };

static const struct {
	uint64_t need, strides[CLASSES]; /* ended by a 0, or full */
	bool full;
	uint64_t joined;                 /* 0: it makes a class */
} cases[] = {
	{ 65536, { 0 }, false, 0 },
	{ 65536, { 65536 }, false, 65536 },
	{ 65536, { 65535 }, false, 0 },                /* too small by a byte */
	{ 65536, { 65536 + 4096 }, false, 69632 },     /* larger by a 16th */
	{ 65536, { 65536 + 4097 }, false, 0 },         /* and a byte */
	{ 65536, { 69632, 65536, 67584 }, false, 65536 }, /* the smallest of those that fit */
	{ 65536, { 69632, 131072, 67584 }, false, 67584 },
	{ 8192, { 12288 }, false, 0 },
	{ 8192, { 12288, 16384 }, true, 12288 },       /* all classes are made: the next larger */
	{ 8192, { 4096 }, true, 0 },                   /* there is none */
	{ 15, { 16 }, false, 0 },                      /* a 16th of it is nothing */
	{ 16, { 17 }, false, 17 },
	{ 1ull << 40, { (1ull << 40) + (1ull << 36) }, false, (1ull << 40) + (1ull << 36) },
};

START_TEST(joins)
{
	uint64_t best = 0;

	for (int i = 0; i < CLASSES && cases[_i].strides[i]; i++)
		best = class_rule_better(best, cases[_i].strides[i], cases[_i].need, cases[_i].full);
	ck_assert_uint_eq(best, cases[_i].joined);
}
END_TEST

/* Whatever layouts come, in whatever order: no slot is larger than the need by more than a 16th while classes may be
 * made, and there are never more classes than there may be. */
START_TEST(waste_and_number_are_bounded)
{
	uint64_t strides[CLASS_RULE_MOST], seed = 1;
	uint32_t count = 0;

	for (int n = 0; n < 10000; n++) {
		const bool full = count == CLASS_RULE_MOST;
		uint64_t need, best = 0;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		need = (2 + (seed >> 33) % 4095) * 4096;
		for (uint32_t i = 0; i < count; i++)
			best = class_rule_better(best, strides[i], need, full);
		if (!best && full)
			continue; /* larger than all */
		if (!best)
			best = strides[count++] = need;
		ck_assert_uint_ge(best, need);
		if (!full)
			ck_assert_uint_le(16 * (best - need), need);
	}
	ck_assert_uint_eq(count, CLASS_RULE_MOST);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_class_rule");
	TCase *all = tcase_create("all");
	SRunner *runner;
	int failed;

	tcase_add_loop_test(all, joins, 0, sizeof(cases) / sizeof(cases[0]));
	tcase_add_test(all, waste_and_number_are_bounded);
	suite_add_tcase(suite, all);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
