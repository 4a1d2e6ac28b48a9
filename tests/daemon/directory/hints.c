/* What askers know of late: answers of a second, negative ones too, and members that are avoided. */
#include "daemon/directory/hints.h"

#include "tests/daemon/directory/rig.h"

#define SECOND 1000000ull

static struct hints *make(uint32_t answers)
{
	struct hints *h;

	ck_assert_int_eq(hints_create(answers, &h), STATUS_OK);
	return h;
}

START_TEST(answers_are_kept_for_a_second)
{
	const struct directory_run runs[5] = { rig_run(0, 1), rig_run(1, 1), rig_run(2, 1), rig_run(3, 1) };
	const struct public_name a = rig_name(1), b = rig_name(2);
	struct hints *h = make(64);
	struct hint_holders out;

	ck_assert_int_eq(hints_find(h, 7, &a, SECOND, &out), HINT_UNKNOWN);
	ck_assert(hints_ask(h, 7, &a, SECOND, 3 * SECOND));
	ck_assert(!hints_ask(h, 7, &a, SECOND, 3 * SECOND));
	ck_assert_int_eq(hints_find(h, 7, &a, SECOND, &out), HINT_ASKING);
	ck_assert_int_eq(hints_find(h, 8, &a, SECOND, &out), HINT_UNKNOWN); /* another tenant's */
	ck_assert_int_eq(hints_find(h, 7, &a, 3 * SECOND, &out), HINT_UNKNOWN);
	hints_answer(h, 7, &a, runs, 5, SECOND);
	hints_answer(h, 7, &b, NULL, 0, SECOND);
	ck_assert_int_eq(hints_find(h, 7, &a, 2 * SECOND - 1, &out), HINT_HELD);
	ck_assert_uint_eq(out.count, DIRECTORY_HOLDERS_MAX);
	for (uint32_t i = 0; i < out.count; i++)
		ck_assert(directory_run_equal(&out.at[i], &runs[i]));
	ck_assert_int_eq(hints_find(h, 7, &b, 2 * SECOND - 1, &out), HINT_NONE);
	ck_assert(!hints_ask(h, 7, &b, 2 * SECOND - 1, 3 * SECOND));
	ck_assert_int_eq(hints_find(h, 7, &a, 2 * SECOND, &out), HINT_UNKNOWN);
	ck_assert_int_eq(hints_find(h, 7, &b, 2 * SECOND, &out), HINT_UNKNOWN);
	ck_assert(hints_ask(h, 7, &b, 2 * SECOND, 3 * SECOND));
	hints_forget(h, 7, &b);
	ck_assert(hints_ask(h, 7, &b, 2 * SECOND, 3 * SECOND));
	hints_destroy(h);
}
END_TEST

START_TEST(a_wrong_answer_is_corrected)
{
	const struct directory_run runs[2] = { rig_run(0, 1), rig_run(1, 1) };
	const struct public_name a = rig_name(1);
	struct hints *h = make(64);
	struct hint_holders out;

	hints_answer(h, 0, &a, runs, 2, 0);
	hints_wrong(h, 0, &a, &runs[0]);
	ck_assert_int_eq(hints_find(h, 0, &a, 1, &out), HINT_HELD);
	ck_assert_uint_eq(out.count, 1);
	ck_assert(directory_run_equal(&out.at[0], &runs[1]));
	hints_wrong(h, 0, &a, &runs[1]);
	ck_assert_int_eq(hints_find(h, 0, &a, 1, &out), HINT_NONE);
	hints_destroy(h);
}
END_TEST

START_TEST(failures_in_a_row_double_the_time)
{
	const struct directory_run run = rig_run(3, 1), again = rig_run(3, 2), other = rig_run(4, 1);
	const struct public_name a = rig_name(1);
	const struct directory_run both[2] = { run, other };
	struct hints *h = make(64);
	struct hint_holders out;
	struct hints_counts counts;
	uint64_t now = 5 * SECOND;

	for (uint32_t i = 0; i < 9; i++) {
		const uint64_t wait = i < 6 ? SECOND << i : 60 * SECOND;

		ck_assert(!hints_avoided(h, &run, now));
		hints_failed(h, &run, now);
		hints_failed(h, &run, now + 10); /* of a call of the same moment */
		ck_assert(hints_avoided(h, &run, now + wait - 1));
		now += wait;
	}
	ck_assert(!hints_avoided(h, &run, now));
	hints_failed(h, &run, now);
	hints_answer(h, 0, &a, both, 2, now);
	ck_assert_int_eq(hints_find(h, 0, &a, now, &out), HINT_HELD);
	ck_assert_uint_eq(out.count, 1);
	ck_assert(directory_run_equal(&out.at[0], &other));
	ck_assert(!hints_avoided(h, &again, now));
	hints_counts(h, now, &counts);
	ck_assert_uint_eq(counts.avoided, 1);
	hints_worked(h, &run);
	ck_assert(!hints_avoided(h, &run, now));
	hints_failed(h, &run, now);
	ck_assert(!hints_avoided(h, &run, now + SECOND));
	hints_failed(h, &run, now + 100 * SECOND); /* long after: the first one again */
	ck_assert(!hints_avoided(h, &run, now + 101 * SECOND));
	hints_destroy(h);
}
END_TEST

START_TEST(no_more_than_the_bound)
{
	struct hints *h = make(64);
	struct hint_holders out;
	struct hints_counts counts;
	const struct directory_run run = rig_run(0, 1);
	uint32_t kept = 0;

	for (uint32_t i = 0; i < 1000; i++) {
		const struct public_name name = rig_name(i);

		hints_answer(h, 0, &name, &run, 1, i);
		ck_assert_int_eq(hints_find(h, 0, &name, i, &out), HINT_HELD);
	}
	for (uint32_t i = 0; i < 1000; i++) {
		const struct public_name name = rig_name(i);

		kept += hints_find(h, 0, &name, 1000, &out) == HINT_HELD;
	}
	ck_assert_uint_le(kept, 64);
	ck_assert_uint_ge(kept, 60);
	hints_counts(h, 0, &counts);
	ck_assert_uint_eq(counts.displaced, 1000 - kept);
	/* More failing members than there can be: the one that failed last is avoided, and none for too long. */
	for (uint32_t i = 0; i < 20000; i++) {
		const struct directory_run failing = rig_run(i, 1);

		hints_failed(h, &failing, i);
		ck_assert(hints_avoided(h, &failing, i));
	}
	hints_counts(h, 2 * SECOND, &counts);
	ck_assert_uint_eq(counts.avoided, 0);
	hints_destroy(h);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("hints");

	tcase_add_test(tc, answers_are_kept_for_a_second);
	tcase_add_test(tc, a_wrong_answer_is_corrected);
	tcase_add_test(tc, failures_in_a_row_double_the_time);
	tcase_add_test(tc, no_more_than_the_bound);
	return rig_main(tc, "directory hints");
}
