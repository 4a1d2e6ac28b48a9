/* The list of a layout's blocks that are on no disk, and walks along it whose blocks leave, come back and are replaced. */
#include "daemon/block/unwritten.h"

#include "daemon/block/block.h"
#include "daemon/block/layout_pool.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 8 };

struct world {
	struct layout_pool pool;
	struct block block[BLOCKS];
};

static void world_make(struct world *w)
{
	memset(w, 0, sizeof(*w));
	for (int i = 0; i < BLOCKS; i++) {
		w->block[i].pool = &w->pool;
		unwritten_set(&w->block[i], true);
	}
}

/* The number of the next one; -1 at the end. */
static int next_of(struct world *w, struct unwritten_walk *walk)
{
	uint32_t budget = 1;
	struct block *b = unwritten_walk_next(walk, &budget);

	ck_assert_uint_eq(budget, b ? 0 : 1);
	return b ? (int)(b - w->block) : -1;
}

START_TEST(each_once_in_the_order_in_which_they_came)
{
	struct unwritten_walk walk = { .list = NULL };
	struct world w;
	uint32_t budget = 3;

	world_make(&w);
	unwritten_walk_begin(&walk, &w.pool);
	for (int i = 0; i < BLOCKS; i++)
		ck_assert_int_eq(next_of(&w, &walk), i);
	ck_assert_int_eq(next_of(&w, &walk), -1);
	unwritten_set(&w.block[2], false);
	unwritten_set(&w.block[2], false);
	unwritten_set(&w.block[2], true); /* to the end: the walk sees it anew */
	unwritten_set(&w.block[3], true); /* is there: keeps its place */
	ck_assert_int_eq(next_of(&w, &walk), 2);
	ck_assert_int_eq(next_of(&w, &walk), -1);
	unwritten_walk_back(&walk);
	ck_assert_int_eq(next_of(&w, &walk), 2);
	unwritten_walk_begin(&walk, &w.pool);
	for (int i = 0; i < 3; i++)
		ck_assert_ptr_nonnull(unwritten_walk_next(&walk, &budget));
	ck_assert_ptr_null(unwritten_walk_next(&walk, &budget));
	ck_assert_uint_eq(budget, 0);
	ck_assert_int_eq(next_of(&w, &walk), 4);
	unwritten_walk_end(&walk);
	unwritten_walk_end(&walk);
	ck_assert_ptr_null(w.pool.unwritten.walks);
}
END_TEST

/* The block on which walks stand leaves: both go on behind it. */
START_TEST(walks_outlive_what_they_stand_on)
{
	struct unwritten_walk at[2] = { { .list = NULL }, { .list = NULL } };
	struct world w;

	world_make(&w);
	for (int i = 0; i < 2; i++) {
		unwritten_walk_begin(&at[i], &w.pool);
		ck_assert_int_eq(next_of(&w, &at[i]), 0);
	}
	ck_assert_int_eq(next_of(&w, &at[0]), 1);
	unwritten_set(&w.block[1], false);
	unwritten_set(&w.block[0], false); /* the first: both stand before all */
	ck_assert_int_eq(next_of(&w, &at[0]), 2);
	ck_assert_int_eq(next_of(&w, &at[1]), 2);
	ck_assert_int_eq(next_of(&w, &at[0]), 3);
	unwritten_set(&w.block[7], false); /* the last */
	unwritten_walk_back(&at[0]);
	unwritten_walk_back(&at[0]);
	ck_assert_int_eq(next_of(&w, &at[0]), 2);
	for (int i = 3; i < 7; i++)
		ck_assert_int_eq(next_of(&w, &at[1]), i);
	ck_assert_int_eq(next_of(&w, &at[1]), -1);
	unwritten_walk_end(&at[0]);
	ck_assert_ptr_eq(w.pool.unwritten.walks, &at[1]);
	unwritten_walk_end(&at[1]);
}
END_TEST

/* Against a plain array, with walks that are to see each that stays exactly once. */
START_TEST(as_a_plain_list)
{
	struct unwritten_walk walk = { .list = NULL };
	int order[BLOCKS], count = BLOCKS, at = 0; /* order[at]: the next one of the walk */
	struct world w;

	world_make(&w);
	for (int i = 0; i < BLOCKS; i++)
		order[i] = i;
	srand(7);
	unwritten_walk_begin(&walk, &w.pool);
	for (int round = 0; round < RIG_ROUNDS(100000); round++) {
		const int n = rand() % BLOCKS;
		int place = 0;

		if (rand() % 3 == 0) {
			ck_assert_int_eq(next_of(&w, &walk), at < count ? order[at] : -1);
			at += at < count;
			continue;
		}
		while (place < count && order[place] != n)
			place++;
		if (place == count) {
			order[count++] = n;
		} else {
			memmove(&order[place], &order[place + 1], (size_t)(--count - place) * sizeof(order[0]));
			at -= place < at;
		}
		unwritten_set(&w.block[n], !w.block[n].unwritten);
		if (at == count && rand() % 4 == 0) {
			unwritten_walk_begin(&walk, &w.pool);
			at = 0;
		}
	}
	unwritten_walk_end(&walk);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { each_once_in_the_order_in_which_they_came, walks_outlive_what_they_stand_on,
				       as_a_plain_list };

	return rig_main("cache_unwritten", tests, sizeof(tests) / sizeof(tests[0]));
}
