/* The VRAM tier behind the cache: what its files ask of each other (vram/vram.c, vram/stop.c, vram/slot_map.c, vram/evict.c,
 * vram/transfer.c, vram/lost.c, vram/fetch.c, vram/replace.c, vram/checksum.c, vram/copy_queue.c, advice/prefetch_gpu.c, vram/placement.c, vram/stats.c) and the rest of the cache of them. Without GPUs none of it
 * exists: cache.vram is NULL, and no block has a copy on one.
 *
 * A block may have a *copy* on each GPU, in a slot there, beside the one in host memory and the one on a disk. Its copies hang in a
 * chain from the block. What a slot's header says in host memory is kept here, in the daemon's memory, since a GPU's slot is the block
 * alone.
 *
 *     reserved --commit--> ready          coming --copied--> ready --evicted, lost--> free
 *                                                            ready, block removed, or found corrupt --> dead --last pin--> free
 *
 * A *move* brings one block one way: up (host memory to GPU), down (GPU to host memory) or across (GPU to GPU). It pins its block. There
 * is one of a block to each GPU, and one down; who wants the same waits for it by a link. An up of a block that host memory has
 * not goes on when it has come there. Moves that have all they need stand in a queue of their GPU and way, and go out as lists of
 * copies (store/device.h), merged while they are of one shape.
 *
 * A *mark* stands in the queue of ups behind those that a lease waits for: as lists of one way run in their order, the progress of the
 * list before it, written to the word of the lease's board, tells how far all of them are. What stands behind the last mark, as of a Warm, is
 * overtaken by leases that tell of none of it, for a while. A lease whose copies must wait for something
 * gives its mark away ahead: it takes its place as the last of them takes its own, before the mover can see that one without it.
 *
 * A pin of a block pins all its copies, but for a lease's, which pins the copy that it is of: a lease in memory keeps nothing on a GPU, and
 * one on a GPU nothing in memory. Like the rest of the cache, all under its lock but where a comment says otherwise.
 */
#ifndef TERRACE_DAEMON_VRAM_VRAM_H
#define TERRACE_DAEMON_VRAM_VRAM_H

#include <time.h>

#include "daemon/cache_private.h"
#include "store/device.h"
#include "store/slot.h"

enum {
	VRAM_SHELF_BUCKETS = 256,
	VRAM_MOVE_BUCKETS = 4096,
	VRAM_SPARES_MAX = 8192,
	VRAM_AHEAD = 8,                /* moves that the mover asks for at a time */
	VRAM_LINE = 64,
	VRAM_EXTENT_BITS = 24,         /* extents of GPU g have ids from (g + 1) << 24 on */
	VRAM_DRAINS_MAX = 4,           /* a GPU */
};

enum vram_state { VRAM_FREE, VRAM_RESERVED, VRAM_COMING, VRAM_READY, VRAM_DEAD };

struct vram_slot {
	struct policy_node node;       /* of the pool's policy, while ready */
	struct block *block;
	struct vram_slot *next;        /* the block's copy on another GPU */
	struct vram_shelf *shelf;
	struct vram_slot *through_prev, *through_next; /* of those that are to go down: `through` */
	uint64_t position, stored_unix_ms;
	uint64_t order;                /* coming from memory: its number among the GPU's ups */
	uint32_t index, take, turn;
	uint32_t pins;                 /* of this copy alone */
	uint32_t sums;                 /* vram_sums_of() */
	uint8_t role, parent_bytes, parent[SLOT_KEY_MAX];
	uint8_t state;                 /* enum vram_state */
	bool summed;                   /* the checksums of its bytes are known: they have been elsewhere */
	bool across;                   /* coming from another GPU: not in the order of the ups */
	bool failed;                   /* coming: its copy came to nothing, and the move is about to end so */
	bool dirty;                    /* counted so: see vram_sync */
	bool through;
	bool used;                     /* coming: a lease has it already, so it is no mere move */
	bool ahead;                    /* came ahead of its use, and is not used yet: in the GPU's list */
	struct vram_slot *ahead_prev, *ahead_next;
	uint64_t ahead_us;             /* since when */
};

struct vram_shelf {
	struct vram_pool *pool;
	struct vram_shelf *next, *hash_next; /* of the pool, by rising extent id; of the bucket */
	uint64_t address;              /* of its first slot, on the GPU */
	uint32_t extent, slots;
	uint32_t taken, held;          /* not free; of these reserved, or pinned */
	bool draining;
	struct vram_slot at[];
};

