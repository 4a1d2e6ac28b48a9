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

/* The submission thread walks queues that other CPUs have filled. The fields that it needs are on the transfer's first
 * cache line, and it prefetches the line of next_hint. */
struct vram_transfer {
	struct vram_transfer *next;    /* of the queue, the batch or the waiting transfers */
	struct block *block;           /* pinned; NULL: a fence */
	struct device_pair pair;       /* in a queue: what is to be copied */
	const struct layout_pool *pool; /* the block's */
	/* a transfer some way behind it in the queue when it was staged: a guess, only for prefetching */
	struct vram_transfer *next_hint;
	enum device_way way;
	bool checked;                  /* up: its bytes were checked when they came to memory for it */
	/* up: it has or will have a slot of memory for its way, and is not in its queue yet: counted in
	 * fetched_bytes */
	bool fetched;
	struct vram_slot *slot;        /* on gpu; NULL: none yet */
	uint32_t base, layers;         /* of a fence */
	uint64_t enqueued_us;          /* the same */
	bool overtakes;                /* the same: nothing that it tells of stands in the tail */
	struct progress_page *progress_page; /* the same */
	struct gpu *gpu;               /* up, across: to; down: from */
	struct vram_transfer *hash_next; /* of the bucket by block */
	enum ring_priority priority;   /* up: of a load for it */
	/* what it waits for: the copy in host memory; its end in the queue of ends; a slot; its turn */
	enum transfer_step step;
	struct vram_slot *from;        /* across: on another GPU */
	struct memory_slot host;         /* down: to */
	struct span_map *span;
	struct cache_wait_link *placed, *done; /* links that wait for its slot to be known; for its end */
	uint32_t sums, header_crc;     /* down, across: of the bytes that came */
	uint64_t waits_us;             /* up: since when it has waited for room; 0: it has not */
	bool hasty;                    /* up: it does not wait for disks that write */
	bool spare;                    /* down: drops no block without another copy */
	bool idle;                     /* down: in the background */
	bool write_through;            /* down: of a copy that is to be downloaded in any case */
	bool bad;                      /* up, down: its bytes are wrong; or, down with a GPU that was lost, may be */
	/* down: begun while the checksum of the commit was due; its end waits for that */
	bool early;
	bool arrived;                  /* across: its checksums are known */
	enum status ended;             /* in the queue of ends: the status with which it, or what it waited for, ends */
	struct end end;
};

static inline struct vram_transfer *vram_transfer_of_end(struct end *e)
{
	return (struct vram_transfer *)((char *)e - offsetof(struct vram_transfer, end));
}

#endif
