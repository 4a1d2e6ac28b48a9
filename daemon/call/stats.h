/* The rows of Stats. */
#ifndef TERRACE_DAEMON_CALL_STATS_H
#define TERRACE_DAEMON_CALL_STATS_H

#include <stdint.h>

#include "daemon/block/counters.h"

struct cache;

/* All rows; those of tenants for the first options.tenant_rows of the table. */
void cache_stats(struct cache *c, uint64_t now_us, cache_stat_fn *emit, void *arg);

/* Those of one tenant alone, for its engines: nothing of them is changed by what others do. */
void cache_tenant_stats(struct cache *c, uint32_t tenant, cache_stat_fn *emit, void *arg);

#endif
