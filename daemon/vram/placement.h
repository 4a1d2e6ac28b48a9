/* Where the blocks of a lease, a Warm or a Flush come from, and their fences. */
#ifndef TERRACE_DAEMON_VRAM_PLACEMENT_H
#define TERRACE_DAEMON_VRAM_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct block;
struct progress_page;
struct cache;
struct cache_wait;
struct gpu;
struct tenant;
struct layout_pool;
struct vram_transfer;
struct vram_slot;

/* Where a call wants its blocks. */
struct vram_want {
	struct gpu *gpu;               /* NULL: in host memory */
	bool or_host;
	bool may_begin;                /* uploads of blocks in memory may be begun without waiting */
	struct progress_page *progress_page; /* NULL: copies must be there before the lease is granted */
};

/* Bytes of the GPU that leases and reservations of the tenant may hold; how many more. */
uint64_t pins_max_gpu(const struct cache *c, const struct tenant *t, const struct gpu *g);
uint64_t pins_free_gpu(const struct cache *c, const struct tenant *t, const struct gpu *g);
/* Whether the block has its place: on the GPU or, with or_host, in memory. */
bool vram_placed(const struct block *b, const struct vram_want *want);
/* The block's slot on the GPU that is wanted, if the holder of a lease can use that slot with the answer that it gets.
 * NULL: the block's place is in memory, or it has none yet. */
struct vram_slot *vram_place_slot(const struct block *b, const struct vram_want *want);
struct gpu *vram_place_gpu(const struct block *b, const struct vram_want *want);
/* The bytes that leasing the block on that GPU would add to what is held of the GPU. */
uint64_t vram_pin_bytes(const struct block *b, const struct gpu *g);
/* The block's slot on that GPU, if the copy there is complete; else NULL. */
struct vram_slot *vram_leasable(const struct block *b, const struct gpu *g);
/* Writes the numbers of the layouts to order[], those with the fewest layers first. */
void vram_order(struct layout_pool *const *pools, uint32_t layouts, uint32_t *order);
/* The number of layers of the layout that has the most. */
uint32_t vram_layers_most(struct layout_pool *const *pools, uint32_t layouts);
/* Puts a fence behind the uploads that have begun: the progress page's word for that GPU shows their progress.
 * overtakes: the uploads that it shows are not in vram_tail's range. False: no memory. */
bool vram_fence(struct gpu *g, struct progress_page *progress_page, uint32_t layers, bool overtakes, uint32_t *base);
/* Asks for a fence for a call that still waits for places. vram_fence_place puts it behind the call's last upload, once
 * nothing of the call is outstanding. Without memory there is no fence. */
void vram_fence_early(struct gpu *g, struct progress_page *progress_page, uint32_t layers, struct cache_wait *w);
void vram_fence_place(struct cache_wait *w);
void vram_fence_drop(struct cache_wait *w); /* the wait ends without its fence */
/* Ends and frees a fence, whose batch has ended with status s or will never begin. */
void vram_fence_end(struct vram_transfer *fence, enum status s);

#endif
