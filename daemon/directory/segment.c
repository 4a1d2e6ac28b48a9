#include "daemon/directory/segment.h"

/* Segment 0 begins at 0, 1 to 5 begin at 64 << (segment - 1), then each has SEGMENT_LONGEST positions. */
enum { FIRST = 64, DOUBLED = 5 };

uint64_t segment_first(uint32_t segment)
{
	if (!segment)
		return 0;
	if (segment <= DOUBLED)
		return (uint64_t)FIRST << (segment - 1);
	return (uint64_t)SEGMENT_LONGEST * (segment - DOUBLED + 2);
}

uint32_t segment_of(uint64_t position)
{
	if (position >= segment_first(DOUBLED))
		return (uint32_t)(position / SEGMENT_LONGEST) + DOUBLED - 2;
	uint32_t segment = 0;

	while (segment_first(segment + 1) <= position)
		segment++;
	return segment;
}
