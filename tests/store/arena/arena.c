/* The arena over host memory: what options come to, where slots lie, the reserve, pages that come in steps, extents
 * that go, windows and claims. Random histories are in model.c. */
#include "store/host/extent.h"
#include "tests/store/arena/inside.h"
#include "tests/store/arena/rig.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- options ---- */

START_TEST(options_out_of_bounds_are_refused)
{
	static const struct arena_options bad[] = {
		{ .budget_bytes = 0 },
		{ .budget_bytes = 4095 },
		{ .budget_bytes = MIB, .extent_bytes = (uint64_t)EXTENT_BYTES_MAX + 1 },
		{ .budget_bytes = MIB, .granule_bytes = 2048 },
		{ .budget_bytes = MIB, .granule_bytes = 12 * KIB },
		{ .budget_bytes = MIB, .granule_bytes = 2 * GIB },
	};
	struct arena *a = NULL;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_int_eq(arena_create(&bad[i], &a), STATUS_INVALID);
	ck_assert_ptr_null(a);
	arena_destroy(NULL);
}
END_TEST

/* Budget, wished extent, wished granule, tenants; extent and granule. */
static const struct {
	uint64_t budget, extent, granule;
	uint32_t tenants;
	uint64_t extent_is, granule_is;
} sizes[] = {
	{ 64 * KIB, 0, 0, 1, 64 * KIB, 4 * KIB }, /* a granule is a sixteenth at most */
	{ 1 * MIB, 0, 0, 1, 1 * MIB, 64 * KIB },
	{ 20 * MIB, 0, 0, 1, 16 * MIB, 64 * KIB },
	{ 64 * MIB, 0, 0, 1, 16 * MIB, 64 * KIB },
	{ 256 * MIB, 0, 0, 1, 64 * MIB, 256 * KIB },
	{ 256 * MIB, 0, 0, 2, 16 * MIB, 256 * KIB },
	{ 300 * MIB, 0, 0, 1, 75 * MIB, 256 * KIB },
	{ 300 * MIB, 0, 0, 16, 300 * MIB / 16, 256 * KIB },
	{ 8 * GIB, 0, 0, 1, 1 * GIB, 2 * MIB },
	{ 8 * GIB, 0, 0, 3, 512 * MIB, 2 * MIB },
	{ 1024 * GIB, 0, 0, 1, 1 * GIB, 2 * MIB },
	{ 64 * MIB, 1 * MIB, 0, 1, 1 * MIB, 64 * KIB }, /* a wish */
	{ 64 * MIB, 1 * MIB + 1, 0, 1, 1 * MIB + 64 * KIB, 64 * KIB },
	{ 64 * MIB, 1 * GIB, 0, 1, 64 * MIB, 64 * KIB },
	{ 64 * MIB, 0, 4 * KIB, 1, 16 * MIB, 4 * KIB },
	{ 100 * KIB, 0, 64 * KIB, 1, 64 * KIB, 64 * KIB },
};

START_TEST(options_come_to_sizes)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = sizes[_i].budget,
							      .extent_bytes = sizes[_i].extent,
							      .granule_bytes = sizes[_i].granule,
							      .tenants = sizes[_i].tenants });

	ck_assert_uint_eq(arena_granule_bytes(a), sizes[_i].granule_is);
	ck_assert_uint_eq(arena_extent_bytes(a), sizes[_i].extent_is);
	arena_destroy(a);
}
END_TEST

START_TEST(generations_begin_where_the_caller_says)
{
	static const uint64_t asked[] = { 0, 1, 2, 977, 1ull << 40 };
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = MIB, .first_generation = asked[_i] });
	struct arena_class *k = class_of(a, 4096);
	uint64_t first = asked[_i] > 0 ? asked[_i] : 1;

	for (uint64_t i = 0; i < 3; i++)
		ck_assert_uint_eq(taken(k).generation, first + i);
	ck_assert_uint_eq(arena_generation(a), first + 3);
	ck_assert_uint_eq(taken(k).generation, first + 4);
	arena_destroy(a);
}
END_TEST

/* ---- slots and spans ---- */

