/* Before a stop: blocks that no disk has are written to the disks. */
#include "daemon/call/settle.h"

#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/disk/spill.h"
#include "daemon/disk/state.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "store/clock.h"
#include "store/crash_point.h"

enum {
	SETTLE_DOWNS = 256,
	SETTLE_LEAST_US = 1500 * 1000, /* a full disk is tried again after a second */
	SETTLE_FULL_US = 400 * 1000,
};

/* With the lock: how much is on its way to the disks, or will be. *left: blocks on GPUs alone that are not downloaded
 * now; *no_place: nothing is on its way, and no disk has a place. */
static uint64_t settle_step(struct cache *c, uint64_t *left, bool *no_place)
{
	uint64_t dirty = 0, transfers;

	*left = 0;
	*no_place = !spill_pump(c);
	for (uint32_t i = 0; i < c->pool_count; i++) {
		dirty += c->pools[i]->dirty;
		if (c->vram)
			vram_settle(c, c->pools[i], SETTLE_DOWNS);
		*left += vram_only_blocks(c, c->pools[i]);
	}
	transfers = c->tier->transfer_count + (c->vram ? c->vram->transfer_count : 0);
	*no_place &= !transfers;
	return dirty + transfers;
}

bool cache_settle(struct cache *c, uint64_t wait_us, struct cache_unsettled *unsettled)
{
	const uint64_t began_us = clock_us();
	uint64_t dirty, left, passed_us = 0, place_us = 0; /* the latter: when there was one last */
	bool no_place;

	if (!c->tier)
		return true;
	do {
		cache_lock(c);
		c->settles = true;
		dirty = settle_step(c, &left, &no_place);
		cache_unlock(c);
		if (!no_place)
			place_us = passed_us;
		if (!dirty || (passed_us > SETTLE_LEAST_US && passed_us - place_us > SETTLE_FULL_US))
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
		passed_us = clock_us() - began_us;
	} while (passed_us < wait_us);
	cache_lock(c);
	CRASH_POINT("settle");
	c->settles = false;
	cache_unlock(c);
	if (unsettled && (dirty || left))
		*unsettled = (struct cache_unsettled){ dirty + left, no_place && dirty };
	return !dirty && !left;
}
