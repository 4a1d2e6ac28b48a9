/* What the log says of the disk tier: at the start what was found and how the disks are driven, then each change, once:
 * a disk's health, blocks there whose bytes proved wrong, the catalog's health, and that what earlier runs left has
 * been taken up, with what of it is lost. Disks that could not be used at the start are told of once, as errors. Found
 * by comparing what the core says with what was said last, about once a second; that a disk or the catalog is well
 * again is logged after half a minute. GPUs are logged the same way (process/gpu_log.h). A state that comes and goes
 * between two looks is in the statistics only.
 */
#ifndef TERRACE_DAEMON_PROCESS_DISK_LOG_H
#define TERRACE_DAEMON_PROCESS_DISK_LOG_H

#include "daemon/block/values.h"
#include "daemon/process/gpu_log.h"

enum {
	DISK_LOG_EVERY_MS = 1000,
	DISK_LOG_SOON_MS = 50,               /* until what earlier runs left has been taken up, but no longer than */
	DISK_LOG_SOON = 200,                 /* looks */
	DISK_LOG_FEW_SLABS = 2,              /* a disk that has room for fewer is told of at the start */
	DISK_LOG_WELL = 30,                  /* looks: a disk with no room is tried again each second, and would be full and healthy by turns */
};

struct disk_log {
	const char *health[CACHE_DISKS_MAX]; /* the word said last; NULL: none yet */
	uint64_t corrupt[CACHE_DISKS_MAX];   /* blocks told of */
	uint32_t sizes[CACHE_DISKS_MAX];     /* of blocks, told of as too many for the disk; 0: not told yet */
	uint32_t well[CACHE_DISKS_MAX];      /* looks in a row that found it healthy, though the last word was another */
	bool failing, restored, begun;       /* said of the catalog */
	uint32_t works;                      /* as well[], of the catalog */
	uint64_t readers_cleared;            /* told of */
	int reader_pid;                      /* told of; 0: none */
	uint32_t looks;
	struct gpu_log gpus;                 /* said with the rest */
	int trace_error;                     /* said of the trace that is being recorded */
};

/* The milliseconds until the next look is due. */
static inline long disk_log_due_ms(const struct disk_log *log)
{
	return log->begun && !log->restored && log->looks < DISK_LOG_SOON ? DISK_LOG_SOON_MS : DISK_LOG_EVERY_MS;
}
/* Logs what has changed since the last look; the first one of a zeroed struct logs the state at the start. One
 * thread. */
void disk_log_look(struct disk_log *log, struct cache *c);

#endif
