/* Brings blocks to where a Lease or a Warm wants them. To memory they come by loads and by downloads from GPUs; to a
 * GPU they come from memory, and blocks on a disk pass through memory. call/source.c chooses where a block comes from.
 */
#include "daemon/call/admission.h"

#include "daemon/advice/prefetch.h"
#include "daemon/block/block.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/memory_class.h"
#include "daemon/block/values.h"
#include "daemon/block/wait.h"
#include "daemon/call/source.h"
#include "daemon/memory/evict.h"
#include "daemon/session/lease.h"
#include "daemon/vram/copy_queue.h"
#include "daemon/vram/evict.h"
#include "daemon/vram/placement.h"
#include "daemon/vram/slot_map.h"
#include "daemon/vram/state.h"
#include "daemon/vram/transfer.h"
#include "store/ring/ring.h"
#include "store/status.h"

enum {
	FETCH_KEYS = 512,              /* keys per eviction step, in a call that waits for all of its blocks; */
	/* keys per step on the way to a GPU; their copies begin together, if they are no more than a copy batch */
	PUBLISH_KEYS = 256,
};

/* Makes room in memory for those of the blocks that are not there. */
static void room_for_loads(struct cache *c, uint32_t n, struct block *const *block)
{
	uint32_t loads[CLASSES_MAX] = { 0 };

	for (uint32_t i = 0; i < n; i++)
		if (block[i] && !block[i]->span && !block[i]->moving)
			loads[block_pool(block[i])->class->number]++;
	for (uint32_t i = 0; i < c->class_count; i++)
		if (loads[i])
			room_clear(c, c->classes[i], loads[i]);
}

static void fetch_some(struct cache *c, uint32_t n, struct block **block, enum ring_priority priority, struct cache_wait *w)
{
	for (uint32_t i = 0; i < n; i++)
		if (block[i] && !block[i]->span)
			prefetch_wanted(c, block[i]);
	w->shed += source_bring_run(c, n, block, priority, w);
	if (c->vram)
		vram_publish(c);
}

/* Pins those of n blocks that are in memory, for w; then begins the loads of the others. False: all of them are in
 * memory. */
static bool fetch(struct cache *c, uint32_t n, struct block **block, enum ring_priority priority, struct cache_wait *w)
{
	uint32_t absent = 0;

	for (uint32_t i = 0; i < n; i++)
		absent += block[i] && !block[i]->span;
	if (!absent)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (block[i] && block[i]->span && !wait_pin(c, w, block[i]))
			w->shed++;
	for (uint32_t from = 0, to; from < n; from = to) {
		to = n - from > FETCH_KEYS ? from + FETCH_KEYS : n;
		room_for_loads(c, to - from, block + from);
		fetch_some(c, to - from, block + from, priority, w);
	}
	return true;
}

/* Begins what brings a block to its place. */
static enum status place_begin(struct admission *a, struct block *b, enum ring_priority priority, bool wait_end)
{
	struct cache *c = a->cache;

	if (!b->span)
		prefetch_wanted(c, b);
	if (a->want.or_host && !b->span && !vram_ready(b))
		return source_bring(c, b, priority, a->wait);
	return vram_up(c, a->want.gpu, b, priority, a->wait, wait_end, false);
}

/* Makes room on the GPU for those blocks of a layout that memory has. */
static void room_for_ups(struct admission *a, uint32_t layout, uint32_t from, uint32_t to, struct block *const *block)
{
	struct vram_pool *vp = vram_pool_get(a->cache, a->want.gpu, a->pools[layout]);
	uint32_t ups = 0;

	for (uint32_t i = from; i < to; i++) {
		const struct block *b = block[(size_t)i * a->layouts + layout];

		ups += b && b->span && !vram_slot_on(b, a->want.gpu);
	}
	if (vp && ups)
		vram_room_early(a->cache, vp->class, ups);
}

static void pin_all(uint32_t blocks, struct block *const *block)
{
	for (uint32_t i = 0; i < blocks; i++)
		if (block[i])
			block_pin(block[i]);
}

static void unpin_all(uint32_t blocks, struct block *const *block)
{
	for (uint32_t i = 0; i < blocks; i++)
		if (block[i])
			block_unpin(block[i]);
}

/* Brings one pinned block to its place, for a call that waits for the end. The block's pin moves to the call's link. */
static void bring(struct admission *a, struct block *b, enum ring_priority priority)
{
	struct cache_wait *w = a->wait;

	w->adopts = b;
	if (!vram_placed(b, &a->want) && place_begin(a, b, priority, true) != STATUS_OK)
		w->shed++;
	else if (w->adopts && vram_placed(b, &a->want))
		w->shed += !wait_pin_on(a->cache, w, b, vram_place_gpu(b, &a->want));
	if (w->adopts)
		block_unpin(b);
	w->adopts = NULL;
}

/* Brings the blocks of keys first..n to a GPU, for a call that waits for the end. The blocks are pinned; some have no
 * place. Evictions and copies for the first blocks begin before the later blocks are looked at. */