/* A layout's memory on one GPU. Lives as long as the cache. */
struct vram_pool {
	struct gpu *gpu;
	struct pool *pool;
	struct host_pool *arena;
	struct policy *policy;
	uint64_t policy_room;          /* slots that it was told of last */
	struct vram_shelf *shelves;
	uint32_t newest;               /* of these and of earlier ones, the highest extent id */
	uint64_t stride;               /* bytes from slot to slot */
	uint64_t slots;                /* on shelves that do not drain */
	int64_t free_slots;            /* of these */
	uint64_t blocks;               /* ready copies */
	uint64_t evictable;            /* of these not pinned */
	uint64_t dirty;                /* ready copies that are the block's only one, and not on their way down */
	uint64_t through;              /* of these, that are to go down: in the GPU's list */
	uint32_t coming;               /* moves here that have a slot */
	uint32_t full_at;              /* of the GPU's feeds, the last one that found no slot here */
	uint64_t placed_us;            /* when an up last got one, while others waited for the GPU */
	uint64_t grow_refused;         /* room_epoch at which no extent was to be had */
	uint64_t balance_us;           /* when balance last looked around for it */
	uint64_t ahead_refused;        /* the same, at which the budget had none to be made ahead */
	uint32_t wanted;               /* free slots, of an extent that the keeper is to make if there are fewer; 0: none */
	bool pressed;                  /* too little of it is free or clean, as the pump has seen last */
};

/* What a lease's copies are watched by: a page of an attachment's, registered with the GPUs. */
struct board {
	struct extent page;
	uint64_t address[DEVICES_MAX]; /* on each GPU; 0: not registered */
	uint32_t next[DEVICES_MAX];    /* the word of GPU g has been promised this value */
	uint32_t marks;                /* in queues or under way */
	bool dead;                     /* its attachment is gone */
	struct board *dead_next;
};

enum move_step { STEP_NEW, STEP_HOST, STEP_ROOM, STEP_QUEUED };

/* The mover goes through queues that other processors have filled: what it needs of a move is on the move's first cache line, and it asks for
 * the line of `ahead` before it comes there. */
struct vram_move {
	struct vram_move *next;        /* of the queue, the list or those that wait */
	struct block *block;           /* pinned; NULL: a mark */
	struct device_pair pair;       /* in a queue: what is to be copied */
	const struct pool *pool;       /* the block's */
	struct vram_move *ahead;       /* some way behind it in the queue when it was put there: a guess, not to be followed */
	enum device_way way;
	bool checked;                  /* up: its bytes were looked at when they came to memory for it */
	bool fetched;                  /* up: they came there for it, or will, and it has not entered its queue: in vram->fetched_bytes */
	struct vram_slot *slot;        /* on gpu; NULL: none yet */
	uint32_t base, layers;         /* of a mark */
	uint64_t enqueued_us;          /* the same */
	bool overtakes;                /* the same: nothing that it tells of stands in the tail */
	struct board *board;           /* the same */
	struct gpu *gpu;               /* up, across: to; down: from */
	struct vram_move *hash_next;   /* of the bucket by block */
	enum ring_priority priority;   /* up: of a load for it */
	enum move_step step;           /* waits for the block's copy in host memory; for a slot; for its turn, or is copied */
	struct vram_slot *from;        /* across: on another GPU */
	struct host_slot host;         /* down: to */
	struct shelf *shelf;
	struct cache_wait_link *placed, *done; /* who waits for its slot to be known; for its end */
	uint32_t sums, header_crc;     /* down: of what came */
	uint64_t waits_us;             /* up: for room, since then; 0: it has not */
	bool hasty;                    /* up: it waits for no disk that writes */
	uint8_t wrong;                 /* up: times that what was there to be copied was not the block */
	bool spare;                    /* down: takes only what memory can spare */
	bool idle;                     /* down: nobody is in a hurry for it */
	bool through;                  /* down: of a copy that is to go down in any case */
	bool bad;                      /* up, down: its bytes are not the block's, or, down with a GPU that was lost, not known to be */
	bool found;                    /* up: and it was the first to find that */
};

/* One list of copies under way. */
struct flight {
	struct device_copy copy;       /* first */
	struct gpu *gpu;
	struct flight *next;           /* of the ended; of those that are to be looked at */
	struct vram_move *moves, *mark;
	struct vram_move **each;       /* [copy.count], the moves again; up: those to be summed first */
	enum status status;
	uint64_t begun_us, copied_us;
	bool sealed;                   /* down: what came has its header and checksums */
	_Atomic uint32_t parts;        /* that have not ended: the copies; up: the look at what is copied (vram/checksum.c): */
	struct flight *summing_next;   /* of the GPU's that are being summed, as they were begun */
	_Atomic uint32_t *left;        /* up, with a mark: [copy.parts] pieces of work of each layer, headers with the second; down: [copy.count] of each block */
	uint32_t summed_blocks, piece; /* of each; layers in a piece */
	uint32_t layers_summed;        /* these and all before them */
	bool summing;                  /* it is */
	bool behind;                   /* up: looked at when it is copied, beside the copies of the next list */
	bool elsewhere;                /* it was one of the GPU's to_look: whoever takes it from there has it looked at */
	_Atomic bool all_due;          /* no layer is waited for any more, with the look at it */
	_Atomic uint64_t stalled_us;   /* since when one is; 0: none is */
	bool mixed;                    /* `each` is in another order than `moves` */
	struct device_pair pairs[];    /* behind them `each`, then `left` */
};

