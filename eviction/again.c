/* See again.h. */
#include "eviction/again.h"

bool again_note(struct again *a, const struct record *r, uint64_t capacity, uint64_t small, uint64_t now_us)
{
	const uint64_t share = capacity / AGAIN_SHARES + 1, at = a->new_blocks / share;
	uint64_t back = (capacity * 9 / 10 + small) / share;

	for (uint32_t i = 0; !a->new_blocks && i < 2 * AGAIN_SHARES; i++)
		a->new_ms[i] = (uint32_t)(now_us / 1000); /* blocks from before the first access count as too old */
	if (!r->uses || (!r->live && !r->again))
		back = 0;
	else if (back > 2 * AGAIN_SHARES - 1)
		back = 2 * AGAIN_SHARES - 1;
	if (back && (int32_t)(r->last_ms - a->new_ms[(at + 2 * AGAIN_SHARES - back) % (2 * AGAIN_SHARES)]) >= 0)
		return true;
	if (!r->live && ++a->new_blocks % share == 0)
		a->new_ms[a->new_blocks / share % (2 * AGAIN_SHARES)] = (uint32_t)(now_us / 1000);
	return false;
}
