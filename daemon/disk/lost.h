/* Slab files that are missing or damaged, and the blocks that were in them. */
#ifndef TERRACE_DAEMON_DISK_LOST_H
#define TERRACE_DAEMON_DISK_LOST_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct index_ident;
struct unit;

bool unit_has_slab(const struct unit *u, uint32_t slab);
/* With the lock: a record names a slot of a slab that is not in use, or (in_use) a slot that the slab does not have.
 * The record is forgotten and counted. */
void lost_record(struct cache *c, struct unit *u, uint32_t slab, const struct index_ident *ident, bool in_use);
/* Without the lock, after all records: finds out what is wrong with each of those files. */
void lost_judge(struct cache *c);
/* Without the lock, before any record: deletes files that were lost in earlier runs and have come back. */
void lost_return(struct cache *c);

#endif
