/* A GPU's queue of copies in one direction. */
#ifndef TERRACE_DAEMON_VRAM_QUEUE_H
#define TERRACE_DAEMON_VRAM_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/status.h"

struct gpu;
struct vram_transfer;

enum { VRAM_HINT_DISTANCE = 8 }; /* transfers that the submission thread asks for at a time */

/* What lists are for: to be leased, layer by layer; to come up otherwise; to go down; to another GPU. */
enum list_kind { LIST_LEASE, LIST_UP, LIST_DOWN, LIST_ACROSS, LIST_KINDS };

/* One list of copies under way. */
struct copy_batch {
	struct device_copy copy;       /* first */
	struct gpu *gpu;
	struct copy_batch *next;       /* of the ended; of those that are to be looked at */
	struct vram_transfer *transfers, *fence;
	struct vram_transfer **each;   /* [copy.count], the moves again; up: those to be summed first */
	enum status status;
	uint64_t begun_us, copied_us;
	bool sealed;                   /* down: what came has its header and checksums */
	_Atomic uint32_t parts;        /* that have not ended: the copies; up: the look at what is copied (vram/checksum.c): */
	struct copy_batch *summing_next; /* of the GPU's that are being summed, as they were begun */
	/* up, with a fence: [copy.parts] pieces of work of each layer, headers with the second; down: [copy.count] of
	 * each block */
	_Atomic uint32_t *left;
	uint32_t summed_blocks, piece; /* of each; layers in a piece */
	uint32_t layers_summed;        /* these and all before them */
	bool summing;                  /* it is */
	bool behind;                   /* up: looked at when it is copied, beside the copies of the next list */
	bool elsewhere;                /* it was one of the GPU's to_look: whoever takes it from there has it looked at */
	_Atomic bool all_due;          /* no layer is waited for any more, with the look at it */
	_Atomic uint64_t stalled_us;   /* since when one is; 0: none is */
	bool mixed;                    /* `each` is in another order than `moves` */
	struct device_pair pairs[];    /* behind them `each`, then `left` */
};

/* What is enqueued stands in `staged` until the lock is left, or vram_publish is called: so a lease's blocks come with
 * the fence behind them, and those of a long call that waits for the end begin to be copied while it is still at its
 * later ones. */
struct vram_queue {
	struct vram_transfer *staged, **staged_end;
	struct vram_transfer *lately[VRAM_HINT_DISTANCE]; /* put there: the last ones, in turns */
	uint32_t put;
	struct vram_transfer *staged_fence; /* the last one; */
	uint32_t staged_fences;        /* how many, */
	uint32_t staged_count;         /* and in all */
	/* With the GPU's queue_lock: */
	struct vram_transfer *first, **end;
	/* what stands behind the last fence: nobody waits for its layers, and a lease may overtake it, */
	struct vram_transfer **tail;
	uint64_t tail_us;              /* for a while from when a list of it last began */
	uint32_t count, fences;        /* in it; fences among them */
	uint32_t under_way;            /* lists that are being copied, or summed */
	_Atomic uint32_t copy_batches; /* lists that have not ended, which is the completion thread's to say */
};

/* Sums over those that were copied. */
struct list_times {
	_Atomic uint64_t lists, bytes, queued_us, copied_us, checked_us;
};

#endif
