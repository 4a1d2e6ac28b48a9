/* The state of the disk tier as a whole: its disks, catalog, restorer and transfers. */
#ifndef TERRACE_DAEMON_DISK_STATE_H
#define TERRACE_DAEMON_DISK_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/disk/slab_map.h"

struct await;
struct cache;
struct catalog;
struct disk_transfer;
struct policy_ops;

enum { TRANSFER_BUCKETS = 1024 };

/* A disk of the options that could not be used at the start. */
struct disk_out {
	uint32_t configured;
	char why[CACHE_WHY_MAX];
	const char *remedy;
};

struct tier {
	struct unit units[CACHE_DISKS_MAX];
	uint32_t unit_count;
	struct disk_out out[CACHE_DISKS_MAX];
	uint32_t out_count;
	bool deleted;                  /* a block was deleted in this run: a disk that is out may still have it */
	/* disks that this run banned because they are out; at the end the bans are taken back if nothing was deleted */
	uint64_t pardon[CACHE_DISKS_MAX];
	uint32_t pardon_count;
	bool pardon_folders;           /* the same for the folders of the disks that are out */
	struct catalog *catalog;
	uint8_t catalog_state;         /* enum catalog_state (store/catalog/catalog.h) */
	char catalog_why[160];         /* why, if it was damaged */
	/* what the catalog said at the start: left_out (disks that are neither units nor out), blocks_absent, and what
	 * is lost */
	struct cache_catalog_state found;
	const struct policy_ops *policy;
	struct disk_transfer *transfers[TRANSFER_BUCKETS], *tombstones[TRANSFER_BUCKETS];
	struct disk_transfer *waiting_for_memory, **waiting_for_memory_end;
	struct disk_transfer *waiting_tombstones, **waiting_tombstones_end;
	bool burials_due;              /* the pump is to try waiting tombstones again, */
	bool looks_due;                /* is to begin more looks (disk/scrub.c), */
	bool spared;                   /* is to report that memory has room to spare again */
	/* spills whose block was removed: their headers may still be written */
	struct disk_transfer *abandoned_spills;
	/* spills that are to be checked, the last first. The thread whose push finds the list empty sees to it that all
	 * are checked */
	struct disk_transfer *_Atomic written;
	uint32_t transfer_count;
	uint32_t turn;                 /* the unit that spills next */
	uint64_t uses;                 /* the number of uses of blocks on disks, and of arrivals there, so far */
	bool all_promised;             /* every slab map has a flushed block; false: not known */
	uint64_t attached_generation;  /* no block on a disk has a higher generation */
	uint32_t spill_first;          /* the pool that spills next */
	uint64_t first_generation;     /* of takes in this run */
	uint64_t highest_generation;   /* seen on the disks */
	uint64_t doubt;                /* no unverified block has a higher generation; 0: no block is unverified */
	uint64_t hurry_until_us;       /* until then unverified blocks are read as fast as the disks can */
	bool stopping;
	bool restored;
	bool rebuild;                  /* rebuild the catalog */
	bool scan;                     /* read every header: the catalog may lag behind them */
	bool renewing;                 /* the catalog is being rebuilt: a scrub tells it each copy */
	/* for lack of memory a header may name a dead block: deletes are not certain any more */
	bool tombstones_lost;
	bool lagging;                  /* the catalog could not be told of something: only a scan finds all blocks */
	pthread_t restorer;
	struct await *restorer_end;
	bool restorer_started;
	struct cache *left_next;       /* list of the caches whose disks were left behind */
	_Atomic bool restorer_stop;
	uint64_t restored_blocks, restored_us;
	uint32_t layouts_kept;         /* how many pools' layouts the catalog has been told */
};

#endif
