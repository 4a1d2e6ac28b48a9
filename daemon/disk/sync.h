/* Syncs of disks and commits of the catalog that calls wait for, and what is durable. */
#ifndef TERRACE_DAEMON_DISK_SYNC_H
#define TERRACE_DAEMON_DISK_SYNC_H

#include <stdbool.h>

#include "store/status.h"

struct cache;
struct cache_wait;
struct index_ident;
struct unit;

/* Waits for a commit of all that the catalog was told; for a sync of a unit. */
enum status wait_catalog(struct cache *c, struct cache_wait *w);
enum status wait_sync(struct cache *c, struct cache_wait *w, struct unit *u);
/* A header of that name on the disk has been written, or overwritten. */
void unit_wrote(struct unit *u, const struct index_ident *ident);
/* Such a write may not be durable there. */
bool unit_unsynced(const struct unit *u, const struct index_ident *ident);

#endif
