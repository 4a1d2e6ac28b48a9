/* A GPU's queue of copies in one direction. */
#ifndef TERRACE_DAEMON_VRAM_QUEUE_H
#define TERRACE_DAEMON_VRAM_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/ends.h"
#include "store/device.h"
#include "store/status.h"

struct gpu;
struct vram_transfer;

enum { VRAM_HINT_DISTANCE = 8 }; /* how many transfers ahead the submission thread prefetches */

/* What batches are for: a lease that waits layer by layer; other uploads; downloads; copies to another GPU. */
enum list_kind { LIST_LEASE, LIST_UP, LIST_DOWN, LIST_ACROSS, LIST_KINDS };

/* One copy batch: copies that go to the device together. */
struct copy_batch {
	struct device_copy copy;       /* first */
	struct gpu *gpu;
	struct end end;                /* in the GPU's queue of ends */
	uint32_t ended;                /* transfers that have ended; `transfers` begins behind them */
	struct copy_batch *next;       /* of the unready batches; of those to be checked */
	struct vram_transfer *transfers, *fence;
	struct vram_transfer **each;   /* [copy.count], the transfers again; uploads: those to be summed first */
	enum status status;
	uint64_t begun_us, copied_us;
	bool sealed;                   /* downloads: they have been checked and have headers */
	/* parts that have not ended: the copies; uploads: the check of their bytes (vram/checksum.c) */
	_Atomic uint32_t parts;
	struct copy_batch *summing_next; /* of the GPU's batches that are being summed, as they were begun */
	/* uploads with a fence: pieces of work left of each layer [copy.parts], headers counting for the second;
	 * downloads: of each block [copy.count] */
	_Atomic uint32_t *left;
	uint32_t summed_blocks, piece; /* of each; layers in a piece */
	uint32_t layers_summed;        /* this many layers, from the first on, are summed */
	bool summing;                  /* it is being summed */
	bool behind;                   /* uploads: checked after they are copied, beside the copies of the next batch */
	/* it was in the GPU's to_look: the thread that takes it from there has it checked */
	bool elsewhere;
	_Atomic bool all_due;          /* no layer is waited for any more, the check included */
	_Atomic uint64_t stalled_us;   /* since when a layer has been waited for; 0: none is */
	bool mixed;                    /* `each` is in another order than `moves` */
	struct device_pair pairs[];    /* behind them `each`, then `left` */
};

/* Enqueued transfers stand in `staged` until the lock is left or vram_publish is called. So a lease's blocks are
 * published together with the fence behind them; and the first copies of a long call that waits for the end begin while
 * the call is still at its later blocks. */
struct vram_queue {
	struct vram_transfer *staged, **staged_end;
	struct vram_transfer *lately[VRAM_HINT_DISTANCE]; /* the last transfers staged, as a ring */
	uint32_t put;
	struct vram_transfer *staged_fence; /* the last one; */
	uint32_t staged_fences;        /* how many, */
	uint32_t staged_count;         /* and in all */
	/* With the GPU's queue_lock: */
	struct vram_transfer *first, **end;
	/* behind the last fence: no lease waits for the layers of these, and a lease may overtake them, */
	struct vram_transfer **tail;
	uint64_t tail_us;              /* for a while after a batch of them last began */
	uint32_t count, fences;        /* in it; fences among them */
	uint32_t under_way;            /* batches that are being copied or summed */
	_Atomic uint32_t copy_batches; /* batches that have not ended; the completion thread ends them */
};

/* Sums of times over the batches that were copied. */
struct list_times {
	_Atomic uint64_t lists, bytes, queued_us, copied_us, checked_us;
};

#endif
