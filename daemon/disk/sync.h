/* Syncs of disks and commits of the catalog that calls wait for. */
#ifndef TERRACE_DAEMON_DISK_SYNC_H
#define TERRACE_DAEMON_DISK_SYNC_H

#include <stdint.h>

#include "daemon/block/wait.h"
#include "store/slab/disk.h"

struct cache;

/* A link that is a request of its own. */
struct wait_errand {
	struct cache_wait_link link;   /* first */
	struct cache *cache;
	struct disk_request sync;
	uint64_t covers;               /* the unit's `written` when it began */
};

#endif
