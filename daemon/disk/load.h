/* Loads: bring blocks from a disk to memory. */
#ifndef TERRACE_DAEMON_DISK_LOAD_H
#define TERRACE_DAEMON_DISK_LOAD_H

#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct fetch_how;
struct source;

/* fetch() of the disks (block/tier.h). It joins a load that is under way and gives it this priority if that is
 * higher. */
enum status load_begin(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
/* Begins loads that waited for memory. */
void loads_feed(struct cache *c);
/* All disks together as one source (block/source.h). */
extern struct source disks_source;

#endif
