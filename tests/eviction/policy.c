/* Policies against a naive model: an array in eviction order. */
#include "eviction/policy.h"
#include "eviction/replay/policies.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 40 };

struct item {
	struct policy_node node;
	bool in, pinned;
	uint64_t last_use_us;
	uint32_t uses;
};

static struct item items[NODES];
static int order[NODES], length; /* the model: indices, first to go first */
static uint64_t rng;

static uint64_t rnd(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng;
}

static struct item *item_of(const struct policy_node *n)
{
	return (struct item *)((char *)(uintptr_t)n - offsetof(struct item, node));
}

static bool unpinned(const struct policy_node *n, void *asked)
{
	++*(uint32_t *)asked;
	return !item_of(n)->pinned;
}

static void model_append(int i)
{
	order[length++] = i;
}

static void model_remove(int i)
{
	int at = 0;

	while (order[at] != i)
		at++;
	memmove(order + at, order + at + 1, (size_t)(length - at - 1) * sizeof(order[0]));
	length--;
}

static struct policy_node *model_victim(uint32_t scan_max)
{
	for (int at = 0; at < length && (uint32_t)at < scan_max; at++)
		if (!items[order[at]].pinned)
			return &items[order[at]].node;
	return NULL;
}

/* What the owner tells of item i at a time. */
static struct policy_event event(int i, uint64_t now)
{
	return (struct policy_event){ .now_us = now, .id = 100 + (uint64_t)i, .tokens = 16 };
}

static void step(const struct policy_ops *ops, struct policy *p, bool moves_on_use, uint64_t now)
{
	int i = (int)(rnd() % NODES);
	struct item *it = &items[i];
	struct policy_event e = event(i, now);

	switch (rnd() % 6) {
	case 0:
		if (it->in)
			break;
		ops->insert(p, &it->node, &e);
		model_append(i);
		it->in = true;
		it->uses = 0;
		it->last_use_us = now;
		break;
	case 1:
	case 2:
		if (!it->in)
			break;
		ops->use(p, &it->node, &e);
		if (moves_on_use) {
			model_remove(i);
			model_append(i);
		}
		it->uses++;
		it->last_use_us = now;
		break;
	case 3:
		if (!it->in || rnd() % 2)
			break;
		ops->remove(p, &it->node);
		ck_assert_ptr_null(it->node.prev);
		ck_assert_ptr_null(it->node.next);
		model_remove(i);
		it->in = false;
		break;
	default:
		it->pinned = rnd() % 3 == 0;
	}
}

START_TEST(a_policy_agrees_with_the_model)
{
	const struct policy_ops *ops = replay_policy_table[_i];
	bool lru = strcmp(ops->name, "lru") == 0;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct policy *p = ops->create(NODES);

		ck_assert_ptr_nonnull(p);
		rng = seed * 0x9e3779b97f4a7c15ull;
		memset(items, 0, sizeof(items));
		length = 0;
		for (uint64_t now = 1; now <= 2000; now++) {
			uint32_t scan_max = (uint32_t)(rnd() % (NODES + 5)), asked = 0;

			step(ops, p, lru, now);
			ck_assert_ptr_eq(ops->victim(p, unpinned, &asked, scan_max), model_victim(scan_max));
			ck_assert_uint_le(asked, scan_max);
		}
		for (int i = 0; i < NODES; i++) {
			if (!items[i].in)
				continue;
			ck_assert_uint_eq(items[i].node.uses, items[i].uses);
			ck_assert_uint_eq(items[i].node.last_use_us, items[i].last_use_us);
			ck_assert_uint_eq(items[i].node.id, 100 + (uint64_t)i);
		}
		/* Evicting until nothing is left gives the model's order. */
		for (int i = 0; i < NODES; i++)
			items[i].pinned = false;
		while (length > 0) {
			uint32_t asked = 0;
			struct policy_node *n = ops->victim(p, unpinned, &asked, 1);

			ck_assert_ptr_eq(n, &items[order[0]].node);
			ops->remove(p, n);
			model_remove(order[0]);
		}
		ck_assert_ptr_null(ops->victim(p, unpinned, &(uint32_t){ 0 }, UINT32_MAX));
		ops->destroy(p);
	}
}
END_TEST

/* In the order in which a walk tells of them. */
struct walked {
	const struct policy_node *at[NODES];
	uint32_t count, most;
};

static bool note_walked(const struct policy_node *n, void *arg)
{
	struct walked *w = arg;

	w->at[w->count++] = n;
	return w->count == w->most;
}

