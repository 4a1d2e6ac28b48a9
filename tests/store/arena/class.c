/* The rules of classes and spans, as tables, and what they waste. */
#include "store/class_rule.h"
#include "tests/store/arena/rig.h"

#include <stdio.h>

/* In KiB: the classes that there are, the need, the stride that it gets. */
static const struct {
	uint64_t have[4], need, stride;
} joins[] = {
	{ { 0 }, 64, 64 },
	{ { 64 }, 64, 64 },
	{ { 68 }, 64, 68 },              /* larger by 1/16 */
	{ { 72 }, 64, 64 },              /* by more */
	{ { 60 }, 64, 64 },              /* too small, however near */
	{ { 72, 68, 64 }, 64, 64 },      /* the least that will do */
	{ { 72, 68 }, 64, 68 },
	{ { 1088, 1084 }, 1024, 1084 },
	{ { 1092 }, 1024, 1024 },
	{ { 8 }, 4, 4 },                 /* a page is 1 part of 1 */
};

START_TEST(a_layout_joins_a_class_that_is_little_larger)
{
	uint64_t have[4];
	uint32_t n = 0;

	for (; n < 4 && joins[_i].have[n]; n++)
		have[n] = joins[_i].have[n] * KIB;
	ck_assert_uint_eq(arena_stride_for(have, n, joins[_i].need * KIB, 4096), joins[_i].stride * KIB);
}
END_TEST

START_TEST(needs_are_rounded)
{
	ck_assert_uint_eq(arena_stride_for(NULL, 0, 1, 4096), 4096);
	ck_assert_uint_eq(arena_stride_for(NULL, 0, 4097, 4096), 8192);
	ck_assert_uint_eq(arena_stride_for(NULL, 0, 0, 4096), 4096);
	ck_assert_uint_eq(arena_stride_for(NULL, 0, 1, 256), 256);
	ck_assert_uint_eq(arena_stride_for(NULL, 0, 257, 256), 512);
	ck_assert_uint_eq(arena_stride_for(NULL, 0, UINT64_MAX, 4096), UINT64_MAX);
}
END_TEST

/* Of many classes the next one joins the next larger; above them all a few more come, however many needs there are. */
START_TEST(classes_are_not_without_number)
{
	enum { HAVE = CLASS_RULE_MOST };
	uint64_t have[2 * HAVE], largest = (uint64_t)HAVE * 64 * KIB;
	uint32_t n;

	for (n = 0; n < HAVE; n++)
		have[n] = (n + 1) * 64 * KIB;
	ck_assert_uint_eq(arena_stride_for(have, n, 8 * KIB, 4096), 64 * KIB);
	ck_assert_uint_eq(arena_stride_for(have, n - 1, 8 * KIB, 4096), 8 * KIB);
	ck_assert_uint_eq(arena_stride_for(have, n, 65 * KIB, 4096), 128 * KIB);
	ck_assert_uint_eq(arena_stride_for(have, n, largest, 4096), largest);
	for (uint64_t need = largest + 4 * KIB; need <= 512 * MIB; need += 4 * KIB) {
		uint64_t stride = arena_stride_for(have, n, need, 4096);

		ck_assert_uint_ge(stride, need);
		if (stride > largest) {
			have[n++] = stride;
			largest = stride;
			ck_assert_uint_lt(n, 2 * HAVE);
		}
	}
}
END_TEST

/* In KiB: stride, granule, granules of an extent; the span's granules. */
static const struct {
	uint64_t stride, granule, extent;
	uint32_t granules;
} spans[] = {
	{ 4, 64, 256, 1 },
	{ 64, 64, 256, 1 },
	{ 20, 64, 256, 5 },              /* 1, 2, 3 and 4 granules waste 1/16, 5 nothing */
	{ 24, 64, 256, 3 },              /* 1: 16 of 64 KiB, 2: 8 of 128, 3 nothing */
	{ 100, 64, 256, 8 },             /* 512 KiB hold 5, and 12 KiB more: 1/43 */
	{ 520, 64, 256, 9 },             /* one slot, more than half of 16: the least waste there is */
	{ 1024, 64, 256, 16 },
	{ 1028, 64, 256, 17 },           /* one slot needs more than 16 */
	{ 16384, 64, 256, 256 },         /* an extent */
	{ 16388, 64, 256, 0 },           /* more */
	{ 20, 64, 16, 1 },               /* of a small extent no span is more than a sixteenth */
	{ 132, 64, 16, 3 },              /* unless one slot is */
	{ 1u << 30, 64, 16384, 0 },
};

START_TEST(spans_have_few_granules_and_short_tails)
{
	const uint64_t stride = spans[_i].stride * KIB, granule = spans[_i].granule * KIB;

	ck_assert_uint_eq(arena_span_granules(stride, granule, (uint32_t)spans[_i].extent), spans[_i].granules);
}
END_TEST

START_TEST(tails_are_short_wherever_they_can_be)
{
	for (uint64_t stride = 4 * KIB; stride <= 2 * MIB; stride += 4 * KIB) {
		const uint32_t n = arena_span_granules(stride, 256 * KIB, 1024);
		const uint64_t bytes = n * 256 * KIB;

		ck_assert_uint_ge(bytes, stride);
		ck_assert_uint_le(n, ARENA_SPAN_GRANULES);
		if (bytes % stride * 32 > bytes) /* then no other number is better */
			for (uint64_t other = n; other <= ARENA_SPAN_GRANULES; other++)
				ck_assert_uint_ge(other * 256 * KIB % stride * n, bytes % stride * other);
	}
}
END_TEST

