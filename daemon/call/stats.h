/* The rows of Stats: counters and gauges of all parts of the cache. */
#ifndef TERRACE_DAEMON_CALL_STATS_H
#define TERRACE_DAEMON_CALL_STATS_H

#include <stdint.h>

#include "daemon/block/stat_row.h"

struct cache;

/* Calls emit for each counter and gauge. Rows of one name are next to each other. The first options.tenant_rows tenants
 * of the table have rows, and up to 64 sessions that hold memory, each with engine, pid of the process that attached
 * last, and state. Not under the lock. */
void cache_stats(struct cache *c, uint64_t now_us, cache_stat_fn *emit, void *arg);

/* The rows that a tenant's own engines may see. No value in them is changed by what other tenants do. */
void cache_tenant_stats(struct cache *c, uint32_t tenant, cache_stat_fn *emit, void *arg);

#endif
