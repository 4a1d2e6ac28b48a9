/* The rows of Stats. */
#ifndef TERRACE_DAEMON_CALL_STATS_H
#define TERRACE_DAEMON_CALL_STATS_H

#include <stdint.h>

#include "daemon/block/counters.h"

struct cache;

void cache_stats(struct cache *c, uint64_t now_us, cache_stat_fn *emit, void *arg);

#endif
