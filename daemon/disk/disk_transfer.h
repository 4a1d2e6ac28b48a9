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
	struct disk_transfer *waiting_next; /* loads that wait for memory; tombstones that the disk did not take yet */
	struct disk_transfer *abandoned_next;
	struct cache_wait_link *links;
	struct unit *unit;
	struct slab_map *slab_map;
	uint32_t slab_map_slot;
	struct block *block;           /* pinned; NULL: a tombstone */
	struct memory_slot slot;         /* of a load */
	struct fetch *fetch;    /* of a load whose slot is the fetch's; NULL: the slot is the transfer's own */
	uint32_t piece;                /* of it */
	struct span_map *span;
	bool spare;                    /* of a load: takes only what memory can spare, unless another call waits for it */
	bool for_gpu;                  /* of a load: a GPU reads it next; constant */
	bool tombstone;                /* the header in the slot names `dead` until this is done */
	struct index_ident dead;       /* its key: */
	uint8_t dead_key[SLOT_KEY_MAX];
	uint64_t dead_generation;
	struct layout_pool *dead_pool;
	struct slot_header *page;      /* of a tombstone */
	struct disk_transfer *also;    /* a tombstone's second name for the header, after a write that failed */
	/* of a spill out of a slab map: the tombstone of the slot that the block has there */
	struct disk_transfer *old;
	bool written;                  /* ... and in slab map->copied */
	enum status landed;            /* ... the word of the sync behind it */
	uint64_t begun_us, ended_us;   /* of a load: when its disk was asked, and when that had read it */
	struct work check;             /* of a load, and of a spill that has been written */
	enum status judged;            /* what that found; else how it ends, before it is told so */
	bool known;                    /* of a load: header_crc is that of the header which was written there, */
	uint32_t header_crc;           /* ... and in the end that of the one which was read */
	uint64_t position;             /* of the block's first token */
	struct disk_transfer *written_next; /* of those that are to be checked */
};

static inline struct disk_transfer *transfer_of_end(struct end *e)
{
	return (struct disk_transfer *)((char *)e - offsetof(struct disk_transfer, end));
}

#endif
