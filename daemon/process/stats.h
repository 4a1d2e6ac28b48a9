/* The daemon's figures: the one source of Admin.Stats and of /metrics. */
#ifndef TERRACE_DAEMON_PROCESS_STATS_H
#define TERRACE_DAEMON_PROCESS_STATS_H

#include <stdint.h>

#include "daemon/block/stat_row.h"

struct daemon;

enum { STATS_MAX = 4096 }; /* rows, more than there can be: GPUs, disks, methods and sessions that have rows of their own are bounded */

/* Every row there is, as cache_stats says. Rows of one name may stand in several places. */
void daemon_stats(const struct daemon *d, uint64_t now_us, cache_stat_fn *emit, void *arg);

/* "draining"; "degraded": serving, but without parts that the configuration names (cache_faults); "serving". */
const char *daemon_state(const struct daemon *d);

#endif
