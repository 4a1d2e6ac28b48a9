/* Extents that go from one tenant to another: which one, what stays possible meanwhile, and what is counted then. */
#include "tests/store/arena/inside.h"
#include "tests/store/arena/rig.h"

enum { EXTENTS = 8, SLOTS = 16 * EXTENTS };

/* 8 extents of 1 MiB, of slots of 64 KiB each. */
struct two {
	struct arena *a;
	struct arena_class *k[2];      /* of tenants 1 and 2 */
	struct arena_slot slots[SLOTS];
	uint32_t n;
};

static bool all(void *arg, uint32_t extent)
{
	(void)arg;
	(void)extent;
	return true;
}

static bool all_but(void *arg, uint32_t extent)
{
	return extent != *(const uint32_t *)arg;
}

/* Tenant 1 has all; `own` bytes are its own, `of_second` the second one's. Extents were used one after the other. */
static void two_begin(struct two *t, uint64_t own, uint64_t of_second)
{
	t->a = arena_with(&(struct arena_options){ .budget_bytes = EXTENTS * MIB, .extent_bytes = MIB,
						   .granule_bytes = 64 * KIB, .tenants = 2 });
	ck_assert_int_eq(arena_tenant_bounds(t->a, 1, own, 0), STATUS_OK);
	ck_assert_int_eq(arena_tenant_bounds(t->a, 2, of_second, 0), STATUS_OK);
	t->k[0] = class_of_tenant(t->a, 1, 64 * KIB);
	t->k[1] = class_of_tenant(t->a, 2, 64 * KIB);
	for (t->n = 0; t->n < SLOTS && slot_take(t->k[0], true, &t->slots[t->n]) == STATUS_OK; t->n++)
		arena_span_use(t->slots[t->n].span, (uint64_t)(100 + t->slots[t->n].extent) * ARENA_USE_STEP_US);
}

static void give_all_of(struct two *t, uint32_t extent)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		if (t->slots[i].extent == extent)
			arena_give(&t->slots[i], NULL);
		else
			t->slots[left++] = t->slots[i];
	}
	t->n = left;
}

static enum status extent_free(struct two *t, uint32_t extent)
{
	struct arena_extent *e;
	const enum status s = arena_extent_remove(t->a, extent, &e);

	if (s)
		return s;
	ck_assert_ptr_null(arena_extent(t->a, extent));
	arena_extent_free(t->a, e);
	return s;
}

/* What is counted as free and without pages is what there is. */
static void counts_hold(struct two *t)
{
	for (uint32_t of = 1; of <= 2; of++) {
		uint64_t granules = 0, free = 0, unready = 0;
		const struct arena_tenant *tenant = t->k[of - 1]->tenant;

		for (uint32_t i = 0; i < t->a->extent_count; i++) {
			const struct arena_extent *e = t->a->extents[i];

			if (e->tenant != tenant)
				continue;
			granules += e->granules;
			unready += e->retired ? 0 : e->granules - e->ready;
			for (uint32_t g = 0; g < e->ready && !e->retired; g++)
				free += !e->at_granule[g].span && !e->at_granule[g].claim;
		}
		ck_assert_uint_eq(tenant->granules, granules);
		ck_assert_uint_eq(tenant->free, free);
		ck_assert_uint_eq(tenant->unready, unready);
	}
}