START_TEST(a_slot_says_where_it_is)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 8 * MIB });
	struct arena_class *k = class_of(a, 24 * KIB), *other = class_of(a, 64 * KIB);
	struct arena_slot s, b, again;
	uint32_t tenant, ids[2];
	bool cut;

	s = taken(k);
	ck_assert_ptr_eq(s.class, k);
	ck_assert_uint_eq(s.index, 0);
	ck_assert_uint_eq(s.granule, s.span->granule);
	ck_assert_uint_eq(s.span->stride, 24 * KIB);
	ck_assert_uint_eq(s.span->granules, 3);
	ck_assert_uint_eq(s.span->slots, 8);
	ck_assert_int_eq(arena_take(k, false, &b, &cut), STATUS_OK);
	ck_assert(!cut);
	ck_assert_ptr_eq(b.span, s.span);
	ck_assert_uint_eq(b.offset, s.offset + 24 * KIB);
	ck_assert_ptr_eq(b.at, arena_extent(a, b.extent)->base + b.offset);
	ck_assert_uint_eq(b.address, 0);
	ck_assert_int_eq(arena_take(other, false, &again, &cut), STATUS_OK);
	ck_assert(cut);
	ck_assert_uint_eq(again.extent, s.extent);
	ck_assert_uint_ge(again.offset, s.offset + 8 * 24 * KIB);
	ck_assert_ptr_eq(arena_span_at(a, s.extent, s.granule), s.span);
	ck_assert_ptr_eq(arena_span_at(a, s.extent, s.granule + 2), s.span);
	ck_assert_ptr_eq(arena_span_at(a, s.extent, again.granule), again.span);
	ck_assert_ptr_null(arena_span_at(a, s.extent, again.granule + 1));
	ck_assert_ptr_null(arena_span_at(a, s.extent, 1 << 30));
	ck_assert_ptr_null(arena_span_at(a, s.extent + 1, 0));
	ck_assert_uint_eq(arena_span_taken(a, s.span), 2);
	ck_assert(arena_extent_owner(a, s.extent, &tenant));
	ck_assert_uint_eq(tenant, 1);
	ck_assert(!arena_extent_owner(a, s.extent + 1, &tenant));
	ck_assert_ptr_null(arena_extent(a, s.extent + 1));
	ck_assert_uint_eq(arena_extents(a, 1, 0, ids, 2), 1);
	ck_assert_uint_eq(ids[0], s.extent);
	ck_assert_uint_eq(arena_extents(a, 1, s.extent + 1, ids, 2), 0);
	ck_assert_uint_eq(arena_extents(a, 2, 0, ids, 2), 0);
	ck_assert_uint_eq(arena_extent_size(a, s.extent), 8 * MIB);
	arena_destroy(a);
}
END_TEST

/* First free first, and what is used already is used up before a new span is cut: what is put at one time lies
 * together. */
START_TEST(slots_are_taken_by_rising_address)
{
	enum { SLOTS = 8 * 4 };
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 8 * MIB });
	struct arena_class *k = class_of(a, 24 * KIB);
	struct arena_slot all[SLOTS], s;
	uint64_t rng = 77;

	for (uint32_t i = 0; i < SLOTS; i++) {
		all[i] = taken(k);
		ck_assert_uint_eq(all[i].index, i % 8);
		ck_assert_uint_eq(all[i].granule, all[0].granule + i / 8 * 3);
	}
	for (int round = 0; round < 100; round++) {
		uint32_t given[8], n = 0, span = (uint32_t)(next(&rng) % 4);

		for (uint32_t i = 0; i < 7; i++) {
			const uint32_t at = span * 8 + (uint32_t)(next(&rng) % 8);
			bool before = false;

			for (uint32_t j = 0; j < n; j++)
				before = before || given[j] == at;
			if (before)
				continue;
			ck_assert(!arena_give(&all[at], NULL));
			given[n++] = at;
		}
		for (uint32_t last = 0; n > 0; n--) {
			s = taken(k);
			ck_assert_uint_eq(s.granule, all[span * 8].granule);
			ck_assert_uint_ge(s.index, last);
			last = s.index;
			all[span * 8 + s.index] = s;
		}
	}
	ck_assert_uint_eq(usage_of(a).spans, 4);
	arena_destroy(a);
}
END_TEST

