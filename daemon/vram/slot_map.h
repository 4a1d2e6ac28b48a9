/* Slots of GPU memory, and which copy is in which. */
#ifndef TERRACE_DAEMON_VRAM_SLOT_MAP_H
#define TERRACE_DAEMON_VRAM_SLOT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/policy.h"
#include "store/slot.h"
#include "store/status.h"

struct arena_class;
struct arena_slot;
struct arena_span;
struct block;
struct cache;
struct gpu;
struct policy;
struct session;

enum { VRAM_EXTENT_BITS = 24 }; /* extents of GPU g have ids from (g + 1) << 24 on */

enum vram_state { VRAM_FREE, VRAM_RESERVED, VRAM_COMING, VRAM_READY, VRAM_DEAD };

struct vram_slot {
	struct policy_node node;       /* of the class's policy, while ready */
	struct block *block;
	struct vram_slot *next;        /* the block's copy on another GPU */
	struct vram_span *span;
	struct vram_pool *pool;        /* of the block's layout, while it is taken */
	struct vram_slot *through_prev, *through_next; /* of those that are to go down: `through` */
	uint64_t position, stored_unix_ms;
	uint64_t order;                /* coming from memory: its number among the GPU's ups */
	uint32_t index, take, turn;
	uint32_t pins;                 /* of this copy alone */
	uint32_t sums;                 /* vram_sums_of() */
	uint8_t role, parent_bytes, parent[SLOT_KEY_MAX];
	uint8_t state;                 /* enum vram_state */
	bool summed;                   /* the checksums of its bytes are known: of its commit, or as it was elsewhere */
	bool sum_due;                  /* those of its commit are on their way: vram/commit_sums.h */
	struct vram_slot *sum_next;    /* of those; in their queue */
	bool across;                   /* coming from another GPU: not in the order of the ups */
	bool failed;                   /* coming: its copy came to nothing, and the move is about to end so */
	bool dirty;                    /* counted so: see vram_sync */
	bool through;
	bool used;                     /* coming: a lease has it already, so it is no mere move */
	bool ahead;                    /* came ahead of its use, and is not used yet: in the GPU's list */
	struct vram_slot *ahead_prev, *ahead_next;
	uint64_t ahead_us;             /* since when */
};

/* The record of a span of a GPU's memory. It is made when a slot is taken of a new span, and is gone when the span's
 * last slot is given back: who keeps a vram_slot keeps it taken. */
struct vram_span {
	struct vram_class *class;
	struct vram_span *prev, *next; /* of the class */
	struct arena_span *place;
	uint32_t taken;                /* slots not free */
	struct vram_slot at[];         /* place->slots */
};

/* Slots of one size on one GPU, which the layouts of that class share. Lives as long as the cache. */
struct vram_class {
	struct gpu *gpu;
	struct vram_class *next;       /* of the GPU */
	struct arena_class *arena;
	uint64_t stride;               /* bytes from slot to slot */
	struct policy *policy;
	uint64_t policy_room;          /* slots that it was told of last */
	struct vram_span *spans;
	struct vram_span *ended;       /* records of spans that ended when the GPU was lost: span_end() */
	uint64_t slots;                /* of these */
	uint64_t taken;                /* of these slots */
	uint64_t blocks;               /* ready copies */
	uint64_t evictable;            /* of these not pinned */
	uint64_t dirty;                /* ready copies that are the block's only one, and not on their way down */
	uint64_t through;              /* of these, that are to go down: in the GPU's list */
	uint32_t coming;               /* moves here that have a slot */
	uint32_t sums_due;             /* copies that are pinned until the GPU has summed them: vram/commit_sums.h */
	uint32_t full_at;              /* of the GPU's feeds, the last one that found no slot here */
	uint64_t placed_us;            /* when an up last got one, while others waited for the GPU */
	uint64_t grow_refused;         /* room_epoch at which no extent was to be had */
	bool wanted;                   /* the keeper is to make an extent, unless a slot can be had by then */
	bool pressed;                  /* too little of it is free or clean, as the pump has seen last */
	uint32_t evicted;              /* of its copies, since it was last compared with others */
	uint64_t claim_us;             /* when its claim began */
};

/* A layout on one GPU. Lives as long as the cache. */
struct vram_pool {
	struct gpu *gpu;
	struct pool *pool;
	struct vram_class *class;
	uint64_t blocks, dirty;        /* of the class's, of this layout */
};

