/* Checksums of copies to and from GPUs. */
#ifndef TERRACE_DAEMON_VRAM_CHECKSUM_H
#define TERRACE_DAEMON_VRAM_CHECKSUM_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct cache;
struct copy_batch;
struct gpu;
struct sum_list;
struct vram_slot;

/* The checksum over the layers' checksums in a slot's header. A GPU's slot keeps this one number. */
uint32_t vram_sums_of(const void *header, uint32_t layers);
/* Whether the downloads of this batch may have arrived, and their bytes were not checked yet, nor have headers. */
bool vram_copy_batch_is_unsealed(const struct copy_batch *f);
/* Without the lock: checksum threads check the downloaded blocks and write their headers; ended(f) follows. False: not
 * begun. */
bool vram_copy_batch_seal(struct copy_batch *f, void (*ended)(void *copy_batch));
/* As vram_copy_batch_seal, on the caller's thread and the checksum threads. Returns when it is done. */
void vram_copy_batch_seal_here(struct cache *c, struct copy_batch *f);
/* Keeps the checksum of a downloaded block: those of its copies on GPUs that had none have it from now on. */
void vram_sums_keep(struct block *b, uint32_t sums);
/* Called by the device's thread when a batch of copies to another GPU has been made. That GPU then computes the
 * checksums of the blocks, and vram_copy_batch_part_ended() follows. False: not begun, and nothing is compared. Only
 * with gpu_verify_up. */
bool vram_copy_batch_sum_across(struct copy_batch *f);
/* Begins a checksum of a block that has just been published in that slot. All the block's bytes are there, and the rest
 * of the slot is zeroed. The slot's GPU computes the checksum; the block is pinned until it is known
 * (vram/commit_sums.h). */
void vram_sum_begin(struct cache *c, struct vram_slot *s);
/* Ends the checksum of block i of an ended list: it has come, or has failed, as the list's status says. */
void vram_sum_end(struct cache *c, struct sum_list *l, uint32_t i);
/* The GPU is lost, or the tier stops: slots whose checksum the device has not begun get none. */
void vram_sums_fail(struct cache *c, struct gpu *g);
/* Without the lock. enter: by the submission thread, in the order of the upload batches, before the batch begins. look:
 * checksum threads check the blocks in memory (headers are kept, layers are summed); since waking them takes time, it
 * may be called earlier. False: no thread takes it, and the caller must do it. Of a batch that is checked `behind` its
 * copies, the device's thread reports the end of the copies instead. */
void vram_copy_batch_enter(struct copy_batch *f);
bool vram_copy_batch_look(struct copy_batch *f);
void vram_copy_batch_look_here(struct copy_batch *f);
void vram_copy_batch_copied(struct copy_batch *f);
/* Without the lock: the batch's copies, or its checksums, have ended. */
void vram_copy_batch_part_ended(struct copy_batch *f);

#endif