/* The same in spans of many slots, of which any come back. */
START_TEST(the_first_free_slot_is_taken)
{
	enum { SLOTS = 512 };
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 8 * MIB, .granule_bytes = 2 * MIB });
	struct arena_class *k = class_of(a, 4 * KIB);
	struct arena_slot all[SLOTS], s;
	bool is_taken[SLOTS];
	uint64_t rng = 99;

	for (uint32_t i = 0; i < SLOTS; i++) {
		all[i] = taken(k);
		is_taken[i] = true;
	}
	for (int round = 0; round < 200; round++) {
		uint32_t given = 0, at = 0;

		for (uint32_t n = 1 + (uint32_t)(next(&rng) % 300); n > 0; n--) {
			const uint32_t i = (uint32_t)(next(&rng) % SLOTS);

			given += is_taken[i];
			if (is_taken[i])
				arena_give(&all[i], NULL);
			is_taken[i] = false;
		}
		for (; given > 0; given--) {
			s = taken(k);
			while (is_taken[at])
				at++;
			ck_assert_uint_eq(s.index, at);
			all[at] = s;
			is_taken[at] = true;
		}
	}
	ck_assert_uint_eq(usage_of(a).spans, 1);
	arena_destroy(a);
}
END_TEST

/* A span without a taken slot is no more, its owner is handed back, and its memory is any class's, at once. */
START_TEST(an_empty_span_is_free_memory)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 1 * MIB });
	struct arena_class *small = class_of(a, 4 * KIB), *large = class_of(a, 512 * KIB);
	struct arena_slot slots[256], s;
	uint32_t n = take_all(small, slots, 256);
	int record, other;
	void *owner;

	ck_assert_uint_eq(n, 15 * 16);
	ck_assert_uint_eq(usage_of(a).granules_free, 1);
	ck_assert_int_eq(slot_take(large, true, &s), STATUS_EXHAUSTED);
	slots[0].span->owner = &record;
	slots[16].span->owner = &other;
	for (uint32_t i = 0; i < 15; i++)
		ck_assert(!arena_give(&slots[i], &owner));
	ck_assert_uint_eq(usage_of(a).granules_free, 1);
	ck_assert(arena_give(&slots[15], &owner));
	ck_assert_ptr_eq(owner, &record);
	ck_assert_uint_eq(usage_of(a).granules_free, 2);
	for (uint32_t i = 16; i < 8 * 16; i++)
		if (arena_give(&slots[i], &owner))
			ck_assert_ptr_eq(owner, i == 31 ? &other : NULL);
	ck_assert_uint_eq(usage_of(a).spans, 7);
	ck_assert_int_eq(arena_take(large, false, &s, NULL), STATUS_OK);
	ck_assert_uint_eq(s.extent, slots[0].extent);
	ck_assert_uint_eq(s.offset, 0);
	ck_assert_ptr_null(s.span->owner);
	ck_assert_uint_eq(usage_of(a).extents, 1);
	arena_destroy(a);
}
END_TEST

/* A small hole is filled before a large one is broken. */
START_TEST(the_smallest_hole_is_cut)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 2 * MIB });
	struct arena_class *k = class_of(a, 64 * KIB), *wide = class_of(a, 128 * KIB);
	struct arena_slot slots[32], s;
	uint32_t n = take_all(k, slots, 32);

	ck_assert_uint_eq(n, 31);
	for (uint32_t i = 2; i < 6; i++)
		arena_give(&slots[i], NULL);
	arena_give(&slots[9], NULL);
	for (uint32_t i = 12; i < 14; i++)
		arena_give(&slots[i], NULL);
	s = taken(k);
	ck_assert_uint_eq(s.granule, slots[9].granule); /* granule 31, of the same length, is behind it */
	s = taken(wide);
	ck_assert_uint_eq(s.granule, slots[12].granule);
	s = taken(wide);
	ck_assert_uint_eq(s.granule, slots[2].granule);
	arena_destroy(a);
}
END_TEST

/* What is said of a slot is compared with what is true: extent, span, class, index and generation. */
static void give_wrong(int what)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 8 * MIB });
	struct arena_class *k = class_of(a, 64 * KIB), *other = class_of(a, 8 * KIB);
	struct arena_slot stays = taken(other), s = taken(k), wrong = s;

	arena_give(&s, NULL);
	s = taken(k); /* the same place, of another generation */
	if (what != 0)
		wrong = s;
	if (what == 1)
		wrong.extent++;
	if (what == 2)
		wrong.granule = stays.granule;
	if (what == 3)
		wrong.class = other;
	if (what == 4)
		wrong.index++;
	if (what == 5) { /* the span was cut anew for another class, and the index is valid in it */
		arena_give(&s, NULL);
		while (s.granule != wrong.granule || s.class != other)
			s = taken(other);
		wrong.generation = s.generation;
	}
	if (what == 6) { /* within a span of several granules, but not its first */
		s = taken(class_of(a, 24 * KIB));
		wrong = s;
		wrong.granule++;
	}
	ck_assert(!arena_give(&wrong, NULL));
	ck_assert_uint_ge(arena_span_taken(a, s.span), 1);
	arena_give(&stays, NULL);
	arena_destroy(a);
}