START_TEST(what_is_borrowed_goes_to_the_tenant_that_lacks_it)
{
	struct arena_window w;
	struct arena_slot s;
	uint32_t extent;
	struct two t;

	two_begin(&t, 0, 0);
	ck_assert_uint_eq(t.n, SLOTS);
	ck_assert(arena_lacks(t.k[1]));
	ck_assert_int_eq(slot_take(t.k[1], true, &s), STATUS_EXHAUSTED);
	extent = arena_retire_find(t.k[1], all, NULL);
	ck_assert_uint_eq(extent, 1); /* the coldest */
	ck_assert_uint_eq(arena_retire_find(t.k[1], all_but, &extent), 2);
	ck_assert_int_eq(arena_retire(t.a, extent), STATUS_OK);
	ck_assert_int_eq(arena_retire(t.a, extent), STATUS_BUSY);
	ck_assert_int_eq(extent_free(&t, extent), STATUS_BUSY);
	ck_assert(arena_retired(t.a, extent, &w));
	ck_assert_uint_eq(w.granules, 16);
	ck_assert_uint_eq(w.spans, 16);
	/* A slot that is given back there is not given again. */
	arena_give(&t.slots[0], NULL);
	t.slots[0] = t.slots[--t.n];
	counts_hold(&t);
	ck_assert_int_eq(slot_take(t.k[0], true, &s), STATUS_EXHAUSTED);
	give_all_of(&t, extent);
	ck_assert(arena_retired(t.a, extent, &w));
	ck_assert_uint_eq(w.spans, 0);
	ck_assert_int_eq(extent_free(&t, extent), STATUS_OK);
	ck_assert(!arena_retired(t.a, extent, &w));
	ck_assert_ptr_null(arena_extent(t.a, extent));
	counts_hold(&t);
	ck_assert_uint_eq(arena_tenant_bytes(t.a, 1), 7 * MIB);
	s = taken(t.k[1]);
	ck_assert_uint_eq(s.extent, EXTENTS + 1); /* an id is given once */
	for (uint32_t i = 0; i < 64 * KIB; i++)
		ck_assert_uint_eq(s.at[i], 0);
	ck_assert_uint_eq(arena_tenant_bytes(t.a, 2), 1 * MIB);
	arena_destroy(t.a);
}
END_TEST

START_TEST(what_is_given_up_gives_slots_again)
{
	struct arena_slot s;
	struct two t;

	two_begin(&t, 0, 0);
	ck_assert_int_eq(arena_retire(t.a, 1), STATUS_OK);
	arena_give(&t.slots[0], NULL);
	arena_retire_end(t.a, 1);
	arena_retire_end(t.a, 1);
	counts_hold(&t);
	ck_assert_int_eq(slot_take(t.k[0], true, &s), STATUS_OK);
	ck_assert_uint_eq(s.extent, 1);
	ck_assert_int_eq(slot_take(t.k[0], true, &s), STATUS_EXHAUSTED);
	arena_destroy(t.a);
}
END_TEST

/* A tenant's own bytes stay, and what both want is shared evenly. */
START_TEST(own_bytes_stay_and_the_rest_is_shared)
{
	/* own of the first, of the second; extents that the second gets while it lacks memory */
	static const struct { uint64_t own, second; uint32_t gets; } rows[] = {
		{ 0, 0, 4 }, { 2 * MIB, 0, 3 }, { 0, 2 * MIB, 5 },
		{ 8 * MIB, 0, 0 }, { 7 * MIB, 0, 0 }, { 6 * MIB, 0, 1 },
	};
	uint32_t got = 0, extent;
	struct arena_slot s;
	struct two t;

	two_begin(&t, rows[_i].own, rows[_i].second);
	while (slot_take(t.k[1], true, &s) == STATUS_OK)
		continue;
	while ((extent = arena_retire_find(t.k[1], all, NULL)) != 0) {
		ck_assert_int_eq(arena_retire(t.a, extent), STATUS_OK);
		give_all_of(&t, extent);
		ck_assert_int_eq(extent_free(&t, extent), STATUS_OK);
		got++;
		while (slot_take(t.k[1], true, &s) == STATUS_OK)
			continue;
		counts_hold(&t);
	}
	ck_assert_uint_eq(arena_tenant_bytes(t.a, 2), rows[_i].gets * MIB);
	ck_assert_uint_eq(arena_tenant_bytes(t.a, 1) + arena_tenant_bytes(t.a, 2), EXTENTS * MIB);
	ck_assert_uint_eq(arena_retire_find(t.k[0], all, NULL), 0); /* and nothing goes back */
	ck_assert(rows[_i].gets > 0 || got == 0);
	arena_destroy(t.a);
}
END_TEST

