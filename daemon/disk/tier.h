/* The disk tier as a whole: birth, chores, failure and end. */
#ifndef TERRACE_DAEMON_DISK_TIER_H
#define TERRACE_DAEMON_DISK_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct cache;

extern const struct tier_ops disk_tier; /* block/tier.h */

/* The same of disks' files: with a disk that hangs it may not come back. Not by whoever is to do cache_chores. */
void cache_disk_chores(struct cache *c);
/* False while what earlier runs left on the disks is still being taken up. */
bool cache_restored(struct cache *c);
/* Without the lock. create opens catalog and disks; start takes up what is there, once the host tier exists. */
enum status tier_create(struct cache *c, const char **why);
uint64_t tier_first_generation(struct cache *c);
enum status tier_start(struct cache *c, const char **why);
/* Ends all moves; no thread of the tier's runs after it. False: a disk has not answered within disk_close_ms, or the catalog's: what its
 * requests touch, which is the whole cache, must stay as it is. read: somebody may be in the catalog still, which then stays open. */
bool tier_stop(struct cache *c, bool read);
void tier_destroy(struct cache *c); /* after the blocks are gone */
void tier_tick(struct cache *c);
/* True: there is something for tier_chores, or cache_disk_chores. */
bool tier_wants(struct cache *c);
/* Without the lock: memory for loads that wait for it. */
void tier_chores(struct cache *c);

#endif