START_TEST(a_wrong_slot_is_not_given)
{
	give_wrong(_i);
}
END_TEST

/* ---- the reserve ---- */

START_TEST(the_last_granules_are_for_newcomers)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 64 * MIB, .extent_bytes = 8 * MIB });
	struct arena_class *k = class_of(a, 64 * KIB), *newcomer = class_of(a, 4 * KIB);
	struct arena_slot slots[1025], s;
	struct arena_growth g;
	uint32_t n = take_all(k, slots, 1025);

	ck_assert_uint_eq(n, 1024 - 16);
	ck_assert_uint_eq(usage_of(a).reserve, 16);
	ck_assert_uint_eq(class_usage_of(k).free, 0);
	ck_assert_uint_eq(class_usage_of(k).room, 1024 - 16);
	ck_assert_uint_eq(usage_of(a).granules_free, 16);
	ck_assert_int_eq(arena_take(newcomer, false, &s, NULL), STATUS_MISS);
	ck_assert_int_eq(arena_prepare(newcomer, &g), STATUS_EXHAUSTED);
	ck_assert_int_eq(arena_take(newcomer, true, &s, NULL), STATUS_OK);
	ck_assert_int_eq(arena_take(newcomer, false, &s, NULL), STATUS_OK); /* of the span that it has */
	ck_assert_uint_eq(usage_of(a).granules_free, 15);
	/* What comes free fills the reserve first. */
	arena_give(&slots[0], NULL);
	ck_assert_int_eq(arena_take(k, false, &s, NULL), STATUS_MISS);
	arena_give(&slots[500], NULL);
	ck_assert_int_eq(arena_take(k, false, &s, NULL), STATUS_OK);
	ck_assert_int_eq(arena_take(k, false, &s, NULL), STATUS_MISS);
	ck_assert_uint_eq(usage_of(a).granules_free, 16);
	arena_destroy(a);
}
END_TEST

/* The reserve lies in pieces, each smaller than a newcomer's span: that may be as small as one slot needs. */
START_TEST(the_reserve_may_lie_in_pieces)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 64 * MIB, .extent_bytes = 16 * MIB });
	struct arena_class *k = class_of(a, 44 * KIB), *newcomer = class_of(a, 76 * KIB), *small = class_of(a, 20 * KIB);
	struct arena_slot slots[2048], s[4];

	/* Spans of 7 of 256 granules leave 4 in each extent. */
	ck_assert_uint_eq(class_usage_of(k).span_granules, 7);
	ck_assert_uint_eq(take_all(k, slots, 2048), 4 * 36 * 10);
	ck_assert_uint_eq(usage_of(a).granules_free, 16);
	ck_assert_uint_gt(class_usage_of(newcomer).span_granules, 4);
	ck_assert_int_eq(arena_take(newcomer, ARENA_RESERVE, &s[0], NULL), STATUS_MISS);
	ck_assert_int_eq(arena_take(newcomer, ARENA_PIECES, &s[0], NULL), STATUS_OK);
	ck_assert_uint_eq(s[0].span->granules, 2);
	ck_assert_uint_eq(s[0].span->slots, 1);
	ck_assert_uint_eq(class_usage_of(newcomer).slots, 1);
	ck_assert_int_eq(arena_take(small, ARENA_PIECES, &s[1], NULL), STATUS_OK);
	ck_assert_uint_eq(s[1].span->granules, 1);
	ck_assert_uint_eq(s[1].span->slots, 3);
	ck_assert_int_eq(arena_take(small, ARENA_SPARE, &s[2], NULL), STATUS_OK);
	ck_assert_ptr_eq(s[2].span, s[1].span);
	ck_assert_uint_eq(s[2].offset, s[1].offset + 20 * KIB);
	ck_assert_uint_eq(usage_of(a).granules_free, 13);
	for (int i = 0; i < 3; i++)
		arena_give(&s[i], NULL);
	ck_assert_uint_eq(usage_of(a).granules_free, 16);
	ck_assert_uint_eq(class_usage_of(small).slots + class_usage_of(newcomer).slots, 0);
	arena_destroy(a);
}
END_TEST

