/* Copies of blocks on GPUs, the spans and classes of slots that they are in, and what pins hold of them, as the cache
 * sees them. With the cache's lock. daemon/vram decides which copies come and go, and copies them. This file has the
 * accounting that a pin changes, so that pinning calls no tier.
 */
#ifndef TERRACE_DAEMON_BLOCK_GPU_CLASS_H
#define TERRACE_DAEMON_BLOCK_GPU_CLASS_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/policy.h"
#include "store/slot.h"

struct arena_class;
struct arena_span;
struct block;
struct gpu;
struct policy;
struct layout_pool;

enum { VRAM_EXTENT_BITS = 24 }; /* extents of GPU g have ids from (g + 1) << 24 on */

enum vram_state { VRAM_FREE, VRAM_RESERVED, VRAM_COMING, VRAM_READY, VRAM_DEAD };

struct vram_slot {
	struct policy_node node;       /* of the class's policy, while ready */
	struct block *block;
	struct vram_slot *next;        /* the block's copy on another GPU */
	struct vram_span *span;
	struct vram_pool *pool;        /* of the block's layout, while it is taken */
	/* of the list `through`: copies that are to be downloaded */
	struct vram_slot *write_through_prev, *write_through_next;
	uint64_t position, stored_unix_ms;
	uint64_t order;                /* of a copy coming from memory: its number among the GPU's uploads */
	uint32_t index, take, turn;
	uint32_t pins;                 /* of this copy alone */
	uint32_t sums;                 /* vram_sums_of() */
	uint8_t role, parent_bytes, parent[SLOT_KEY_MAX];
	uint8_t state;                 /* enum vram_state */
	bool summed;                   /* its checksums are known, from its commit or from another copy */
	bool sum_due;                  /* the GPU is computing the checksums of its commit: vram/commit_sums.h */
	struct vram_slot *sum_next;    /* of those, in their queue */
	bool across;                   /* coming from another GPU: not in the order of the uploads */
	bool failed;                   /* coming: the copy failed, and the transfer is about to end */
	bool dirty;                    /* counted as dirty: see vram_sync */
	bool write_through;
	bool used;                     /* coming: a lease has it already */
	bool prefetched;               /* prefetched and not used yet: in the GPU's list */
	struct vram_slot *prefetched_prev, *prefetched_next;
	uint64_t prefetched_us;        /* since when */
};

/* The record of a span of a GPU's memory. It is made with the first slot that is taken of the span, and freed with the
 * last one. A pointer to a vram_slot is valid while that slot is taken. */
struct vram_span {
	struct vram_class *class;
	struct vram_span *prev, *next; /* of the class */
	struct arena_span *place;
	uint32_t taken;                /* slots not free */
	struct vram_slot at[];         /* place->slots */
};

/* What a tenant has of a GPU. */
struct gpu_accounting {
	uint64_t bytes_max;            /* that it may take */
	uint64_t held_bytes;           /* of slots that are reserved or pinned */
	/* of these, reserved or with pins of their own; a share of bytes_max bounds them */
	uint64_t lent_bytes;
	uint64_t prefetched_bytes;     /* of copies that came ahead and are not used yet */
	uint32_t downs;                /* downloads that have begun */
	uint32_t memory_full_at;       /* the last of the GPU's feeds that found no host memory for it */
};

/* Slots of one size on one GPU, which the layouts of that class share. Lives as long as the cache. */
struct vram_class {
	struct gpu *gpu;
	struct gpu_accounting *accounting; /* of its tenant, on the GPU */
	struct vram_class *next;       /* of the GPU */
	struct arena_class *arena;
	uint64_t stride;               /* bytes from slot to slot */
	struct policy *policy;
	uint64_t policy_room;          /* the number of slots that the policy was told last */
	struct vram_span *spans;
	struct vram_span *ended;       /* records of spans that ended when the GPU was lost: span_end() */
	uint64_t slots;                /* of these */
	uint64_t taken;                /* of these slots */
	uint64_t blocks;               /* ready copies */
	uint64_t evictable;            /* of these, not pinned */
	uint64_t dirty;                /* ready copies that are the block's only one and are not being downloaded */
	uint64_t write_through;        /* of these, those to be downloaded: in the GPU's list */
	/* copies that are pinned until the GPU has computed their checksums: vram/commit_sums.h */
	uint32_t sums_due;
	uint32_t coming;               /* uploads to here that have a slot */
	uint32_t full_at;              /* the last of the GPU's feeds that found no slot here */
	uint64_t placed_us;            /* when an upload last got a slot while others waited for the GPU */
	uint64_t grow_refused;         /* room_epoch when no extent could be had */
	/* the completion thread is to make an extent, unless a slot can be had by then */
	bool wanted;
	bool pressed;                  /* too little of it is free or clean, as the pump saw last */
	uint32_t evicted;              /* copies evicted since it was last compared with other classes */
	uint64_t claim_us;             /* when its claim began */
};

/* A layout on one GPU. Lives as long as the cache. */
struct vram_pool {
	struct gpu *gpu;
	struct layout_pool *pool;
	struct vram_class *class;
	uint64_t blocks, dirty;        /* of the class's counts, this layout's part */
	bool lost;                     /* the GPU is lost: no copy here can be read */
};

/* The part of block_accounting that concerns copies on GPUs. all: the pins of all copies. Cold, since most blocks are
 * on no GPU. */
__attribute__((cold)) void vram_accounting(struct block *b, uint32_t all, bool on);
/* Counts the slot as held from now on, or no longer. */
void vram_slot_hold(struct vram_slot *s, bool on);
/* The pins that hold the slot's copy: its own, and those of all copies of the block. */
uint32_t vram_slot_pins(const struct vram_slot *s);
/* vram_offset: where the slot begins in its extent. vram_address: its address on the device. */
uint64_t vram_offset(const struct vram_slot *s);
uint64_t vram_address(const struct vram_slot *s);
/* The block's slot on that GPU, coming or ready (reserved, if the block is unpublished); NULL: none. */
struct vram_slot *vram_slot_on(const struct block *b, const struct gpu *g);
/* The block's slot on that GPU, dead slots and those of lost GPUs included; NULL: none. */
struct vram_slot *vram_slot_of(const struct block *b, const struct gpu *g);
/* Whether the block is on a GPU that is not lost, and neither in memory nor on a disk. */
bool vram_has_alone(const struct block *b);

/* Adds a pin of that copy alone. */
static inline void vram_slot_pin(struct vram_slot *s)
{
	const struct vram_class *k = s->span->class;

	if (s->pins++ == 0)
		k->accounting->lent_bytes += k->stride;
}

static inline void vram_slot_unpin(struct vram_slot *s, uint32_t pins)
{
	const struct vram_class *k = s->span->class;

	s->pins -= pins;
	if (pins && s->pins == 0)
		k->accounting->lent_bytes -= k->stride;
}

#endif
