/* s3fifo, sieve, arc and gdsf against naive models: arrays, searched from end to end, that follow the
 * papers word by word. A cache of CAPACITY blocks serves a random sequence; policy and model must name
 * the same victim each time.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/policy.h"
#include "eviction/replay/policies.h"

enum { CAPACITY = 37, IDS = 160, STEPS = 6000 };

/* A list of ids, first to go first. */
struct list {
	int id[4 * CAPACITY];
	int count;
};

struct model {
	struct list queue[2], ghosts[2];
	int mark[IDS + 1];      /* sieve's bit, s3fifo's count */
	int hand;               /* sieve: an id, 0 for none */
	double target;          /* arc */
	long age, priority[IDS + 1], level[IDS + 1], uses[IDS + 1], growth; /* gdsf */
};

static struct policy_node nodes[IDS + 1];
static uint64_t rng;

static uint64_t rnd(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng;
}

static int at(const struct list *l, int id)
{
	for (int i = 0; i < l->count; i++)
		if (l->id[i] == id)
			return i;
	return -1;
}

static void append(struct list *l, int id)
{
	l->id[l->count++] = id;
}

static bool take(struct list *l, int id)
{
	int i = at(l, id);

	if (i < 0)
		return false;
	memmove(l->id + i, l->id + i + 1, (size_t)(l->count - i - 1) * sizeof(l->id[0]));
	l->count--;
	return true;
}

static void trim(struct list *l, int count)
{
	while (l->count > count)
		take(l, l->id[0]);
}

/* ---- sieve ---- */

static void sieve_insert(struct model *m, int id)
{
	append(&m->queue[0], id);
	m->mark[id] = 0;
}

static void sieve_use(struct model *m, int id)
{
	m->mark[id] = 1;
}

static int sieve_victim(struct model *m)
{
	int i = m->hand ? at(&m->queue[0], m->hand) : 0;

	while (m->mark[m->queue[0].id[i]]) {
		m->mark[m->queue[0].id[i]] = 0;
		i = (i + 1) % m->queue[0].count;
	}
	m->hand = m->queue[0].id[i];
	return m->hand;
}

static void sieve_remove(struct model *m, int id)
{
	int i = at(&m->queue[0], id);

	if (m->hand == id)
		m->hand = i + 1 < m->queue[0].count ? m->queue[0].id[i + 1] : 0;
	take(&m->queue[0], id);
}

/* ---- s3fifo ---- */

static void s3fifo_insert(struct model *m, int id)
{
	append(&m->queue[take(&m->ghosts[0], id)], id);
	m->mark[id] = 0;
}

static void s3fifo_use(struct model *m, int id)
{
	m->mark[id] += m->mark[id] < 3;
}

static int s3fifo_victim(struct model *m)
{
	int all = m->queue[0].count + m->queue[1].count;

	for (;;) {
		int which = m->queue[0].count > all * 10 / 100 || !m->queue[1].count ? 0 : 1;
		int id = m->queue[which].id[0];

		if (m->mark[id] < (which ? 1 : 2))
			return id;
		m->mark[id] = which ? m->mark[id] - 1 : 0;
		take(&m->queue[which], id);
		append(&m->queue[1], id);
	}
}

static void s3fifo_remove(struct model *m, int id)
{
	if (take(&m->queue[0], id)) {
		append(&m->ghosts[0], id);
		trim(&m->ghosts[0], CAPACITY - CAPACITY * 10 / 100);
	}
	take(&m->queue[1], id);
}

/* ---- arc ---- */

static void arc_insert(struct model *m, int id)
{
	for (int i = 0; i < 2; i++) {
		double other, mine;

		if (!take(&m->ghosts[i], id))
			continue;
		mine = m->ghosts[i].count + 1;
		other = m->ghosts[!i].count;
		m->target += (i ? -1 : 1) * (other > mine ? other / mine : 1);
		m->target = m->target < 0 ? 0 : m->target > CAPACITY ? CAPACITY : m->target;
		append(&m->queue[1], id);
		return;
	}
	append(&m->queue[0], id);
}

static void arc_use(struct model *m, int id)
{
	if (!take(&m->queue[0], id))
		take(&m->queue[1], id);
	append(&m->queue[1], id);
}

static int arc_victim(struct model *m)
{
	if (m->queue[0].count && m->queue[0].count >= m->target)
		return m->queue[0].id[0];
	return m->queue[1].count ? m->queue[1].id[0] : m->queue[0].id[0];
}

