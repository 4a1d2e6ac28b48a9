/* The rows of Stats about disks and the catalog. */
#ifndef TERRACE_DAEMON_DISK_STATS_H
#define TERRACE_DAEMON_DISK_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/counters.h"

struct cache;
struct cache_catalog_state;
struct cache_disk_state;
struct cache_wait;

uint32_t cache_disks(struct cache *c, struct cache_disk_state *out, uint32_t max);
bool cache_catalog(struct cache *c, struct cache_catalog_state *out);
/* For people, after a flush or a delete by this wait that has not done all: the catalog or the disk that keeps it from that, by its folder, the
 * cause, and what to do about it. "": there is no more to say than the status. Before cache_wait_end. */
void cache_durable_problem(struct cache *c, const struct cache_wait *w, char *text, size_t bytes);
/* The rows of Stats about disks, without the lock. */
void tier_stats(struct cache *c, cache_stat_fn *emit, void *arg);

#endif