/* What is enqueued stands in `staged` until the lock is left, or vram_publish is called: so a lease's blocks come with the mark behind
 * them, and those of a long call that waits for the end begin to be copied while it is still at its later ones. */
struct vram_queue {
	struct vram_move *staged, **staged_end;
	struct vram_move *lately[VRAM_AHEAD]; /* put there: the last ones, in turns */
	uint32_t put;
	struct vram_move *staged_mark; /* the last one; */
	uint32_t staged_marks;         /* how many, */
	uint32_t staged_count;         /* and in all */
	/* With the GPU's queue_lock: */
	struct vram_move *first, **end;
	struct vram_move **tail;       /* what stands behind the last mark: nobody waits for its layers, and a lease may overtake it, */
	uint64_t tail_us;              /* for a while from when a list of it last began */
	uint32_t count, marks;         /* in it; marks among them */
	uint32_t under_way;            /* lists that are being copied, or summed */
	_Atomic uint32_t flights;      /* lists that have not ended, which is the keeper's to say */
};

/* What lists are for: to be leased, layer by layer; to come up otherwise; to go down; to another GPU. */
enum list_kind { LIST_LEASE, LIST_UP, LIST_DOWN, LIST_ACROSS, LIST_KINDS };

/* Sums over those that were copied. */
struct list_times {
	_Atomic uint64_t lists, bytes, queued_us, copied_us, checked_us;
};

struct gpu {
	struct cache *cache;
	uint32_t number;
	struct device *device;
	struct device_info info;
	struct host_tier *arena;
	uint64_t budget;
	uint32_t reaches;              /* other GPUs, whose copies come here without passing host memory, a bit each */
	struct vram_pool *pools[POOLS_MAX];
	struct vram_shelf *shelf_hash[VRAM_SHELF_BUCKETS];
	uint64_t held_bytes;           /* of slots that are reserved or pinned */
	uint64_t lent_bytes;           /* of these, that are reserved or have pins of their own: a share of the GPU bounds them */
	struct vram_queue queue[3];    /* by enum device_way */
	uint64_t ups;                  /* that have entered theirs */
	struct vram_move *waiting, **waiting_end; /* for a slot here */
	struct vram_move *marks;       /* in the queue of ups or under way, by hash_next */
	struct vram_slot *through, *through_last; /* copies that are to go down, oldest first */
	uint64_t through_us;           /* not before that, by the machine's clock */
	uint32_t downs;                /* moves down that have begun */
	struct vram_slot *ahead_first, *ahead_last; /* copies that came ahead, oldest first */
	uint64_t ahead_bytes;          /* of these */
	uint32_t fetching;             /* ups in STEP_HOST */
	pthread_mutex_t queue_lock;    /* of the queues, of what has ended, of what mover and keeper wait for; nothing is locked in it */
	struct flight *ended, **ended_end; /* with it */
	bool halted, over;             /* with it: no list is made any more; the mover is to end */
	struct flight *taken;          /* with it: made, and the mover's to begin. NULL: none */
	_Atomic(struct flight *) to_look; /* with it: lists that are to be looked at (vram/checksum.c) beside their copies, by who has brought them or the mover */
	bool keeper_due;               /* with it */
	pthread_mutex_t summing_lock;  /* of the list of those being summed, and of how far they are; nothing is locked in it */
	struct flight *summing, **summing_end;
	uint64_t corrupt_up, corrupt_down; /* copies found so */
	bool freed;                    /* a slot, since those that wait were looked at */
	uint32_t feeds;                /* times that those that wait were looked at, from 1 on */
	bool feeding;                  /* one of them is tried, and others after it, that are not in `waiting` meanwhile */
	bool lost, swept;
	uint64_t asked_us;             /* when last, by the machine's clock */
	uint32_t sweep_pool, sweep_extent, sweep_slot;
	char why[160];                 /* why it was lost */
	struct drain drains[VRAM_DRAINS_MAX];
	uint32_t drain_count;
	struct extent scratch;         /* a page of host memory, and where it can be copied to: for marks alone */
	uint64_t scratch_from, scratch_range;
	struct device_extent scratch_to;
	pthread_t mover, keeper;
	bool mover_started, keeper_started;
	_Atomic uint32_t expected, brought; /* calls that may have work for it: begun, over */
	_Atomic uint32_t more_comes;   /* calls that have begun to fill its queue of ups, and go on to */
	_Atomic uint32_t rung;         /* times that there may have been something to be begun */
	_Atomic uint64_t stirred_us;   /* when a call came last, where the mover is to be awake for the next; 0: none has */
	_Atomic bool sleeps;           /* the mover does, it seems, and may have work again */
	_Atomic bool brings;           /* the last lease here had something to be copied: so may the next */
	_Atomic uint64_t comes_until_us; /* one was about to come: the mover is awake so long */
	uint32_t passed, readied;      /* the mover's: as many were over when it had waited long enough, had begun when it last made ready */
	pthread_cond_t mover_work, keeper_work; /* with queue_lock */
	struct list_times times[LIST_KINDS];
};

