/* See departures.h. A rate that is too high for some seconds costs less than one that rises late. */
#include "eviction/departures.h"

#define SECOND_US 1000000ull
enum { FALLS_PART = 4, FALLS_MOST = 64 };

static void second_ends(struct departures *d, uint64_t now_us)
{
	const uint64_t past_us = now_us - d->since_us, now = d->count * SECOND_US / past_us;

	for (uint64_t i = 0; i < past_us / SECOND_US && i < FALLS_MOST; i++)
		d->a_second -= (d->a_second + FALLS_PART - 1) / FALLS_PART;
	if (now > d->a_second)
		d->a_second = now;
	d->since_us = now_us;
	d->count = 0;
}

void departures_note(struct departures *d, uint64_t count)
{
	d->count += count;
}

uint32_t departures_soon(struct departures *d, uint64_t blocks, uint64_t now_us)
{
	uint64_t soon;

	if (!d->since_us)
		d->since_us = now_us;
	if (now_us >= d->since_us + SECOND_US)
		second_ends(d, now_us);
	soon = (d->count > d->a_second ? d->count : d->a_second) * DEPARTURES_WITHIN_US / SECOND_US;
	soon = soon < blocks / DEPARTURES_PART ? soon : blocks / DEPARTURES_PART;
	return soon < DEPARTURES_MOST ? (uint32_t)soon : DEPARTURES_MOST;
}
