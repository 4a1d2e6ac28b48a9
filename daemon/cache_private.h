/* The structs behind cache.h and what its files ask of each other.
 *
 * Locks. `lock` guards everything here but the fields marked atomic. Blocks are pinned, published, killed
 * and evicted under it only, so whoever holds it sees a block's state stand still; lookups run beside it in
 * a read section of the index and look at nothing but records. `extents` guards the life of struct extent
 * against cache_chores, which takes drained ones out without `lock`; it may be *tried* with `lock` held, and is
 * never held when `lock` is taken. Who registers a new extent with disks and GPUs does it without `lock`, `growing` meanwhile.
 *
 * Unless a comment says otherwise, a function here is called with `lock` held.
 */
#ifndef TERRACE_DAEMON_CACHE_PRIVATE_H
#define TERRACE_DAEMON_CACHE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/cache.h"
#include "daemon/block/handle.h"
#include "daemon/block/quota.h"
#include "eviction/policy.h"
#include "store/host/host.h"
#include "store/index.h"

enum {
	POOLS_MAX = 4096,
	SHELF_BUCKETS = 4096,
	CLAIM_BUCKETS = 16384,
	ATTACHMENT_BUCKETS = 1024,
	ATTACHMENTS_MAX = 256,         /* a session */
	LENT_MAX = 65536,              /* extents an attachment */
	WATCHES_MAX = 64,
	DRAINS_MAX = 8,
	RESERVATIONS_MAX = 1 << 16,
	POOL_COLD = 64,
	CHUNK_KEYS = 64,               /* keys handled in one go under the lock */
	LEASES_LATE = 16,
};

