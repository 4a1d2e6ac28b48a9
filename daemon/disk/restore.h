/* What a start takes up from catalog and headers. */
#ifndef TERRACE_DAEMON_DISK_RESTORE_H
#define TERRACE_DAEMON_DISK_RESTORE_H

#include <stdbool.h>

#include "store/status.h"

struct block;
struct cache;
struct index_ident;
struct pool;
struct slot_header;

/* Makes the catalog anew while the cache serves: forgets all blocks that it knows; then the steps of a scrub of the disks, from cursor 0
 * to the end, tell it of each copy that they find sound. A stop before the end costs the next start a scan of all headers.
 * UNAVAILABLE: there is no disk tier. BUSY: earlier runs' blocks are still being taken up, or it is under way already. */
enum status cache_catalog_renew(struct cache *c);
/* The restorer's thread. */
void *restore_main(void *cache);
/* Tells the catalog of a block that is on disk now, or no more. */
void catalog_tell(struct cache *c, const struct block *b, const struct slot_header *h);
void catalog_untell(struct cache *c, const struct index_ident *ident);
/* A Flush by keys acknowledges the block soon; called before the block is spilled for it, and when it is on a disk
 * already. h: its header, if memory has it; or NULL. What was flushed is kept on disks as long as place.h says, in
 * the next run as well: the catalog knows it by the block's record, which is written before the commit that the
 * Flush waits for. A catalog that is lost, or made anew, takes this knowledge with it. */
void promise_block(struct cache *c, struct block *b, const struct slot_header *h);
/* A Flush of everything acknowledges soon what is on disks of the layout: all blocks up to the newest. */
void promise_pool(struct cache *c, struct pool *p);

#endif
