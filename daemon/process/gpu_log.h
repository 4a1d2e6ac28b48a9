/* What the log says of the GPUs: at the start each of them, with what it has to do without, and then the loss of one,
 * once, that one makes no checksums of what is put on it, once, and copies whose checksums were wrong; see
 * process/disk_log.h. */
#ifndef TERRACE_DAEMON_PROCESS_GPU_LOG_H
#define TERRACE_DAEMON_PROCESS_GPU_LOG_H

#include "store/device.h"

struct cache;

struct gpu_log {
	bool begun, lost[DEVICES_MAX], unsummed[DEVICES_MAX];
	uint64_t corrupt_up[DEVICES_MAX], corrupt_down[DEVICES_MAX];
};

/* Logs what has changed since the last look. One thread. */
void gpu_log_look(struct gpu_log *log, struct cache *c);

#endif