/* Of memory of one granule the reserve is all: the first that asks for it has it. */
START_TEST(the_reserve_of_a_small_arena_can_be_had)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 64 * KIB, .granule_bytes = 64 * KIB });
	struct arena_class *k = class_of(a, 16 * KIB);
	struct arena_slot s;

	ck_assert_int_eq(slot_take(k, false, &s), STATUS_EXHAUSTED);
	ck_assert_int_eq(slot_take(k, true, &s), STATUS_OK);
	ck_assert_int_eq(slot_take(k, false, &s), STATUS_OK);
	arena_destroy(a);
}
END_TEST

/* ---- pages and extents ---- */

static uint64_t resident(const struct extent *e)
{
	static unsigned char pages[GIB / EXTENT_PAGE_BYTES];
	uint64_t n = 0;

	ck_assert_int_eq(mincore(e->base, e->bytes, pages), 0);
	for (uint64_t i = 0; i < e->bytes / EXTENT_PAGE_BYTES; i++)
		n += pages[i] & 1;
	return n * EXTENT_PAGE_BYTES;
}

/* Steps, until enough is there. */
static void ahead_all(struct arena *a)
{
	struct arena_growth g;
	int steps = 0;

	do
		ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_OK);
	while (g.more && ++steps < 100);
	ck_assert(!g.more);
}

/* Of a large budget nothing is taken but what is to be cut next. */
START_TEST(pages_come_in_steps_ahead_of_the_cutting)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 8 * GIB });
	struct arena_class *k = class_of(a, 1 * MIB), *large = class_of(a, 512 * MIB);
	struct arena_slot slots[33], s;
	struct arena_growth g;

	ck_assert_int_eq(arena_take(k, false, &s, NULL), STATUS_MISS);
	ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_OK);
	ck_assert(g.made && g.extent && !g.ready && g.more);
	ck_assert_uint_eq(resident(arena_extent(a, g.extent)), 2 * MIB);
	ahead_all(a);
	ck_assert_uint_eq(usage_of(a).extents, 1);
	ck_assert_uint_eq(usage_of(a).extent_bytes, 1 * GIB);
	ck_assert_uint_eq(usage_of(a).granules_ready, 16);
	ck_assert_uint_eq(resident(arena_extent(a, 1)), 32 * MIB);
	ck_assert_uint_eq(class_usage_of(k).free, 32);
	ck_assert_uint_eq(class_usage_of(k).room, 8 * 1024 - 64 * 2);
	ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_OK); /* enough is there */
	ck_assert_uint_eq(g.extent, 0);
	for (uint32_t i = 0; i < 32; i++)
		ck_assert_int_eq(arena_take(k, false, &slots[i], NULL), STATUS_OK);
	ck_assert_int_eq(arena_take(k, false, &slots[32], NULL), STATUS_MISS);
	ck_assert_uint_eq(resident(arena_extent(a, slots[0].extent)), 32 * MIB);
	ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_OK);
	ck_assert(!g.made && g.extent == slots[0].extent && !g.ready && g.more);
	ck_assert_uint_eq(resident(arena_extent(a, g.extent)), 34 * MIB);
	ahead_all(a);
	ck_assert_uint_eq(resident(arena_extent(a, slots[0].extent)), 64 * MIB);
	ck_assert_int_eq(arena_take(k, false, &slots[32], NULL), STATUS_OK);
	/* A slot larger than a step takes what it needs. */
	s = taken(large);
	ck_assert_uint_eq(s.extent, slots[0].extent);
	ck_assert_uint_le(resident(arena_extent(a, s.extent)), 576 * MIB + 32 * MIB);
	arena_destroy(a);
}
END_TEST

START_TEST(growth_says_what_there_is_to_do)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 72 * MIB, .extent_bytes = 40 * MIB });
	struct arena_class *k = class_of(a, 64 * KIB);
	struct arena_slot s;
	struct arena_growth g;
	uint32_t steps = 0, made = 0, ready = 0;

	do {
		ck_assert_int_eq(arena_preallocate(a, 1, &g), STATUS_OK);
		made += g.made;
		ready += g.ready;
		while (arena_take(k, false, &s, NULL) == STATUS_OK)
			continue;
		ck_assert_int_lt(++steps, 100);
	} while (g.extent);
	ck_assert(!g.more);
	ck_assert_uint_eq(made, 2);
	ck_assert_uint_eq(ready, 2);
	ck_assert_uint_eq(usage_of(a).extent_bytes, 72 * MIB); /* the last has what is left */
	ck_assert_uint_eq(usage_of(a).granules_free, usage_of(a).reserve);
	ck_assert_uint_eq(usage_of(a).open_failures, 0);
	ck_assert_int_eq(arena_prepare(k, &g), STATUS_EXHAUSTED);
	arena_destroy(a);
}
END_TEST

