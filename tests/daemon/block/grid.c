/* The grid against its plain definition (daemon/prefix_model.h), and what OpenSession may not say. */
#include "daemon/block/grid.h"

#include "daemon/block/key.h"
#include "kernels/format.h"
#include "tests/daemon/cache_rig.h"
#include "tests/daemon/prefix_model.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 48, UNIT = 16 };

static uint32_t below(uint32_t n)
{
	return (uint32_t)rand() % n;
}

/* A session of 1 to 8 layouts of 1 to 8 units, and a call with some of its blocks stored. */
static void random_model(struct model *m, bool *stored, uint32_t first)
{
	static const uint32_t windows[] = { 1, 2, 15, 16, 17, 18, 33, 100, 128, 129, 1000, 100000 };
	const uint32_t holes = 1 + below(40);

	*m = (struct model){ .unit = UNIT, .layouts = 1 + below(MODEL_LAYOUTS), .first = first,
			     .keys = below(KEYS + 1), .stored = stored };
	for (uint32_t l = 0; l < m->layouts; l++) {
		struct model_layout *x = &m->layout[l];

		*x = (struct model_layout){ .units = 1 + below(8), .partial = below(2) };
		if (below(3) == 0)
			x->window = windows[below(sizeof(windows) / sizeof(windows[0]))];
		else if (below(2))
			x->last = 1 + below(4);
	}
	for (uint32_t i = 0; i < m->keys; i++)
		for (uint32_t l = 0; l < m->layouts; l++)
			stored[i * m->layouts + l] = model_has_cell(m, l, m->first + i) && below(holes) != 0;
}

static bool grid_of(const struct model *m, struct grid *g)
{
	struct kv_layout layouts[MODEL_LAYOUTS];
	struct grid_wish wishes[MODEL_LAYOUTS];

	for (uint32_t l = 0; l < m->layouts; l++) {
		layouts[l] = rig_layout(l, m->layout[l].window);
		layouts[l].block_tokens = m->layout[l].units * m->unit;
		wishes[l] = (struct grid_wish){ .last = m->layout[l].last, .partial = m->layout[l].partial };
	}
	return !grid_make(g, m->unit, layouts, m->layouts, wishes);
}

static uint32_t prefix_of(const struct grid *g, const struct model *m)
{
	struct grid_run run;
	struct prefix p;

	prefix_begin(&p, m->keys);
	for (uint32_t l = 0; l < m->layouts; l++) {
		grid_run_begin(&run, &g->rule[l], m->first);
		for (uint32_t i = 0; i < m->keys; i++)
			grid_run_feed(&p, &run, m->stored[i * m->layouts + l], false);
	}
	return prefix_longest(&p);
}

static void check_cells(const struct grid *g, const struct model *m)
{
	uint64_t cells = 0;

	for (uint32_t l = 0; l < m->layouts; l++) {
		struct grid_rule packed = grid_rule_unpack(grid_rule_pack(&g->rule[l]));

		ck_assert_int_eq(packed.need, g->rule[l].need);
		ck_assert_int_eq(packed.units, g->rule[l].units);
		ck_assert_int_eq(packed.slack, g->rule[l].slack);
		ck_assert(packed.partial == g->rule[l].partial && packed.sparse == g->rule[l].sparse);
		for (uint32_t i = 0; i < m->keys; i++) {
			ck_assert_int_eq(grid_has_cell(&g->rule[l], m->first + i), model_has_cell(m, l, m->first + i));
			cells += model_has_cell(m, l, m->first + i);
		}
	}
	ck_assert_uint_eq(grid_cells(g, m->first, m->keys), cells);
}

/* Of every length, usable or not. */
static void check_needs(const struct grid *g, const struct model *m)
{
	struct grid_need need;

	for (uint32_t l = 0; l < m->layouts; l++)
		for (uint32_t n = 0; n <= m->keys; n++) {
			grid_need(&g->rule[l], m->first, n, false, &need);
			for (uint32_t i = 0; i < m->keys; i++)
				ck_assert_int_eq(grid_needs(&need, m->first + i),
						 n && model_needs(m, l, m->first + n, m->first + i));
		}
}

