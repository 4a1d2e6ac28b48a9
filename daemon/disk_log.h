/* What the log says of the disk tier: at the start what was found and how the disks are driven, then each change, once: a disk's
 * health, the catalog's, and that what earlier runs left has been taken up. Found by comparing what the core says with what
 * was said last, about once a second, and so is what there is to say of GPUs (gpu_log.h); what comes and goes between two looks is in the statistics alone.
 */
#ifndef TERRACE_DAEMON_DISK_LOG_H
#define TERRACE_DAEMON_DISK_LOG_H

#include "daemon/gpu_log.h"

enum { DISK_LOG_EVERY_MS = 1000 };

struct disk_log {
	const char *health[CACHE_DISKS_MAX]; /* the word said last; NULL: none yet */
	bool failing, restored, begun;       /* said of the catalog */
	struct gpu_log gpus;                 /* said with the rest */
};

/* Logs what has changed since the last look; the first one of a zeroed struct logs the state at the start. One thread. */
void disk_log_look(struct disk_log *log, struct cache *c);

#endif