/* What of a span's memory is no block's, in parts of a million. */
static uint64_t waste_of(uint64_t need, uint64_t stride, uint64_t granule)
{
	const uint64_t bytes = arena_span_granules(stride, granule, 512) * granule;

	return 1000000 - bytes / stride * need * 1000000 / bytes;
}

/* 64 layouts of any sizes of 8 KiB to 16 MiB, each as likely to be in one power of two as in another. */
START_TEST(classes_and_spans_waste_little)
{
	enum { LAYOUTS = 64 };
	static const uint64_t granules[] = { 256 * KIB, 2 * MIB };
	uint64_t rng = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 1);

	for (int g = 0; g < 2; g++) {
		uint64_t have[LAYOUTS], sum = 0, most = 0;
		uint32_t n = 0;

		for (int i = 0; i < LAYOUTS; i++) {
			const uint64_t power = 8 * KIB << next(&rng) % 11;
			const uint64_t need = (power + next(&rng) % power) / 4096 * 4096;
			const uint64_t stride = arena_stride_for(have, n, need, 4096);
			const uint64_t waste = waste_of(need, stride, granules[g]);
			uint32_t known = 0;

			while (known < n && have[known] != stride)
				known++;
			if (known == n)
				have[n++] = stride;
			sum += waste;
			most = waste > most ? waste : most;
		}
		printf("64 random layouts, granule %4u KiB: %2u classes, waste %.1f %% on average, %.1f %% at most\n",
		       (unsigned int)(granules[g] / KIB), n, (double)sum / LAYOUTS / 10000, (double)most / 10000);
		ck_assert_uint_le(sum / LAYOUTS, 90000);
	}
}
END_TEST

START_TEST(classes_are_one_a_tenant_and_stride)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 64 * MIB });
	struct arena_class *k, *other;

	ck_assert_int_eq(arena_class_for(a, 1, 16 * MIB + 4096, &k), STATUS_PRECONDITION);
	ck_assert_int_eq(arena_class_for(a, 1, UINT64_MAX - 4095, &k), STATUS_PRECONDITION);
	ck_assert_int_eq(arena_class_for(a, 1, UINT64_MAX, &k), STATUS_PRECONDITION);
	class_of(a, 16 * MIB);
	k = class_of(a, 8 * KIB);
	ck_assert_ptr_eq(class_of(a, 8 * KIB), k);
	ck_assert_ptr_ne(class_of_tenant(a, 2, 8 * KIB), k);
	for (uint32_t i = 3; i < ARENA_CLASSES_MAX; i++)
		class_of_tenant(a, i, 8 * KIB);
	ck_assert_int_eq(arena_class_for(a, ARENA_CLASSES_MAX, 8 * KIB, &other), STATUS_EXHAUSTED);
	ck_assert_ptr_eq(class_of(a, 8 * KIB), k);
	ck_assert_uint_eq(usage_of(a).classes, ARENA_CLASSES_MAX);
	arena_destroy(a);
}
END_TEST

START_TEST(layouts_find_their_class)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 64 * MIB });
	struct arena_class *k, *other;

	ck_assert_int_eq(arena_class_for(a, 1, 100 * KIB, &k), STATUS_OK);
	ck_assert_uint_eq(arena_class_stride(k), 100 * KIB);
	ck_assert_int_eq(arena_class_for(a, 1, 96 * KIB - 5, &other), STATUS_OK);
	ck_assert_ptr_eq(k, other);
	ck_assert_int_eq(arena_class_for(a, 1, 92 * KIB, &other), STATUS_OK);
	ck_assert_ptr_ne(k, other);
	ck_assert_int_eq(arena_class_for(a, 2, 96 * KIB, &other), STATUS_OK);
	ck_assert_uint_eq(arena_class_stride(other), 96 * KIB);
	/* As many classes as are made by need alone; what lies above is made larger than it need be, but never than an
	 * extent. */
	for (uint64_t i = 1; i <= CLASS_RULE_MOST; i++)
		ck_assert_int_eq(arena_class_for(a, 3, i * 8 * KIB, &other), STATUS_OK);
	ck_assert_int_eq(arena_class_for(a, 3, 4 * KIB, &other), STATUS_OK);
	for (uint64_t need = 2 * MIB; need <= 16 * MIB; need += 4 * KIB)
		ck_assert_int_eq(arena_class_for(a, 3, need, &other), STATUS_OK);
	ck_assert_uint_eq(arena_class_stride(other), 16 * MIB);
	ck_assert_int_eq(arena_class_for(a, 3, 16 * MIB + 1, &other), STATUS_PRECONDITION);
	ck_assert_uint_lt(usage_of(a).classes, 3 + CLASS_RULE_MOST + 80);
	arena_destroy(a);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("class");

	tcase_add_loop_test(tc, a_layout_joins_a_class_that_is_little_larger, 0, sizeof(joins) / sizeof(joins[0]));
	tcase_add_test(tc, needs_are_rounded);
	tcase_add_test(tc, classes_are_not_without_number);
	tcase_add_loop_test(tc, spans_have_few_granules_and_short_tails, 0, sizeof(spans) / sizeof(spans[0]));
	tcase_add_test(tc, tails_are_short_wherever_they_can_be);
	tcase_add_loop_test(tc, classes_and_spans_waste_little, 0, 8);
	tcase_add_test(tc, classes_are_one_a_tenant_and_stride);
	tcase_add_test(tc, layouts_find_their_class);
	return run_cases("store_arena_class", &tc, 1);
}