START_TEST(the_grid_is_that_of_the_definition)
{
	bool stored[KEYS * MODEL_LAYOUTS];
	uint32_t longer = 0, made = 0;
	struct model m;
	struct grid g;

	srand(11);
	for (uint32_t i = 0; i < RIG_ROUNDS(4000); i++) {
		random_model(&m, stored, below(3) ? 0 : below(40));
		if (!grid_of(&m, &g))
			continue;
		made++;
		g.unit = UNIT; /* also what is plain is a grid */
		ck_assert_uint_eq(prefix_of(&g, &m), model_prefix(&m));
		longer += model_prefix(&m) > 0;
		check_cells(&g, &m);
		if (i % 32 == 0)
			check_needs(&g, &m);
	}
	ck_assert_uint_gt(made, RIG_ROUNDS(4000) / 2);
	ck_assert_uint_gt(longer, made / 4);
}
END_TEST

/* A prefix that is usable is a multiple of what OpenSession's reply says. */
START_TEST(prefixes_are_multiples)
{
	bool stored[KEYS * MODEL_LAYOUTS];
	struct model m;
	struct grid g;

	srand(12);
	for (uint32_t i = 0; i < RIG_ROUNDS(4000); i++) {
		random_model(&m, stored, 0);
		if (grid_of(&m, &g))
			ck_assert_uint_eq(model_prefix(&m) % grid_multiple(&g), 0);
	}
}
END_TEST

static const char *problem_of(uint32_t unit, uint32_t tokens, uint32_t other_tokens, uint32_t window,
			      struct grid_wish wish)
{
	const struct grid_wish wishes[2] = { { .last = 0 }, wish };
	struct kv_layout layouts[2] = { rig_layout(0, 0), rig_layout(1, window) };
	const char *problem;
	struct grid g;

	layouts[0].block_tokens = tokens;
	layouts[1].block_tokens = other_tokens;
	problem = grid_make(&g, unit, layouts, 2, wishes);
	return problem ? problem : "";
}

START_TEST(what_cannot_be_met_is_refused)
{
	const struct grid_wish none = { .last = 0 };

	ck_assert_str_eq(problem_of(16, 64, 128, 0, none), "");
	ck_assert_str_eq(problem_of(0, 64, 64, 0, none), "");
	ck_assert_ptr_nonnull(strstr(problem_of(0, 64, 128, 0, none), "same block_tokens"));
	ck_assert_ptr_nonnull(strstr(problem_of(48, 48, 64, 0, none), "no multiple"));
	ck_assert_ptr_nonnull(strstr(problem_of(16, 64, 64, 32, (struct grid_wish){ .last = 1 }), "not both"));
	ck_assert_ptr_nonnull(strstr(problem_of(16, 64, 64, 0, (struct grid_wish){ .last = 4097 }), "more than 4096"));
	ck_assert_ptr_nonnull(strstr(problem_of(16, 64, 64, 0, (struct grid_wish){ .sparse = true }), "sparse"));
	ck_assert_str_eq(problem_of(16, 64, 64, 32, (struct grid_wish){ .sparse = true }), "");
	ck_assert_str_eq(problem_of(16, 64, 64, 0, (struct grid_wish){ .last = 1, .sparse = true }), "");
	ck_assert_str_eq(problem_of(1, 64, 240, 0, none), ""); /* 960 */
	ck_assert_ptr_nonnull(strstr(problem_of(1, 272, 256, 0, none), "no call")); /* 4352 */
	ck_assert_str_eq(problem_of(1, 272, 256, 0, (struct grid_wish){ .partial = true }), "");
}
END_TEST

START_TEST(what_is_plain_stays_plain)
{
	struct kv_layout layouts[2] = { rig_layout(0, 0), rig_layout(1, 100) };
	struct grid_wish wishes[2] = { { .partial = true }, { .last = 0 } };
	struct grid g;

	ck_assert_ptr_null(grid_make(&g, 0, layouts, 2, NULL));
	ck_assert(grid_is_plain(&g));
	ck_assert_ptr_null(grid_make(&g, RIG_TOKENS, layouts, 2, wishes)); /* a block of one unit is never partial */
	ck_assert(grid_is_plain(&g));
	wishes[0].last = 1;
	ck_assert_ptr_null(grid_make(&g, 0, layouts, 2, wishes));
	ck_assert(!grid_is_plain(&g));
	layouts[0].block_tokens = layouts[1].block_tokens = 64;
	ck_assert_ptr_null(grid_make(&g, 16, layouts, 2, NULL));
	ck_assert(!grid_is_plain(&g) && g.chained);
	ck_assert_uint_eq(grid_multiple(&g), 4);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { the_grid_is_that_of_the_definition, prefixes_are_multiples,
				       what_cannot_be_met_is_refused, what_is_plain_stays_plain };

	return rig_main("grid", tests, sizeof(tests) / sizeof(tests[0]));
}
