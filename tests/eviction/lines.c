/* Lines of nodes by class and age against a naive model: the oldest node of each bucket, and all behind it. And ages that a restart is told. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/lines.h"
#include "eviction/memory.h"
#include "eviction/ranks.h"

enum { NODES = 6000, TEST_CLASSES = 5 };

#ifdef TERRACE_SANITIZED
enum { STEPS = 60000 };
#elif defined(TERRACE_TESTS_SMALL)
enum { STEPS = 150000 };
#else
enum { STEPS = 400000 };
#endif

struct model {
	struct lines lines;
	struct policy_node node[NODES];
	uint32_t class[NODES];
	uint64_t order[NODES];         /* of the push; 0: not in */
	uint64_t pushes, now_us, advanced_us;
};

static uint32_t bucket_of(const struct model *m, uint32_t i)
{
	const uint64_t used_us = m->node[i].last_use_us;

	return survival_bucket(used_us < m->advanced_us ? m->advanced_us - used_us : 0);
}

static void push(struct model *m, uint32_t i, uint32_t class)
{
	m->node[i].last_use_us = m->now_us;
	m->class[i] = class;
	m->order[i] = ++m->pushes;
	lines_push(&m->lines, &m->node[i], class);
	ck_assert_uint_eq(lines_class(&m->node[i]), class);
}

/* The line is in order by last use; of equals those that were there first go first. */
static void insert(struct model *m, uint32_t i, uint32_t class, uint64_t used_us)
{
	const uint64_t before = used_us < m->advanced_us ? m->advanced_us - used_us : 0;
	const uint32_t bucket = survival_bucket(before);

	ck_assert_uint_eq(lines_insert(&m->lines, &m->node[i], class, used_us), bucket);
	m->class[i] = class;
	m->order[i] = ++m->pushes;
	ck_assert_uint_ge(m->node[i].last_use_us, used_us);
	ck_assert_uint_eq(bucket_of(m, i), bucket);
}

static void pull(struct model *m, uint32_t i)
{
	lines_pull(&m->lines, &m->node[i]);
	ck_assert(!m->node[i].next && !m->node[i].prev);
	m->order[i] = 0;
}

static bool before(const struct model *m, uint32_t i, uint64_t used_us, uint64_t order)
{
	return m->node[i].last_use_us < used_us || (m->node[i].last_use_us == used_us && m->order[i] < order);
}

/* The first of a class and bucket behind one that was used then and came in as the order-th. */
static const struct policy_node *naive_next(const struct model *m, uint32_t class, uint32_t bucket, uint64_t used_us, uint64_t order)
{
	uint32_t best = NODES;

	for (uint32_t i = 0; i < NODES; i++)
		if (m->order[i] && m->order[i] != order && !before(m, i, used_us, order) && m->class[i] == class && bucket_of(m, i) == bucket &&
		    (best == NODES || before(m, i, m->node[best].last_use_us, m->order[best])))
			best = i;
	return best == NODES ? NULL : &m->node[best];
}

static void check_bucket(struct model *m, uint32_t class, uint32_t bucket, uint32_t steps)
{
	const uint32_t filled = m->lines.line[class].filled >> bucket & 1;
	const struct policy_node *n = lines_front(&m->lines, class, bucket);
	uint64_t order = 0, used_us = 0;

	ck_assert(!n || filled);
	ck_assert_uint_eq(m->lines.line[class].filled >> bucket & 1, n != NULL);
	do {
		ck_assert_ptr_eq(n, naive_next(m, class, bucket, used_us, order));
		if (n) {
			ck_assert_uint_eq(lines_bucket(&m->lines, n), bucket);
			order = m->order[n - m->node];
			used_us = n->last_use_us;
			n = lines_next(&m->lines, n);
		}
	} while (order && steps-- && n);
}

static void check_all(struct model *m)
{
	for (uint32_t c = 0; c < TEST_CLASSES; c++)
		for (uint32_t b = 0; b < SURVIVAL_BUCKETS; b++)
			check_bucket(m, c, b, 2);
}

/* Classes of very different sizes; time stands still, goes on and jumps; more marks are wanted than there are. */
static void step(struct model *m, uint64_t r)
{
	const uint32_t i = (uint32_t)(r >> 8) % NODES, class = (uint32_t)(r >> 40) % 16 % TEST_CLASSES * ((r >> 50) % 4 != 0);

	if (r % 4 == 0)
		m->now_us += (r >> 32) % (r % 1024 == 0 ? 3600000000ull : 20000);
	if (r % 97 == 0) {
		m->advanced_us = m->now_us;
		lines_advance(&m->lines, m->now_us);
	}
	if (m->order[i])
		pull(m, i);
	if ((r >> 24) % 8 == 1)
		insert(m, i, class, m->now_us - (r >> 36) % (m->now_us + 1) % (1 << (r >> 28) % 30));
	else if ((r >> 24) % 8)
		push(m, i, class);
}

static void run(uint64_t capacity, uint64_t seed)
{
	struct model *m = calloc(1, sizeof(*m));

	ck_assert(lines_init(&m->lines, capacity));
	for (uint64_t k = 0; k < STEPS; k++) {
		step(m, hash_mix(seed + k));
		if (k % 16 == 0)
			check_bucket(m, (uint32_t)(hash_mix(k) % TEST_CLASSES), (uint32_t)(hash_mix(k) >> 20) % SURVIVAL_BUCKETS, 0);
		if (k % 20000 == 0)
			check_all(m);
	}
	m->advanced_us = m->now_us += 100000000;
	lines_advance(&m->lines, m->now_us);
	check_all(m);
	for (uint32_t i = 0; i < NODES; i++)
		if (m->order[i])
			pull(m, i);
	check_all(m);
	lines_fini(&m->lines);
	lines_fini(&m->lines);
	free(m);
}

