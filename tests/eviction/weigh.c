/* `graph` where blocks differ in what they cost to compute again: worth, classes, and who stays. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/policy.h"
#include "eviction/recompute.h"
#include "eviction/survival.h"

enum { BLOCK = 16 };

/* The whole is the sum of its tokens, and without growth their number. */
START_TEST(cost_adds_up)
{
	double sum = 0;

	for (int i = 0; i < 1000; i++)
		sum += recompute_cost(i + 0.5, 250);
	ck_assert_double_eq_tol(recompute_cost_of_first(1000, 250), sum, 1e-9);
	ck_assert_double_eq(recompute_cost(250, 250), 2);
	ck_assert_double_eq(recompute_cost_of_first(1000, 0), 1000);
	ck_assert_double_eq(recompute_cost(1e9, 0), 1);
}
END_TEST

static void constant(float hazard[SURVIVAL_BUCKETS], float chance)
{
	for (int b = 0; b < SURVIVAL_BUCKETS; b++)
		hazard[b] = chance;
}

/* Of equal reuse what costs more is worth more, at every age by as much. */
START_TEST(worth_is_times_cost)
{
	static const float cost[] = { 1, 2, 8 };
	static struct survival s;
	float hazard[SURVIVAL_BUCKETS];
	uint32_t class[3];

	survival_init(&s);
	constant(hazard, 0.01f);
	for (int i = 0; i < 3; i++) {
		class[i] = survival_class(&s, hazard, cost[i]);
		ck_assert_float_eq_tol(survival_cost(&s, class[i]), cost[i], 1e-5f);
	}
	survival_update(&s);
	for (int i = 0; i < 3; i++)
		for (int b = 0; b < SURVIVAL_BUCKETS; b++)
			ck_assert_float_eq_tol(s.worth[class[i]][b] / s.worth[class[0]][b], cost[i], 1e-4f);
}
END_TEST

/* What comes back often and costs little shares a class with what comes back less and costs more: together they are worth what each is. */
START_TEST(a_class_of_many_costs_is_worth_what_they_are)
{
	float often[SURVIVAL_BUCKETS], rarely[SURVIVAL_BUCKETS], worth[SURVIVAL_BUCKETS];
	static struct survival s;
	uint32_t class = 0;

	survival_init(&s);
	constant(often, 0.012f);
	constant(rarely, 0.003f);
	survival_worth(often, worth);
	for (int i = 0; i < 400; i++) {
		class = survival_class(&s, often, 1);
		ck_assert_uint_eq(class, survival_class(&s, rarely, 4));
	}
	survival_update(&s);
	ck_assert_float_eq_tol(s.worth[class][0] / worth[0], 1, 0.03f);
	ck_assert_float_gt(survival_cost(&s, class), 1.4f);
	ck_assert_float_lt(survival_cost(&s, class), 1.8f);
}
END_TEST

static bool may_go(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

/* Blocks asked for at random, each as often; every second one lies far behind others. Returns what share of the hits was of those; the cache has
 * room for half of all. */
static double share_of_the_deep(uint32_t growth, struct policy_explained *deep)
{
	enum { NODES = 600, FAR = 400, ACCESSES = 60000 };
	const struct policy_ops *ops = policy_find("graph");
	struct policy *p = policy_create(ops, NODES / 2, growth);
	static struct policy_node node[NODES];
	uint32_t hits[2] = { 0 }, used = 0;

	memset(node, 0, sizeof(node));
	for (uint64_t i = 1; i <= ACCESSES; i++) {
		const uint32_t n = (uint32_t)(hash_mix(i) % NODES);
		const struct policy_event e = { .now_us = i * 20000, .id = n + 1, .position = n % 2 ? FAR : 0, .tokens = BLOCK };
		struct policy_node *v = used == NODES / 2 ? ops->victim(p, may_go, NULL, UINT32_MAX) : NULL;

		if (node[n].prev) {
			ops->use(p, &node[n], &e);
			hits[n % 2] += i > ACCESSES / 2;
			continue;
		}
		if (v && !ops->admit(p, &e, v))
			continue;
		if (v)
			ops->remove(p, v);
		used += !v;
		ops->insert(p, &node[n], &e);
	}
	for (uint32_t n = 1; n < NODES; n += 2)
		if (node[n].prev)
			ops->explain(p, &node[n], deep);
	ops->destroy(p);
	return (double)hits[1] / (hits[0] + hits[1]);
}

START_TEST(of_equal_reuse_what_costs_more_stays)
{
	struct policy_explained e;
	double deep;

	deep = share_of_the_deep(0, &e);
	ck_assert_msg(deep > 0.4 && deep < 0.6, "%f", deep);
	ck_assert_str_eq(e.unit, "expected hits a second");
	for (uint32_t i = 0; i < e.features; i++)
		ck_assert_str_ne(e.feature[i].name, "cost_milli");
	deep = share_of_the_deep(400 * BLOCK / 8, &e); /* 9 times what the first costs, 5 times in the mean of all before it */
	ck_assert_msg(deep > 0.9, "%f", deep);
	ck_assert_str_eq(e.unit, "expected hits a second, times cost");
	ck_assert_str_eq(e.feature[3].name, "cost_milli");
	ck_assert_uint_ge(e.feature[3].value, 3900);
	ck_assert_uint_le(e.feature[3].value, 5000);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("policy_weigh");
	TCase *tc = tcase_create("graph");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, cost_adds_up);
	tcase_add_test(tc, worth_is_times_cost);
	tcase_add_test(tc, a_class_of_many_costs_is_worth_what_they_are);
	tcase_add_test(tc, of_equal_reuse_what_costs_more_stays);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