/* Whether a walk says in which order nodes will go; it ends when it is told to. */
static bool walks(const struct policy_ops *ops, struct policy *p, int in, struct walked *out)
{
	static const char *const names[] = { "lru", "fifo", "sieve", "gdsf", "graph" };
	struct walked some = { .most = 7 };
	bool known = false;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		known |= strcmp(ops->name, names[i]) == 0;
	*out = (struct walked){ .most = NODES + 1 };
	ck_assert_int_eq(ops->walk && ops->walk(p, note_walked, out, UINT32_MAX), known);
	if (!known)
		return false;
	ck_assert_uint_eq(out->count, (uint32_t)in);
	ck_assert(ops->walk(p, note_walked, &some, UINT32_MAX));
	ck_assert_uint_eq(some.count, in < 7 ? (uint32_t)in : 7);
	some = (struct walked){ .most = NODES + 1 };
	ck_assert(ops->walk(p, note_walked, &some, 5));
	ck_assert_uint_eq(some.count, in < 5 ? (uint32_t)in : 5);
	return true;
}

/* What holds of every row: a victim is in and may go, no more than scan_max are asked about, one is
 * found when one may go, and evicting until nothing is left gives every node once, in the order that a walk foretold. */
START_TEST(a_policy_keeps_the_contract)
{
	const struct policy_ops *ops = replay_policy_table[_i];

	for (uint64_t seed = 1; seed <= 5; seed++) {
		struct policy *p = ops->create(NODES);
		int in = 0, may_go = 0, gone = 0;
		struct walked foretold;
		bool told;

		ck_assert_ptr_nonnull(p);
		rng = seed * 0x9e3779b97f4a7c15ull;
		memset(items, 0, sizeof(items));
		length = 0;
		for (uint64_t now = 1; now <= 2000; now++) {
			uint32_t scan_max = (uint32_t)(rnd() % (NODES + 5)), asked = 0;
			struct policy_node *n;

			step(ops, p, false, now * 300000);
			n = ops->victim(p, unpinned, &asked, scan_max);
			ck_assert_uint_le(asked, scan_max);
			ck_assert(!n || (item_of(n)->in && !item_of(n)->pinned));
			in = may_go = 0;
			for (int i = 0; i < NODES; i++) {
				in += items[i].in;
				may_go += items[i].in && !items[i].pinned;
			}
			n = ops->victim(p, unpinned, &asked, UINT32_MAX);
			ck_assert_int_eq(n != NULL, may_go > 0);
		}
		for (int i = 0; i < NODES; i++)
			items[i].pinned = false;
		told = walks(ops, p, in, &foretold);
		for (; gone < in; gone++) {
			struct policy_node *n = ops->victim(p, unpinned, &(uint32_t){ 0 }, UINT32_MAX);

			ck_assert_ptr_nonnull(n);
			ck_assert(!told || n == foretold.at[gone]);
			ck_assert(item_of(n)->in);
			item_of(n)->in = false;
			ops->remove(p, n);
			ck_assert_ptr_null(n->prev);
			ck_assert_ptr_null(n->next);
		}
		ck_assert_ptr_null(ops->victim(p, unpinned, &(uint32_t){ 0 }, UINT32_MAX));
		ops->destroy(p);
	}
}
END_TEST

static bool may_go(const struct policy_node *n, void *arg)
{
	(void)arg;
	return !item_of(n)->pinned;
}

/* Whatever else is done: while a demoted node may go, one of these goes first. */
START_TEST(what_is_demoted_goes_first)
{
	const struct policy_ops *ops = replay_policy_table[_i];
	bool demoted[NODES] = { false };
	uint32_t checked = 0;
	struct policy *p;

	if (!ops->demote)
		return;
	p = ops->create(NODES);
	ck_assert_ptr_nonnull(p);
	rng = 7;
	memset(items, 0, sizeof(items));
	for (uint64_t now = 1; now <= 20000; now++) {
		const int i = (int)(rnd() % NODES);
		const struct policy_event e = event(i, now);
		struct policy_node *n = &items[i].node;
		const uint32_t what = (uint32_t)(rnd() % 8);
		const bool is = rnd() % 2;

		if (!items[i].in) {
			ops->insert(p, n, &e);
			items[i].in = true;
			items[i].uses = 0;
		} else if (what < 2) {
			if (is || demoted[i])
				ops->demote(p, n, is);
			demoted[i] = is;
			ck_assert_uint_eq(n->uses, items[i].uses);
		} else if (what < 4) {
			ops->use(p, n, &e);
			items[i].uses++;
			demoted[i] = false;
		} else if (what < 6) {
			ops->remove(p, n);
			items[i].in = demoted[i] = false;
		} else {
			items[i].pinned = is;
		}
		n = ops->victim(p, may_go, NULL, UINT32_MAX);
		bool any = false;

		for (int k = 0; k < NODES; k++)
			any |= demoted[k] && !items[k].pinned;
		ck_assert_msg(!any || (n && demoted[item_of(n) - items]), "%s, %d", ops->name, (int)now);
		checked += any;
	}
	ck_assert_uint_gt(checked, 1000);
	ops->destroy(p);
}
END_TEST