static inline uint32_t gpu_flights(const struct gpu *g, enum device_way way)
{
	return atomic_load_explicit(&g->queue[way].flights, memory_order_acquire);
}

static inline bool gpu_has_flights(const struct gpu *g)
{
	return gpu_flights(g, DEVICE_UP) || gpu_flights(g, DEVICE_DOWN) || gpu_flights(g, DEVICE_ACROSS);
}

struct vram {
	const struct device_ops *ops;
	struct gpu *gpu[DEVICES_MAX];
	uint32_t count;
	struct vram_move *moves[VRAM_MOVE_BUCKETS];
	struct vram_move *waiting_host, **waiting_host_end; /* downs that wait for a slot of host memory */
	uint64_t moving_bytes;         /* slots that moves pin */
	uint64_t fetched_bytes;        /* of these, slots of memory that ups have on their way from a disk, until they have one on their GPU */
	uint32_t move_count;
	struct vram_move *spare;       /* ended moves, for new ones */
	uint32_t spare_count;
	struct cache_wait_link *spare_links; /* the same of links of waits */
	uint32_t spare_link_count;
	bool staged;                   /* something is enqueued and not published */
	bool room_due;                 /* who waits for `room` is to be told */
	bool stopping;
	uint32_t threads;              /* movers and keepers that have not ended */
	_Atomic bool left;             /* who comes back from a driver stays there */
	uint32_t given_back;           /* calls of drivers that vram_destroy is done with */
	bool closed;
	struct board *dead_boards;
	struct vram_ahead *ahead;      /* NULL: nothing is brought up ahead */
	struct cache *left_next;       /* of the caches whose GPUs were left behind */
	pthread_cond_t room;           /* a slot came free somewhere, or will not */
};

/* ---- vram/vram.c: birth, death, the keeper's and the chores' work ---- */

/* Without the lock. A GPU that cannot be opened is lost from the beginning; EXHAUSTED, INVALID: of the tier as a whole. */
enum status vram_create(struct cache *c, const char **why);
enum status vram_start(struct cache *c, const char **why);
void vram_tick(struct cache *c);
/* True: there is something for vram_chores, which is called without the lock. */
bool vram_wants(struct cache *c);
void vram_chores(struct cache *c);
/* By its keeper: leaves the lock, as the driver may take its time. True: the device says that it is lost. From vram_stop on it
 * is not asked any more: g->lost. */
bool gpu_asks(struct cache *c, struct gpu *g);
static inline uint64_t vram_clock_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
static inline struct gpu *vram_gpu(const struct cache *c, uint32_t number)
{
	return c->vram && number < c->vram->count ? c->vram->gpu[number] : NULL;
}
static inline struct gpu *vram_gpu_of_extent(const struct cache *c, uint32_t extent)
{
	return extent >> VRAM_EXTENT_BITS ? vram_gpu(c, (extent >> VRAM_EXTENT_BITS) - 1) : NULL;
}
/* Without the lock: the GPUs' addresses of an extent of host memory, DEVICES_MAX of them, 0 where it cannot be registered. */
void vram_register(struct cache *c, const struct extent *e, uint64_t *address);
void vram_unregister(struct cache *c, void *memory, const uint64_t *address);
/* The same for a shelf, which frees them; NULL: no GPU, or no memory. */
uint64_t *vram_addresses(struct cache *c, const struct extent *e);

/* ---- vram/lost.c ---- */

/* The GPU gives nothing any more. */
void gpu_lost(struct gpu *g, const char *why);
/* All of its moves that wait or stand in a queue end, and those that stand in one to come from it. */
void vram_moves_fail(struct cache *c, struct gpu *g);
/* By its keeper, of a lost one: takes some of its copies off the books; `swept` when there are no more. */
void vram_sweep(struct cache *c, struct gpu *g);
/* A move of a list ends so; what the sweep has left for it, on GPUs that were lost meanwhile, goes with it. */
void vram_read_ended(struct cache *c, struct vram_move *m, enum status s);

/* ---- vram/stats.c ---- */

void vram_stats(struct cache *c, cache_stat_fn *emit, void *arg);
/* A list has ended, in all its parts. Any thread, once a list. */
void vram_times_add(const struct flight *f);

/* ---- vram/stop.c ---- */

/* Without the lock: no copy begins any more, and no thread of the tier's runs after it. False: a GPU has not ended its copies, or its driver not
 * returned, within gpu_close_ms, which is not waited for without `wait`: the cache is to stay as it is, to the end of the process. */
bool vram_stop(struct cache *c, bool wait);
/* After the blocks are gone. False: a call of the driver's took longer than gpu_close_ms, and as above. */
bool vram_destroy(struct cache *c);
/* The last thing that a mover or keeper does, with the lock. */
void vram_thread_ended(struct cache *c);
/* What each thread does that comes back from a driver, without the lock: does not return once the GPUs are left behind. */
void vram_came_back(const struct cache *c);

/* ---- vram/slot_map.c: slots and copies ---- */