/* They rise from the first one that the caller names, and there are so many as it says. */
START_TEST(extents_have_ids_of_their_own)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 512 * KIB, .extent_bytes = 64 * KIB,
							      .first_extent_id = 7, .extent_ids = 4 });
	struct arena_class *k = class_of(a, 64 * KIB);
	struct arena_slot s;

	for (uint32_t id = 7; id < 11; id++) {
		ck_assert_int_eq(slot_take(k, true, &s), STATUS_OK);
		ck_assert_uint_eq(s.extent, id);
		ck_assert_uint_eq(arena_extent(a, id)->id, id);
	}
	ck_assert_int_eq(slot_take(k, true, &s), STATUS_EXHAUSTED);
	ck_assert_ptr_null(arena_extent(a, 6));
	ck_assert_ptr_null(arena_extent(a, 11));
	ck_assert_uint_eq(usage_of(a).extent_bytes, 256 * KIB);
	arena_destroy(a);
}
END_TEST

START_TEST(a_refusal_of_the_kernel_is_told)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 8 * MIB });
	const struct rlimit none = { 1 * MIB, RLIM_INFINITY };
	struct arena_class *k = class_of(a, 64 * KIB);
	struct arena_slot s;

	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	ck_assert_int_eq(slot_take(k, false, &s), STATUS_EXHAUSTED);
	ck_assert_uint_eq(usage_of(a).open_failures, 1);
	ck_assert_int_eq(usage_of(a).open_error, EFBIG);
	ck_assert_uint_eq(usage_of(a).extent_bytes, 0);
	arena_destroy(a);
}
END_TEST

/* Tenants share the budget, not extents. */
START_TEST(an_extent_is_of_one_tenant)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 64 * MIB, .tenants = 2 });
	struct arena_class *k[2];
	struct arena_slot s[2];
	uint32_t owner;

	for (uint32_t t = 0; t < 2; t++) {
		k[t] = class_of_tenant(a, 1 + t, 8 * KIB);
		s[t] = taken(k[t]);
		ck_assert(arena_extent_owner(a, s[t].extent, &owner));
		ck_assert_uint_eq(owner, 1 + t);
	}
	ck_assert_uint_ne(s[0].extent, s[1].extent);
	arena_destroy(a);
}
END_TEST

/* ---- trades ---- */

/* 16 spans of one granule, of which two are of `held`, and an age each. */
struct trade {
	struct arena *a;
	struct arena_class *small, *large;
	struct arena_slot slots[16 * 16 + 1];
	uint32_t n;
};

static uint64_t at_step(uint32_t step)
{
	return (uint64_t)step * ARENA_USE_STEP_US;
}

/* 1 MiB of 4 KiB slots: span i was used at step 100 + i; the large class needs 4 granules. */
static void trade_begin(struct trade *t)
{
	t->a = arena_with(&(struct arena_options){ .budget_bytes = 1 * MIB });
	t->small = class_of(t->a, 4 * KIB);
	t->large = class_of(t->a, 256 * KIB);
	t->n = take_all(t->small, t->slots, 16 * 16 + 1);
	ck_assert_uint_eq(t->n, 15 * 16);
	for (uint32_t i = 0; i < t->n; i++) {
		ck_assert_uint_eq(t->slots[i].granule, i / 16);
		arena_span_use(t->slots[i].span, at_step(100 + i / 16) + i);
	}
}

static void empty_span(struct trade *t, uint32_t span)
{
	for (uint32_t i = 0; i < 16; i++)
		ck_assert(arena_give(&t->slots[span * 16 + i], NULL) == (i == 15));
}

