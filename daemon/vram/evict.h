/* Room on a GPU: which copy leaves for another. */
#ifndef TERRACE_DAEMON_VRAM_EVICT_H
#define TERRACE_DAEMON_VRAM_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct gpu;
struct layout_pool;
struct arena_slot;
struct vram_class;
struct vram_pool;
struct vram_slot;

/* How much a slot is wanted for. NEED_NOW: a call waits for it; before it is refused it waits for copies that are
 * coming, which may leave when they have come. NEED_SOON: it waits for writes to a disk, too, before a block that is
 * nowhere else is given up. The others can do without: NEED_OPTIONAL, and NEED_SPARE, for which no block that is
 * nowhere else is given up, neither here nor in memory. */
enum vram_need { NEED_NOW, NEED_SOON, NEED_OPTIONAL, NEED_SPARE };

/* A free slot, evicting clean copies as needed. BUSY: something is under way that makes room. EXHAUSTED: nothing is. */
enum status vram_room_take(struct cache *c, struct vram_pool *vp, enum vram_need need, struct arena_slot *out);
/* An unpublished block with a slot there. */
enum status vram_block_create(struct cache *c, struct gpu *g, struct layout_pool *p, uint32_t key_bytes,
    struct block **out);
/* Tells policies what room their classes have now. */
void vram_rooms_tell(struct cache *c);
/* Evicts what so many slots cost at once, as far as nothing has to go down for it: taken one by one, they then lie
 * side by side. */
void vram_room_early(struct cache *c, struct vram_class *k, uint32_t slots);
/* Of each class that has all that the GPU has for it a few slots are to be free before a lease or a put asks for them.
 * Leaves the lock. */
void vram_room_keep(struct cache *c, struct gpu *g);
/* A slot is free beyond those, or is made free by a copy that is elsewhere too and that nobody has used for so long. */
bool vram_room_spare(struct cache *c, struct vram_class *k, uint64_t idle_us);
/* Without the lock, of BUSY: until something came free, 20 ms at most. */
void vram_room_wait(struct cache *c);
/* Without the lock: makes an extent, if the class needs one. */
void vram_room_grow(struct cache *c, struct vram_class *k);
/* Without the lock, by the completion thread: a step of what is made ahead of need. */
void vram_preallocate(struct cache *c, struct gpu *g);
void vram_evict(struct cache *c, struct vram_slot *s, enum counter why);
/* A ready one is somewhere else too, so that nothing is lost with it. */
bool vram_clean(const struct vram_slot *s);
/* Begins to bring down what of the layout is on GPUs alone, `most` of it at a time, as far as memory has room that
 * costs nothing. Call again: each call looks at a few thousand blocks, and goes on where the one before stopped. */
void vram_settle(struct cache *c, struct layout_pool *p, uint32_t most);
/* Of a block that is on a GPU and not in host memory: it begins to come down, by the tier's table. spare: nothing that is
 * nowhere else goes for it: BUSY, memory has no other place. It may be told so as its end, too. */
enum status vram_down(struct cache *c, struct block *b, bool spare, struct cache_wait *w);
/* The same of what is to go down in any case, without a hurry: TAKE_BELOW. */
enum status vram_write_through(struct cache *c, struct block *b, bool spare, struct cache_wait *w);
/* As vram_down, without a hurry: while disks write nothing that is nowhere else goes for it: BUSY. */
enum status vram_down_soon(struct cache *c, struct block *b, struct cache_wait *w);
/* Without the lock, on a worker: brings a pinned block to host memory; false if that cannot be done within some
 * seconds, or, with `spare`, without that something goes that is nowhere else. */
bool vram_bring(struct cache *c, struct block *b, bool spare);
/* Goes down what is to, as far as bounds allow. */
void vram_pump(struct cache *c);

#endif
