/* Transfers between memory and disks: spills, loads and tombstones, from the submit to the end. */
#ifndef TERRACE_DAEMON_DISK_TRANSFER_H
#define TERRACE_DAEMON_DISK_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct cache_wait_link;
struct index_ident;
struct disk_transfer;
struct layout_pool;
struct memory_extent;
struct slab_map;
struct unit;

enum transfer_kind { TRANSFER_SPILL, TRANSFER_LOAD, TRANSFER_TOMBSTONE };

struct disk_transfer *transfer_of(struct cache *c, const struct block *b);
/* The next transfer after `after` (NULL: the first) until whose end a header may name that block. */
struct disk_transfer *tombstone_of(struct cache *c, const struct index_ident *ident, struct disk_transfer *after);
/* The block is removed during its transfer: if that is a spill, it is abandoned. */
void spill_abandon(struct cache *c, const struct block *b);
/* Begins to spill the block, or joins its transfer. w may be NULL. OK: under way. BUSY, EXHAUSTED, UNAVAILABLE, MISS (a
 * slab is being made): not now. A block in a slab map that is leaving is copied to another one, without a new slab; it
 * is there once the copy was written and synced and spills_land was called. */
enum status spill_begin(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* Writes a tombstone over a slot that is detached and whose header names (p, ident, generation). The slot is free
 * afterwards. */
void tombstone_begin(struct cache *c, struct slab_map *r, uint32_t slot, struct layout_pool *p,
		const struct index_ident *ident,
		uint64_t generation);
/* The copies in the slab map's list `copied` have been synced (OK), or could not be. Without the lock; all of these
 * spills have ended when it returns. */
void spills_land(struct cache *c, struct disk_transfer *copied, enum status s);
/* Gives these copies up. */
void spills_drop(struct cache *c, struct disk_transfer *copied);
/* The slab map's slab is deleted, or stays: slots that blocks have left get tombstones. */
void burials_release(struct cache *c, struct slab_map *r);
/* Tries tombstones that waited for the disk. */
void burials_feed(struct cache *c);
/* What spills and loads share. create: NULL if there is no memory. enter: makes it the block's one transfer, and pins
 * the block. leave: ends that; the caller unpins the block when its accounting is done. join: adds a link for w, which
 * may be NULL. tell: tells all links. judge: concludes from the disk's answer whether the disk has failed. place: where
 * the transfer's slot is. */
struct disk_transfer *tier_transfer_create(struct cache *c, enum transfer_kind kind, struct unit *u,
					   enum ring_priority priority);
void tier_transfer_enter(struct disk_transfer *m, struct block *b);
void tier_transfer_leave(struct disk_transfer *m);
enum status tier_transfer_join(struct disk_transfer *m, struct cache_wait *w);
void tier_transfer_tell(struct disk_transfer *m, enum status s);
void tier_transfer_judge(struct disk_transfer *m, enum status s);
struct disk_place tier_transfer_place(const struct disk_transfer *m);
/* The registration of the extent with the transfer's disk, or RING_NONE. */
uint32_t tier_transfer_buffer(const struct disk_transfer *m, const struct memory_extent *e);

#endif
