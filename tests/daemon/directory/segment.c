/* Where segments begin, and how many a chain has. */
#include "daemon/directory/segment.h"

#include "tests/daemon/directory/rig.h"

START_TEST(segments_begin_where_they_should)
{
	static const uint64_t first[] = { 0, 64, 128, 256, 512, 1024, 1536, 2048, 2560 };

	for (uint32_t i = 0; i < sizeof first / sizeof *first; i++)
		ck_assert_uint_eq(segment_first(i), first[i]);
}
END_TEST

START_TEST(every_position_lies_in_one_segment)
{
	uint32_t segment = 0;

	for (uint64_t position = 0; position < 20000; position++) {
		if (position == segment_first(segment + 1))
			segment++;
		ck_assert_uint_eq(segment_of(position), segment);
	}
	ck_assert_uint_eq(segment_of(UINT32_MAX), segment_of(UINT32_MAX - 511ull));
	ck_assert_uint_le(segment_first(segment_of(UINT32_MAX)), UINT32_MAX);
	ck_assert_uint_gt(segment_first(segment_of(UINT32_MAX) + 1), UINT32_MAX);
}
END_TEST

START_TEST(a_chain_of_4096_has_11)
{
	static const struct {
		uint32_t keys, segments;
	} of[] = { { 0, 0 }, { 1, 1 }, { 64, 1 }, { 65, 2 }, { 256, 3 },
		   { 1024, 5 }, { 1025, 6 }, { 4096, 11 }, { 4097, 12 } };

	for (uint32_t i = 0; i < sizeof of / sizeof *of; i++)
		ck_assert_uint_eq(of[i].keys ? segment_of(of[i].keys - 1) + 1 : 0, of[i].segments);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("segment");

	tcase_add_test(tc, segments_begin_where_they_should);
	tcase_add_test(tc, every_position_lies_in_one_segment);
	tcase_add_test(tc, a_chain_of_4096_has_11);
	return rig_main(tc, "directory segments");
}
