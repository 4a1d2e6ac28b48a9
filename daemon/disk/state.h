/* The disk tier's state. */
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
	bool deleted;                  /* a block: it may lie on a disk that is out */
	uint64_t pardon[CACHE_DISKS_MAX]; /* disks that this run banned since they are out: without a delete its end takes that back */
	uint32_t pardon_count;
	bool pardon_folders;           /* the same of the folders of those that are out */
	struct catalog *catalog;
	uint8_t catalog_state;         /* enum catalog_state (store/catalog/catalog.h) */
	char catalog_why[160];         /* if it was damaged */
	struct cache_catalog_state found; /* of it: left_out (disks that are neither units nor out), blocks_absent, and what is lost */
	const struct policy_ops *policy;
	struct disk_transfer *transfers[TRANSFER_BUCKETS], *tombstones[TRANSFER_BUCKETS];
	struct disk_transfer *waiting_for_memory, **waiting_for_memory_end;
	struct disk_transfer *waiting_tombstones, **waiting_tombstones_end;
	bool burials_due;              /* the pump is to try those again, */
	bool looks_due;                /* is to begin more looks (disk/scrub.c), */
	bool spared;                   /* is to tell that memory has something to spare that it had not */
	/* spills whose block was removed: a header that names it may come yet */
	struct disk_transfer *abandoned_spills;
	/* spills that are to be checked, the last first; the thread that found none before its own has all of them
	 * checked */
	struct disk_transfer *_Atomic written;
	uint32_t transfer_count;
	uint32_t turn;                 /* the unit that spills next */
	uint64_t uses;                 /* of blocks on disks, and arrivals there: numbered from 1 on */
	bool all_promised;             /* no slab map is without a flushed block; false: it is to be found out */
	uint64_t attached_generation;  /* no block on a disk has a higher one */
	uint32_t spill_first;          /* the pool whose blocks do */
	uint64_t first_generation;     /* of this run's takes */
	uint64_t highest_generation;   /* seen on the disks */
	uint64_t doubt;                /* no unverified block has a higher generation; 0: there is none */
	uint64_t hurry_until_us;       /* so long they are looked at as fast as the disks read */
	bool stopping;
	bool restored;
	bool rebuild;                  /* without the catalog */
	bool scan;                     /* look at every header: the catalog may lag behind them */
	bool renewing;                 /* the catalog is being made anew: a scrub tells it what it finds */
	bool tombstones_lost;          /* for lack of memory a header may name a dead block: deletes are not sure any more */
	bool lagging;                  /* the catalog could not be told of something: only a scan finds all */
	pthread_t restorer;
	struct await *restorer_end;
	bool restorer_started;
	struct cache *left_next;       /* of the caches whose disks were left behind */
	_Atomic bool restorer_stop;
	uint64_t restored_blocks, restored_us;
	uint32_t layouts_kept;         /* pools whose layout the catalog has been told */
};

#endif
