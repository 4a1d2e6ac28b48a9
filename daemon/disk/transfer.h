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
struct slab_map;
struct unit;

enum transfer_kind { TRANSFER_SPILL, TRANSFER_LOAD, TRANSFER_TOMBSTONE };

struct disk_transfer *transfer_of(struct cache *c, const struct block *b);
/* The next move after `after` (NULL: the first) until whose end a header may name that block. */
struct disk_transfer *tombstone_of(struct cache *c, const struct index_ident *ident, struct disk_transfer *after);
/* It is removed while it transfers: its spill, if it is one, is abandoned. */
void spill_abandon(struct cache *c, const struct block *b);
/* Joins the transfer if there is one. w may be NULL. OK: under way. BUSY, EXHAUSTED, UNAVAILABLE, MISS (a slab is being
 * made): not now. A block in a slab map that is leaving is copied to another, without a new slab: it is there when the
 * copy was written, synced, and spills_land was called. */
enum status spill_begin(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* Puts a tombstone on a slot that is not attached any more, whose header names (p, ident, generation); the slot is free afterwards. */
void tombstone_begin(struct cache *c, struct slab_map *r, uint32_t slot, struct layout_pool *p,
		const struct index_ident *ident,
		uint64_t generation);
/* Copies that were written out of a slab map (of its list `copied`) have been synced (OK), or have not. Without the
 * lock; when it returns, all of them have ended. */
void spills_land(struct cache *c, struct disk_transfer *copied, enum status s);
/* They are given up. */
void spills_drop(struct cache *c, struct disk_transfer *copied);
/* The slab map's slab is gone, or stays: the slots that were left get tombstones. */
void burials_release(struct cache *c, struct slab_map *r);
/* Tombstones that waited for the disk. */
void burials_feed(struct cache *c);
/* What spills and loads share. create: NULL, no memory. enter: it is the block's one move, with a pin; leave: no more, and the caller unpins the
 * block when its accounting is done. join: a link for w, which may be NULL; tell: to all of them. judge: what the
 * disk's answer says of the disk. place: where its slot is. */
struct disk_transfer *tier_transfer_create(struct cache *c, enum transfer_kind kind, struct unit *u,
					   enum ring_priority priority);
void tier_transfer_enter(struct disk_transfer *m, struct block *b);
void tier_transfer_leave(struct disk_transfer *m);
enum status tier_transfer_join(struct disk_transfer *m, struct cache_wait *w);
void tier_transfer_tell(struct disk_transfer *m, enum status s);
void tier_transfer_judge(struct disk_transfer *m, enum status s);
struct disk_place tier_transfer_place(const struct disk_transfer *m);

#endif
