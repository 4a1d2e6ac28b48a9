/* Where the blocks of a lease, a Warm or a Flush are to come from, and their fences. */
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
struct layout_pool;
struct vram_transfer;
struct vram_slot;

/* Where a call wants its blocks. */
struct vram_want {
	struct gpu *gpu;               /* NULL: in host memory */
	bool or_host;
	bool may_begin;                /* what is in memory may be begun to be brought up without waiting */
	struct progress_page *progress_page; /* NULL: copies must be there before the lease is granted */
};

uint64_t pins_free_gpu(const struct cache *c, const struct gpu *g);
/* The block has its place: on the GPU or, with or_host, in memory. */
bool vram_placed(const struct block *b, const struct vram_want *want);
/* Its slot there, if what the lease's holder knows is enough to use it; the GPU then. NULL: its place is in memory, or nowhere yet. */
struct vram_slot *vram_place_slot(const struct block *b, const struct vram_want *want);
struct gpu *vram_place_gpu(const struct block *b, const struct vram_want *want);
/* Bytes that a lease of it there would add to what the GPU's holders hold. */
uint64_t vram_pin_bytes(const struct block *b, const struct gpu *g);
/* Its slot on that GPU, if it is there whole; NULL. */
struct vram_slot *vram_leasable(const struct block *b, const struct gpu *g);
/* The numbers of the layouts, those with the fewest layers first. */
void vram_order(struct layout_pool *const *pools, uint32_t layouts, uint32_t *order);
/* Layers of the one with the most. */
uint32_t vram_layers_most(struct layout_pool *const *pools, uint32_t layouts);
/* Behind the ups that have begun: how far they are is told at the progress page's word for that GPU. overtakes: what it
 * is to tell of is none of vram_tail's. False: no memory. */
bool vram_fence(struct gpu *g, struct progress_page *progress_page, uint32_t layers, bool overtakes, uint32_t *base);
/* The same of a call that waits for places, behind the last of them: when nothing is outstanding any more. Without memory it is left. */
void vram_fence_early(struct gpu *g, struct progress_page *progress_page, uint32_t layers, struct cache_wait *w);
void vram_fence_place(struct cache_wait *w);
void vram_fence_drop(struct cache_wait *w); /* the wait ends without */
/* Its list has ended so, or will never begin. Frees it. */
void vram_fence_end(struct vram_transfer *fence, enum status s);

#endif
