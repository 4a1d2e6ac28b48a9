/* What a start takes up from catalog and headers. */
#ifndef TERRACE_DAEMON_DISK_RESTORE_H
#define TERRACE_DAEMON_DISK_RESTORE_H

#include <stdbool.h>

#include "store/status.h"

struct block;
struct cache;
struct index_ident;
struct slot_header;
struct tier;

/* Makes the catalog anew while the cache serves: forgets all blocks that it knows; then the steps of a scrub of the disks, from cursor 0
 * to the end, tell it of each copy that they find sound. A stop before the end costs the next start a scan of all headers.
 * UNAVAILABLE: there is no disk tier. BUSY: earlier runs' blocks are still being taken up, or it is under way already. */
enum status cache_catalog_renew(struct cache *c);
/* The restorer's thread. */
void *restore_main(void *cache);
/* Without the lock: all that the catalog was told is committed. Asks goes_on (NULL: always) from time to time whether to wait on. DEADLINE: it has not
 * come in ten seconds, or was not to be waited for. */
enum status tier_commit(struct tier *t, bool (*goes_on)(const void *arg), const void *arg);
/* Tells the catalog of a block that is on disk now, or no more. */
void catalog_tell(struct cache *c, const struct block *b, const struct slot_header *h);
void catalog_untell(struct cache *c, const struct index_ident *ident);

#endif