/* The order in which all nodes go. */
static void drain(const struct policy_ops *ops, struct policy *p, int out[NODES])
{
	for (int i = 0; i < NODES; i++) {
		struct policy_node *n = ops->victim(p, unpinned, &(uint32_t){ 0 }, UINT32_MAX);

		ck_assert_ptr_nonnull(n);
		out[i] = (int)(item_of(n) - items);
		ops->remove(p, n);
	}
	ops->destroy(p);
}

static struct policy *filled(const struct policy_ops *ops)
{
	struct policy *p = ops->create(NODES);

	ck_assert_ptr_nonnull(p);
	memset(items, 0, sizeof(items));
	for (int i = 0; i < NODES; i++) {
		const struct policy_event e = event(i, (uint64_t)i + 1);

		ops->insert(p, &items[i].node, &e);
	}
	return p;
}

/* A second demotion changes nothing, and neither does the end of one that is over. */
START_TEST(a_demotion_begins_and_ends_once)
{
	const struct policy_ops *ops = replay_policy_table[_i];
	const struct policy_event e = event(7, NODES + 1);
	int one[NODES], two[NODES];
	struct policy *p;

	if (!ops->demote)
		return;
	for (int twice = 0; twice < 2; twice++) {
		p = filled(ops);
		for (int i = 0; i <= twice; i++)
			ops->demote(p, &items[5].node, true);
		ops->demote(p, &items[3].node, true);
		if (twice)
			ops->demote(p, &items[5].node, true);
		ops->demote(p, &items[7].node, true);
		ops->use(p, &items[7].node, &e); /* ends it */
		for (int i = 0; twice && i < NODES; i++)
			if (i != 3 && i != 5)
				ops->demote(p, &items[i].node, false);
		drain(ops, p, twice ? two : one);
	}
	ck_assert_mem_eq(one, two, sizeof(one));
	ck_assert_int_eq(one[0], 3);
	ck_assert_int_eq(one[1], 5);
}
END_TEST

/* What was demoted for a while is back where its last use puts it, but that the search for that place is short. */
START_TEST(lru_puts_it_back)
{
	enum { SHORT = 16 };
	const struct policy_ops *ops = replay_policy_find("lru");
	int went[NODES];

	for (int i = 0; i < NODES; i++) {
		struct policy *p = filled(ops);

		ops->demote(p, &items[i].node, true);
		ops->demote(p, &items[i].node, false);
		drain(ops, p, went);
		ck_assert_int_eq(went[i < SHORT ? i : SHORT], i);
	}
}
END_TEST

START_TEST(uses_stay_at_their_maximum)
{
	const struct policy_ops *ops = replay_policy_table[_i];
	struct policy *p = ops->create(0);
	struct policy_node n = { 0 };
	struct policy_event fifth = event(0, 5), sixth = event(0, 6), seventh = event(0, 7);

	ops->insert(p, &n, &fifth);
	n.uses = UINT32_MAX - 1;
	ops->use(p, &n, &sixth);
	ops->use(p, &n, &seventh);
	ck_assert_uint_eq(n.uses, UINT32_MAX);
	ck_assert_uint_eq(n.last_use_us, 7);
	ops->remove(p, &n);
	ops->destroy(p);
	ops->destroy(NULL);
}
END_TEST

START_TEST(rows_are_found_by_name)
{
	ck_assert_str_eq(replay_policy_table[0]->name, "lru");
	for (const struct policy_ops *const *row = replay_policy_table; *row; row++) {
		ck_assert_ptr_eq(replay_policy_find((*row)->name), *row);
		ck_assert(strlen((*row)->help) > 0);
	}
	ck_assert_ptr_null(replay_policy_find("LRU"));
	ck_assert_ptr_null(replay_policy_find(""));
	for (const struct policy_ops *const *row = policy_table; *row; row++) {
		ck_assert_ptr_eq(policy_find((*row)->name), *row);
		ck_assert_ptr_eq(replay_policy_find((*row)->name), *row);
	}
	ck_assert_ptr_nonnull(replay_policy_find("fifo"));
	ck_assert_ptr_null(policy_find("fifo"));
	ck_assert_ptr_null(policy_find("arc"));
	ck_assert_ptr_null(policy_find("gdsf"));
	ck_assert_ptr_null(policy_find("LRU"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("eviction_policy");
	TCase *tc = tcase_create("policy");
	SRunner *runner;
	int failed, rows = 0;

	while (replay_policy_table[rows])
		rows++;
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, a_policy_agrees_with_the_model, 0, 2); /* lru and fifo: what the model knows */
	tcase_add_loop_test(tc, a_policy_keeps_the_contract, 0, rows);
	tcase_add_loop_test(tc, what_is_demoted_goes_first, 0, rows);
	tcase_add_loop_test(tc, a_demotion_begins_and_ends_once, 0, rows);
	tcase_add_test(tc, lru_puts_it_back);
	tcase_add_loop_test(tc, uses_stay_at_their_maximum, 0, rows);
	tcase_add_test(tc, rows_are_found_by_name);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