struct vram_pool *vram_pool_get(struct cache *c, struct gpu *g, struct pool *p); /* made if new; NULL: no memory */
struct vram_shelf *vram_shelf_find(const struct gpu *g, uint32_t extent);
struct vram_shelf *vram_shelf_get(struct vram_pool *vp, uint32_t extent);        /* the same */
void vram_shelf_free(struct vram_shelf *s);
/* The next ready copy of the layout on that GPU, at or after (extent, slot); as shelf_next_block. */
struct vram_slot *vram_next(struct vram_pool *vp, uint32_t *extent, uint32_t *slot, uint32_t *budget);
/* The next block of the layout whose only copies are on GPUs. */
struct block *vram_next_only(struct cache *c, const struct pool *p, uint32_t *extent, uint32_t *slot, uint32_t *budget);
/* Where a walk over memory, then GPUs, is: pool (12 bits), extent (29), slot (22). The highest bit is the callers' to use. */
enum { VERIFY_EXTENT_BITS = 29, VERIFY_SLOT_BITS = 22 };
static inline uint64_t verify_cursor(uint32_t pool, uint32_t extent, uint32_t slot)
{
	_Static_assert(POOLS_MAX <= 1 << (63 - VERIFY_EXTENT_BITS - VERIFY_SLOT_BITS), "every pool has its number there");
	_Static_assert((DEVICES_MAX + 1) << VRAM_EXTENT_BITS <= 1 << VERIFY_EXTENT_BITS, "and every extent");
	_Static_assert(EXTENT_BYTES_MAX / HOST_DEVICE_SLOT_ALIGN <= 1 << VERIFY_SLOT_BITS, "and every slot of a GPU's");
	return (uint64_t)pool << (VERIFY_EXTENT_BITS + VERIFY_SLOT_BITS) | (uint64_t)extent << VERIFY_SLOT_BITS | slot;
}
static inline void verify_cursor_read(uint64_t cursor, uint32_t *pool, uint32_t *extent, uint32_t *slot)
{
	*pool = (uint32_t)(cursor >> (VERIFY_EXTENT_BITS + VERIFY_SLOT_BITS));
	*extent = (uint32_t)(cursor >> VERIFY_SLOT_BITS) & ((1u << VERIFY_EXTENT_BITS) - 1);
	*slot = (uint32_t)cursor & ((1u << VERIFY_SLOT_BITS) - 1);
}
/* How many there are, but for those on their way down. */
uint64_t vram_only_blocks(const struct cache *c, const struct pool *p);
/* Its slot on that GPU, coming or ready (reserved, if it is unpublished); NULL. */
struct vram_slot *vram_slot_on(const struct block *b, const struct gpu *g);
/* The same, dead ones and those of lost GPUs too. */
struct vram_slot *vram_slot_of(const struct block *b, const struct gpu *g);
/* What holds that copy: its own pins, and those of all copies. */
uint32_t vram_slot_pins(const struct vram_slot *s);
/* A pin of that copy alone; so many go. */
static inline void vram_slot_pin(struct vram_slot *s)
{
	struct vram_pool *vp = s->shelf->pool;

	if (s->pins++ == 0)
		vp->gpu->lent_bytes += vp->stride;
}
static inline void vram_slot_unpin(struct vram_slot *s, uint32_t pins)
{
	struct vram_pool *vp = s->shelf->pool;

	s->pins -= pins;
	if (pins && s->pins == 0)
		vp->gpu->lent_bytes -= vp->stride;
}
/* A ready one on any GPU that is not lost; on one whose copies that GPU can have without host memory between them. */
struct vram_slot *vram_ready(const struct block *b);
struct vram_slot *vram_near(const struct block *b, const struct gpu *g);
static inline uint64_t vram_address(const struct vram_slot *s)
{
	return s->shelf->address + s->index * s->shelf->pool->stride;
}
/* A slot that room gave becomes the block's. */
struct vram_slot *vram_attach(struct block *b, struct vram_pool *vp, const struct host_slot *from, enum vram_state state);
/* It is the block's no more, and free. Its move has ended. */
void vram_detach(struct vram_slot *s);
void vram_ready_now(struct cache *c, struct vram_slot *s);
/* What the block's header in host memory says (a sound one), or its put said, from now on known without it. */
void vram_remember(struct vram_slot *s, const struct slot_header *h);
void vram_remember_info(struct vram_slot *s, const struct slot_info *info, uint64_t unix_ms);
/* After a change of where the block is: counts it as dirty or not. */
void vram_sync(struct block *b);
/* The GPUs' part of block_books, `all`: pins of all its copies; it was used, on that GPU or (NULL) on all. Cold, since most blocks are on no GPU, and each passes here. */
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

/* ---- vram/evict.c: who makes place for whom on a GPU ---- */

/* Who wants a slot: somebody who waits for it, and rather waits for copies that are coming, and may go when they have come, than be refused;
 * the same, who rather waits for what is being written to a disk, too, than that something goes that is nowhere else; somebody who can do without; and
 * the same, where nothing that is nowhere else is to go for it, neither here nor in memory. */
