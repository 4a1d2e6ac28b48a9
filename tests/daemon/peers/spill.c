/* To which member blocks are offered (daemon/peers/spill.h). */
#include "daemon/block/by_id.h"
#include "daemon/directory/name.h"
#include "daemon/members/members.h"
#include "daemon/peers/spill.h"
#include "store/index.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 8, SEGMENTS = 4000 };

static struct member of[MEMBERS];

static struct spills *begin(void)
{
	for (uint32_t i = 0; i < MEMBERS; i++) {
		of[i] = (struct member){ .peer_protocol = 2, .same_secret = { 1 } };
		memset(of[i].node, (int)(i * 37 + 1), sizeof of[i].node);
	}
	return spills_create();
}

static const struct member *choose(struct spills *s, uint64_t segment, uint64_t now_us)
{
	return spills_choose(s, of, MEMBERS, 0, segment * 0x9e3779b97f4a7c15ull, now_us);
}

/* A segment always goes to one member; all get about as many; if one leaves, only its own segments move. */
START_TEST(a_segment_has_one_member)
{
	struct spills *s = begin();
	uint32_t count[MEMBERS] = { 0 };
	uint8_t at[SEGMENTS];

	for (uint64_t i = 0; i < SEGMENTS; i++) {
		at[i] = (uint8_t)(choose(s, i, 0) - of);
		count[at[i]]++;
		ck_assert_ptr_eq(choose(s, i, 5), &of[at[i]]);
	}
	for (uint32_t i = 0; i < MEMBERS; i++)
		ck_assert(count[i] > SEGMENTS / MEMBERS / 2 && count[i] < SEGMENTS / MEMBERS * 2);
	of[3].draining = true;
	for (uint64_t i = 0; i < SEGMENTS; i++)
		ck_assert_int_eq(choose(s, i, 0) == &of[at[i]], at[i] != 3);
	spills_destroy(s);
}
END_TEST

START_TEST(members_that_cannot_take_are_left_out)
{
	struct spills *s = begin();

	of[0].self = of[1].absent = of[2].draining = true;
	of[3].peer_protocol = 1;
	of[4].same_secret[0] = 2;
	for (uint64_t i = 0; i < SEGMENTS; i++)
		ck_assert(choose(s, i, 0) >= &of[5]);
	of[5].self = of[6].self = of[7].self = true;
	ck_assert_ptr_null(choose(s, 1, 0));
	spills_destroy(s);
}
END_TEST

/* A refusal holds for 5 s, the next for 10 s, 5 min at most; something taken ends it. */
START_TEST(a_refusal_doubles)
{
	struct spills *s = begin();
	const uint8_t *node = choose(s, 7, 0)->node;
	uint64_t now = 1000, wait = SPILL_AGAIN_US;

	for (uint32_t i = 0; i < 12; i++) {
		spills_note_end(s, node, i % 2 ? SPILL_NO_ROOM : SPILL_FAILED, now);
		ck_assert_ptr_ne(choose(s, 7, now + wait - 1)->node, node);
		ck_assert_ptr_eq(choose(s, 7, now + wait)->node, node);
		now += wait;
		wait = 2 * wait < SPILL_AGAIN_US_MAX ? 2 * wait : SPILL_AGAIN_US_MAX;
	}
	ck_assert_uint_eq(wait, SPILL_AGAIN_US_MAX);
	spills_note_end(s, node, SPILL_TAKEN, now);
	spills_note_end(s, node, SPILL_BUSY, now);
	ck_assert_ptr_null(choose(s, 7, now + SPILL_SOON_US - 1)); /* it is waited for */
	ck_assert_ptr_eq(choose(s, 7, now + SPILL_SOON_US)->node, node);
	spills_note_end(s, node, SPILL_NO_ROOM, now);
	ck_assert_ptr_eq(choose(s, 7, now + SPILL_AGAIN_US)->node, node);
	spills_destroy(s);
}
END_TEST

START_TEST(what_was_taken_is_known)
{
	struct spills *s = begin();
	struct directory_run at, one = { .node = "one", .epoch = 1 }, two = { .node = "two", .epoch = 2 };
	const struct index_ident name = { 1, 1, 3, (const uint8_t *)"abc" };

	ck_assert(!spills_find(s, &name, &at));
	spills_note_taken(s, block_id(&name), &one);
	ck_assert(spills_find(s, &name, &at) && directory_run_equal(&at, &one));
	spills_note_taken(s, block_id(&name), &two);
	spills_forget(s, &name, &one);
	ck_assert(spills_find(s, &name, &at) && directory_run_equal(&at, &two));
	spills_forget(s, &name, &two);
	ck_assert(!spills_find(s, &name, NULL));
	spills_destroy(s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("peers_spill");
	TCase *t = tcase_create("peers_spill");
	SRunner *runner;
	int failures;

	tcase_add_test(t, a_segment_has_one_member);
	tcase_add_test(t, members_that_cannot_take_are_left_out);
	tcase_add_test(t, a_refusal_doubles);
	tcase_add_test(t, what_was_taken_is_known);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
