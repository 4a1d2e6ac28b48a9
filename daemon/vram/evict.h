/* Room on a GPU: which copy is evicted for another. */
#ifndef TERRACE_DAEMON_VRAM_EVICT_H
#define TERRACE_DAEMON_VRAM_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "store/status.h"

struct arena_class;
struct block;
struct cache;
struct cache_wait;
struct gpu;
struct layout_pool;
struct vram_class;
struct vram_pool;
struct vram_slot;

/* How urgently a slot is wanted. NEED_NOW: a call waits for it; before it is refused, it waits for uploads under way,
 * which can be evicted when they have come. NEED_SOON: before a block without another copy is dropped, it also waits
 * for writes to a disk. NEED_OPTIONAL and NEED_SPARE can go without; for NEED_SPARE no block without another copy is
 * dropped, neither here nor in memory. */
enum vram_need { NEED_NOW, NEED_SOON, NEED_OPTIONAL, NEED_SPARE };

/* The block that a slot is wanted for, and how much it is wanted. */
struct vram_slot_want {
	struct block *block;
	enum vram_need need;
	bool reserved;                 /* the slot is for a put: VRAM_RESERVED; else a copy comes: VRAM_COMING */
};

/* Takes a free slot for the block, evicting clean copies as needed. BUSY: something under way will make room.
 * EXHAUSTED: nothing will, or no memory. */
enum status vram_slot_take(struct cache *c, struct vram_pool *vp, const struct vram_slot_want *w,
			   struct vram_slot **out);
/* Makes an unpublished block with a slot on that GPU. */
enum status vram_block_create(struct cache *c, struct gpu *g, struct layout_pool *p, uint32_t key_bytes,
    struct block **out);
/* Tells the policies how many slots their classes have now. */
void vram_rooms_tell(struct cache *c);
/* Evicts enough copies for so many slots at once, as far as no download is needed. Slots taken one by one then lie side
 * by side. */
void vram_room_early(struct cache *c, struct vram_class *k, uint32_t slots);
/* Frees a few slots in each class that has all the memory that it can get, before a lease or a put asks for them.
 * Leaves the lock. */
void vram_room_keep(struct cache *c, struct gpu *g);
/* Whether a slot is free beyond those that vram_room_keep keeps free, or can be freed by evicting a clean copy that has
 * been idle for idle_us. */
bool vram_room_spare(struct cache *c, struct vram_class *k, uint64_t idle_us);
/* Waits, after BUSY, until something has come free, 20 ms at most. Without the lock. */
void vram_room_wait(struct cache *c);
/* Without the lock: frees a retired extent that is empty and that no process has mapped, and takes memory for the
 * class, which lacked it, before others can. False: it was not freed. */
bool vram_hand_over(struct cache *c, struct gpu *g, uint32_t extent, struct arena_class *to);
/* Makes an extent, if the class needs one. Without the lock. */
void vram_room_grow(struct cache *c, struct vram_class *k);
/* One step of preallocation. Without the lock, by the completion thread. */
void vram_preallocate(struct cache *c, struct gpu *g);
void vram_evict(struct cache *c, struct vram_slot *s, enum counter why);
/* Whether a ready copy can be dropped without loss, since the block has another one. */
bool vram_clean(const struct vram_slot *s);
/* Begins to download blocks of the layout that are on GPUs alone, `most` at a time, as far as memory has room without
 * losing a block. Call again: each call looks at a few thousand blocks, and goes on where the one before stopped. */
void vram_settle(struct cache *c, struct layout_pool *p, uint32_t most);
/* Begins to download a block that is not in host memory, by the tier's table. spare: drops no block without another
 * copy for it; BUSY: memory has no other place. BUSY may also be the end of the transfer. */
enum status vram_down(struct cache *c, struct block *b, bool spare, struct cache_wait *w);
/* Begins to download a copy that is to come down in any case, in the background (effort TAKE_BELOW). `spare` and the
 * statuses are vram_down's. */
enum status vram_write_through(struct cache *c, struct block *b, bool spare, struct cache_wait *w);
/* As vram_down, in the background: while disks write, it drops no block without another copy, and answers BUSY. */
enum status vram_down_soon(struct cache *c, struct block *b, struct cache_wait *w);
/* Without the lock, on a worker: brings a pinned block to host memory; false if that takes longer than some seconds,
 * or, with `spare`, if a block without another copy would be dropped for it. */
bool vram_bring(struct cache *c, struct block *b, bool spare);
/* Begins the downloads that are due, as far as bounds allow. */
void vram_pump(struct cache *c);

#endif