START_TEST(the_coldest_window_is_found)
{
	struct arena_window w;
	struct trade t;

	trade_begin(&t);
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_OK);
	ck_assert_uint_eq(w.granule, 0);
	ck_assert_uint_eq(w.granules, 4);
	ck_assert_uint_eq(w.spans, 4);
	ck_assert_uint_eq(w.newest, 103);
	/* Used again: the newest use of a window counts. */
	arena_span_use(t.slots[16].span, at_step(500));
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_OK);
	ck_assert_uint_eq(w.granule, 2);
	ck_assert_uint_eq(w.newest, 105);
	/* Slots that are held keep their span out of any. */
	atomic_store(&t.slots[3 * 16].span->held, 1);
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_OK);
	ck_assert_uint_eq(w.granule, 4);
	ck_assert_uint_eq(w.newest, 107);
	/* The free one belongs to the reserve. */
	atomic_store(&t.slots[6 * 16].span->held, 1);
	atomic_store(&t.slots[10 * 16].span->held, 1);
	atomic_store(&t.slots[14 * 16].span->held, 1);
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_MISS);
	atomic_store(&t.slots[14 * 16].span->held, 0);
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_OK);
	ck_assert_uint_eq(w.granule, 11);
	ck_assert_int_eq(arena_window_find(t.small, false, &w), STATUS_MISS); /* not its own */
	for (uint32_t i = 11; i < 15; i++)
		atomic_store(&t.slots[i * 16].span->held, i == 11);
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_MISS);
	ck_assert_int_eq(arena_window_find(t.large, true, &w), STATUS_OK);
	ck_assert_uint_eq(w.granule, 12);
	ck_assert_uint_eq(w.spans, 3);
	arena_destroy(t.a);
}
END_TEST

START_TEST(a_claim_is_emptied_and_cut)
{
	struct arena_class_usage before;
	struct arena_window w, claim;
	struct arena_slot s;
	struct trade t;
	bool cut;

	trade_begin(&t);
	before = class_usage_of(t.small);
	ck_assert(!arena_claimed(t.large, &claim));
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_OK);
	ck_assert_int_eq(arena_claim(t.large, &w), STATUS_OK);
	ck_assert_int_eq(arena_claim(t.large, &w), STATUS_BUSY);
	ck_assert(arena_claimed(t.large, &claim));
	ck_assert_uint_eq(claim.spans, 4);
	ck_assert_uint_eq(class_usage_of(t.small).slots, before.slots - 4 * 16);
	/* A slot that comes back there is not taken again, by neither class. */
	arena_give(&t.slots[5], NULL);
	ck_assert_int_eq(arena_take(t.small, false, &s, NULL), STATUS_MISS);
	ck_assert_int_eq(arena_take(t.large, false, &s, NULL), STATUS_MISS);
	ck_assert_int_eq(arena_take(t.small, true, &s, NULL), STATUS_OK); /* of the reserve */
	ck_assert_uint_eq(s.granule, 15);
	arena_span_use(s.span, at_step(200));
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t j = 0; j < 16; j++)
			if (i * 16 + j != 5)
				arena_give(&t.slots[i * 16 + j], NULL);
		ck_assert(arena_claimed(t.large, &claim));
		ck_assert_uint_eq(claim.spans, 3 - i);
		/* What is free there is for no other class. */
		ck_assert_uint_eq(usage_of(t.a).granules_free, 0);
		ck_assert_int_eq(arena_window_find(class_of(t.a, 64 * KIB), true, &w), STATUS_OK);
		ck_assert_uint_eq(w.granule, 4);
	}
	ck_assert_int_eq(arena_take(t.large, false, &s, &cut), STATUS_OK);
	ck_assert(cut);
	ck_assert_uint_eq(s.granule, 0);
	ck_assert(!arena_claimed(t.large, &claim));
	ck_assert_uint_eq(class_usage_of(t.small).spans, 12);
	arena_destroy(t.a);
}
END_TEST

START_TEST(a_claim_can_be_given_up)
{
	struct arena_window w, claim;
	struct arena_slot s;
	struct trade t;

	trade_begin(&t);
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_OK);
	ck_assert_int_eq(arena_claim(t.large, &w), STATUS_OK);
	empty_span(&t, 1);
	arena_give(&t.slots[5], NULL);
	arena_unclaim(t.large);
	arena_unclaim(t.large);
	ck_assert(!arena_claimed(t.large, &claim));
	ck_assert_int_eq(arena_take(t.small, false, &s, NULL), STATUS_OK);
	ck_assert_uint_eq(s.granule, 0);
	ck_assert_uint_eq(s.index, 5);
	ck_assert_int_eq(arena_take(t.small, false, &s, NULL), STATUS_OK);
	ck_assert_uint_eq(s.granule, 1);
	ck_assert_uint_eq(class_usage_of(t.small).slots, 15 * 16);
	/* What has changed is not claimed. */
	ck_assert_int_eq(arena_window_find(t.large, false, &w), STATUS_OK);
	atomic_store(&t.slots[2 * 16].span->held, 1);
	ck_assert_int_eq(arena_claim(t.large, &w), STATUS_BUSY);
	atomic_store(&t.slots[2 * 16].span->held, 0);
	w.granule = 13;
	ck_assert_int_eq(arena_claim(t.large, &w), STATUS_BUSY);
	w.extent = 77;
	ck_assert_int_eq(arena_claim(t.large, &w), STATUS_BUSY);
	arena_destroy(t.a);
}
END_TEST

