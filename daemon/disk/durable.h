/* What is durable: what the catalog is told of copies on disks, and syncs and commits that calls wait for. */
#ifndef TERRACE_DAEMON_DISK_DURABLE_H
#define TERRACE_DAEMON_DISK_DURABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct index_ident;
struct layout_pool;
struct slot_header;
struct unit;

enum { PROMISE_KEY_BYTES = 12 }; /* of a layout's record in the catalog of what was flushed */

/* Makes the catalog anew while the cache serves: forgets all blocks that it knows; then the steps of a scrub of the disks, from cursor 0
 * to the end, tell it of each copy that they find sound. A stop before the end costs the next start a scan of all headers.
 * UNAVAILABLE: there is no disk tier. BUSY: earlier runs' blocks are still being taken up, or it is under way already. */
enum status cache_catalog_renew(struct cache *c);
/* Tells the catalog of a block that is on disk now, or no more. */
void catalog_tell(struct cache *c, const struct block *b, const struct slot_header *h);
void catalog_untell(struct cache *c, const struct index_ident *ident);
/* A Flush by keys acknowledges the block soon; called before the block is spilled for it, and when it is on a disk
 * already. h: its header, if memory has it; or NULL. What was flushed is kept on disks as long as place.h says, in
 * the next run as well: the catalog knows it by the block's record, which is written before the commit that the
 * Flush waits for. A catalog that is lost, or made anew, takes this knowledge with it. */
void promise_block(struct cache *c, struct block *b, const struct slot_header *h);
/* A Flush of everything acknowledges soon what is on disks of the layout: all blocks up to the newest. */
void promise_pool(struct cache *c, struct layout_pool *p);
/* Waits for a commit of all that the catalog was told; for a sync of a unit. */
enum status wait_catalog(struct cache *c, struct cache_wait *w);
enum status wait_sync(struct cache *c, struct cache_wait *w, struct unit *u);
/* A header of that name on the disk has been written, or overwritten. */
void unit_wrote(struct unit *u, const struct index_ident *ident);
/* Such a write may not be durable there. */
bool unit_unsynced(const struct unit *u, const struct index_ident *ident);

#endif
