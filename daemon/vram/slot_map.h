/* Slots of GPU memory, and which copy is in which slot. */
#ifndef TERRACE_DAEMON_VRAM_SLOT_MAP_H
#define TERRACE_DAEMON_VRAM_SLOT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/gpu_class.h"
#include "store/status.h"

struct arena_slot;
struct block;
struct cache;
struct gpu;
struct vram_transfer;
struct policy_event;
struct layout_pool;

/* made if new; NULL: no memory */
struct vram_pool *vram_pool_get(struct cache *c, struct gpu *g, struct layout_pool *p);
/* Slots of the class that can be taken without an eviction, the reserve excluded. */
uint64_t vram_room_free(const struct vram_class *k);
/* Frees the GPU's memory and all records of its spans and classes, even if slots are taken. */
void vram_memory_free(struct cache *c, struct gpu *g);
/* The next ready copy of the layout on that GPU, at or after (extent, slot), looking at no more than *budget slots,
 * which it counts down; NULL with *budget 0: go on from there; NULL with some left: no more. `slot` counts steps of
 * ARENA_DEVICE_UNIT from the beginning of the extent. Only for a lost GPU, to which no copies come: on another one a
 * block may move past the walk. */
struct vram_slot *vram_next(struct vram_pool *vp, uint32_t *extent, uint32_t *slot, uint32_t *budget);
/* How many blocks of the layout only GPUs have, those being downloaded excluded. */
uint64_t vram_only_blocks(const struct cache *c, const struct layout_pool *p);
/* The copy whose checksum of the commit is due (vram/commit_sums.h); NULL: none. */
struct vram_slot *vram_sum_due(const struct block *b);
/* A ready copy on another GPU that is not lost and from which that GPU can copy without host memory; NULL. */
struct vram_slot *vram_near(const struct block *b, const struct gpu *g);
/* The block's download; NULL: it has none. vram_downloading: whether it has one. */
struct vram_transfer *vram_down_of(const struct cache *c, const struct block *b);
bool vram_downloading(struct cache *c, const struct block *b);
/* Gives the block a slot that room has given. */
struct vram_slot *vram_attach(struct block *b, struct vram_pool *vp, const struct arena_slot *from, enum vram_state state);
/* Takes the slot from its block, and frees it. Its transfer has ended. */
void vram_detach(struct vram_slot *s);
void vram_ready_now(struct cache *c, struct vram_slot *s);
/* Keeps what the block's put said, so that the header need not be read for it. */
void vram_remember_info(struct vram_slot *s, const struct slot_info *info, uint64_t unix_ms);
/* Called when the tiers that have the block have changed: counts the copy as dirty or not. */
void vram_sync(struct block *b);
/* Notes a use of the block on that GPU or (NULL) on all. Cold, since most blocks are on no GPU, and each passes
 * here. */
__attribute__((cold)) void vram_used(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e);
/* The member `unusable` of block/tier.h for GPUs. */
void vram_unusable(struct cache *c, struct block *b, bool is);
/* Notes a use if the copy is still coming. False: it is ready, and the caller tells the policy. */
bool vram_used_coming(struct vram_slot *s);
/* Marks the copies of a removed block as dead. The caller has taken the block out of the accounting. */
void vram_removed(struct cache *c, struct block *b);
/* Takes the slot out of its block's chain. */
void vram_unchain(struct vram_slot *s);
/* Marks a copy, ready or coming, as corrupt: it is not leased any more, and its slot is freed when nothing holds it. */
void vram_corrupt(struct cache *c, struct vram_slot *s);
/* Gives back the slots of an unpublished block, and dead ones that nothing holds. */
__attribute__((cold)) void vram_give(struct block *b);
/* Has the copy downloaded at once: its block was put on a GPU. */
void vram_queue_down(struct block *b);
void vram_queue_write_through(struct vram_slot *s);
void vram_unqueue_write_through(struct vram_slot *s);
/* Without the lock, of a block that its engine has written: zeroes the bytes behind so many tokens, and waits for that.
 * UNAVAILABLE: its GPU is lost, or has not answered and counts as lost now. EXHAUSTED: the driver has no memory. */
enum status vram_zero_behind(struct cache *c, struct block *b, uint32_t tokens);
/* Called when a commit has published the block. position: of the block in its sequence. */
void vram_published(struct cache *c, struct block *b, uint64_t position);

#endif
