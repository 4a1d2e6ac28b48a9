/* Rendezvous hashing: it is even, only what must moves, and the order of the list does not matter. */
#include "daemon/directory/owners.h"

#include "tests/daemon/directory/rig.h"

enum { MEMBERS = 50, SEGMENTS = 20000 };

static struct owners *make(const struct directory_member *at, uint32_t count)
{
	struct owners *o;

	ck_assert_int_eq(owners_create(at, count, &o), STATUS_OK);
	return o;
}

static void fill(struct directory_member *at, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		at[i] = rig_member(i, 1);
}

START_TEST(few_members)
{
	struct directory_member at[3];
	uint32_t of[2];

	fill(at, 3);
	for (uint32_t count = 0; count <= 3; count++) {
		struct owners *o = make(at, count);

		owners_of(o, 77, of);
		ck_assert(count > 0 ? of[0] < count : of[0] == OWNERS_NONE);
		ck_assert(count > 1 ? of[1] < count && of[1] != of[0] : of[1] == OWNERS_NONE);
		ck_assert_uint_eq(owners_members(o), count);
		for (uint32_t i = 0; i < 3; i++)
			ck_assert_uint_eq(owners_find(o, at[i].run.node), i < count ? i : OWNERS_NONE);
		owners_drop(owners_hold(o));
		owners_drop(o);
	}
	owners_drop(NULL);
}
END_TEST

START_TEST(they_are_even)
{
	struct directory_member at[MEMBERS];
	uint32_t owned[2][MEMBERS] = { 0 }, of[2];
	struct owners *o;

	fill(at, MEMBERS);
	o = make(at, MEMBERS);
	for (uint64_t s = 0; s < SEGMENTS; s++) {
		owners_of(o, rig_hash(s), of);
		ck_assert_uint_ne(of[0], of[1]);
		owned[0][of[0]]++;
		owned[1][of[1]]++;
	}
	/* 400 each, with a standard deviation of 20. */
	for (uint32_t i = 0; i < MEMBERS; i++)
		for (uint32_t k = 0; k < 2; k++) {
			ck_assert_uint_gt(owned[k][i], 300);
			ck_assert_uint_lt(owned[k][i], 500);
		}
	owners_drop(o);
}
END_TEST

/* Whoever leaves, nothing else moves, and a second owner becomes the first. Another epoch moves nothing; nor does the
 * order of the list. */
START_TEST(little_moves)
{
	struct directory_member at[MEMBERS], fewer[MEMBERS];
	struct owners *o, *less;
	const uint32_t leaves = (uint32_t)_i * 7 % MEMBERS;
	uint32_t count = 0, of[2], now[2];

	fill(at, MEMBERS);
	o = make(at, MEMBERS);
	for (uint32_t i = MEMBERS; i-- > 0;)
		if (i != leaves)
			fewer[count++] = rig_member(i, 2);
	less = make(fewer, count);
	for (uint64_t s = 0; s < SEGMENTS; s++) {
		struct directory_member now_at[2];

		owners_of(o, rig_hash(s), of);
		owners_of(less, rig_hash(s), now);
		for (uint32_t k = 0; k < 2; k++)
			now_at[k] = *owners_member(less, now[k]);
		if (of[0] != leaves)
			ck_assert_mem_eq(now_at[0].run.node, at[of[0]].run.node, DIRECTORY_NODE_BYTES);
		else
			ck_assert_mem_eq(now_at[0].run.node, at[of[1]].run.node, DIRECTORY_NODE_BYTES);
		if (of[0] != leaves && of[1] != leaves)
			ck_assert_mem_eq(now_at[1].run.node, at[of[1]].run.node, DIRECTORY_NODE_BYTES);
	}
	owners_drop(o);
	owners_drop(less);
}
END_TEST

START_TEST(who_drains_owns_nothing)
{
	struct directory_member at[4];
	uint32_t of[2];
	struct owners *o;

	fill(at, 4);
	at[1].draining = at[3].draining = true;
	o = make(at, 4);
	for (uint64_t s = 0; s < 1000; s++) {
		owners_of(o, rig_hash(s), of);
		ck_assert_uint_eq(of[0] + of[1], 2); /* 0 and 2 */
	}
	ck_assert_uint_eq(owners_find(o, at[3].run.node), 3);
	owners_drop(o);
	at[0].draining = at[2].draining = true;
	o = make(at, 4);
	owners_of(o, 1, of);
	ck_assert_uint_lt(of[0], 4);
	ck_assert_uint_lt(of[1], 4);
	owners_drop(o);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("owners");

	tcase_add_test(tc, few_members);
	tcase_add_test(tc, they_are_even);
	tcase_add_loop_test(tc, little_moves, 0, 5);
	tcase_add_test(tc, who_drains_owns_nothing);
	return rig_main(tc, "directory owners");
}
