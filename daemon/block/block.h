/* A block's record and its life: created, published, pinned, removed. With the cache's lock, unless said otherwise. */
#ifndef TERRACE_DAEMON_BLOCK_BLOCK_H
#define TERRACE_DAEMON_BLOCK_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/block/values.h"
#include "eviction/policy.h"
#include "store/index.h"
#include "store/status.h"

struct cache;
struct gpu;
struct memory_slot;
struct slab_map;
struct span_map;
struct vram_slot;

enum {
	BLOCK_IN_MEMORY = 1,
	BLOCK_ON_DISK = 2,
	BLOCK_ON_GPU = 4,
	BLOCK_TIERS = 7,
	BLOCK_AT_PEER = 8,             /* another member has taken a copy of it, and it has not been used here since */
	/* this memory was given to another member's block, which has not been used here yet: it is the first to go */
	BLOCK_FOR_PEER = 16,
	BLOCK_UNWANTED = 32,           /* a member that it was offered to did not want it; until it is used */
};

/* A block: unpublished (of a reservation, in memory or on a GPU), published (in the index; in memory with span and
 * policy, on disk with slab map, on GPUs with slots there, or several of these) or dead (removed while pinned). To stay
 * small, it does not repeat what else the slot's header says, except for the header's CRC: header and block lie in
 * memory that engines may write. */
struct block {
	struct index_record record;    /* first: block_of(); its `word`: block_header_crc(); its key: block_key() */
	struct policy_node node;       /* of memory's policy, while it is in memory */
	struct layout_pool *pool;
	struct span_map *span;         /* NULL: not in memory */
	struct slab_map *slab_map;     /* NULL: not on disk */
	struct vram_slot *vram;        /* its slots on GPUs, coming ones too (vram/vram.h); NULL: none */
	uint64_t generation;           /* of its put; the header has it, in whatever slot */
	uint64_t stored_us;
	uint32_t index, take;          /* in memory: the slot's index, and the low half of the slot's generation */
	uint32_t slab_map_slot;
	uint16_t tokens;
	bool moving : 1;               /* it is being spilled or loaded: transfer_of() */
	/* not admitted by memory's policy; in memory it is in the class's list of such blocks */
	bool not_admitted : 1;
	bool no_spill : 1;             /* dirty, and no disk's policy would evict another block for it */
	bool awaited : 1;              /* it is on its way to memory, and from there to a GPU */
	/* on disk since before a crash: the header is sound, its bytes have not been read yet: slab_map_unverified() */
	bool unverified : 1;
	bool corrupt : 1;              /* one of its GPU copies is VRAM_DEAD, but still held: vram_corrupt() */
	uint8_t prefetched : 2;        /* enum prefetch_kind: it was prefetched, and has not been used yet */
	uint8_t wanted;                /* expected Leases that want this block, and no other's load in its place */
	_Atomic uint8_t where;         /* where lookups find it: bits of BLOCK_TIERS; and those beside them */
	uint8_t role : 4;              /* of its put: enum policy_role has the same numbers */
	uint8_t unusable : 1;          /* see block_unusable() */
	uint8_t unwritten : 1;         /* on no disk: it is in the pool's list unwritten, see unwritten_set() */
	uint8_t flushed : 1;           /* a Flush of its key has acknowledged it: block_flushed() */
	uint8_t slab_map_known : 1;    /* the header on disk has the CRC of block_header_crc(), too */
	_Atomic uint16_t turn;         /* of its put; 0: not known. Read by lookups */
	uint32_t memory_pins;          /* of its pins, those that pin only the copy in memory */
	struct block *id_next;         /* of the bucket by id (advice/advice.h) */
};

_Static_assert(sizeof(struct block) <= 216, "a million blocks are to cost at most 256 bytes each");

/* Makes a zeroed record without copies, with room for a key of that many bytes. NULL: no memory. */
struct block *block_alloc(uint32_t key_bytes);
void block_name_set(struct block *b, const struct index_ident *ident);
/* Makes an unpublished block with a slot in memory, and with room for a key of that many bytes. e: what is known of the
 * put, for admission; NULL: admission is not asked. */
enum status block_create(struct cache *c, struct layout_pool *p, const struct policy_event *e, uint32_t key_bytes,
			 struct block **out);
/* Frees an unpublished block. */
void block_discard(struct cache *c, struct block *b);
/* Makes the block visible under its record's name. In a read section. EXISTS: the block stays unpublished. On success
 * the caller calls block_enter_policy in the same hold of the lock. */
enum status block_publish(struct cache *c, struct block *b, uint64_t now_us);
/* Enters a published block into the policies of its tiers. position: of its first token in the sequence. Call it for
 * the deepest block of a chain first: evictions then take the ends of prefixes. */
void block_enter_policy(struct cache *c, struct block *b, uint64_t position);
/* Bytes that pinning memory's copy would add to the tenant's pinned bytes. */
uint64_t block_pin_bytes(const struct block *b);
/* Pins all copies that the block has or gets. */
void block_pin(struct block *b);
void block_unpin(struct block *b);
/* Pins one copy: in that slot of a GPU, or in memory (NULL). Other copies may be evicted meanwhile. */
void block_pin_on(struct block *b, struct vram_slot *copy);
/* Whether more than that many pins of all copies hold the block. Pins of single copies then make no difference to the
 * accounting. */