/* Counters: name, labels, help. */
#define COUNTER_MAP(X)                                                                                       \
	X(LOOKUPS, "terrace_lookups_total", "", "Lookup calls")                                              \
	X(LOOKUP_KEYS, "terrace_lookup_keys_total", "", "keys asked for by lookups")                         \
	X(LOOKUP_HITS, "terrace_lookup_hits_total", "", "keys in the prefixes that lookups found")           \
	X(LEASES, "terrace_leases_total", "", "leases granted")                                              \
	X(LEASED_BLOCKS, "terrace_leased_blocks_total", "", "blocks put under lease")                        \
	X(LEASE_MISSES, "terrace_lease_refused_total", "reason=miss", "leases refused")                      \
	X(LEASE_EXHAUSTED, "terrace_lease_refused_total", "reason=exhausted", "leases refused")              \
	X(RELEASES, "terrace_releases_total", "", "leases given back")                                       \
	X(RESERVED, "terrace_reserve_keys_total", "status=ok", "keys that puts asked slots for")             \
	X(RESERVE_EXISTS, "terrace_reserve_keys_total", "status=exists", "keys that puts asked slots for")   \
	X(RESERVE_BUSY, "terrace_reserve_keys_total", "status=busy", "keys that puts asked slots for")       \
	X(RESERVE_EXHAUSTED, "terrace_reserve_keys_total", "status=exhausted",                               \
	  "keys that puts asked slots for")                                                                  \
	X(COMMITTED, "terrace_commits_total", "status=ok", "commits of a key")                               \
	X(COMMIT_EXISTS, "terrace_commits_total", "status=exists", "commits of a key")                       \
	X(ABORTS, "terrace_aborts_total", "", "reservations given up")                                       \
	X(STORED_BLOCKS, "terrace_stored_blocks_total", "", "blocks made visible")                           \
	X(READS, "terrace_reads_total", "status=ok", "blocks read by stream")                                \
	X(READ_MISSES, "terrace_reads_total", "status=miss", "blocks read by stream")                        \
	X(EVICTED_FULL, "terrace_evictions_total", "tier=host,reason=full", "blocks that left a tier")       \
	X(EVICTED_DRAIN, "terrace_evictions_total", "tier=host,reason=drain", "blocks that left a tier")     \
	X(EVICTED_SHED, "terrace_evictions_total", "tier=host,reason=shed", "blocks that left a tier")       \
	X(EVICTED_DISK, "terrace_evictions_total", "tier=disk,reason=full", "blocks that left a tier")       \
	X(EVICTED_LOST, "terrace_evictions_total", "tier=disk,reason=lost", "blocks that left a tier")       \
	X(EVICTED_COMPACT, "terrace_evictions_total", "tier=disk,reason=compact", "blocks that left a tier") \
	X(EVICTED_REFUSED, "terrace_evictions_total", "tier=host,reason=refused", "blocks that left a tier")     \
	X(EVICTED_GPU_FULL, "terrace_evictions_total", "tier=gpu,reason=full", "blocks that left a tier")    \
	X(EVICTED_GPU_DRAIN, "terrace_evictions_total", "tier=gpu,reason=drain", "blocks that left a tier")  \
	X(EVICTED_GPU_SHED, "terrace_evictions_total", "tier=gpu,reason=shed", "blocks that left a tier")    \
	X(EVICTED_GPU_LOST, "terrace_evictions_total", "tier=gpu,reason=lost", "blocks that left a tier")    \
	X(REGRETTED_HOST, "terrace_evictions_regretted_total", "tier=host",                                  \
	  "blocks that left a tier and were asked for within a minute")                                      \
	X(REGRETTED_DISK, "terrace_evictions_regretted_total", "tier=disk",                                  \
	  "blocks that left a tier and were asked for within a minute")                                      \
	X(REGRETTED_GPU, "terrace_evictions_regretted_total", "tier=gpu",                                    \
	  "blocks that left a tier and were asked for within a minute")                                      \
	X(REFUSED_HOST, "terrace_refused_blocks_total", "tier=host",                                         \
	  "blocks that the policy would not have given the place that they took, or asked for")              \
	X(REFUSED_DISK, "terrace_refused_blocks_total", "tier=disk",                                         \
	  "blocks that the policy would not have given the place that they took, or asked for")              \
	X(AHEAD_BYTES, "terrace_prefetch_bytes_total", "result=loaded", "bytes of blocks loaded ahead of their use") \
	X(AHEAD_USED, "terrace_prefetch_bytes_total", "result=used", "bytes of blocks loaded ahead of their use") \
	X(AHEAD_WASTED, "terrace_prefetch_bytes_total", "result=wasted",                                     \
	  "bytes of blocks loaded ahead of their use")                                                       \
	X(AHEAD_LATE, "terrace_prefetch_bytes_total", "result=late", "bytes of blocks loaded ahead of their use") \
	X(EXPECTED_BYTES, "terrace_prefetch_expected_bytes_total", "result=loaded",                          \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(EXPECTED_USED, "terrace_prefetch_expected_bytes_total", "result=used",                             \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(EXPECTED_WASTED, "terrace_prefetch_expected_bytes_total", "result=wasted",                         \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(EXPECTED_LATE, "terrace_prefetch_expected_bytes_total", "result=late",                             \
	  "bytes of blocks loaded ahead because the graph led to them; the others, because a Lookup found them") \
	X(AHEAD_DOUBTED, "terrace_prefetch_refused_total", "reason=doubted", "loads ahead that were not begun") \
	X(AHEAD_TOO_LATE, "terrace_prefetch_refused_total", "reason=late", "loads ahead that were not begun") \
	X(AHEAD_NO_BUDGET, "terrace_prefetch_refused_total", "reason=budget", "loads ahead that were not begun") \
	X(AHEAD_NO_ROOM, "terrace_prefetch_refused_total", "reason=room", "loads ahead that were not begun") \
	X(AHEAD_NO_DISK, "terrace_prefetch_refused_total", "reason=disk", "loads ahead that were not begun") \
	X(AHEAD_STALE, "terrace_prefetch_refused_total", "reason=stale", "loads ahead that were not begun")  \
	X(GPU_AHEAD_BYTES, "terrace_prefetch_gpu_bytes_total", "result=copied", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_AHEAD_USED, "terrace_prefetch_gpu_bytes_total", "result=used", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_AHEAD_WASTED, "terrace_prefetch_gpu_bytes_total", "result=wasted", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_AHEAD_LATE, "terrace_prefetch_gpu_bytes_total", "result=late", "bytes of blocks brought up to a GPU ahead of their use") \
	X(GPU_AHEAD_DOUBTED, "terrace_prefetch_gpu_refused_total", "reason=doubted", "copies ahead to a GPU that were not begun") \
	X(GPU_AHEAD_TOO_LATE, "terrace_prefetch_gpu_refused_total", "reason=late", "copies ahead to a GPU that were not begun") \
	X(GPU_AHEAD_NO_BUDGET, "terrace_prefetch_gpu_refused_total", "reason=budget", "copies ahead to a GPU that were not begun") \
	X(GPU_AHEAD_NO_ROOM, "terrace_prefetch_gpu_refused_total", "reason=room", "copies ahead to a GPU that were not begun") \
	X(REQUESTS, "terrace_requests_total", "", "prompts that the policy was told of")                     \
	X(REQUESTS_REPEATED, "terrace_requests_repeated_total", "", "calls for a prompt that was told already") \
	X(REQUESTS_HINTED, "terrace_requests_hinted_total", "", "reports that the policy was told of")       \
	X(DROPPED, "terrace_dropped_blocks_total", "", "evicted blocks of which no copy was left")           \
	X(SPILLED, "terrace_spills_total", "status=ok", "blocks written to a disk")                          \
	X(SPILL_FAILED, "terrace_spills_total", "status=failed", "blocks written to a disk")                 \
	X(LOADED, "terrace_loads_total", "status=ok", "blocks read from a disk")                             \
	X(LOAD_FAILED, "terrace_loads_total", "status=failed", "blocks read from a disk")                    \
	X(LOAD_CORRUPT, "terrace_loads_total", "status=corrupt", "blocks read from a disk")                  \
	X(LOAD_SHED, "terrace_loads_total", "status=shed", "blocks read from a disk")                        \
	X(LOAD_JOINED, "terrace_loads_joined_total", "", "waits that found the load already under way")      \
	X(MOVED_OUT, "terrace_moved_bytes_total", "from=host,to=disk", "bytes of blocks copied between tiers") \
	X(MOVED_IN, "terrace_moved_bytes_total", "from=disk,to=host", "bytes of blocks copied between tiers") \
	X(MOVED_UP, "terrace_moved_bytes_total", "from=host,to=gpu", "bytes of blocks copied between tiers") \
	X(MOVED_DOWN, "terrace_moved_bytes_total", "from=gpu,to=host", "bytes of blocks copied between tiers") \
	X(MOVED_ACROSS, "terrace_moved_bytes_total", "from=gpu,to=gpu", "bytes of blocks copied between tiers") \
	X(GPU_UP_FAILED, "terrace_gpu_moves_failed_total", "to=gpu", "blocks whose way to or from a GPU came to nothing") \
	X(GPU_DOWN_FAILED, "terrace_gpu_moves_failed_total", "to=host", "blocks whose way to or from a GPU came to nothing") \
	X(GPU_UP_SUMMED, "terrace_gpu_verified_bytes_total", "", "bytes whose checksums were looked at on their way to a GPU") \
	X(GPU_UP_CORRUPT, "terrace_gpu_corrupt_blocks_total", "to=gpu", "copies whose checksums were wrong on their way to or from a GPU") \
	X(GPU_DOWN_CORRUPT, "terrace_gpu_corrupt_blocks_total", "to=host", "copies whose checksums were wrong on their way to or from a GPU") \
	X(BURIED, "terrace_tombstones_total", "status=ok", "tombstones written to a disk")                   \
	X(BURY_FAILED, "terrace_tombstones_total", "status=failed", "tombstones written to a disk")          \
	X(FLUSHES, "terrace_flushes_total", "", "flushes that were acknowledged")                            \
	X(DELETED, "terrace_deleted_blocks_total", "", "blocks deleted by a client")                         \
	X(CORRUPT, "terrace_corrupt_blocks_total", "", "blocks whose checksum was wrong")                    \
	X(MEMORY_WRONG_GET, "terrace_memory_corrupt_blocks_total", "found=get", "copies in memory that were not what was committed") \
	X(MEMORY_WRONG_SPILL, "terrace_memory_corrupt_blocks_total", "found=spill", "copies in memory that were not what was committed") \
	X(MEMORY_WRONG_VERIFY, "terrace_memory_corrupt_blocks_total", "found=verify", "copies in memory that were not what was committed") \
	X(MEMORY_WRONG_GPU, "terrace_memory_corrupt_blocks_total", "found=gpu", "copies in memory that were not what was committed") \
	X(TOUCHED, "terrace_touched_blocks_total", "", "uses told by Touch and Report")                      \
	X(EVENT_NONE, "terrace_reports_total", "event=none", "reports")                                      \
	X(EVENT_TURN_END, "terrace_reports_total", "event=turn_end", "reports")                              \
	X(EVENT_TOOL_CALL, "terrace_reports_total", "event=tool_call", "reports")                            \
	X(EVENT_SESSION_END, "terrace_reports_total", "event=session_end", "reports")                        \
	X(SESSIONS, "terrace_sessions_opened_total", "", "sessions opened")                                  \
	X(GHOSTS, "terrace_ghosts_total", "", "sessions that ended")                                         \
	X(DRAINS, "terrace_extent_drains_total", "", "extents whose drain began")                            \
	X(RESYNCS, "terrace_watch_resyncs_total", "", "watches that fell behind")

enum counter {
#define COUNTER_ENUM(name, metric, labels, help) COUNTER_##name,
	COUNTER_MAP(COUNTER_ENUM)
#undef COUNTER_ENUM
	COUNTER_COUNT
};

struct gpu;
struct board;
struct sums;
struct vram_slot;

struct tenant {
	const char *name;
	uint32_t number;
	uint64_t pinned_bytes;         /* blocks with at least one pin, each once */
	uint64_t beside_bytes;         /* of these, that are on GPUs, and whose pins do not hold memory */
	uint64_t reserved_bytes;       /* slots of reservations */
};

/* An extent as the cache sees it: which published block is in which slot. */
struct shelf {
	struct pool *pool;
	struct shelf *next, *hash_next; /* of the pool, by rising extent id; of the bucket */
	uint8_t *base;
	uint32_t buffer[CACHE_DISKS_MAX]; /* its registration with each disk, or RING_NONE */
	uint64_t *device;              /* its address on each GPU (vram/vram.h), 0: none; NULL without GPUs */
	uint32_t extent, slots;
	uint32_t taken;                /* slots not free */
	uint32_t held;                 /* of these: pinned or reserved, so that eviction cannot empty them */
	bool draining;
	struct block *at[];            /* NULL: free, reserved or dead */
};

/* A layout of a tenant. Lives as long as the cache. */
struct pool {
	uint32_t number;
	struct tenant *tenant;
	uint64_t layout_id;
	struct kv_layout layout;
	struct kv_geometry geometry;
	struct quota_holder *holder;   /* who brought it */
	struct host_pool *host;
	struct policy *policy;
	uint64_t policy_room;          /* slots that it was told of last */
	struct shelf *shelves;
	uint32_t newest;               /* of these and of earlier ones, the highest extent id */
	uint32_t watches;              /* that want its events */
	uint64_t blocks;               /* published, in memory */
	uint64_t evictable;            /* of these not pinned */
	uint64_t disk_blocks;          /* published, on disk; some of them in memory too */
	uint64_t doubted;              /* of these */
	uint64_t dirty;                /* in memory, not on disk and not on the way there; 0 without disks */
	uint32_t spill_extent, spill_slot; /* where the search for them goes on */
	uint64_t cold[POOL_COLD], cold_us; /* ids of some of them that are the coldest, as of a search then */
	uint32_t cold_at, cold_count, cold_scan; /* and how many nodes that was to look at */
	uint64_t slots;                /* on its shelves that do not drain */
	int64_t free_slots;            /* of these */
	uint64_t grow_refused;         /* room_epoch at which no extent was to be had */
	uint64_t balance_us;           /* when room_balance last looked around for it: one that has much to evict must not keep others from it */
	bool taken_lately;             /* a slot, since room_ahead last looked */
	struct policy_node *ahead, *ahead_last; /* loaded ahead and not used yet, not in the policy: the oldest first */
	uint64_t ahead_blocks;
	struct policy_node *refused, *refused_last; /* in memory, but not in the policy: they go first, in this order */
	uint64_t unworthy;             /* of the dirty: not to be spilled */
	uint64_t refused_us;           /* when admission refused last, and where in a chain */
	uint32_t refused_position;
};

/* A block: unpublished (of a reservation, in memory or on a GPU), published (in the index; in memory with shelf and policy, on disk
 * with rack, on GPUs with slots there, or several of these) or dead (removed while pinned). What the slot's header says besides is
 * not repeated here: a million of these should cost little. But the CRC of the header is: header and block lie in memory that engines may write. */
struct block {
	struct index_record record;    /* first: block_of(); its `word`: block_header_crc() */
	struct policy_node node;       /* of memory's policy, while it is in memory */
	struct pool *pool;
	struct shelf *shelf;           /* NULL: not in memory */
	struct rack *rack;             /* NULL: not on disk */
	struct vram_slot *vram;        /* its slots on GPUs, coming ones too (vram/vram.h); NULL: none */
	uint64_t generation;           /* of its put: in the header, whatever slot that lies in */
	uint64_t stored_us;
	uint32_t index, take;          /* in memory: slot, and the low half of that slot's generation */
	uint32_t rack_slot;
	uint16_t tokens;
	bool moving : 1;               /* being spilled or loaded: move_of() */
	bool refused : 1;              /* admission: in memory it is on the pool's list of those; before it is there, it will be */
	bool unworthy : 1;             /* dirty, and no disk's policy would give up another block for it */
	bool awaited : 1;              /* on its way to memory, and from there to a GPU */
	bool doubted : 1;              /* on disk as a crash left it: the header is sound, its bytes have not been looked at: rack_doubt() */
	bool condemned : 1;            /* some of its slots on GPUs is VRAM_DEAD, and held still: vram_condemn() */
	uint8_t ahead : 2;             /* enum ahead_kind: loaded ahead of its use, which has not come yet */
	uint8_t wanted;                /* Leases that are expected and want it, and not others' loads in its place */
	_Atomic uint8_t where;         /* what lookups may know of it: BLOCK_IN_MEMORY | BLOCK_ON_DISK | BLOCK_ON_GPU */
	uint8_t role : 7;              /* of its put: enum policy_role has the same numbers */
	uint8_t rack_known : 1;        /* its copy on disk has the header of block_header_crc(), too */
	_Atomic uint16_t turn;         /* of its put; 0: not known. Lookups read it */
	uint32_t memory_pins;          /* of its pins those that are of its copy in memory alone */
	struct block *id_next;         /* of the bucket by id (advice/advice.h) */
};
enum { BLOCK_IN_MEMORY = 1, BLOCK_ON_DISK = 2, BLOCK_ON_GPU = 4 };
_Static_assert(sizeof(struct block) <= 216, "a million blocks are to cost at most 256 bytes each");

static inline struct block *block_of(struct index_record *r)
{
	return (struct block *)((char *)r - offsetof(struct block, record));
}

static inline const struct block *block_of_node(const struct policy_node *n)
{
	return (const struct block *)((const char *)n - offsetof(struct block, node));
}

/* It will be looked at soon. */
static inline void block_fetch_ahead(const struct block *b)
{
	__builtin_prefetch(&b->record.pins);
	__builtin_prefetch(&b->shelf);
	__builtin_prefetch(&b->id_next);
}

enum session_state { SESSION_FREE, SESSION_OPEN, SESSION_GHOST };

/* Atomic fields are read by lookups without the lock: a copy of pools is good if `id` was the same before
 * and after. */
struct session {
	_Atomic uint64_t id;           /* its handle; 0 unless open */
	_Atomic uint32_t layouts;
	struct pool *_Atomic pool[CACHE_LAYOUTS_MAX];
	_Atomic bool called;           /* since the last tick, by calls that bring no time */

	enum session_state state;
	uint64_t handle;               /* also when a ghost (block/handle.h) */
	uint64_t number;               /* public: what people see of it */
	uint8_t token[CACHE_TOKEN_BYTES];
	char engine[CACHE_ENGINE_MAX + 1]; /* for people */
	struct quota_holder *holder;   /* the process that opened it: what the session holds is charged to it */
	uint64_t last_call_us;
	struct attachment *attachments;
	uint32_t attached;             /* of them live */
	uint32_t attachment_count;
	struct lease *leases;
	struct reservation *reservations;
	uint32_t open_blocks;
	bool write_back;               /* what it puts on GPUs goes down when there is need, not at once */
	uint32_t gpus;                 /* it has worked on, a bit each */
	uint64_t held_slots, held_bytes; /* by its leases and reservations */
};

struct written {
	uint32_t extent, slots;
};

struct attachment {
	struct attachment *next, *hash_next;
	struct session *session;
	uint32_t number;               /* also the byte it locks in each extent lent to it */
	pid_t pid;                     /* for people */
	int pidfd;                     /* -1: not known */
	struct board *board;           /* NULL: none was asked for */
	bool gone;
	uint32_t lending;              /* descriptors of extents being made outside the lock */
	uint32_t boarding;             /* the same of its board, for which GPUs' drivers may take their time */
	uint32_t lent_count, lent_cap;
	uint32_t *lent;                /* extents, those with LENT_TOLD (session/attachment.c) by the process's word no more */
	struct written *written;       /* [written_count] host extents in which its reservations have slots */
	uint32_t written_count, written_cap, written_at; /* the last: where it was last looked */
	struct offers *offers;         /* NULL: it has not asked for any (session/offer.c) */
};

/* Leases and reservations wait in a queue in order of birth until they are overdue. */
struct aging {
	struct aging *prev, *next;
	uint64_t since_us;
	bool overdue;
};
struct aging_queue {
	struct aging *first, *last;
	uint64_t overdue;              /* alive and past their time */
};

struct lease {
	struct aging aging;            /* first */
	struct lease *prev, *next;     /* of the session */
	struct session *session;
	struct gpu *gpu;               /* where some of its blocks are; NULL: all in memory */
	uint64_t handle, bytes;
	uint64_t call;                 /* that it was granted to, by the caller's number; 0: it has none */
	uint32_t count;
	uint32_t gpu_slots;            /* of the blocks, on the GPU */
	uint64_t gpu_bytes;            /* of `bytes`, the same */
	uint32_t room;                 /* of block[], behind which a byte each says whether it is on the GPU: lease_on_gpu(), enum lease_place */
	struct block *block[];
};
enum lease_place { LEASE_IN_MEMORY, LEASE_ON_GPU, LEASE_COMING }; /* the last on the GPU too, and its slot knows of this use */
static inline uint8_t *lease_on_gpu(struct lease *l)
{
	return (uint8_t *)&l->block[l->room];
}

struct part {
	struct block *block;           /* NULL: stored already when reserved, or published */
	struct part *claim_next;
	bool claimed;
	uint32_t written;              /* 1 + the host extent that the reservation's attachment may map writable for it; 0: none */
};

struct reservation {
	struct aging aging;            /* first */
	struct reservation *prev, *next; /* of the session */
	struct session *session;
	uint64_t handle, bytes;
	uint64_t call;                 /* as of a lease */
	uint64_t attachment;           /* whose process writes it; 0: the daemon itself */
	struct slot_info info;
	struct gpu *gpu;               /* where its slots are; NULL: in memory */
	bool open;                     /* without a key */
	bool stream;                   /* written by the daemon itself */
	bool committing;               /* being sealed outside the lock: hands off */
	uint32_t slots, parts;
	uint8_t key_bytes, key[SLOT_KEY_MAX];
	struct part part[];
};

struct watch_item {
	uint8_t kind, reason, layout, key_bytes;
	uint8_t where;                 /* the block's, at that time */
	uint8_t key[SLOT_KEY_MAX];
};

struct cache_watch {
	struct cache *cache;
	struct cache_watch *next;
	uint64_t session, sequence;
	struct pool *pool[CACHE_LAYOUTS_MAX];
	uint32_t layouts;
	struct quota_holder *holder;
	void (*notify)(void *);
	void *arg;
	bool ended;                    /* the session */
	bool dumping;                  /* telling what was there at the start; where it is: */
	uint32_t dump_layout, dump_extent, dump_slot;
	uint64_t dump_disk;            /* tier_next_block's cursor, after memory */
	uint32_t head, count, max;
	struct watch_item ring[];
};

struct drain {
	uint32_t extent;
	uint64_t since_us, told_us;
	uint32_t sweep;                /* next slot to empty */
};

struct retire {
	uint32_t attachment, extent;
};

/* What the log is to say of copies in memory that were wrong. */
enum { DAMAGES_MAX = 64 };
struct damage_notes {
	struct cache_damage at[DAMAGES_MAX];
	uint32_t first, count;
	uint64_t untold;               /* there was no room for */
};

struct cache {
	struct cache_options options;
	uint64_t epoch, claim_seed;
	const char *left;              /* what did not answer at the end */
	_Atomic bool draining;
	_Atomic uint64_t counters[COUNTER_COUNT];
	struct index *index;
	struct host_tier *host;
	struct tier *tier;             /* of disks (disk/tier.h); NULL: none */
	struct vram *vram;             /* of GPUs (vram/vram.h); NULL: none */
	struct sums *sums;             /* threads for checksums (threads/checksum_pool.h); NULL: none */
	struct quota *quota;           /* who may hold how much, of this cache and of the daemon around it */
	const struct policy_ops *policy;

	pthread_mutex_t lock, extents;
	pthread_cond_t growth;         /* somebody is done with it */
	bool growing;
	struct timespec growth_until;  /* so long others wait for him */
	uint64_t now_us;               /* the latest any caller brought */
	struct tenant tenant;          /* the only one of this version */
	struct pool *pools[POOLS_MAX];
	uint32_t pool_count;
	struct shelf *shelf_hash[SHELF_BUCKETS];
	struct session *sessions;
	struct handle_places session_places;
	uint64_t last_session;         /* public number */
	uint32_t session_hint;         /* where to look for a free one */
	uint32_t tick_hint;            /* where the last tick ran out of probes */
	uint64_t idled[CACHE_IDLED_MAX]; /* whom it has ended for that; the ticking thread's */
	uint32_t idled_count;
	uint32_t open_sessions, ghosts;
	struct attachment *attachment_hash[ATTACHMENT_BUCKETS];
	uint32_t last_attachment, attachment_total;
	struct handles leases, reservations;
	struct aging_queue lease_age, reservation_age;
	struct lease *late[LEASES_LATE]; /* leases of which the policies have not been told yet */
	_Atomic uint32_t late_count;   /* written under the lock */
	struct part *claims[CLAIM_BUCKETS];
	struct cache_watch *watches;
	uint32_t watch_count;

	uint32_t ahead_hint;           /* pool at which room_ahead goes on */
	struct pool *ahead;            /* its word to cache_chores */
	uint32_t ahead_slots;
	struct drain drains[DRAINS_MAX];
	uint32_t drain_count;
	uint64_t read_bytes;           /* that streams which read have pinned, each block as often as it is read */
	uint64_t pinned_lost;          /* rises when a block ends, or a copy on a GPU is found bad, that may be pinned */
	uint64_t room_epoch, room_epoch_us; /* rises when a refused extent is worth asking for again */
	struct damage_notes damages;   /* memory/check.c */
	struct advice *advice;         /* advice/advice.h */
	struct pool *grow;             /* room_take gave up for it: see there */
	bool gpu_busy;                 /* so did a GPU's: see vram_room_wait */
	void (*wake_chores)(void *arg);
	void *wake_chores_arg;
	void (*on_extent)(void *arg);  /* there is one more */
	void *on_extent_arg;
	struct retire *retired;        /* to tell once the lock is off */
	uint32_t retired_count, retired_cap;
	void (*retire)(void *arg, uint64_t attachment, uint32_t extent);
	void *retire_arg;
	struct handle_source random;   /* for handles */
};

/* ---- cache.c ---- */

static inline void cache_count(struct cache *c, enum counter which, uint64_t n)
{
	atomic_fetch_add_explicit(&c->counters[which], n, memory_order_relaxed);
}
void cache_lock(struct cache *c);
void cache_unlock(struct cache *c);
/* Notes the caller's time; never goes back. Returns it. */
uint64_t cache_time(struct cache *c, uint64_t now_us);
/* Without the lock: NULL or what is wrong with the keys of a call over so many layouts. */
const char *cache_keys_problem(const struct cache_keys *k, uint32_t layouts);
void aging_add(struct aging_queue *q, struct aging *a, uint64_t now_us);
void aging_remove(struct aging_queue *q, struct aging *a);

/* ---- block/layout_pool.c ---- */

/* peer: who brings it if it is new; NULL: not known. */
enum status pool_get(struct cache *c, struct quota_holder *holder, const struct kv_layout *l, struct pool **out, const char **why);
struct pool *pool_by_id(struct cache *c, uint64_t layout_id);
void pools_free(struct cache *c);
/* Made if new; NULL: no memory. */
struct shelf *shelf_get(struct cache *c, struct pool *p, uint32_t extent);
struct shelf *shelf_find(struct cache *c, uint32_t extent);
void shelf_link(struct cache *c, struct pool *p, struct shelf *s);
void shelf_free(struct cache *c, struct shelf *s);
/* The next published block of the pool at or after (extent, slot), looking at no more than *budget slots,
 * which it counts down; NULL with *budget 0: go on from there; NULL with some left: no more. */
struct block *shelf_next_block(struct pool *p, uint32_t *extent, uint32_t *slot, uint32_t *budget);

/* ---- memory/evict.c: who makes place for whom ---- */

/* A free slot of the pool, evicting as needed. EXHAUSTED. If that is because the pool should get another
 * extent first, which takes long, c->grow is set: undo, leave the lock, room_grow(), try again. */
enum status room_take(struct cache *c, struct pool *p, struct host_slot *out);
/* The same, but nothing goes for it that is nowhere else: BUSY. */
enum status room_take_spare(struct cache *c, struct pool *p, struct host_slot *out);
/* For what comes down from a GPU, nobody being in a hurry for it: nothing goes for it that a GPU alone has beside, and that would have to come down again; and with
 * `drops` alone what is nowhere else. Else BUSY. */
enum status room_take_below(struct cache *c, struct pool *p, bool drops, struct host_slot *out);
/* Evicts what so many slots cost at once, if nothing is lost with it: taken one by one, they then lie side by side. */
void room_clear(struct cache *c, struct pool *p, uint32_t slots);
/* Whether the policy would rather keep what it has than give a place to the block of this event, in a pool that is full. What
 * follows a refused block in its chain is refused with it. */
bool room_refuses(struct cache *c, struct pool *p, const struct policy_event *e);
/* The same of one that is in memory, refused. */
bool room_keeps_out(struct cache *c, struct pool *p, const struct policy_event *e);
/* Whether the pool has a slot, or one of a block that is on a disk or a GPU too and that no call is expected to want. */
bool room_spares(struct cache *c, struct pool *p);
/* What a pool, or a size of slots on a disk, would give up next has been idle so much longer than what another would that its room goes there; own NULL:
 * that one has nothing to give up. */
bool room_much_colder(const struct cache *c, const struct policy_node *other, const struct policy_node *own);
/* Tells a policy of the room that its nodes have, if that is another by an eighth than *told. */
void room_tell(const struct policy_ops *ops, struct policy *policy, uint64_t slots, uint64_t *told);
/* Takes what room_take left in c->grow. */
static inline struct pool *room_wants(struct cache *c)
{
	struct pool *p = c->grow;

	c->grow = NULL;
	return p;
}
/* Without the lock: makes an extent for the pool, if the budget has one, unless it has `slots` free slots. */
void room_grow(struct cache *c, struct pool *p, uint32_t slots);
/* Takes a victim's copy out of memory; a block that is nowhere else is gone. */
void room_evict(struct cache *c, struct block *b, enum counter why);
/* A pool that is being filled and should get its next extent before it waits for it, or NULL; *slots: so
 * many free ones would do. */
struct pool *room_ahead(struct cache *c, uint32_t *slots);
/* Something is being drained whose last slot is back. */
bool room_drained(struct cache *c);
void room_tick(struct cache *c);
/* One step of every drain; notes whom to tell. */
void room_drain_step(struct cache *c);
/* Notes whom to tell of this drain, of whatever tier, if it is time. */
void room_drain_tell(struct cache *c, struct drain *d);
/* Forgets drains whose extents are gone. */
void room_drain_reap(struct cache *c);
/* Without the lock: tells attachments to let go. */
void room_retire_flush(struct cache *c);

/* ---- block/block.c ---- */

static inline struct pool *block_pool(const struct block *b)
{
	return b->pool;
}
static inline uint32_t block_pins(const struct block *b)
{
	return atomic_load_explicit(&((struct block *)b)->record.pins, memory_order_relaxed);
}
/* Of its copies on GPUs, each alone. */
__attribute__((cold)) uint32_t vram_pins(const struct block *b);
/* What holds its copy in memory: leases there, and whoever pins all copies; INDEX_DEAD as in block_pins. */
static inline uint32_t block_memory_pins(const struct block *b)
{
	return b->vram ? block_pins(b) - vram_pins(b) : block_pins(b);
}
/* Of the header of its copy in memory, once that is sealed; of one that has left memory, of the last copy there. Kept by the daemon alone: it tells
 * whether the header, and by the header's sums the block, are still what was committed. */
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
static inline uint8_t *block_slot_at(const struct block *b)
{
	return b->shelf->base + b->index * b->pool->geometry.slot_bytes;
}
/* What lookups may know of where it is. */
static inline void where_set(struct block *b, uint8_t bits, bool on)
{
	uint8_t now = atomic_load_explicit(&b->where, memory_order_relaxed);

	atomic_store_explicit(&b->where, on ? now | bits : now & ~bits, memory_order_relaxed);
}
void block_ident(const struct pool *p, const uint8_t *key, uint32_t key_bytes, struct index_ident *out);
/* Without or with the lock: what the header of a slot of the pool says of such a block. *out has the caller's tenant and key. */
void block_slot_ident(const struct pool *p, const char *tenant, const uint8_t *key, uint8_t key_bytes, struct slot_ident *out);
/* An unpublished block with a slot. e: of what is to be put, as far as it is known, for admission; NULL: not asked. */
enum status block_create(struct cache *c, struct pool *p, const struct policy_event *e, struct block **out);
/* The name that policies and the advice know a block by. */
uint64_t block_id(const struct index_ident *ident);
/* Frees an unpublished one. */
void block_discard(struct cache *c, struct block *b);
/* Makes it visible under its record's ident. In a read section. EXISTS: it stays unpublished. The caller
 * then gives it to the policy, in the same hold of the lock. */
enum status block_publish(struct cache *c, struct block *b, uint64_t now_us);
/* position: of its first token in the sequence. Of a chain, the deepest block is told first: a cache that
 * must evict then loses ends of prefixes. */
void block_enter_policy(struct cache *c, struct block *b, uint64_t position);
uint64_t ident_hash(const struct index_ident *ident, uint64_t seed);
bool ident_equal(const struct index_ident *a, const struct index_ident *b);
/* Bytes that a pin of memory's copy would add to the tenant's. */
uint64_t block_pin_bytes(const struct block *b);
/* A pin of all copies that it has or gets. */
void block_pin(struct block *b);
void block_unpin(struct block *b);
/* Of one copy: in that slot of a GPU, or in memory (NULL). The others may go meanwhile. */
void block_pin_on(struct block *b, struct vram_slot *copy);
/* Whether more than so many pins of all its copies hold it: what else holds any of them then makes no difference to the books. */
bool block_held_beyond(const struct block *b, uint32_t pins);
/* A pin that block_pin set becomes one of that copy alone. */
void block_pin_apart(struct block *b, struct vram_slot *copy);
/* Of its copy on that GPU, or in memory (NULL). */
void block_unpin_on(struct block *b, const struct gpu *gpu);
/* A pin becomes another block's. In the hands of who has both out of the books. */
void block_pin_over(struct block *b, struct block *heir);
/* Takes what depends on its pins out of all books (on false), and puts it back: around a change of its copies, or of their pins. */
void block_books(struct block *b, bool on);
/* An unpublished or dead slot of memory goes back. */
void block_slot_give(struct block *b);
/* Published, on disk or a GPU: it is in memory now too, in a slot that was taken for it. */
void block_arrive(struct cache *c, struct block *b, const struct host_slot *slot, struct shelf *s, uint64_t position);
/* On disk or a GPU, and unpinned: its copy in memory goes. */
void block_depart(struct cache *c, struct block *b);
/* Its copy in memory is wrong, and somebody may have it: what it has on a disk and on GPUs is a block of its own from now on, which is
 * returned, and this one is dead: who has a pin keeps what he sees. A lease on a GPU goes over to the new one, whose bytes it has. Without any
 * other copy, or without memory, it is removed: NULL. */
struct block *block_succeed(struct cache *c, struct block *b);
/* Published anew from what a disk holds; its record, tokens, generation and time are set. In a read section. EXISTS. */
enum status block_adopt(struct cache *c, struct block *b, struct rack *rack, uint32_t slot, uint64_t position);
/* Takes a published block out of sight, on disk too (a tombstone is begun unless it was evicted); frees it now or at its last
 * unpin. */
void block_remove(struct cache *c, struct block *b, enum cache_reason reason);
void block_use(struct cache *c, struct block *b); /* deepest first, too */
/* It was read on that GPU; NULL: in memory. That is a use to the tiers below, too, but not to other GPUs. */
void block_use_on(struct cache *c, struct block *b, const struct gpu *gpu);
/* No disk is to have it, or not any more so. */
void block_unworthy(struct block *b, bool is);
/* In memory; in that slot of a GPU, or (NULL) in memory. */
void block_place(const struct block *b, struct cache_place *out);
void block_place_on(const struct block *b, const struct vram_slot *copy, struct cache_place *out);
/* What a policy knows of a published block: memory's, else a GPU's, else a disk's. */
const struct policy_node *block_node(const struct block *b);
/* A fixed word of where it is: "gpu+host+disk", ... */
const char *block_tiers(uint8_t where);
static inline const char *block_tier(const struct block *b)
{
	return block_tiers(atomic_load_explicit(&((struct block *)b)->where, memory_order_relaxed));
}
void block_free_record(struct index_record *r);
static inline void place_none(struct cache_place *out)
{
	*out = (struct cache_place){ .extent = (uint32_t)CACHE_EXTENT_NONE };
}

/* ---- call/lookup.c ---- */

/* The longest prefix over several layouts: bit p of `valid` says whether p blocks are usable in all layouts
 * fed so far. */
struct prefix {
	uint32_t count;
	uint32_t limit;                /* no longer prefix is possible */
	uint64_t valid[CACHE_KEYS_MAX / 64 + 1];
};
struct prefix_run {
	uint32_t need;                 /* blocks before the end that this layout wants */
	uint32_t at, run;
};
void prefix_begin(struct prefix *p, uint32_t count);
void prefix_layout(struct prefix_run *r, const struct pool *pool);
void prefix_feed(struct prefix *p, struct prefix_run *r, bool present);
uint32_t prefix_longest(const struct prefix *p);
/* The first of `n` blocks that a layout of such a need uses. */
static inline uint32_t prefix_first(uint32_t n, uint32_t need)
{
	return n > need ? n - need : 0;
}
/* The turn that asks for something after a block of that turn; 0: not known. */
uint16_t turn_after(uint16_t turn, bool goes_on);
/* Without the lock: copies an open session's pools; 0: unknown session. */
uint32_t session_pools(struct cache *c, uint64_t id, struct pool **pools);
/* With the lock, of a block that was found without it in the same read section and has ended meanwhile: who has its name now, as its heir does
 * (block_succeed). NULL: nobody. Who looks just between the two still finds neither, and has a miss: the index has no two of a name, and to
 * look again for all that is missing would cost every lease something, for the nanoseconds after memory was found to be bad. */
struct block *block_find_again(struct cache *c, const struct block *b);
/* Without the lock, in a read section: found[key * layouts + layout] = the block or NULL. */
void blocks_find(struct cache *c, struct pool *const *pools, uint32_t layouts, const struct cache_keys *k,
		 struct block **found);

/* ---- session/session.c ---- */

struct session *session_find(struct cache *c, uint64_t handle); /* open, or a ghost; else NULL */
struct session *session_get(struct cache *c, uint64_t handle, const char **why); /* open ones only */
/* The same, and it notes the call. */
struct session *session_call(struct cache *c, uint64_t id, uint64_t now_us, const char **why);
static inline struct pool *session_pool(struct session *s, uint32_t layout)
{
	return atomic_load_explicit(&s->pool[layout], memory_order_relaxed);
}
static inline uint32_t session_layouts(struct session *s)
{
	return atomic_load_explicit(&s->layouts, memory_order_relaxed);
}
/* A bit for each GPU that an open session has put, leased or warmed on. */
uint32_t session_gpus(struct cache *c, uint64_t id);
/* Notes one; gpu < 0, or none that there is: nothing. */
static inline void session_on_gpu(struct session *s, int32_t gpu)
{
	s->gpus |= gpu >= 0 && gpu < 32 ? 1u << gpu : 0;
}
struct session *session_with_token(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES]);
/* Ends it for its clients. It may be gone upon return. */
void session_ghost(struct cache *c, struct session *s);
/* Frees what a ghost holds if nobody can touch it any more, and then the ghost. *probes is counted down. */
void session_ghost_try(struct cache *c, struct session *s, uint32_t *probes);
void sessions_tick(struct cache *c, uint64_t now_us);
void sessions_free(struct cache *c);

/* ---- session/attachment.c ---- */

struct attachment *attachment_find(struct cache *c, uint64_t number);
/* NULL or why that is not a live attachment of the session. */
const char *attachment_problem(struct cache *c, const struct session *s, uint64_t number);
/* True while it holds an extent, or may: forgets those it does not hold. */
bool attachment_holds(struct cache *c, struct attachment *a, uint32_t *probes);
bool attachment_has_lent(const struct attachment *a, uint32_t extent);
/* Its process has a slot more of that extent of host memory to write, or one less. False: no memory to note it. */
bool attachment_writes(struct attachment *a, uint32_t extent, bool more);
void attachment_free(struct cache *c, struct attachment *a);

/* ---- session/offer.c ---- */

void offers_free(struct offers *o); /* NULL allowed */
/* There is an extent more. */
void offers_tell(const struct cache *c);

/* ---- call/lease.c ---- */

struct lease *lease_alloc(uint32_t blocks); /* NULL: no memory */
/* Puts a block into it, pinned where it is leased: in that slot of a GPU, or in memory (NULL). pinned: a pin of the caller's, of all copies, is
 * the lease's now. */
void lease_pin(struct lease *l, struct block *b, struct vram_slot *copy, bool pinned);
/* Gives up all of them. */
void lease_unpin(struct lease *l);
/* Takes the lease over, with its pinned blocks. EXHAUSTED: too many leases; it stays the caller's. */
enum status lease_record(struct cache *c, struct session *s, struct lease *l, uint64_t now_us);
void lease_end(struct cache *c, struct lease *l);
/* What leases that were granted `late` have asked for and used is told to the policies. */
void late_tell(struct cache *c);
/* Bytes that may still be pinned: in memory; on that GPU. */
uint64_t pins_free(const struct cache *c);
uint64_t pins_free_gpu(const struct cache *c, const struct gpu *g);
/* Whether the session's holder may have one lease more, and whether so many bytes more may be pinned for it in memory, and on a GPU (NULL:
 * none). EXHAUSTED. */
enum status lease_ask(struct cache *c, const struct session *s, const char **why);
enum status pins_ask(struct cache *c, const struct session *s, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes, const char **why);

/* ---- call/reserve.c ---- */

/* gpu NULL: in memory. BUSY with c->gpu_busy set: something makes room on the GPU. */
enum status reservation_create(struct cache *c, struct session *s, struct gpu *gpu, struct pool *const *pools,
			       uint32_t layouts, const uint8_t *key, uint32_t key_bytes,
			       const struct slot_info *info, bool stream, uint64_t now_us,
			       struct reservation **out, const char **why);
void reservation_end(struct cache *c, struct reservation *r);
/* Without the lock: writes headers and checksums of one that is `committing`. On a GPU: only notes what a header would say. */
void reservation_seal(const struct reservation *r, const char *tenant, uint64_t unix_ms);
/* In a read section: OK or EXISTS; UNAVAILABLE: its GPU is lost. What was published is in published[parts], else NULL; it is to enter the
 * policy. */
enum status reservation_publish(struct cache *c, struct reservation *r, uint64_t now_us,
				struct block **published);
/* NULL, or what is wrong with it for layouts of so many tokens a block. */
const char *slot_info_problem(const struct slot_info *info, uint32_t block_tokens);
/* Without or with the lock. */
void reserve_count(struct cache *c, enum status s);
/* The part that claims this ident, or NULL. */
struct part *claim_find(struct cache *c, const struct index_ident *ident);

/* ---- session/watch.c ---- */

void watch_event(struct cache *c, const struct block *b, enum cache_watch_kind kind,
		 enum cache_reason reason);
void watch_session_ended(struct cache *c, uint64_t session);
/* Somebody watches for that session. */
bool watch_is_open(const struct cache *c, uint64_t session);

/* The overdue leave the queue and stay counted until they end. */
void aging_tick(struct aging_queue *q, uint64_t now_us, uint64_t ttl_us);
uint64_t key_mix(uint64_t h, uint64_t word);
enum { FIND_BATCH = 128 };
/* The session's next of either kind that is the call's; NULL. */
struct lease *lease_of_call(const struct session *s, uint64_t call);
/* If that comes late, some may have been removed meanwhile. */
void lease_use(struct cache *c, struct lease *l);
enum { TIERS = DEVICES_MAX + 1 };
/* How far: ids below are told of. By layout of the session, and tier. */
struct offers {
	uint32_t tiers;                /* asked for, a bit each */
	uint32_t next[][TIERS];
};
/* The process that writes it may have the memory of its slots mapped writable from now on, or (on false) not for its sake any more. */
void reservation_writes(struct cache *c, struct reservation *r, bool on);
/* Everything after the last atomic field begins anew. */
void session_reset(struct session *s);

#endif