START_TEST(lines_are_as_a_naive_model_has_them)
{
	run(NODES, 1);
}
END_TEST

START_TEST(without_marks_enough_too)
{
	run(0, 2);
}
END_TEST

/* A million nodes grow old: what is asked of them then takes a few steps a mark, not one a node. */
START_TEST(marks_let_a_search_leap)
{
	enum { MANY = 1 << 20 };
	struct policy_node *node = calloc(MANY, sizeof(*node));
	uint32_t marked = 0, longest = 0, since = 0;
	struct lines l;

	ck_assert(lines_init(&l, MANY));
	for (uint32_t i = 0; i < MANY; i++) {
		node[i].last_use_us = i;
		lines_push(&l, &node[i], 1);
	}
	for (uint32_t i = 0; i < MANY; i++)
		if (i % 3) /* the marks of those that leave are handed on */
			lines_pull(&l, &node[i]);
	for (uint32_t i = 0; i < MANY; i += 3) {
		since++;
		if (node[i].queue >> LINES_MARK_SHIFT) {
			marked++;
			longest = since > longest ? since : longest;
			since = 0;
		}
	}
	ck_assert_uint_ge(marked, MANY / 64 - 1);
	ck_assert_uint_le(longest, 64);
	lines_advance(&l, MANY + survival_end_us(5));
	ck_assert_ptr_eq(lines_front(&l, 1, 5), NULL);
	ck_assert_ptr_eq(lines_front(&l, 1, 6), &node[0]);
	lines_fini(&l);
	free(node);
}
END_TEST

/* ---- by age, over all classes ---- */

enum { RANKED = 3000 };

struct order {
	uint32_t count;
	const struct policy_node *at[RANKED];
};

static bool note(const struct policy_node *n, void *arg)
{
	struct order *o = arg;

	ck_assert_uint_lt(o->count, RANKED);
	o->at[o->count++] = n;
	return false;
}

static bool any(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

/* Many are equally old, and many of these worth the same. */
START_TEST(a_walk_by_age_goes_as_victims_do)
{
	static struct policy_node nodes[RANKED];
	static struct survival survival;
	static uint16_t classes[CLASSES];
	static struct ranked ranked;
	static struct ranks ranks;
	static struct order order;
	uint64_t now_us = 1000000;

	for (uint32_t c = 0; c < CLASSES; c++) {
		classes[c] = (uint16_t)c;
		for (uint32_t b = 0; b < SURVIVAL_BUCKETS; b++)
			survival.worth[c][b] = (float)(1 + (7 * c + b) % 5);
	}
	ranks_make(&ranks, &survival, classes, CLASSES, true);
	ck_assert(ranked_init(&ranked, RANKED, &ranks));
	for (uint32_t i = 0; i < RANKED; i++) {
		now_us += hash_mix(i) % 4 ? 0 : 50000;
		nodes[i] = (struct policy_node){ .id = i + 1, .last_use_us = now_us };
		ranked_push(&ranked, &nodes[i], (uint32_t)(hash_mix(i + RANKED) % CLASSES));
	}
	lines_advance(&ranked.lines, now_us + 1000000);
	ranked_refill(&ranked);
	ranked_walk(&ranked, &survival, note, &order, UINT32_MAX);
	ck_assert_uint_eq(order.count, RANKED);
	for (uint32_t i = 0; i < RANKED; i++) {
		struct policy_node *victim = ranked_victim(&ranked, &survival, any, NULL, UINT32_MAX);

		ck_assert_ptr_eq(victim, order.at[i]);
		lines_pull(&ranked.lines, victim);
	}
	ranked_fini(&ranked);
}
END_TEST

/* Nothing was used a month ago and just now. */
START_TEST(a_month_is_no_moment)
{
	static const uint64_t days[] = { 0, 1, 24, 25, 30, 49 };
	static struct memory m;
	struct memory_kept k;

	ck_assert(memory_init(&m, 8));
	memory_access(&m, memory_make(&m, 5), 5, 0, 1, 7000000);
	memory_find(&m, 5)->uses = 1;
	for (size_t i = 0; i < sizeof(days) / sizeof(days[0]); i++) {
		const uint64_t ms = days[i] * 86400 * 1000;

		ck_assert(memory_keep(&m, 0, 7000000 + ms * 1000, &k));
		ck_assert_uint_eq(k.age_ms, ms < INT32_MAX ? ms : INT32_MAX);
	}
	ck_assert(memory_keep(&m, 0, 6500000, &k)); /* told by a clock that is a tick behind */
	ck_assert_uint_eq(k.age_ms, 0);
	memory_fini(&m);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("policy_lines");
	TCase *t = tcase_create("all");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_test(t, lines_are_as_a_naive_model_has_them);
	tcase_add_test(t, without_marks_enough_too);
	tcase_add_test(t, marks_let_a_search_leap);
	tcase_add_test(t, a_walk_by_age_goes_as_victims_do);
	tcase_add_test(t, a_month_is_no_moment);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
