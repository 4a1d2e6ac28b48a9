/* Where a block goes on the disks, and which block is displaced for it.
 *
 * The rule. A block goes to 1. a free slot of its class, on whichever disk has one; the disks take turns; 2. a slot of
 *   a new slab, on whichever disk has the bytes for a slab, or a slab of another class without a block:
 *      the chores make it, and the spill waits. A disk that has free slots is used meanwhile;
 *   3. only when no disk has either: the slot of the coldest block of its class, over all disks, which is displaced;
 *   4. if that one was flushed, or there is none, and a slab without a flushed block exists on any disk: the slot of a
 *      block there, if the slab is of the block's class. A slab of another class is given up, and a slab of the block's
 *      class is made. If neither is possible now, a block that no Flush wants stays in memory. If there is no such
 *      slab, a block of the class that is nearly as cold and was not flushed is displaced, or else the coldest. If a
 *      Flush wants the block and every such slab is being read or written, it waits for one of them for two seconds,
 *      and only then the coldest is displaced.
 * So no flushed block is displaced while any disk has room for the block, or a slab without a flushed block.
 *
 * A class takes a whole slab of another class, the one whose newest use is the oldest, and one without a flushed block
 * as long as there is any:
 *   - without comparing, if it has no block that could be displaced;
 *   - without comparing, by 4;
 *   - if all of that slab has been idle a quarter longer than the class's own coldest block, and ten seconds longer.
 * Blocks of a given-up slab that memory or a GPU has are written to other slots first (disk/compact.h).
 *
 * A block is flushed once a Flush has acknowledged it. A disk counts as without room while its file system is full,
 * while it is quarantined, when the chores have not brought a slab for two seconds, and when it has refused spills as
 * slow for five seconds. Until then a slow disk with room keeps flushed blocks of other disks from being displaced, not
 * others.
 *
 * With a table of tenants: a tenant at its cap gets the place of its own coldest block, and no other. So does a tenant
 * beyond its share when what is free is kept for the shares of others. Slots that are being written count as had.
 *   - Its blocks that were not flushed go first: the coldest over all disks, or one of a slab without a flushed block.
 *   - A block of another class leaves the disks if nothing of the block's class may go, or if it has been idle a
 *     quarter longer. The tenant has room then, and the rule above says where.
 *   - Nothing goes for a block that would have no room even then.
 *   - If the tenant has more than its cap, as the table had a larger one before, up to eight blocks leave a search.
 * A block is displaced for another tenant's block only if its tenant has its share without it. A slab of which nothing
 * may be displaced for the asking tenant does not count as one without a flushed block. This is by slots: a slab that
 * is given up for another class goes as a whole, whatever tenants have blocks there.
 *
 * With the cache's lock, unless said otherwise. */
#ifndef TERRACE_DAEMON_DISK_PLACE_H
#define TERRACE_DAEMON_DISK_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache;
struct disk_class;
struct slab_map;
struct unit;

/* A slot that a block goes to. */
struct spot {
	struct unit *unit;
	struct slab_map *slab_map;
	uint32_t slot;
	/* the block that is in the slot and is to be displaced; NULL: the slot is free, and taken */
	struct block *victim;
};

/* One block's search. Zeroed but for block, priority and grow. */
struct spot_search {
	const struct block *block;
	enum ring_priority priority;
	bool grow;                     /* slabs may be made for it */
	bool slow;                     /* a disk with room refused the block because it is slow: spot_refused */
	uint32_t tried;                /* the units that refused it, a bit each */
};

/* OK. MISS: wait for the chores, which make a slab. BUSY: a disk has room, and takes no more now. EXHAUSTED: no disk
 * has room, and nothing may be displaced. UNAVAILABLE: no disk is sound. */
enum status spot_find(struct cache *c, struct spot_search *s, struct spot *out);
/* The disk did not take the write, for that reason: the search goes on without it. */
void spot_refused(struct cache *c, struct spot_search *s, struct unit *u, enum status why);
/* Whether every disk is full, and no disk's policy would evict another block for this one. */
bool spot_denied(struct cache *c, const struct block *b);
/* Whether the disk has depth left for a spill that no call waits for. */
bool place_depth(const struct cache *c, const struct unit *u);
/* How many classes have a slab on the disk, or want one. *bytes: what one slab of each takes. */
uint32_t place_classes(const struct cache *c, const struct unit *u, uint64_t slab_bytes, uint64_t *bytes);
/* How many slabs a class that wants slabs gets at once; and the number of free slots below which it asks for the
 * next. */
uint32_t place_slabs(const struct disk_class *k);
uint64_t place_slots(const struct disk_class *k);
/* Whether another disk has room for blocks of the class. */
bool place_elsewhere(struct cache *c, const struct disk_class *mine);
/* The slab map to give up for a class of such blocks; `only`: on that disk, or NULL: on any. NULL: none. */
struct slab_map *place_slab_map(struct cache *c, uint64_t need_bytes, const struct unit *only);

/* `leaving` of disks (block/tier.h). */
bool place_leaving(struct cache *c, uint32_t at, void (*visit)(void *arg, const struct block *b), void *arg);

/* The most bytes that one block's slot can take of a disk: the slot of a slab that takes the whole disk. */
struct disk_most {
	uint32_t number;               /* in the order of the options */
	uint64_t slot_bytes;
};

/* Of the i-th disk in use; also without the lock. False: there are not so many. */
bool disk_most_of(const struct cache *c, uint32_t i, struct disk_most *out);

#endif