bool block_held_beyond(const struct block *b, uint32_t pins);
/* Turns a pin by block_pin into a pin of that copy alone. */
void block_pin_apart(struct block *b, struct vram_slot *copy);
/* Unpins the block's copy on that GPU, or in memory (NULL). */
void block_unpin_on(struct block *b, const struct gpu *gpu);
/* Subtracts (`on` false) or adds the block in all accounting that depends on its pins. Call it with false before, and
 * with true after, a change of its copies or pins. */
void block_accounting(struct block *b, bool on);
/* Gives back the slot of memory of an unpublished or dead block. */
void block_slot_give(struct block *b);
/* Notes that a published block on a disk or a GPU has come to memory too, into a slot that was taken for it. */
void block_arrive(struct cache *c, struct block *b, const struct memory_slot *slot, uint64_t position);
/* Removes the copy in memory of an unpinned block that is also on disk or a GPU. */
void block_depart(struct cache *c, struct block *b);
/* Removes a published block from the index and all tiers; unless it was evicted, a tombstone is begun on disk. The
 * block is freed now or at its last unpin. */
void block_remove(struct cache *c, struct block *b, enum cache_reason reason);
void block_use(struct cache *c, struct block *b); /* of several blocks of a chain, the deepest first */
/* Notes a use: the block was read on that GPU, or in memory (NULL). It counts as a use in the tiers below too, but not
 * on other GPUs. */
void block_use_on(struct cache *c, struct block *b, const struct gpu *gpu);
/* Notes whether no prefix needs the block which a call could be granted as things are (advice/unusable.h). An unusable
 * block is the first to be evicted, in each tier. A use makes it usable. */
void block_unusable(struct cache *c, struct block *b, bool is);
/* Notes whether no disk is to have the block. */
void block_no_spill(struct block *b, bool is);
/* Fills in the place where the block lies in memory; with a slot, the place where it lies on that GPU. */
void block_place(const struct block *b, struct cache_place *out);
void block_place_on(const struct block *b, const struct vram_slot *copy, struct cache_place *out);
/* The node of a published block: memory's, else a GPU's, else a disk's. */
const struct policy_node *block_node(const struct block *b);
/* A fixed word that says which tiers have the block: "gpu+host+disk", ... */
const char *block_tiers(uint8_t where);
void block_free_record(struct index_record *r);
/* Declared in block/gpu_class.h: the sum of pins of single GPU copies; and a ready copy on a GPU that is not lost. */
__attribute__((cold)) uint32_t vram_pins(const struct block *b);
struct vram_slot *vram_ready(const struct block *b);

static inline struct block *block_of(struct index_record *r)
{
	return (struct block *)((char *)r - offsetof(struct block, record));
}

static inline const struct block *block_of_node(const struct policy_node *n)
{
	return (const struct block *)((const char *)n - offsetof(struct block, node));
}

static inline const uint8_t *block_key(const struct block *b)
{
	return index_key(&b->record, sizeof(*b));
}

static inline uint8_t block_key_bytes(const struct block *b)
{
	return b->record.name.key_bytes;
}

/* The block's name. Its key points into the block, and is valid as long as the block. */
static inline struct index_ident block_name(const struct block *b)
{
	return (struct index_ident){ .layout_id = b->record.name.layout_id, .tenant = b->record.name.tenant,
				     .key_bytes = block_key_bytes(b), .key = block_key(b) };
}

/* Prefetches the record into the CPU's cache. */
static inline void block_hint(const struct block *b)
{
	__builtin_prefetch(&b->record.pins);
	__builtin_prefetch(&b->span);
	__builtin_prefetch(&b->id_next);
}

static inline struct layout_pool *block_pool(const struct block *b)
{
	return b->pool;
}

static inline uint32_t block_pins(const struct block *b)
{
	return atomic_load_explicit(&((struct block *)b)->record.pins, memory_order_relaxed);
}

/* The pins that hold the block's copy in memory: leases there, and pins of all copies. INDEX_DEAD as in block_pins. */
static inline uint32_t block_memory_pins(const struct block *b)
{
	return b->vram ? block_pins(b) - vram_pins(b) : block_pins(b);
}

/* The CRC of the header of its copy in memory, once sealed, or of its last copy there. Only the daemon can write it. It
 * shows whether the header, and by the header's checksums the block, is still what was committed. */
static inline uint32_t block_header_crc(const struct block *b)
{
	return b->record.word;
}

static inline void block_header_keep(struct block *b, uint32_t crc)
{
	b->record.word = crc;
}

static inline bool block_live(const struct block *b)
{
	return !(block_pins(b) & INDEX_DEAD);
}

/* Sets or clears bits of the word by which lookups see which tiers have the block. */
static inline void where_set(struct block *b, uint8_t bits, bool on)
{
	uint8_t now = atomic_load_explicit(&b->where, memory_order_relaxed);

	atomic_store_explicit(&b->where, on ? now | bits : now & ~bits, memory_order_relaxed);
}

static inline bool block_is(const struct block *b, uint8_t bits)
{
	return atomic_load_explicit(&((struct block *)b)->where, memory_order_relaxed) & bits;
}

static inline const char *block_tier(const struct block *b)
{
	return block_tiers(atomic_load_explicit(&((struct block *)b)->where, memory_order_relaxed));
}

static inline void place_none(struct cache_place *out)
{
	*out = (struct cache_place){ .extent = (uint32_t)CACHE_EXTENT_NONE };
}

#endif