enum vram_need { NEED_NOW, NEED_SOON, NEED_AHEAD, NEED_SPARE };

/* A free slot, evicting clean copies as needed. BUSY: something is under way that makes room. EXHAUSTED: nothing is. */
enum status vram_room_take(struct cache *c, struct vram_pool *vp, enum vram_need need, struct host_slot *out);
/* Tells policies what room their layouts have now. */
void vram_rooms_tell(struct cache *c);
/* Evicts what so many slots cost at once, as far as nothing has to go down for it: taken one by one, they then lie side by side. */
void vram_room_ahead(struct cache *c, struct vram_pool *vp, uint32_t slots);
/* Of each layout that has all that the GPU has for it a few slots are to be free before a lease or a put asks for them. Leaves the lock. */
void vram_room_keep(struct cache *c, struct gpu *g);
/* A slot is free beyond those, or is made free by a copy that is elsewhere too and that nobody has used for so long. */
bool vram_room_spare(struct cache *c, struct vram_pool *vp, uint64_t idle_us);
/* Without the lock, of BUSY: until something came free, 20 ms at most. */
void vram_room_wait(struct cache *c);
/* Without the lock: makes an extent. */
void vram_room_grow(struct cache *c, struct vram_pool *vp);
void vram_evict(struct cache *c, struct vram_slot *s, enum counter why);
/* A ready one is somewhere else too, so that nothing is lost with it. */
bool vram_clean(const struct vram_slot *s);
/* Goes down what is to, as far as bounds allow. */
void vram_pump(struct cache *c);
void vram_drain_step(struct cache *c, struct gpu *g);
bool vram_drained(const struct gpu *g);
void vram_drain_reap(struct cache *c, struct gpu *g);

/* ---- vram/transfer.c: moves, from their beginning to their end ---- */

/* Joins the move if there is one. priority: of a read from a disk, if it comes from there. w may be NULL. wait_end: until it is
 * copied; else until it has its place in the order of the ups. OK: there, or on its way. EXHAUSTED, UNAVAILABLE. now: without
 * waiting for anything: BUSY if it would have to. */
enum status vram_up(struct cache *c, struct gpu *g, struct block *b, enum ring_priority priority, struct cache_wait *w, bool wait_end,
		    bool now);
/* Of a block that is on a GPU and not in host memory. spare: nothing that is nowhere else goes for it: BUSY, memory has no other place. It may be
 * told so as its end, too. */
enum status vram_down(struct cache *c, struct block *b, bool spare, struct cache_wait *w);
/* The same of what is to go down in any case, by who is in no hurry: room_take_below. */
enum status vram_through(struct cache *c, struct block *b, bool spare, struct cache_wait *w);
/* It is being brought down. */
bool vram_falling(struct cache *c, const struct block *b);
/* The end of a load, whatever it was: ups that wait for it go on. */
void vram_host_came(struct cache *c, struct block *b, enum status s);
/* Its move to that GPU; NULL. */
struct vram_move *vram_up_of(const struct cache *c, const struct block *b, const struct gpu *g);
/* Moves that wait for memory, on a GPU, of the host. */
void vram_feed(struct cache *c, struct gpu *g);
void vram_feed_host(struct cache *c);
/* It ends so, with who waits for it; the same of an up that has not been copied. */
void vram_move_end(struct cache *c, struct vram_move *m, enum status s);
void vram_up_end(struct cache *c, struct vram_move *m, enum status s);
void vram_spares_free(struct vram *v);
/* With the lock, which it leaves: a list has ended. */
void vram_flight_end(struct cache *c, struct flight *f);

/* The bucket in which its moves are, with others'. */
static inline struct vram_move **vram_moves_of(const struct cache *c, const struct block *b)
{
	return &c->vram->moves[((uintptr_t)b >> 6) % VRAM_MOVE_BUCKETS];
}

/* ---- vram/fetch.c: memory on the way up ---- */

/* Nothing that is nowhere else goes for it, or not yet. */
bool vram_only_spare(const struct cache *c, const struct vram_move *m);
/* Its way begins with a load, or it has joined one that has begun. */
enum status vram_load(struct cache *c, const struct vram_move *m);
/* It has a slot of memory for its way, or will have; no more, in its queue or at its end. */
void vram_fetched(struct cache *c, struct vram_move *m, bool is);
/* Others that wait for a GPU that is full have as much as they may. */
bool vram_fetched_enough(struct cache *c, const struct vram_move *m);
/* Memory has no place for it but those of blocks that are nowhere else. */
bool vram_memory_short(struct cache *c, const struct vram_move *m);
/* Something under way makes room there: copies up that are queued, under way, or to come by memory, as they end; what it may wait for besides. */
bool vram_memory_comes_free(struct gpu *g);
bool vram_memory_comes(struct cache *c, const struct vram_move *m);
/* Memory has something to spare: who waits for it looks again, soon. */
void vram_memory_spares(struct cache *c);

