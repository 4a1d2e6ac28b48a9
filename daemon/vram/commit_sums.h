/* Checksums of what is put on a GPU, made by the GPU at the commit: the queue of what is to be summed, and the lists
 * that are. vram_sum_begin() and what follows it (vram/checksum.h) fill it and keep what comes.
 *
 * What a commit waits for: nothing. It fences and pins its blocks, and the GPU's submission thread hands them to the
 * device when the commit has left the cache's lock. So a commit costs about .2 us a block more, and one wake of the
 * submission thread, about 1 us, which a session that writes through has anyway (tests/daemon/vram/commit_sums.c
 * --measure).
 *
 * What that leaves open: what is written between the commit and the GPU's reading goes into the sum, and is not found.
 * On an idle GPU that is some tens of microseconds; where kernels of another process fill it, the time until it is
 * the daemon's turn. Nothing is called sound meanwhile: the GPU may copy a block to memory beside the summing, but the
 * copy counts as there only when the sum is known and is the copy's, too. So do a spill, a Flush and a Get wait, which
 * begin with that way; a copy that another GPU gets meanwhile has the sum when it is there. To close the gap the commit
 * would have to wait for the GPU.
 *
 * A device without the operation, or one that fails it: the block has no sum until it first comes down, and what comes
 * down then is taken as it is. Such blocks are counted, and the log says so once.
 */
#ifndef TERRACE_DAEMON_VRAM_COMMIT_SUMS_H
#define TERRACE_DAEMON_VRAM_COMMIT_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/vram/piece_sums.h"
#include "store/device.h"
#include "store/status.h"

struct block;
struct commit_sums;
struct gpu;
struct vram_transfer;
struct vram_slot;

/* Blocks of one shape, which a device sums. Its last owner frees it. */
struct sum_list {
	struct piece_sums sums;        /* first */
	struct gpu *gpu;
	struct sum_list *next;
	uint32_t count;
	enum status status;
	char why[DEVICE_WORDS_MAX];    /* it could not be begun; empty: it was */
	struct vram_slot **slot;       /* [count] */
	struct block **block;          /* the same, as they were pinned */
	uint64_t at[];                 /* the same; behind it slots, blocks and sums */
};

/* NULL: no memory. free() destroys it. */
struct commit_sums *vram_sums_create(void);

/* ---- with the cache's lock ---- */

/* Its block is pinned, until the list that it comes into has ended, or vram_sums_unsent() has given it back. */
void vram_sum_stage(struct vram_slot *s);
bool vram_sums_staged(const struct gpu *g);
/* What has not begun, by sum_next: the caller's. */
struct vram_slot *vram_sums_unsent(struct gpu *g);
/* A transfer down that has come, of a block whose sum is due on that GPU. */
void vram_sum_wait(struct vram_transfer *m, struct gpu *g);
/* Those that wait, the caller's. */
struct vram_transfer *vram_summed_take(struct gpu *g);
/* A list that has ended; NULL. vram_sums_ended() when all of it is done with. */
struct sum_list *vram_sums_next_ended(struct gpu *g);
void vram_sums_ended(struct sum_list *l);
/* The GPU is lost, which an ended list may have said before the tier knows. */
bool vram_sums_lost(const struct gpu *g);

/* ---- with the lock of the GPU's queues ---- */

/* What was staged is the submission thread's. */
void vram_sums_publish(struct gpu *g);
/* A list for vram_sums_send(). NULL: there is none, not now, or no memory for one, and then the tick rings again. */
struct sum_list *vram_sums_take(struct gpu *g);

/* ---- without ---- */

/* By the submission thread: hands it to the device; its end is vram_sums_next_ended()'s to tell. */
void vram_sums_send(struct sum_list *l);
/* Any thread: lists that have begun, and are not done with. */
bool vram_sums_under_way(const struct gpu *g);

#endif