/* The edge of a window may stand in the midst of a span: all of that span goes, and what it leaves is free. */
START_TEST(a_window_may_cut_a_span_short)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 1 * MIB });
	struct arena_class *wide = class_of(a, 192 * KIB), *large = class_of(a, 256 * KIB);
	struct arena_slot slots[6], s;
	struct arena_window w;

	ck_assert_uint_eq(take_all(wide, slots, 6), 5);
	for (uint32_t i = 0; i < 5; i++)
		arena_span_use(slots[i].span, at_step(1000 - i));
	ck_assert_int_eq(arena_window_find(large, false, &w), STATUS_OK);
	ck_assert_uint_eq(w.granule, 9); /* the last two */
	ck_assert_uint_eq(w.spans, 2);
	ck_assert_int_eq(arena_claim(large, &w), STATUS_OK);
	arena_give(&slots[3], NULL);
	ck_assert_int_eq(arena_take(large, false, &s, NULL), STATUS_MISS);
	arena_give(&slots[4], NULL);
	ck_assert_int_eq(arena_take(large, false, &s, NULL), STATUS_OK);
	ck_assert_uint_eq(s.granule, 9);
	ck_assert_uint_eq(usage_of(a).granules_free, 3);
	arena_destroy(a);
}
END_TEST

START_TEST(uses_are_noted_in_steps)
{
	struct arena_span s = { 0 };

	arena_span_use(&s, at_step(7));
	ck_assert_uint_eq(s.newest, 7);
	arena_span_use(&s, at_step(8) - 1);
	ck_assert_uint_eq(s.newest, 7);
	arena_span_use(&s, at_step(8));
	ck_assert_uint_eq(s.newest, 8);
}
END_TEST

int main(void)
{
	TCase *tc[] = { tcase_create("slots"), tcase_create("extents"), tcase_create("trades") };

	tcase_add_test(tc[0], options_out_of_bounds_are_refused);
	tcase_add_loop_test(tc[0], options_come_to_sizes, 0, sizeof(sizes) / sizeof(sizes[0]));
	tcase_add_loop_test(tc[0], generations_begin_where_the_caller_says, 0, 5);
	tcase_add_test(tc[0], a_slot_says_where_it_is);
	tcase_add_test(tc[0], slots_are_taken_by_rising_address);
	tcase_add_test(tc[0], the_first_free_slot_is_taken);
	tcase_add_test(tc[0], an_empty_span_is_free_memory);
	tcase_add_test(tc[0], the_smallest_hole_is_cut);
#ifdef NDEBUG
	tcase_add_loop_test(tc[0], a_wrong_slot_is_not_given, 0, 7);
#else
	tcase_add_loop_test_raise_signal(tc[0], a_wrong_slot_is_not_given, SIGABRT, 0, 7);
#endif
	tcase_add_test(tc[0], the_last_granules_are_for_newcomers);
	tcase_add_test(tc[0], the_reserve_may_lie_in_pieces);
	tcase_add_test(tc[0], the_reserve_of_a_small_arena_can_be_had);
	tcase_set_timeout(tc[1], 100);
	tcase_add_test(tc[1], pages_come_in_steps_ahead_of_the_cutting);
	tcase_add_test(tc[1], growth_says_what_there_is_to_do);
	tcase_add_test(tc[1], extents_have_ids_of_their_own);
	tcase_add_test(tc[1], a_refusal_of_the_kernel_is_told);
	tcase_add_test(tc[1], an_extent_is_of_one_tenant);
	tcase_add_test(tc[2], the_coldest_window_is_found);
	tcase_add_test(tc[2], a_claim_is_emptied_and_cut);
	tcase_add_test(tc[2], a_claim_can_be_given_up);
	tcase_add_test(tc[2], a_window_may_cut_a_span_short);
	tcase_add_test(tc[2], uses_are_noted_in_steps);
	return run_cases("store_arena", tc, 3);
}
