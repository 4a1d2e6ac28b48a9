/* Classes of slots of host memory, the spans that are cut into them, and the extents that spans are cut from, as the
 * cache sees them. With the cache's lock. store/arena/arena.h defines extent, span and class, and holds the memory;
 * daemon/memory decides which block leaves; this file has the accounting.
 *
 * Layouts of one tenant whose blocks need nearly the same bytes are in one class: its free slots serve each of them,
 * and its one eviction policy says which block of any of them leaves for another. A class lives as long as the cache.
 */
#ifndef TERRACE_DAEMON_BLOCK_MEMORY_CLASS_H
#define TERRACE_DAEMON_BLOCK_MEMORY_CLASS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct arena;
struct arena_class;
struct block;
struct cache;
struct departures;
struct memory_lack;
struct policy;
struct policy_node;
struct layout_pool;
struct tenant;

enum { CLASS_COLD_IDS = 64 };

/* The class's claim on memory of other classes (arena_claim). The blocks there are being evicted. */
struct memory_trade {
	uint64_t since_us;             /* 0: there is none */
	uint32_t granule;              /* the granule of the extent where the next step goes on, and the slot in it */
	uint32_t slot;
	bool spilled;                  /* spills were begun for it */
	bool drops;                    /* blocks without another copy are evicted too */
};

struct memory_class {
	uint32_t number;               /* in the cache's list */
	uint64_t stride;               /* bytes from slot to slot */
	struct arena_class *arena;
	struct layout_pool *pools;     /* the layouts in it, by class_next */
	struct policy *policy;
	uint64_t policy_room;          /* the number of slots that the policy knows of */
	struct span_map *spans, *spans_last; /* by rising place */
	uint64_t evictable;            /* published blocks in memory that are not pinned */
	uint64_t grow_refused;         /* the room_epoch at which no page was available for it */
	uint64_t trade_refused;        /* the room_epoch at which other classes' memory did not help it */
	/* blocks evicted since the class last compared its next victim with other classes' spans; the number at which
	 * it compares again */
	uint32_t evicted, compare_at;
	struct memory_trade trade;
	uint64_t emptied_us;           /* when its claim was last emptied; 0: never, or the memory was given back */
	/* prefetched and not used yet, not in the policy; the oldest first */
	struct policy_node *prefetched, *prefetched_last;
	uint64_t prefetched_blocks;
	/* in memory, but not admitted to the policy: they are evicted first, in this order */
	struct policy_node *not_admitted, *not_admitted_last;
	/* ids of some of the coldest dirty blocks, and the time of the search for them */
	uint64_t cold[CLASS_COLD_IDS], cold_us;
	uint32_t cold_at, cold_count, cold_scan; /* and the number of nodes that the search looked at, at most */
	struct departures *departures; /* evictions (eviction/departures.h); NULL: not asked for yet */
	uint32_t spill_pool;           /* the number of the layout in which the search for other dirty blocks goes on */
};

/* An extent that is registered with the disks and GPUs. It lives as long as the cache, or until it goes to another
 * tenant. */
struct memory_extent {
	struct memory_extent *next;    /* in the cache's list */
	uint32_t id;
	uint8_t *base;
	/* for the tiers alone: its registration with each disk (disk/tier.h); its address on each GPU (vram/vram.h), 0:
	 * none. NULL: the tier does not know it. Freed with free() */
	uint32_t *buffer;
	uint64_t *device;
	bool fixed;                    /* its registration with the disks was tried */
};

/* A span: which published block is in which slot. It lives as long as the span. */
struct span_map {
	struct memory_class *class;
	struct memory_extent *memory;
	struct arena_span *place;
	struct span_map *prev, *next;  /* of the class, by rising place */
	uint8_t *base;                 /* of slot 0 */
	uint64_t stride;               /* the class's: what a block needs of a slot is geometry.need_bytes */
	uint64_t offset;               /* of slot 0 in the extent */
	uint32_t extent, slots;
	uint32_t taken;                /* slots not free */
	struct block *at[];            /* NULL: free, reserved or dead */
};

/* A taken slot. */
struct memory_slot {
	struct span_map *span;
	uint32_t index;
	uint8_t *at;                   /* address of its first byte */
	uint64_t generation;           /* new at each take; never 0 */
};

/* The class for a layout whose block needs so many bytes. *made: it is new, and its policy knows nothing yet.
 * PRECONDITION: a slot would be larger than an extent. EXHAUSTED: no memory, or too many classes. */
enum status memory_class_get(struct cache *c, uint32_t tenant, uint64_t need_bytes, struct memory_class **out,
			     bool *made);
/* Frees the classes, all spans, and the records of extents. */
void memory_classes_free(struct cache *c);
/* Sums over the class's layouts: blocks that only memory has and that are not being written to a disk; those of them
 * that no disk takes; all blocks. */
struct memory_class_sums {
	uint64_t blocks, dirty, no_spill;
};
struct memory_class_sums memory_class_sums(const struct memory_class *k);

/* A tenant for which memory of the arena is to be taken ahead of need; NULL: none. If there are several, a tenant that
 * has done nothing yet wants nothing. */
const struct tenant *tenant_wanting(const struct cache *c, struct arena *a);
/* Notes that memory of the class's arena was refused, if another tenant has some of it to give (session/retire.h). */
void memory_lack_note(struct cache *c, struct memory_lack *l, struct arena_class *k);

struct memory_extent *memory_extent_find(const struct cache *c, uint32_t id);

/* Takes a free slot of the class, from one of its spans or from a new span. The slot is held. `reserve`: the new span
 * may come from the reserve for classes that have nothing. EXHAUSTED: nothing is free, or no memory. */
enum status memory_slot_take(struct cache *c, struct memory_class *k, bool reserve, struct memory_slot *out);
/* As memory_slot_take with the reserve, where the reserve is in pieces: the new span is as small as one slot needs. */
enum status memory_slot_take_piece(struct cache *c, struct memory_class *k, struct memory_slot *out);
/* Gives the slot back; a span ends with its last slot. The caller has counted it as no longer held. */
void memory_slot_give(const struct memory_slot *s);
/* Whether memory_slot_take would find a slot, without `reserve`. */
bool memory_class_has_room(const struct memory_class *k);

/* Counts slots of the span that are pinned or reserved, which emptying the span would not free: n more, or less. */
void span_held(struct span_map *s, int n);
/* Notes a use of one of the span's slots. */
void span_used(struct span_map *s, uint64_t now_us);

#endif
