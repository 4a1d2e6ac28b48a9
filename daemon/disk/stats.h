/* The rows of Stats about disks and the catalog. */
#ifndef TERRACE_DAEMON_DISK_STATS_H
#define TERRACE_DAEMON_DISK_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"

struct cache;
struct cache_catalog_state;
struct cache_disk_state;
struct cache_wait;

/* The state of each disk, in the order of the options. Returns how many were written to out[max]. */
uint32_t cache_disks(struct cache *c, struct cache_disk_state *out, uint32_t max);
/* The state of the catalog. False: there is no disk tier. */
bool cache_catalog(struct cache *c, struct cache_catalog_state *out);
/* For people, after a flush or delete by this wait that is not complete: the disk (its folder) or the catalog that
 * prevents it, the cause, and what to do. "": nothing beyond the status. Before cache_wait_end. */
void cache_durable_problem(struct cache *c, const struct cache_wait *w, char *text, size_t bytes);
/* Emits the rows of Stats about disks. Without the lock. */
void tier_stats(struct cache *c, cache_stat_fn *emit, void *arg);

#endif