/* ---- vram/replace.c ---- */

/* Ready copies become another block's, with the pins of leases, and the moves from them to other GPUs, with who waits for these: all but what a way
 * down is of. In the hands of who has both blocks out of the books. */
void vram_hand_over(struct cache *c, struct block *b, struct block *heir);
/* An up has found that what memory has is not the block: at once, what is elsewhere goes on without it, also for who waits for the move's end. Leases
 * of the copy that were granted ahead know. What was found so by another GPU's move, or is deleted, has been dealt with. */
void vram_up_wrong(struct cache *c, struct vram_move *m);

/* ---- vram/checksum.c: checksums beside the copies ---- */

/* What is kept of the checksums in a slot's header: one over all of them. */
uint32_t vram_sums_of(const void *header, uint32_t layers);
/* It is down, and its bytes are to be summed, as they may have come. */
bool vram_flight_sums(const struct flight *f);
/* Without the lock: headers and checksums of what has come down, by the threads for that; ended(f) when they are done. False: not begun. */
bool vram_flight_seal(struct flight *f, void (*ended)(void *flight));
/* Without the lock, on the caller's thread and those for that. */
void vram_flight_seal_here(struct cache *c, struct flight *f);
/* It came down: so its copies' sums are known. */
void vram_sums_keep(struct block *b, uint32_t sums);
/* By the mover, without the lock, in the order of the lists up: before the list is begun; then, or before, as the threads for it take their time
 * to be woken, the look at what is copied: what headers say is kept, and layers are summed. False: no thread takes it, and it is to be done here.
 * Of what is `behind` the end of the copies is told instead, by the device's thread. */
void vram_flight_enter(struct flight *f);
bool vram_flight_look(struct flight *f);
void vram_flight_look_here(struct flight *f);
void vram_flight_copied(struct flight *f);
/* Without the lock: its copies, or its sums, have ended. */
void vram_flight_part_ended(struct flight *f);

/* ---- vram/copy_queue.c: the mover's thread ---- */

void *gpu_mover(void *gpu);
/* A list has ended, in all its parts: the rest is the keeper's. Without the lock. */
void vram_flight_ended(void *flight);
void vram_enqueue(struct gpu *g, struct vram_move *m);
/* As many blocks as a list has whose layers nobody waits for; `most` at most. */
uint32_t vram_list_blocks(const struct pool *p, uint32_t most);
/* What was enqueued is the movers' now, and who waits for room looks again: as the lock is left. */
void vram_publish(struct cache *c);
/* A mark may not overtake ups whose order is from *from on, and below *to. */
void vram_tail(struct gpu *g, uint64_t *from, uint64_t *to);
/* Something stands in a queue, or has been enqueued. What no longer does is among the flights, if these are looked at after it. */
bool vram_queued(struct gpu *g, enum device_way way);
/* Of a GPU's queue, in their order; for who ends them. */
struct vram_move *vram_queue_take(struct gpu *g, enum device_way way, const struct gpu *of);
/* No list begins any more; with `over` the mover ends. */
void vram_mover_halt(struct gpu *g, bool over);
/* Any thread. */
void vram_mover_wake(struct gpu *g);
void vram_keeper_wake(struct gpu *g);
/* Without the lock, in a read section: blocks_find for a new call for that GPU (CACHE_HOST: none). If some of them are to be copied there, as it
 * seems, its mover comes awake, and makes the device ready, while the call is still at its work, since to be woken takes as long as half of that:
 * so the last one is looked for before the others. What this returns is told when it is over: NULL: nothing. */
struct gpu *vram_find(struct cache *c, int32_t gpu, struct pool *const *pools, uint32_t layouts, const struct cache_keys *k, struct block **found);
/* The same in two steps; between them the first `from` may be found. */
struct gpu *vram_find_last(struct cache *c, int32_t gpu, struct pool *const *pools, uint32_t layouts, const struct cache_keys *k,
			   struct block **found);
struct gpu *vram_find_rest(struct cache *c, struct gpu *expecting, int32_t gpu, struct pool *const *pools, uint32_t layouts,
			   const struct cache_keys *k, uint32_t from, struct block **found);
/* A call has begun to fill the GPU's queue of ups, and goes on to; it has published all. Any thread. */
static inline void vram_more_comes(struct gpu *g)
{
	atomic_fetch_add_explicit(&g->more_comes, 1, memory_order_relaxed);
}
static inline void vram_more_came(struct gpu *g)
{
	atomic_fetch_sub_explicit(&g->more_comes, 1, memory_order_relaxed);
}
/* Some of these seem to be in memory and not on a GPU. */
bool vram_some_come(const struct cache *c, uint32_t count, struct block *const *found);
void vram_brought(struct gpu *expecting);
/* Without the lock: the caller's reply is on its way, so that there is time to wake those that sum what it has brought. */
void vram_brought_told(struct cache *c);
/* A call has come: with options.gpu_poll_us movers are awake for so long after it. Any thread, without the lock. */
void vram_stir(struct cache *c);
/* A lease on that GPU (CACHE_HOST: on none) has something to be copied, or not. */
void vram_lease_brings(struct cache *c, int32_t gpu, const struct gpu *expecting);
/* See cache_lease_comes. */
void vram_lease_comes(struct cache *c);

