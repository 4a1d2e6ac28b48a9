/* Transfers to and from GPUs that have begun. */
#ifndef TERRACE_DAEMON_VRAM_TRANSFER_TABLE_H
#define TERRACE_DAEMON_VRAM_TRANSFER_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/ends.h"
#include "daemon/block/memory_class.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct progress_page;
struct cache_wait_link;
struct gpu;
struct layout_pool;
struct vram_slot;

enum { VRAM_SPARES_MAX = 8192 };

enum transfer_step { STEP_NEW, STEP_HOST, STEP_DUE, STEP_ROOM, STEP_QUEUED };

/* The submission thread goes through queues that other processors have filled: what it needs of a transfer is on the
 * transfer's first cache line, and it asks for the line of `ahead` before it comes there. */
struct vram_transfer {
	struct vram_transfer *next;    /* of the queue, the list or those that wait */
	struct block *block;           /* pinned; NULL: a fence */
	struct device_pair pair;       /* in a queue: what is to be copied */
	const struct layout_pool *pool; /* the block's */
	/* some way behind it in the queue when it was put there: a guess, not to be followed */
	struct vram_transfer *next_hint;
	enum device_way way;
	bool checked;                  /* up: its bytes were looked at when they came to memory for it */
	bool fetched;                  /* up: they came there for it, or will, and it has not entered its queue: in vram->fetched_bytes */
	struct vram_slot *slot;        /* on gpu; NULL: none yet */
	uint32_t base, layers;         /* of a fence */
	uint64_t enqueued_us;          /* the same */
	bool overtakes;                /* the same: nothing that it tells of stands in the tail */
	struct progress_page *progress_page; /* the same */
	struct gpu *gpu;               /* up, across: to; down: from */
	struct vram_transfer *hash_next; /* of the bucket by block */
	enum ring_priority priority;   /* up: of a load for it */
	enum transfer_step step;       /* waits for the copy in host memory; in the queue of ends; for a slot; for its turn */
	struct vram_slot *from;        /* across: on another GPU */
	struct memory_slot host;         /* down: to */
	struct span_map *span;
	struct cache_wait_link *placed, *done; /* who waits for its slot to be known; for its end */
	uint32_t sums, header_crc;     /* down, across: of what came */
	uint64_t waits_us;             /* up: for room, since then; 0: it has not */
	bool hasty;                    /* up: it waits for no disk that writes */
	bool spare;                    /* down: takes only what memory can spare */
	bool idle;                     /* down: nobody is in a hurry for it */
	bool write_through;            /* down: of a copy that is to go down in any case */
	bool bad;                      /* up, down: its bytes are not the block's, or, down with a GPU that was lost, not known to be */
	bool early;                    /* down: begun while the sum of the commit was due, which its end waits for */
	bool arrived;                  /* across: its sums are known */
	enum status ended;             /* in the queue of ends: how it ends, or how what it waited for has */
	struct end end;
};

static inline struct vram_transfer *vram_transfer_of_end(struct end *e)
{
	return (struct vram_transfer *)((char *)e - offsetof(struct vram_transfer, end));
}

#endif