/* Of its copies on GPUs, each alone. */
__attribute__((cold)) uint32_t vram_pins(const struct block *b);
struct vram_pool *vram_pool_get(struct cache *c, struct gpu *g, struct pool *p); /* made if new; NULL: no memory */
/* Frees all that is known of its spans and classes, whoever has slots. */
void vram_classes_free(struct cache *c, struct gpu *g);
/* Where a slot begins in its extent. */
uint64_t vram_offset(const struct vram_slot *s);
/* The next ready copy of the layout on that GPU, at or after (extent, slot), looking at no more than *budget slots,
 * which it counts down; NULL with *budget 0: go on from there; NULL with some left: no more. `slot` counts steps of
 * ARENA_DEVICE_UNIT from the beginning of the extent. For a GPU that is lost, to which nothing comes: elsewhere a block
 * may move past the walk. */
struct vram_slot *vram_next(struct vram_pool *vp, uint32_t *extent, uint32_t *slot, uint32_t *budget);
/* The block is on a GPU that is not lost, and neither in memory nor on a disk. */
bool vram_has_alone(const struct block *b);
/* How many of those the layout has, but for those on their way down. */
uint64_t vram_only_blocks(const struct cache *c, const struct pool *p);
/* Its slot on that GPU, coming or ready (reserved, if it is unpublished); NULL. */
struct vram_slot *vram_slot_on(const struct block *b, const struct gpu *g);
/* The same, dead ones and those of lost GPUs too. */
struct vram_slot *vram_slot_of(const struct block *b, const struct gpu *g);
/* What holds that copy: its own pins, and those of all copies. */
uint32_t vram_slot_pins(const struct vram_slot *s);
/* The sum of one of its copies' commit is due: vram/commit_sums.h. */
bool vram_sum_due(const struct block *b);
/* A ready one on any GPU that is not lost; on one whose copies that GPU can have without host memory between them. */
struct vram_slot *vram_ready(const struct block *b);
struct vram_slot *vram_near(const struct block *b, const struct gpu *g);
/* A slot that room gave becomes the block's. */
struct vram_slot *vram_attach(struct block *b, struct vram_pool *vp, const struct arena_slot *from, enum vram_state state);
/* It is the block's no more, and free. Its move has ended. */
void vram_detach(struct vram_slot *s);
void vram_ready_now(struct cache *c, struct vram_slot *s);
/* What the block's header in host memory says (a sound one), or its put said, from now on known without it. */
void vram_remember(struct vram_slot *s, const struct slot_header *h);
void vram_remember_info(struct vram_slot *s, const struct slot_info *info, uint64_t unix_ms);
/* After a change of where the block is: counts it as dirty or not. */
void vram_sync(struct block *b);
/* The GPUs' part of block_books, `all`: pins of all its copies; it was used, on that GPU or (NULL) on all. Cold, since
 * most blocks are on no GPU, and each passes here. */
__attribute__((cold)) void vram_books(struct block *b, uint32_t all, bool on);
__attribute__((cold)) void vram_used(struct cache *c, struct block *b, const struct gpu *gpu, const struct policy_event *e);
/* The slot is told of a use while its block is coming; false: it is there, and the policy has to be told. */
bool vram_used_coming(struct vram_slot *s);
/* A published block is removed: its copies are dead. In the hands of who has it out of the books. */
void vram_removed(struct cache *c, struct block *b);
/* Out of its block's chain. */
void vram_unchain(struct vram_slot *s);
/* A copy, ready or coming, is known to be wrong: nobody gets it any more, and the slot is free when nobody holds it. */
void vram_condemn(struct cache *c, struct vram_slot *s);
/* Slots of an unpublished block, and dead ones that nobody holds, go back. */
__attribute__((cold)) void vram_give(struct block *b);
/* It was put on a GPU by that session, which may want it down at once. */
void vram_queue_down(struct block *b, const struct session *s);
void vram_queue_through(struct vram_slot *s);
void vram_unqueue_through(struct vram_slot *s);
/* Of an unpublished block: */
enum status vram_block_create(struct cache *c, struct gpu *g, struct pool *p, struct block **out);
/* It has been published. */
void vram_published(struct cache *c, struct block *b, uint64_t position);

#endif
