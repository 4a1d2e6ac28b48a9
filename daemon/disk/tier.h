/* The disk tier as a whole: birth, chores, failure and end. */
#ifndef TERRACE_DAEMON_DISK_TIER_H
#define TERRACE_DAEMON_DISK_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;

extern const struct tier_ops disk_tier; /* block/tier.h */

/* Chores that work on disks' files: with a disk that hangs it may not return. Not on the thread that runs
 * cache_chores. */
void cache_disk_chores(struct cache *c);
/* False while blocks that earlier runs left on the disks are still being taken up. */
bool cache_restored(struct cache *c);
/* Without the lock. create opens catalog and disks; start takes up the blocks there, once the host tier exists. */
enum status tier_create(struct cache *c, const char **why);
uint64_t tier_first_generation(struct cache *c);
enum status tier_start(struct cache *c, const char **why);
/* Ends all transfers; no thread of the tier runs afterwards. False: a disk, or the catalog's disk, has not answered
 * within disk_close_ms: the whole cache must stay as it is, since its requests touch it. read: a thread may still read
 * the catalog, which then stays open. */
bool tier_stop(struct cache *c, bool read);
void tier_destroy(struct cache *c); /* after the blocks are gone */
void tier_tick(struct cache *c);
/* Whether there is work for tier_chores, or cache_disk_chores. */
bool tier_wants(struct cache *c);
/* Without the lock: makes room in memory for loads that wait for it. */
void tier_chores(struct cache *c);

#endif
