/* Durability: what the catalog is told of copies on disks, and the syncs and commits that calls wait for. */
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

/* Bytes of the key of a layout's record in the catalog, which says what was flushed; _MAX: with the tenant's number,
 * unless that is `default`. */
enum { PROMISE_KEY_BYTES = 12, PROMISE_KEY_BYTES_MAX = 16 };

/* Begins to rebuild the catalog while the cache serves: the catalog forgets all blocks. Then the steps of a scrub of
 * the disks, from cursor 0 to the end, tell it each copy that they find sound. If the daemon stops before the end, the
 * next start scans all headers. UNAVAILABLE: there is no disk tier. BUSY: blocks of earlier runs are still being taken
 * up, or a rebuild is under way already. */
enum status cache_catalog_renew(struct cache *c);
/* Tells the catalog that a block is on disk now, or no longer. */
void catalog_tell(struct cache *c, const struct block *b, const struct slot_header *h);
void catalog_untell(struct cache *c, const struct index_ident *ident);
/* A Flush by keys is about to acknowledge the block. Call it before the block is spilled for the Flush, or when the
 * block is on a disk already. h: the block's header, if memory has it; or NULL. A flushed block stays on disks as long
 * as place.h says, also in the next run: the block's record in the catalog says so, and is written before the commit
 * that the Flush waits for. If the catalog is lost or rebuilt, this is forgotten. */
void promise_block(struct cache *c, struct block *b, const struct slot_header *h);
/* Promises all blocks of the layout that are on disks, up to the newest, as a Flush of everything is about to
 * acknowledge them. */
void promise_pool(struct cache *c, struct layout_pool *p);
/* Waits for a commit of all that the catalog was told; or for a sync of a disk. */
enum status wait_catalog(struct cache *c, struct cache_wait *w);
enum status wait_sync(struct cache *c, struct cache_wait *w, struct unit *u);
/* Notes that a header of that name on the disk has been written, or overwritten. */
void unit_wrote(struct unit *u, const struct index_ident *ident);
/* Whether the disk has a write of a header of that name that may not be durable yet. */
bool unit_unsynced(const struct unit *u, const struct index_ident *ident);

#endif
