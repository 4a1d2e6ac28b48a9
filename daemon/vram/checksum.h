/* Checksums of copies to and from GPUs. */
#ifndef TERRACE_DAEMON_VRAM_CHECKSUM_H
#define TERRACE_DAEMON_VRAM_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct cache;
struct copy_batch;
struct gpu;
struct vram_slot;

/* What is kept of the checksums in a slot's header: one over all of them. */
uint32_t vram_sums_of(const void *header, uint32_t layers);
/* It is down, and its bytes are to be summed, as they may have come. */
bool vram_copy_batch_sums(const struct copy_batch *f);
/* Without the lock: headers and checksums of what has come down, by the threads for that; ended(f) when they are done. False: not begun. */
bool vram_copy_batch_seal(struct copy_batch *f, void (*ended)(void *copy_batch));
/* Without the lock, on the caller's thread and those for that. */
void vram_copy_batch_seal_here(struct cache *c, struct copy_batch *f);
/* It came down: so its copies' sums are known. */
void vram_sums_keep(struct block *b, uint32_t sums);
/* By the device's thread: a list to another GPU is copied. That GPU sums what has come; then
 * vram_copy_batch_part_ended(). False: not begun, and nothing is compared. Not without gpu_verify_up. */
bool vram_copy_batch_sum_across(struct copy_batch *f);
/* The block has just been published in that slot, and its bytes are all there: what zeroes the rest of them is
 * complete. Its GPU sums it, and it is pinned until that is known: see vram/commit_sums.h. */
void vram_sum_begin(struct cache *c, struct vram_slot *s);
/* By the completion thread: sums have come, or will not. False: none have. */
bool vram_sums_end(struct cache *c, struct gpu *g);
/* The GPU is lost, or the tier stops: what the device has not begun to sum has no sum. */
void vram_sums_fail(struct cache *c, struct gpu *g);
/* By the submission thread, without the lock, in the order of the lists up: before the list is begun; then, or before,
 * as the threads for it take their time to be woken, the look at what is copied: what headers say is kept, and layers
 * are summed. False: no thread takes it, and it is to be done here. Of what is `behind` the end of the copies is told
 * instead, by the device's thread. */
void vram_copy_batch_enter(struct copy_batch *f);
bool vram_copy_batch_look(struct copy_batch *f);
void vram_copy_batch_look_here(struct copy_batch *f);
void vram_copy_batch_copied(struct copy_batch *f);
/* Without the lock: its copies, or its sums, have ended. */
void vram_copy_batch_part_ended(struct copy_batch *f);

#endif
