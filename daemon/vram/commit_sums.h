/* Checksums of blocks that are put on a GPU, computed by the GPU at the commit: the queue of slots, and the lists that
 * the GPU works on. vram_sum_begin() and the functions after it (vram/checksum.h) fill the queue and keep the results.
 *
 * A commit waits for nothing. It marks and pins its blocks, and the GPU's submission thread hands them to the device
 * when the commit has left the cache's lock. So a commit costs about .2 us a block more, and one wake of the submission
 * thread, about 1 us, which a session that writes through has anyway (tests/daemon/vram/commit_sums.c --measure).
 *
 * The gap: a stray write between the commit and the GPU's reading becomes part of the checksum, and is not found. On an
 * idle GPU that gap is some tens of microseconds; on a GPU that another process's kernels fill, it lasts until the
 * daemon's turn. A copy is not trusted meanwhile: the GPU may download the block beside the checksum, but the copy in
 * memory counts only when the checksum is known and fits it. A spill, a Flush and a Get begin with a download, so they
 * wait too. A copy that another GPU gets meanwhile has the checksum when it is there. Only a commit that waits for the
 * GPU would close the gap.
 *
 * If the device cannot compute checksums, or fails, the block has none until its first download, whose bytes are then
 * trusted. Such blocks are counted, and the log says so once.
 */
#ifndef TERRACE_DAEMON_VRAM_COMMIT_SUMS_H
#define TERRACE_DAEMON_VRAM_COMMIT_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/ends.h"
#include "daemon/vram/piece_sums.h"
#include "store/device.h"
#include "store/status.h"

struct block;
struct commit_sums;
struct gpu;
struct vram_transfer;
struct vram_slot;

/* Blocks of one shape, whose checksums a device computes. Its last owner frees it. */
struct sum_list {
	struct piece_sums sums;        /* first */
	struct gpu *gpu;
	struct end end;                /* in the GPU's queue of ends */
	uint32_t count, ended;         /* blocks; those that have ended */
	enum status status;
	char why[DEVICE_WORDS_MAX];    /* why it could not be begun; empty: it was begun */
	struct vram_slot **slot;       /* [count] */
	struct block **block;          /* [count]; they are pinned */
	uint64_t at[];                 /* the same; behind it slots, blocks and sums */
};

/* Makes a GPU's queue of checksums. NULL: no memory. free() destroys it. */
struct commit_sums *vram_sums_create(void);

/* ---- with the cache's lock ---- */

/* Queues a slot. Its block is pinned until its list has ended, or vram_sums_unsent() has returned it. */
void vram_sum_stage(struct vram_slot *s);
bool vram_sums_staged(const struct gpu *g);
/* Takes the slots whose checksum has not begun, linked by sum_next. They are the caller's. */
struct vram_slot *vram_sums_unsent(struct gpu *g);
/* Has a download that has come wait for the checksum of its block, which is due on that GPU. */
void vram_sum_wait(struct vram_transfer *m, struct gpu *g);
/* Takes the downloads that wait for checksums. They are the caller's. */
struct vram_transfer *vram_summed_take(struct gpu *g);
/* vram_sums_end_begun: the list's end has begun. vram_sums_ended: the end is over, and the list is freed. */
void vram_sums_end_begun(const struct sum_list *l);
void vram_sums_ended(struct sum_list *l);
/* Whether the GPU is lost. An ended list may have reported that before the tier knows. */
bool vram_sums_lost(const struct gpu *g);

/* ---- with the lock of the GPU's queues ---- */

/* Hands the staged slots to the submission thread. */
void vram_sums_publish(struct gpu *g);
/* Makes a list for vram_sums_send(). NULL: no checksum is due now, or there is no memory for a list; then the next tick
 * rings again. */
struct sum_list *vram_sums_take(struct gpu *g);

/* ---- without ---- */

/* By the submission thread: hands the list to the device. Its end follows in the GPU's queue (vram/batch_end.h). */
void vram_sums_send(struct sum_list *l);
/* Any thread: whether lists have begun and are not done with. */
bool vram_sums_under_way(const struct gpu *g);

#endif