START_TEST(what_is_held_or_claimed_stays)
{
	struct arena_class *large;
	struct arena_window w;
	struct two t;

	two_begin(&t, 0, 0);
	arena_span_hold(t.slots[0].span, 1);
	ck_assert_int_eq(arena_retire(t.a, 1), STATUS_BUSY);
	ck_assert_uint_eq(arena_retire_find(t.k[1], all, NULL), 2);
	arena_span_hold(t.slots[0].span, -1);
	large = class_of_tenant(t.a, 1, 256 * KIB);
	ck_assert_int_eq(arena_window_find(large, true, &w), STATUS_OK);
	ck_assert_int_eq(arena_claim(large, &w), STATUS_OK);
	ck_assert_int_eq(arena_retire(t.a, w.extent), STATUS_BUSY);
	arena_unclaim(large);
	ck_assert_int_eq(arena_retire(t.a, w.extent), STATUS_OK);
	/* No class claims a part of it now. */
	ck_assert_int_eq(arena_claim(large, &w), STATUS_BUSY);
	ck_assert_int_eq(arena_window_find(large, true, &w), STATUS_OK);
	ck_assert_uint_eq(w.extent, 2);
	arena_destroy(t.a);
}
END_TEST

/* A tenant at its bound lacks nothing that others could give. */
START_TEST(a_tenant_at_its_bound_gets_nothing)
{
	struct two t;

	two_begin(&t, 0, 0);
	ck_assert_int_eq(arena_tenant_bounds(t.a, 2, 0, 32 * KIB), STATUS_OK);
	ck_assert(!arena_lacks(t.k[1]));
	ck_assert_uint_eq(arena_retire_find(t.k[1], all, NULL), 0);
	arena_destroy(t.a);
}
END_TEST

/* Takes, gives, retires, ends and frees at random, of two tenants. */
START_TEST(random_histories_count_right)
{
	uint64_t rng = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 1);
	struct arena_window w;
	struct two t;

	two_begin(&t, MIB, MIB);
	for (uint32_t i = 0; i < 4000 / SCALE; i++) {
		const uint32_t what = next(&rng) % 8, extent = 1 + (uint32_t)(next(&rng) % t.a->extents_made);

		if (what < 3 && t.n < SLOTS &&
		    slot_take(t.k[next(&rng) % 2], next(&rng) % 2, &t.slots[t.n]) == STATUS_OK) {
			ck_assert(!arena_extent_find(t.a, t.slots[t.n].extent)->retired);
			t.n++;
		} else if (what < 5 && t.n) {
			const uint32_t at = (uint32_t)(next(&rng) % t.n);

			arena_give(&t.slots[at], NULL);
			t.slots[at] = t.slots[--t.n];
		} else if (what == 5) {
			arena_retire(t.a, extent);
		} else if (what == 6 && next(&rng) % 4 == 0) {
			arena_retire_end(t.a, extent);
		} else if (arena_retired(t.a, extent, &w)) {
			give_all_of(&t, extent);
			ck_assert_int_eq(extent_free(&t, extent), STATUS_OK);
		}
		counts_hold(&t);
	}
	arena_destroy(t.a);
}
END_TEST

int main(void)
{
	TCase *tc[] = { tcase_create("retire") };

	tcase_set_timeout(tc[0], 100);
	tcase_add_test(tc[0], what_is_borrowed_goes_to_the_tenant_that_lacks_it);
	tcase_add_test(tc[0], what_is_given_up_gives_slots_again);
	tcase_add_loop_test(tc[0], own_bytes_stay_and_the_rest_is_shared, 0, 6);
	tcase_add_test(tc[0], what_is_held_or_claimed_stays);
	tcase_add_test(tc[0], a_tenant_at_its_bound_gets_nothing);
	tcase_add_loop_test(tc[0], random_histories_count_right, 0, 8);
	return run_cases("store_arena_retire", tc, 1);
}
