#include "tests/daemon/vram/stages.h"

#include "daemon/block/lock.h"
#include "daemon/vram/checksum.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/queue.h"
#include "daemon/vram/transfer.h"
#include "store/ring/ring.h"
#include "store/status.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t reached[STAGE_COUNT], begun;
static _Thread_local uint32_t to_place;
static _Thread_local bool leasing;

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void stages_begin(uint32_t blocks)
{
	for (int i = 0; i < STAGE_COUNT; i++)
		atomic_store(&reached[i], 0);
	to_place = blocks;
	leasing = true;
	atomic_store(&begun, clock_ns());
}

void stage_reached(enum stage s)
{
	if (!atomic_load_explicit(&reached[s], memory_order_relaxed))
		atomic_store(&reached[s], clock_ns());
	leasing &= s != STAGE_GRANTED;
}

uint64_t stage_ns(enum stage s)
{
	const uint64_t at = atomic_load(&reached[s]);

	return at ? at - atomic_load(&begun) : 0;
}

static void leaser_reached(enum stage s)
{
	if (leasing)
		stage_reached(s);
}

/* What the linker puts in the place of a call to `name`, which is __real_name here. */
#define IN_PLACE_OF(type, name, ...)      \
	type __real_##name(__VA_ARGS__); \
	type __wrap_##name(__VA_ARGS__); \
	type __wrap_##name(__VA_ARGS__)

IN_PLACE_OF(struct gpu *, vram_find, struct cache *c, const struct vram_search *s)
{
	struct gpu *const g = __real_vram_find(c, s);

	leaser_reached(STAGE_FOUND);
	return g;
}

IN_PLACE_OF(void, cache_lock, struct cache *c)
{
	leaser_reached(STAGE_ASKED);
	__real_cache_lock(c);
	leaser_reached(STAGE_LOCKED);
}

IN_PLACE_OF(void, vram_room_early, struct cache *c, struct vram_pool *vp, uint32_t slots)
{
	leaser_reached(STAGE_ADMITTED);
	__real_vram_room_early(c, vp, slots);
	leaser_reached(STAGE_ROOM);
}

IN_PLACE_OF(enum status, vram_up, struct cache *c, struct gpu *g, struct block *b, enum ring_priority priority, struct cache_wait *w, bool wait_end,
	    bool now)
{
	const enum status s = __real_vram_up(c, g, b, priority, w, wait_end, now);

	if (leasing && !--to_place)
		stage_reached(STAGE_PLACED);
	return s;
}

IN_PLACE_OF(void, vram_tail, struct gpu *g, uint64_t *from, uint64_t *to)
{
	leaser_reached(STAGE_HELD);
	__real_vram_tail(g, from, to);
}

IN_PLACE_OF(void, vram_publish, struct cache *c)
{
	leaser_reached(STAGE_RECORDED);
	__real_vram_publish(c);
	leaser_reached(STAGE_PUBLISHED);
}

IN_PLACE_OF(void, vram_copy_batch_enter, struct copy_batch *f)
{
	if (f->fence)
		stage_reached(STAGE_TAKEN);
	__real_vram_copy_batch_enter(f);
}
