/* Loads: disk to memory. */
#ifndef TERRACE_DAEMON_DISK_LOAD_H
#define TERRACE_DAEMON_DISK_LOAD_H

#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct fetch_how;
struct source;

/* The table's fetch (block/tier.h) of the disks. It joins what is under way, which is then as urgent as this. */
enum status load_begin(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
/* Loads that waited for memory. */
void loads_feed(struct cache *c);
/* All disks together as one source (block/source.h). */
extern struct source disks_source;

#endif