static void arc_remove(struct model *m, int id)
{
	int which = at(&m->queue[0], id) < 0;

	take(&m->queue[which], id);
	append(&m->ghosts[which], id);
	trim(&m->ghosts[0], CAPACITY - m->queue[0].count);
	trim(&m->ghosts[1], 2 * CAPACITY - m->queue[0].count - m->queue[1].count - m->ghosts[0].count);
}

/* ---- gdsf: uses x cost in sixteenths, rounded down to a quarter of an octave ---- */

static void gdsf_rate(struct model *m, int id)
{
	long cost = 16 + 16 * (long)(id % 7) * 4096 / m->growth, worth = m->uses[id] * (cost < 128 ? cost : 128), level = 0;
	static const long quarter[4] = { 16, 19, 23, 27 };

	while (level < 47 && quarter[(level + 1) % 4] << (level + 1) / 4 <= worth)
		level++;
	m->level[id] = level;
	m->priority[id] = m->age + (quarter[level % 4] << level / 4);
	take(&m->queue[0], id);
	append(&m->queue[0], id);
}

static void gdsf_insert(struct model *m, int id)
{
	m->uses[id] = 1;
	gdsf_rate(m, id);
}

static void gdsf_use(struct model *m, int id)
{
	m->uses[id]++;
	gdsf_rate(m, id);
}

static int gdsf_victim(struct model *m)
{
	int best = m->queue[0].id[0];

	for (int i = 1; i < m->queue[0].count; i++) {
		int id = m->queue[0].id[i];

		if (m->priority[id] < m->priority[best] ||
		    (m->priority[id] == m->priority[best] && m->level[id] < m->level[best]))
			best = id;
	}
	return best;
}

static void gdsf_remove(struct model *m, int id)
{
	m->age = m->priority[id];
	take(&m->queue[0], id);
}

static const struct {
	const char *name;
	uint32_t growth;        /* 0: not told */
	void (*insert)(struct model *, int), (*use)(struct model *, int);
	int (*victim)(struct model *);
	void (*remove)(struct model *, int);
} models[] = {
	{ "sieve", 0, sieve_insert, sieve_use, sieve_victim, sieve_remove },
	{ "s3fifo", 0, s3fifo_insert, s3fifo_use, s3fifo_victim, s3fifo_remove },
	{ "arc", 0, arc_insert, arc_use, arc_victim, arc_remove },
	{ "gdsf", 0, gdsf_insert, gdsf_use, gdsf_victim, gdsf_remove },
	{ "gdsf", 3000, gdsf_insert, gdsf_use, gdsf_victim, gdsf_remove }, /* what is deep costs as much as it may */
};

static bool any(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

/* Half of the requests go to a few ids, the rest anywhere. */
static int pick(void)
{
	return (int)(rnd() % 2 ? rnd() % (IDS / 5) : rnd() % IDS) + 1;
}

START_TEST(victims_are_the_models)
{
	const struct policy_ops *ops = replay_policy_find(models[_i].name);

	ck_assert_ptr_nonnull(ops);
	for (uint64_t seed = 1; seed <= 5; seed++) {
		struct policy *p = policy_create(ops, CAPACITY, models[_i].growth);
		struct model m = { .growth = models[_i].growth ? models[_i].growth : 32768 };
		int used = 0;

		rng = seed * 0x9e3779b97f4a7c15ull;
		memset(nodes, 0, sizeof(nodes));
		for (uint64_t now = 1; now <= STEPS; now++) {
			int id = pick();
			struct policy_event e = { .now_us = now, .id = (uint64_t)id, .position = (uint32_t)(id % 7),
						  .tokens = 4096 };

			if (nodes[id].prev) {
				ops->use(p, &nodes[id], &e);
				models[_i].use(&m, id);
				continue;
			}
			if (used == CAPACITY) {
				int victim = models[_i].victim(&m);

				ck_assert_ptr_eq(ops->victim(p, any, NULL, UINT32_MAX), &nodes[victim]);
				/* Asking again changes nothing. */
				ck_assert_ptr_eq(ops->victim(p, any, NULL, UINT32_MAX), &nodes[victim]);
				ops->remove(p, &nodes[victim]);
				models[_i].remove(&m, victim);
				used--;
			}
			ops->insert(p, &nodes[id], &e);
			models[_i].insert(&m, id);
			used++;
		}
		ops->destroy(p);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("policy_models");
	TCase *tc = tcase_create("models");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, victims_are_the_models, 0, (int)(sizeof(models) / sizeof(models[0])));
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