/* ---- vram/placement.c ---- */

/* Where a call wants its blocks. */
struct vram_want {
	struct gpu *gpu;               /* NULL: in host memory */
	bool or_host;
	bool may_begin;                /* what is in memory may be begun to be brought up without waiting */
	struct board *board;           /* NULL: copies must be there before the lease is granted */
};
/* The block has its place: on the GPU or, with or_host, in memory. */
bool vram_placed(const struct block *b, const struct vram_want *want);
/* Its slot there, if what the lease's holder knows is enough to use it; the GPU then. NULL: its place is in memory, or nowhere yet. */
struct vram_slot *vram_place_slot(const struct block *b, const struct vram_want *want);
struct gpu *vram_place_gpu(const struct block *b, const struct vram_want *want);
/* Bytes that a lease of it there would add to what the GPU's holders hold. */
uint64_t vram_pin_bytes(const struct block *b, const struct gpu *g);
/* Its slot on that GPU, if it is there whole; NULL. */
struct vram_slot *vram_leasable(const struct block *b, const struct gpu *g);
/* The numbers of the layouts, those with the fewest layers first. */
void vram_order(struct pool *const *pools, uint32_t layouts, uint32_t *order);
/* Layers of the one with the most. */
uint32_t vram_layers_most(struct pool *const *pools, uint32_t layouts);
/* To memory, from wherever it is; as load_begin. */
enum status block_fetch(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* Begins to bring down what of the layout is on GPUs alone and was stored by then; `most` at a time. True: something is left that can
 * come. w may be NULL. spare: as of vram_down. *refused: why something cannot. */
bool vram_settle(struct cache *c, const struct pool *p, uint64_t since_us, uint32_t most, bool spare, struct cache_wait *w, enum status *refused);
/* As vram_down, for who is in no hurry: while disks write nothing that is nowhere else goes for it: BUSY. */
enum status vram_down_soon(struct cache *c, struct block *b, struct cache_wait *w);
/* Without the lock, on a worker: brings a pinned block to host memory; false if that cannot be done within some seconds, or, with `spare`, without that
 * something goes that is nowhere else. */
bool vram_bring(struct cache *c, struct block *b, bool spare);

/* Copies up came to nothing, though the GPU is not lost: no mark that stands behind them may be believed. Before the device goes on. */
void vram_marks_fail(struct gpu *g);
/* Behind the ups that have begun: how far they are is told at the board's word for that GPU. overtakes: what it is to tell of is none of
 * vram_tail's. False: no memory. */
bool vram_mark(struct gpu *g, struct board *board, uint32_t layers, bool overtakes, uint32_t *base);
/* The same of a call that waits for places, behind the last of them: when nothing is outstanding any more. Without memory it is left. */
void vram_mark_ahead(struct gpu *g, struct board *board, uint32_t layers, struct cache_wait *w);
void vram_mark_place(struct cache_wait *w);
void vram_mark_drop(struct cache_wait *w); /* the wait ends without */
/* Its list has ended so, or will never begin. Frees it. */
void vram_mark_end(struct vram_move *mark, enum status s);

/* ---- advice/prefetch_gpu.c ---- */

struct request;
bool vram_ahead_create(struct cache *c); /* false: no memory */
void vram_ahead_destroy(struct vram *v);
/* With vram->ahead. A request was told, in a read section; a Lease of it came; copies are begun, of what is wished for. */
void vram_ahead_request(struct cache *c, const struct request *r);
void vram_ahead_leased(struct cache *c, const struct request *r);
void vram_ahead_pump(struct cache *c);
/* What became of one that is `ahead`: COUNTER_GPU_AHEAD_USED, _LATE or _WASTED. */
void vram_ahead_end(struct vram_slot *s, enum counter how);

/* ---- boards: vram/vram.c ---- */

/* Without the lock: makes one, registered with the GPUs. NULL: no memory. */
struct board *board_create(struct cache *c);
void board_destroy(struct cache *c, struct board *b);
/* With the lock: its attachment is gone; it is destroyed by the chores, when no mark names it any more. */
void board_let_go(struct cache *c, struct board *b);
/* With the lock: copies to that GPU that the board was to tell of will not come. Says so there, once and for all, and lets streams that
 * wait go on. */
void board_fail(struct board *b, const struct gpu *g);
/* With the lock: leases may be granted ahead of their copies to that GPU. Not where these have failed once: who looked would not believe
 * it any more. */
bool board_tells(const struct board *b, const struct gpu *g);
/* Any thread: copies of layers of that GPU have come so far. */
bool board_copied(const struct board *b, const struct gpu *g, uint32_t value);
/* Any thread: so far have the checksums of copies to that GPU been looked at. Never back. */
void board_summed(struct board *b, const struct gpu *g, uint32_t value);

#endif