static void fetch_whole(struct admission *a, uint32_t first, uint32_t n, struct block **block, enum ring_priority priority)
{
	uint32_t order[CACHE_LAYOUTS_MAX];

	vram_order(a->pools, a->layouts, order);
	for (uint32_t j = 0; j < a->layouts; j++) {
		const uint32_t publish = vram_list_blocks(a->pools[order[j]], PUBLISH_KEYS);

		for (uint32_t from = first, to; from < n; from = to) {
			to = n - from > FETCH_KEYS ? from + FETCH_KEYS : n;
			room_for_ups(a, order[j], from, to, block);
			for (uint32_t i = from; i < to; i++) {
				struct block *b = block[(size_t)i * a->layouts + order[j]];

				if (b)
					bring(a, b, priority);
				if ((i + 1) % publish == 0)
					vram_publish(a->cache);
			}
		}
	}
}

/* The submission thread knows that more copies follow, until all are staged. */
static bool fetch_rest(struct admission *a, uint32_t n, struct block **block, enum ring_priority priority)
{
	if (!a->coming)
		vram_more_announce(a->want.gpu);
	fetch_whole(a, a->prefetched, n, block, priority);
	vram_more_ended(a->want.gpu);
	a->coming = false;
	return true;
}

/* Brings the blocks of the first n keys to a GPU, for a call that does not wait for the end. False: each block has its
 * place now, and all stay pinned for the lease. True: blocks with a place are pinned there, and the others only by
 * their transfers, so that memory that they have passed through is free for the next ones. */
static bool fetch_gpu(struct admission *a, uint32_t n, struct block **block, enum ring_priority priority)
{
	const uint32_t blocks = n * a->layouts;
	struct cache_wait *w = a->wait;
	uint32_t refused = 0, order[CACHE_LAYOUTS_MAX];
	bool placed = true;

	vram_order(a->pools, a->layouts, order);
	for (uint32_t j = 0; j < a->layouts; j++)
		room_for_ups(a, j, 0, n, block);
	for (uint32_t j = 0; j < a->layouts; j++)
		for (uint32_t i = 0; i < n; i++) {
			struct block *b = block[(size_t)i * a->layouts + order[j]];

			if (!b || vram_placed(b, &a->want))
				continue;
			refused += place_begin(a, b, priority, false) != STATUS_OK;
			placed = placed && vram_placed(b, &a->want);
		}
	a->pinned = placed && !refused && !w->outstanding;
	if (a->pinned)
		return false;
	w->shed += refused;
	for (uint32_t i = 0; i < blocks; i++)
		if (block[i] && vram_placed(block[i], &a->want))
			w->shed += !wait_pin_on(a->cache, w, block[i], vram_place_gpu(block[i], &a->want));
	unpin_all(blocks, block);
	if (w->outstanding)
		vram_fence_early(a->want.gpu, a->want.progress_page, vram_layers_most(a->pools, a->layouts), w);
	return true;
}

bool bring_begin(struct admission *a, uint32_t n, struct block **block, enum ring_priority priority, bool wait_end)
{
	const uint32_t blocks = n * a->layouts, prefetched = a->prefetched < n ? a->prefetched : n;
	uint32_t placed = 0;

	if (!a->want.gpu)
		return fetch(a->cache, blocks, block, priority, a->wait);
	while (placed < blocks && (!block[placed] || vram_placed(block[placed], &a->want)))
		placed++;
	if (placed == blocks)
		return false;
	/* making room for one must not cost another */
	pin_all((n - prefetched) * a->layouts, block + (size_t)prefetched * a->layouts);
	return wait_end ? fetch_rest(a, n, block, priority) : fetch_gpu(a, n, block, priority);
}

/* What has no place there yet is only to be copied. */
static bool all_at_hand(const struct admission *a, uint32_t blocks, struct block *const *block)
{
	uint32_t i = 0;

	while (i < blocks && block[i] && (block[i]->span || vram_placed(block[i], &a->want)))
		i++;
	return i == blocks;
}

bool bring_prefetch(struct admission *a, uint32_t n, struct lease *l)
{
	const uint32_t blocks = n * a->layouts;

	if (admit_prefix(a, n, true, l) < n || !all_at_hand(a, blocks, l->block))
		return false;
	a->prefetched = n;
	a->coming = true;
	vram_more_announce(a->want.gpu);
	pin_all(blocks, l->block);
	fetch_whole(a, 0, n, l->block, RING_PREFETCH);
	vram_publish(a->cache);
	return true;
}

uint32_t bring_now(struct admission *a, uint32_t n, struct block *const *block)
{
	const uint32_t blocks = n * a->layouts;
	uint32_t i;

	pin_all(blocks, block);
	for (i = 0; i < blocks; i++)
		if (block[i] && !vram_placed(block[i], &a->want) &&
		    (vram_up(a->cache, a->want.gpu, block[i], RING_URGENT, NULL, false, true) || !vram_placed(block[i], &a->want)))
			break;
	unpin_all(blocks, block);
	return i / a->layouts;
}
