/* One transfer between memory and a disk. */
#ifndef TERRACE_DAEMON_DISK_DISK_TRANSFER_H
#define TERRACE_DAEMON_DISK_DISK_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/ends.h"
#include "daemon/block/memory_class.h"
#include "daemon/disk/transfer.h"
#include "daemon/threads/pool.h"
#include "store/index.h"
#include "store/ring/ring.h"
#include "store/slab/disk.h"
#include "store/slot.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait_link;
struct layout_pool;
struct slab_map;
struct slot_header;
struct fetch;
struct unit;

struct disk_transfer {
	struct disk_request io;        /* first */
	struct end end;
	struct cache *cache;
	enum transfer_kind kind;
	enum ring_priority priority;
	struct disk_transfer *block_next; /* of the bucket by block */
	struct disk_transfer *tombstone_next; /* of the bucket by name, if `tombstone` */
	/* the list of loads that wait for memory, or of tombstones that the disk did not take yet */
	struct disk_transfer *waiting_next;
	struct disk_transfer *abandoned_next;
	struct cache_wait_link *links;
	struct unit *unit;
	struct slab_map *slab_map;
	uint32_t slab_map_slot;
	struct block *block;           /* pinned; NULL: a tombstone */
	struct memory_slot slot;         /* of a load */
	struct fetch *fetch;    /* of a load whose slot belongs to that fetch; NULL: the slot is the transfer's own */
	uint32_t piece;                /* which piece of the fetch */
	struct span_map *span;
	/* of a load: takes a slot only if nothing is lost by it, unless another call waits for the load */
	bool spare;
	bool for_gpu;                  /* of a load: a GPU reads it next; constant */
	bool tombstone;                /* the header in the slot names `dead` until this transfer is done */
	struct index_ident dead;       /* its key: */
	uint8_t dead_key[SLOT_KEY_MAX];
	uint64_t dead_generation;
	struct layout_pool *dead_pool;
	struct slot_header *page;      /* of a tombstone */
	struct disk_transfer *also;    /* a tombstone's second name for the header, if a write failed */
	/* of a spill out of a slab map: the tombstone of the slot that the block has there */
	struct disk_transfer *old;
	bool written;                  /* ... whose write is done; it is in slab map->copied */
	enum status landed;            /* ... the status of the sync after it */
	uint64_t begun_us, ended_us;   /* of a load: when its disk was asked, and when the disk had read it */
	struct work check;             /* of a load, and of a spill that has been written */
	enum status judged;            /* what the check found; else how the transfer ends, until that is reported */
	bool known;                    /* of a load: header_crc is the CRC of the header that was written there, */
	uint32_t header_crc;           /* ... and at the end that of the header that was read */
	uint64_t position;             /* of the block's first token */
	struct disk_transfer *written_next; /* the next of the transfers to be checked */
};

static inline struct disk_transfer *transfer_of_end(struct end *e)
{
	return (struct disk_transfer *)((char *)e - offsetof(struct disk_transfer, end));
}

#endif
