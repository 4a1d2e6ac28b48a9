/* The cache proper: sessions, leases, reservations and blocks, composed of the index, the host tier and an
 * eviction policy.
 *
 * Nothing here knows gRPC, sockets or files: the rpc handlers and the fd door translate and call. Every
 * function may be called by any thread that has called cache_thread_enter(). Lookups take no lock. What
 * changes sessions, leases or the order of eviction takes the cache's one mutex, briefly: never across a
 * copy or a checksum of block bytes, the making of an extent or its unmapping. cache_commit and
 * cache_write_end compute checksums, and cache_write_begin, cache_chores, cache_disk_chores and, if told that it may,
 * cache_reserve make or unmap extents: call them off the rpc thread.
 *
 * Time: the cache has no clock. Callers pass now_us from one monotonic clock; a time before the latest one
 * that anybody passed counts as that one.
 *
 * Failures: an enum status; `why` (never NULL) gets a fixed sentence for people when the call as a whole
 * fails. Per-block outcomes are in arrays. Outputs are written only on OK unless said otherwise. Memory
 * that cannot be had is EXHAUSTED; a session that is unknown or has ended is NOT_FOUND; both everywhere.
 *
 * Life of memory. A *lease* pins blocks; a *reservation* owns unpublished slots; both belong to a session.
 * Processes *attach* to a session; to each one the daemon lends extents under a lock that the kernel drops
 * when its last mapping is gone (store/host/extent.h). A session that was closed, that lost its last process, or
 * that idles without one, is a *ghost*: nobody can call in its name any more, and its leases and
 * reservations are kept (the slots are *quarantined*) until none of its attachments holds an extent;
 * cache_attach_gone and cache_tick ask for that. So a slot is reused only after Release, Abort, or the end
 * of every process that could touch it, however it ended. Deadlines alone never free borrowed memory: an
 * overdue lease is counted and shown. An attachment that is gone while others of its session live changes
 * nothing for the session's leases. Reads and puts by stream hold their memory only from _begin to _end,
 * inside the daemon, and outlive their session if they must.
 *
 * Memory moves between layouts by whole extents: see memory/evict.c. EXHAUSTED of a reserve may mean that
 * memory is being moved at that moment; a try some ticks later may succeed.
 */
#ifndef TERRACE_DAEMON_CACHE_H
#define TERRACE_DAEMON_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/format.h"
#include "store/device.h"
#include "store/ring/ring.h"
#include "store/slot.h"
#include "store/status.h"

struct cache;

enum {
	CACHE_KEYS_MAX = 4096,       /* a call */
	CACHE_LAYOUTS_MAX = 64,      /* a session */
	CACHE_BLOCKS_MAX = 16384,    /* a call: keys times layouts */
	CACHE_ENGINE_MAX = 64,
	CACHE_IDLED_MAX = 16,
	CACHE_TOKEN_BYTES = 16,
	CACHE_DISKS_MAX = 16,
	CACHE_WHY_MAX = 640,         /* a sentence that may name a folder */
	CACHE_LEFT_OUT_MAX = 8,
	CACHE_LOST_SLABS_MAX = 32,
	CACHE_EXTENT_NONE = -1,      /* 0xffffffff: no place */
	CACHE_HOST = -1,             /* no GPU */
};

/* One disk of the disk tier: a folder for slab files (store/slab/disk.h). */
struct cache_disk_options {
	const char *folder;
	uint64_t bytes;                  /* budget */
};

struct cache_options {
	uint64_t host_bytes;             /* budget of the host tier */
	uint64_t extent_bytes;           /* at most 1 GiB */
	bool huge_pages;
	const char *policy;              /* a name of eviction/policy.h's table */
	uint64_t pinned_bytes_max;       /* a tenant, pinned and reserved slots; beyond: EXHAUSTED */
	uint32_t sum_threads;            /* that compute checksums beside those of disks and GPUs; 0: none; at most 16 are used */
	uint32_t sessions_max;           /* ghosts included; at most 1 << 20 */
	uint32_t leases_max;             /* over all sessions; at most 1 << 20 */
	uint32_t open_blocks_max;        /* a session */
	uint32_t session_idle_ms;        /* no attachment and no call, nor a watch, for so long: a ghost */
	uint32_t lease_ttl_ms;           /* after it a lease counts as overdue */
	uint32_t reservation_ttl_ms;     /* the same for reservations */
	uint32_t watch_queue;            /* events a watcher may lag behind before RESYNC; at most 1 << 20 */
	bool leaves_records;             /* cache_destroy leaves what it knows of blocks to the end of the process: to free each takes a microsecond */

	/* The advisor, which keeps a graph of what is asked for and expects by it what comes next. */
	uint32_t graph_nodes;            /* blocks it remembers, some 210 bytes each; 0: no advisor */
	uint32_t advisor_ms;             /* between two rounds; 0: no thread (tests call its rounds themselves) */
	uint64_t prefetch_bytes;         /* a second, read ahead from disks; 0: none */

	/* The disk tier. Without disks what memory cannot hold is dropped, and a restart begins with nothing. */
	const struct cache_disk_options *disks;
	uint32_t disk_count;             /* at most CACHE_DISKS_MAX */
	enum cache_disks_required { CACHE_REQUIRE_NONE, CACHE_REQUIRE_ONE, CACHE_REQUIRE_ALL } disks_required; /* that can be used at the start */
	const char *catalog_folder;      /* made if missing */
	const char *catalog_child;       /* as catalog_options.child; NULL: a plain fork, before other threads exist */
	bool rebuild;                    /* distrust the catalog: make it anew from the slots' headers */
	bool distrust_disks;             /* blocks may have been deleted while they were not in use: they are wiped */
	uint64_t slab_bytes;             /* wished size of a slab file */
	uint32_t disk_depth;             /* transfers under way, a disk */
	uint32_t disk_slow_ms;           /* a transfer that takes longer makes its disk slow: it sheds spills */
	uint32_t spill_share_milli;      /* keep so much of the host tier free or copied to disk */
	const char *disk_policy;         /* as policy, for what leaves the disks */
	uint32_t recompute_growth;       /* eviction/recompute.h, of the models that are served; 0: policies are not told */
	enum cache_io { CACHE_IO_AUTO, CACHE_IO_URING, CACHE_IO_THREADS } io;
	const struct ring_calls *io_calls; /* tests inject faults; NULL: the kernel's */
	uint32_t disk_close_ms;          /* cache_destroy waits so long for a disk that hangs; 0: ten seconds */

	/* The VRAM tier. A GPU that cannot be opened is there by its number, and lost. */
	const struct device_ops *device_ops; /* NULL: none */
	const uint32_t *gpus;            /* ordinals of device_ops */
	uint32_t gpu_count;              /* 0: no VRAM tier; at most DEVICES_MAX */
	uint64_t gpu_bytes;              /* budget of each; 0: half of what is free */
	uint32_t gpu_pinned_milli;       /* of that, what leases and reservations may hold, and calls that wait for their copies; beyond: EXHAUSTED */
	uint64_t gpu_prefetch_bytes;     /* a second, brought up to GPUs ahead of leases; 0: none */
	bool gpu_verify_up;              /* what goes up from memory is summed beside the copy */
	uint32_t gpu_patience_ms;        /* for places in memory on the way to a GPU a lease waits so long from one to the next, seven times that in all; 0: 100 */
	uint64_t gpu_poll_us;            /* so long after a call (cache_called) the threads that begin copies up look for the next without sleeping; 0: they sleep */
	uint32_t gpu_close_ms;           /* cache_destroy waits so long for what GPUs are asked, then for each call that gives back; 0: ten seconds */
};

/* Registers nothing: the calling thread has entered already. INVALID: an option out of its bounds. What the
 * catalog knows of the disks is taken up by a thread of its own: until that is done (cache_restored) blocks
 * on disk are misses, and deletes and flushes wait. A disk that cannot be used is left out, and cache_disks says why. BUSY: another process
 * has a disk or the catalog. UNSUPPORTED, IO: the catalog cannot be opened, as in store/catalog/catalog.h; or the kernel refuses `io`. UNAVAILABLE:
 * disks_required. *why: good until the thread's next cache_create. */
enum status cache_create(const struct cache_options *o, uint64_t now_us, struct cache **out,
			 const char **why);
/* No other thread may be inside. Frees everything (but records, with leaves_records), watches included, whoever still maps it. NULL allowed. False: a disk, or the one with
 * the catalog, has not answered in time, or a GPU's driver has not: cache_left says which. The kernel may still write to the memory of its
 * requests, and a thread come back from the driver, so all memory stays mapped to the end of the process, the disk's folder stays locked, and
 * nobody is told of anything any more; after a disk, the next start reads all headers. */
bool cache_destroy(struct cache *c);
/* Of a cache that a thread is inside of that does not come back, before the end of the process: disks and catalog are closed as by
 * cache_destroy, GPUs are not asked for anything, and nothing is freed. Who comes back from a driver after all stays where he is. False: a
 * disk has not answered in time. */
bool cache_leave(struct cache *c);
/* After a cache_destroy or cache_leave that returned false: what did not answer. */
const char *cache_left(const struct cache *c);
/* A thread that waits long between calls need not leave: it is quiescent outside of them. */
void cache_thread_enter(void);
void cache_thread_leave(void);

/* Shares of what is countable, of the cache and of what the daemon has around it (block/quota.h). Lives as long as the cache. */
struct quota;
struct quota *cache_quota(const struct cache *c);

/* Random, new at each start, never 0. */
uint64_t cache_epoch(const struct cache *c);

/* Ages sessions and leases, probes the ghosts' extents, goes on with drains. Call about every 50 ms, by one
 * thread. True: cache_chores has something to do, or cache_disk_chores. */
bool cache_tick(struct cache *c, uint64_t now_us);
/* Public numbers of the sessions that the last tick has ended since they idled, CACHE_IDLED_MAX at most; the others end in later ones. By the thread that ticks. */
uint32_t cache_idled(const struct cache *c, const uint64_t **sessions);
/* What may take the kernel a while: frees drained extents, and makes the next one of a pool that fills up.
 * Off the rpc thread and the door's. */
void cache_chores(struct cache *c);
/* The same of disks' files: with a disk that hangs it may not come back. Not by whoever is to do cache_chores. */
void cache_disk_chores(struct cache *c);
/* call(arg): there are chores that should not wait for the next tick. From any thread, under the cache's lock. Set it
 * before other threads call. */
void cache_on_chores(struct cache *c, void (*call)(void *arg), void *arg);

/* False while what earlier runs left on the disks is still being taken up. */
bool cache_restored(struct cache *c);

/* ---- waiting for disks ----
 *
 * A call that needs the disks is given a wait. It answers BUSY when it has begun what it needs; `ready` comes
 * when that is done or has failed, and then the caller calls the same function again, with the same arguments
 * and the same wait, until the answer is another. What was brought in meanwhile stays pinned by the wait. A
 * caller whose time is up ends the wait, or calls once more with `last` set: the answer is then what can be had
 * from memory. With `poll` set by the cache, `ready` does not come: call again in some milliseconds.
 *
 * ready(arg) is called from any thread and under the cache's lock, never after cache_wait_end; it must only
 * wake somebody. It may come before the function that answers BUSY has returned. A wait begins as zeroes but for
 * ready and arg, serves one call, and must be ended by cache_wait_end, after which it may be used anew. */
struct cache_wait_link;
struct cache_wait {
	void (*ready)(void *arg);
	void *arg;
	bool last;
	bool poll;
	uint64_t again_us;             /* after BUSY, not 0: and call after so long */
	/* The cache's: */
	struct cache_wait_link *links;
	uint32_t outstanding, stage, shed;
	enum status worst, refused;
	enum status uncommitted;       /* not OK: the catalog's word on a commit of this wait */
	uint64_t doubted;              /* of a flush of everything that is BUSY: all is durable but so many that a crash left and nobody has read; 0: not all is */
	uint64_t since_us;             /* of a flush: what was stored later is not its business */
	uint32_t layout, extent, slot; /* where its walk goes on */
	uint32_t units;                /* a bit each; of a delete: disks that had something to bury; of a flush: that had failed when it began */
	uint32_t pending, begun;       /* the same, of a delete: disks that are to be synced yet, whose sync has begun; */
	uint32_t committed;            /* and `pending` as its last commit began */
	uint32_t of_unit[CACHE_DISKS_MAX + 1]; /* of `outstanding` what each disk is to end; the last: the catalog */
	uint32_t warmed, warmed_links; /* of a Warm: its answer if all comes, and as many blocks; */
	uint64_t warmed_since;         /* the cache's pinned_lost when it began */
	uint32_t linked;               /* links that there are */
	struct block *adopts;          /* pinned already, for the next link of it */
	struct vram_move *mark;        /* of a lease on a GPU: stands behind its copies once all of them have their place; then: */
	uint64_t marked;               /* the ups before it, 0: there is none */
	uint32_t mark_base;
};
void cache_wait_end(struct cache *c, struct cache_wait *w);

/* ---- sessions ----
 *
 * A session, a lease and a reservation are named by handles: 64 random bits, known to whom they were granted (block/handle.h). */

struct cache_session_view {
	uint64_t id;                     /* its handle: for its holder alone, as the token is */
	uint64_t number;                 /* public: for logs, statistics and people; no call takes it but cache_explain */
	uint8_t token[CACHE_TOKEN_BYTES];
	uint32_t layouts;
	uint64_t layout_id[CACHE_LAYOUTS_MAX], block_bytes[CACHE_LAYOUTS_MAX], slot_bytes[CACHE_LAYOUTS_MAX];
	struct kv_layout layout[CACHE_LAYOUTS_MAX];
};

/* The other end of a connection, for its share of what is countable (block/quota.h). */
struct cache_peer {
	uint64_t user[2];                /* an address of IPv6 or, with CACHE_PEER_UID, a uid; zeroes: not known */
	uint64_t process;                /* its pid; 0: not known */
};
#define CACHE_PEER_UID UINT64_MAX        /* user[0]: addresses that begin so are nobody's */

/* tenant: "" or "default"; anything else is DENIED. engine: for people, cut after CACHE_ENGINE_MAX. INVALID:
 * no layout, a bad or double one, unequal block_tokens, a block larger than the tier. EXHAUSTED: too many
 * sessions, or layouts since the start (4096). UNAVAILABLE: draining. */
enum status cache_session_open(struct cache *c, const char *tenant, const struct kv_layout *layouts,
			       uint32_t n, const char *engine, uint64_t now_us,
			       struct cache_session_view *out, const char **why);
/* The same for a process that may hold no more than its share (block/quota.h: EXHAUSTED): of sessions, ended ones included whose memory may still be
 * mapped; of the layouts that it brings; and of all that the session holds. NULL, and a peer that is not known: no bound but that of all. */
enum status cache_session_open_for(struct cache *c, const struct cache_peer *peer, const char *tenant, const struct kv_layout *layouts,
				   uint32_t n, const char *engine, uint64_t now_us, struct cache_session_view *out, const char **why);
/* NOT_FOUND (compared in constant time). */
enum status cache_session_by_token(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES], uint64_t now_us,
				   struct cache_session_view *out, const char **why);
/* Its leases and reservations may still be released and aborted. */
enum status cache_session_close(struct cache *c, uint64_t session, uint64_t now_us, const char **why);
/* What it puts on GPUs from now on is copied to host memory when a GPU needs the room, not at once. */
enum status cache_session_write_back(struct cache *c, uint64_t session);
/* The public number of a session that is open or a ghost; 0: there is none of that handle. */
uint64_t cache_session_number(struct cache *c, uint64_t session);
/* The ids of a session's layouts: how many were written; 0: no open session has that handle, or, with handle 0, that public number. */
uint32_t cache_session_layout_ids(struct cache *c, uint64_t handle, uint64_t number, uint64_t ids[CACHE_LAYOUTS_MAX]);
/* Number of layouts of a session, 0 if unknown. */
uint32_t cache_session_layouts(struct cache *c, uint64_t session);

/* Keys back to back. count <= CACHE_KEYS_MAX, 1 <= key_bytes <= SLOT_KEY_MAX, count times the session's layouts <=
 * CACHE_BLOCKS_MAX: the cache checks, INVALID. */
struct cache_keys {
	const uint8_t *bytes;
	uint32_t count, key_bytes;
};

/* ---- lookup and lease ---- */

/* The longest prefix usable in all layouts. A windowed layout needs only the blocks that cover the last
 * window - 1 tokens of it. states: NULL or [count * layouts], keys outer: 0 absent, 1 in memory, 2 on disk only, 3 on a GPU and
 * not in memory. A probe: no use, no lease, no lock. */
enum status cache_lookup(struct cache *c, uint64_t session, const struct cache_keys *k, uint32_t *prefix,
			 uint8_t *states, uint32_t states_max, const char **why);

struct cache_place {
	uint32_t extent;      /* CACHE_EXTENT_NONE: no block here */
	uint32_t tokens;
	uint64_t offset, generation; /* of the slot; in memory the block begins SLOT_HEADER_BYTES later, on a GPU there */
};

/* For whom, and where, a call's blocks are wanted. */
struct cache_on {
	uint64_t attachment;
	int32_t gpu;          /* index in the options' order; CACHE_HOST: in memory */
	bool or_host;         /* with gpu, of a lease: blocks that memory has, or a disk alone, may stay in memory */
	uint64_t call;        /* the caller's number for it, for cache_recall; 0: none */
	bool late;            /* a lease's: what it tells the policies may wait for cache_leases_tell, which this caller calls soon */
};

struct cache_leased {
	uint64_t lease;
	uint32_t blocks;      /* keys */
	uint32_t layouts;
	/* Copies to the GPU that are under way: layer i of all blocks is there when the word of the attachment's board has reached
	 * board_base + i + 1; with board_summed the word behind it (FDSOCK_BOARD_SUMMED) too. 0 layers: all is there. */
	uint32_t board_word, board_base, board_layers;
	bool board_summed;
};

/* Leases the longest prefix, or all keys or none, in one admission step. places: [places_max], at least count
 * times layouts, keys outer; blocks * layouts of them are written, those that a window does not need without
 * a place. attachment: a live one of the session, else PRECONDITION. MISS (nothing is present, or with `all`
 * something is not) and EXHAUSTED (leases_max, pinned_bytes_max): nothing is held. UNAVAILABLE: draining.
 * Blocks on disk are brought to memory first: BUSY, see cache_wait. w NULL: they count as absent. What cannot be
 * brought (a slow disk, no memory, damage) counts as absent too. */
enum status cache_lease(struct cache *c, uint64_t session, const struct cache_keys *k, bool all,
			uint64_t attachment, uint64_t now_us, struct cache_place *places, uint32_t places_max,
			struct cache_leased *out, struct cache_wait *w, const char **why);
/* The same, on a GPU: what is not there is copied to it, from memory (to which what is on a disk comes first), or from another GPU. It is
 * granted when each block has its place there, and the attachment's board tells how far the copies are; without a board (see
 * cache_attach_map) when they are done. INVALID: no such GPU. UNAVAILABLE: it is lost; with or_host it is as if there were
 * none. EXHAUSTED: gpu_pinned_milli too. */
enum status cache_lease_on(struct cache *c, uint64_t session, const struct cache_keys *k, bool all, const struct cache_on *on,
			   uint64_t now_us, struct cache_place *places, uint32_t places_max, struct cache_leased *out,
			   struct cache_wait *w, const char **why);
/* Brings the longest prefix (of each layout what it needs) to memory, ahead of its use. *blocks: keys of the prefix that
 * are in memory at the end; with the first BUSY those of the prefix wherever they are. BUSY: as above; a caller that does not want to
 * know need not call again: ending the wait stops nothing. No lease, no use. */
enum status cache_warm(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
		       struct cache_wait *w, uint32_t *blocks, const char **why);
/* The same, to a GPU; INVALID, UNAVAILABLE as in cache_lease_on. */
enum status cache_warm_on(struct cache *c, uint64_t session, const struct cache_keys *k, int32_t gpu, uint64_t now_us,
			  struct cache_wait *w, uint32_t *blocks, const char **why);
/* Makes blocks durable: on a disk, synced, and in the synced catalog. k NULL: every block of the session's layouts, statuses
 * NULL. statuses[count], when it ends: OK; MISS (in no layout); EXHAUSTED (no place on a disk); IO; UNAVAILABLE (no
 * disk tier, or none that is sound); with w->last also DEADLINE: not in time. With k NULL these are the call's own status. BUSY: as above;
 * w->doubted says what for. What a crash left is durable when somebody has read it: with keys it is read; without, all of it is waited for. */
enum status cache_flush(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
			struct cache_wait *w, enum status *statuses, const char **why);
/* Tells the policies what leases that were granted `late` have asked for and used. Any thread; costs nothing if there are none. They are told
 * without it when such a lease ends, when the first of its copies has come to its GPU, and before the next that is not `late`. */
void cache_leases_tell(struct cache *c);
/* A lease has been asked for, and is about to be read: who begins its copies wakes up meanwhile, if the one before it had some. Any thread. */
void cache_lease_comes(struct cache *c);
/* A call, or a part of one, has come: see gpu_poll_us. */
void cache_called(struct cache *c);
/* NOT_FOUND: no lease of this session has that handle; another session's is as unknown as none. */
enum status cache_release(struct cache *c, uint64_t session, uint64_t lease);
/* Gives back the leases and the reservations that this call of the session was granted: its caller will never know of them. call: not 0. */
void cache_recall(struct cache *c, uint64_t session, uint64_t call);

/* ---- put ---- */

/* Reserves a slot in every layout for each key: statuses[count], reservations[count] (0 unless OK),
 * places[count * layouts]. Evicts as needed. The key is claimed: a second Reserve of it by anybody is BUSY
 * while the first lives. EXISTS: stored in all layouts already (a key stored in some gets slots in the others
 * only). EXHAUSTED: for this key and all after it. INVALID: its info. info: [count] or NULL; tokens 0 means a
 * full block. open: keys->count open blocks, the keys themselves are ignored; tokens 0 means none yet.
 * attachment: as in cache_lease. UNAVAILABLE: draining. may_grow: it may make an extent, which lasts; without
 * it BUSY says that this is needed, and nothing is reserved: call again, with it. */
enum status cache_reserve(struct cache *c, uint64_t session, const struct cache_keys *k,
			  const struct slot_info *info, bool open, uint64_t attachment, bool may_grow,
			  uint64_t now_us, enum status *statuses, uint64_t *reservations, struct cache_place *places,
			  uint32_t places_max, const char **why);

/* The same, on a GPU. INVALID: no such GPU; UNAVAILABLE: it is lost. may_grow: it may also wait for room there, some seconds. */
enum status cache_reserve_on(struct cache *c, uint64_t session, const struct cache_keys *k, const struct slot_info *info, bool open,
			     const struct cache_on *on, bool may_grow, uint64_t now_us, enum status *statuses,
			     uint64_t *reservations, struct cache_place *places, uint32_t places_max, const char **why);

struct cache_commit_item {
	uint64_t reservation;
	uint32_t tokens;            /* 0: as reserved */
	uint8_t key_bytes;          /* open blocks that become stored ones; else 0 */
	uint8_t key[SLOT_KEY_MAX];
	bool keep_open;             /* open blocks: only grow */
	const struct slot_info *info; /* NULL: as reserved */
};

/* Publishes: seals the headers, then makes all layouts of all items visible. statuses[count]: OK; EXISTS:
 * every layout had one already, first commit wins, the slots are given back; NOT_FOUND: no reservation of this session; BUSY: it is
 * being committed already; INVALID: tokens, key or info do not fit, and the reservation stays; UNAVAILABLE: its GPU is lost, and
 * the reservation with it. Of slots on a GPU no byte is read: whoever commits has seen to it that they are written. Of a
 * reservation that won in some layouts only, the other slots are given back and it is OK. want_lease: also
 * leases what is stored under the committed keys now: places[count * layouts], none for items that are
 * neither OK nor EXISTS, nor for what lost to a block that is neither in memory nor on the reservation's GPU, *leased. Its lease is 0, and nothing has a place, if the lease did not fit, the
 * daemon drains, or the session has ended meanwhile; the commit stands all the same. attachment: as in
 * cache_lease, not looked at without want_lease. */
enum status cache_commit(struct cache *c, uint64_t session, const struct cache_commit_item *items,
			 uint32_t count, bool want_lease, uint64_t attachment, uint64_t now_us,
			 uint64_t unix_ms, enum status *statuses, struct cache_place *places,
			 uint32_t places_max, struct cache_leased *leased, const char **why);
/* The same for a caller of whom on->attachment and on->call are looked at. */
enum status cache_commit_on(struct cache *c, uint64_t session, const struct cache_commit_item *items, uint32_t count, bool want_lease,
			    const struct cache_on *on, uint64_t now_us, uint64_t unix_ms, enum status *statuses,
			    struct cache_place *places, uint32_t places_max, struct cache_leased *leased, const char **why);
/* Says that nobody writes to the slots any more: they are reused at once. NOT_FOUND: no reservation of this session has
 * that handle; BUSY: it is being committed. */
enum status cache_abort(struct cache *c, uint64_t session, uint64_t reservation);

/* Put by stream: a slot in one layout that the daemon itself writes. EXISTS, BUSY, EXHAUSTED, INVALID,
 * UNAVAILABLE. */
struct cache_write {
	uint64_t reservation;
	uint8_t *block;             /* block_bytes to fill */
	uint64_t block_bytes;
};
enum status cache_write_begin(struct cache *c, uint64_t session, uint32_t layout, const uint8_t *key,
			      uint32_t key_bytes, const struct slot_info *info, uint64_t now_us,
			      struct cache_write *out, const char **why);
/* Publishes (OK or EXISTS), or with `whole` false gives the slot back (CANCELLED). Ends the write either way,
 * and must be called, also when the session has ended. NOT_FOUND: no such write of that session. */
enum status cache_write_end(struct cache *c, uint64_t session, const struct cache_write *w, bool whole,
			    uint64_t now_us, uint64_t unix_ms);
/* The same of a whole block whose CRC-32C the caller knows: CORRUPT if what the commit sums is not that, and the slot goes back. */
enum status cache_write_end_summed(struct cache *c, uint64_t session, const struct cache_write *w, uint32_t crc32c, uint64_t now_us,
				   uint64_t unix_ms);

/* Read by stream: pins one block, and counts as use. MISS. From disk: BUSY, as in cache_lease. EXHAUSTED: pinned bytes; or copies of other reads take the
 * memory that there is for them, or the client's share of it: soon there may be room. Ends with cache_read_end, which may be called twice: not before
 * the copy is done with. */
enum { CACHE_READ_BYTES_MAX = 256 << 20 };
struct cache_read {
	const uint8_t *block;       /* engines may write there: for cache_read_copy, and for tests */
	uint64_t block_bytes;
	uint32_t tokens;
	void *pin;
	struct quota_holder *holder; /* that is charged for it */
	uint64_t copy_bytes;         /* of QUOTA_COPIES */
};
enum status cache_read_begin(struct cache *c, uint64_t session, uint32_t layout, const uint8_t *key,
			     uint32_t key_bytes, uint64_t now_us, struct cache_read *out, struct cache_wait *w,
			     const char **why);
/* Copies the block to `to`, and ends the pin. OK: what is in `to` is what was committed, whatever engines write to the slot meanwhile; *crc32c is
 * its sum. CORRUPT: the slot was written over after the commit, and memory's copy is dropped: whoever begins again gets the block from
 * another tier, or a miss. Lasts; not on the rpc thread. */
enum status cache_read_copy(struct cache *c, struct cache_read *r, uint8_t *to, uint32_t *crc32c);
void cache_read_end(struct cache *c, struct cache_read *r);

/* The next copy in memory that was found not to be what was committed, since the last call; false: none, and of *untold there was no room to tell. */
struct cache_damage {
	uint64_t layout_id;
	uint8_t key_bytes, key[SLOT_KEY_MAX];
	const char *finder;         /* a fixed word: "get", "spill", "verify", "gpu" */
	const char *left;           /* the tiers that still have the block, as "gpu+disk"; "": it is gone */
};
bool cache_damage_next(struct cache *c, struct cache_damage *out, uint64_t *untold);

/* ---- other calls ---- */

enum cache_event { CACHE_EVENT_NONE, CACHE_EVENT_TURN_END, CACHE_EVENT_TOOL_CALL, CACHE_EVENT_SESSION_END };

/* *found: keys that are in at least one layout. */
enum status cache_touch(struct cache *c, uint64_t session, const struct cache_keys *k, uint64_t now_us,
			uint32_t *found, const char **why);
/* Counts as use of the keys and counts the event. The policy is told of event, priority (above 0: high, below: low) and ttl_ms; what it
 * makes of them is its own affair, and with lru nothing. */
enum status cache_report(struct cache *c, uint64_t session, const struct cache_keys *k,
			 enum cache_event event, int32_t priority, uint64_t ttl_ms, uint64_t now_us,
			 const char **why);
/* statuses[count]: OK if at least one layout had it, else MISS. Out of sight at once; the slot of a pinned
 * block is reused after the last release. Reservations of the key go on. BUSY (with a wait): the statuses are kept by the caller
 * for the calls that follow, and no restart brings the blocks back once the answer is OK; but with w->last a status may be DEADLINE: a disk that
 * did not answer in time may still have that block. w NULL: not waited for. IO: they are out of sight, but a disk that failed may still have
 * them. */
enum status cache_delete(struct cache *c, uint64_t session, const struct cache_keys *k, enum status *statuses,
			 struct cache_wait *w, const char **why);

/* ---- watch ---- */

enum cache_watch_kind { CACHE_STORED, CACHE_REMOVED, CACHE_MOVED, CACHE_RESYNC, CACHE_SYNCED };
enum cache_reason { CACHE_REASON_NONE, CACHE_REASON_EVICTED, CACHE_REASON_DELETED, CACHE_REASON_CORRUPT };

struct cache_watch_event {
	uint64_t sequence;          /* counts by one within the watch, from 1 */
	enum cache_watch_kind kind;
	enum cache_reason reason;
	const char *tier;           /* of STORED and MOVED: fixed words, as in struct cache_block_view; else "" */
	uint32_t layout;            /* index into the session's layouts */
	uint8_t key_bytes;
	uint8_t key[SLOT_KEY_MAX];
};

/* Events of the session's layouts, whoever causes them, in the order in which they happen. RESYNC: events
 * were lost, those after it are whole again; look anew. With from_now false the watch begins with a STORED
 * for every block that is there, then SYNCED, then what happened meanwhile: a client that applies all of it
 * in order has the right set, though a block may be told STORED twice, or REMOVED without ever having been
 * STORED. */
struct cache_watch;
/* notify(arg), if not NULL, is called from any thread and under the cache's lock when a watch that was
 * empty gets an event, and when the session of an empty one ends; it must only wake somebody. EXHAUSTED: 64
 * watches. */
enum status cache_watch_open(struct cache *c, uint64_t session, bool from_now, void (*notify)(void *),
			     void *arg, struct cache_watch **out, const char **why);
/* OK and an event, MISS if there is none now, BUSY if the first look around goes on and has just found nothing: call again, others first.
 * UNAVAILABLE when the session has ended (after the last event). One thread at a time for one watch. After opening, and after each notify, call
 * until MISS. */
enum status cache_watch_next(struct cache_watch *w, struct cache_watch_event *out);
/* No notify comes after it. NULL allowed. */
void cache_watch_close(struct cache_watch *w);

/* ---- attachments: called by the fd door ---- */

/* A process joins a session. DENIED: unknown token; EXHAUSTED: 256 attachments a session. Numbers are never
 * used twice. */
enum status cache_attach(struct cache *c, const uint8_t token[CACHE_TOKEN_BYTES], pid_t pid, uint64_t now_us,
			 uint64_t *attachment, uint64_t *session, const char **why);
/* Its process, to tell when it has exited: slots on GPUs are not reused before, unless it unmapped them. Takes the descriptor over; the
 * first counts. */
void cache_attach_watch(struct cache *c, uint64_t attachment, int pidfd);
/* A descriptor of an extent of the session's layouts; the caller sends and closes it. DENIED (not of its
 * layouts, or the attachment or its session is gone), NOT_FOUND (no such extent, or draining), EXHAUSTED. write, of host memory: PRECONDITION
 * unless the attachment has a reservation in the extent. */
enum status cache_attach_map(struct cache *c, uint64_t attachment, uint32_t extent, bool write, int *fd,
			     uint64_t *bytes, uint32_t *page_bytes);
/* The same, also of an extent of GPU memory, which comes as two descriptors, or, of CACHE_EXTENT_BOARD, of the attachment's board.
 * EXHAUSTED also: GPU memory, and nobody watches the attachment's process. */
#define CACHE_EXTENT_BOARD 0xfffffffeu
struct cache_lent {
	int fd;                     /* of host memory; of a GPU's: the hold */
	int device_fd;              /* of the GPU's memory; -1: host memory */
	int32_t gpu;                /* CACHE_HOST: host memory */
	uint32_t page_bytes;
	uint64_t bytes;
	uint64_t at, range_bytes;   /* of a GPU's: place in the layout's range of addresses, and its size */
	uint64_t layout_id;
};
enum status cache_attach_lend(struct cache *c, uint64_t attachment, uint32_t extent, bool write, struct cache_lent *out);
/* From now on it is to be offered the extents of its session's layouts on that GPU (CACHE_HOST: in host memory). INVALID: no such GPU.
 * DENIED: the attachment or its session is gone. EXHAUSTED. */
enum status cache_attach_ahead(struct cache *c, uint64_t attachment, int32_t gpu);
/* Extents there that are to be offered and have not been, `max` at most: how many. *more: there are others. None is lent by it. */
uint32_t cache_attach_offers(struct cache *c, uint64_t attachment, int32_t gpu, uint32_t *extents, uint32_t max, bool *more);
/* `call` is called from any thread, under the cache's lock, when there is an extent more to be offered; it must only wake somebody. NULL: no
 * more. */
void cache_on_extent(struct cache *c, void (*call)(void *arg), void *arg);
/* Its own word, verified with the kernel. */
void cache_attach_unmapped(struct cache *c, uint64_t attachment, uint32_t extent);
/* Its process has exited, or its socket was closed. Unknown ones, and those told of before, are ignored. True: its session had no other, and
 * has ended with it, while its leases and reservations held *held_bytes (may be NULL). */
bool cache_attach_gone(struct cache *c, uint64_t attachment, uint64_t now_us, uint64_t *held_bytes);
/* `retire` is called from cache_tick, cache_reserve or cache_write_begin, not under the lock, for each live
 * attachment that may hold an extent that is to be freed: when that begins, and once a second until it lets
 * go. Set it before other threads call. */
void cache_on_retire(struct cache *c, void (*retire)(void *arg, uint64_t attachment, uint32_t extent),
		     void *arg);

/* ---- administration ---- */

/* Calls emit for each counter and gauge: name ("terrace_lookup_keys_total"), labels
 * "tier=host" or "", several separated by commas; in a value a backslash stands before a comma or a backslash that belongs to it. Rows of one
 * name are next to each other. Up to 64
 * sessions that hold memory have a row each, with engine, pid of the process that attached last, and state.
 * Not under the lock. */
#define CACHE_STAT_OF_SESSIONS "terrace_session_held_bytes"
typedef void cache_stat_fn(void *arg, const char *name, const char *labels, double value, bool counter,
			   const char *help);
void cache_stats(struct cache *c, uint64_t now_us, cache_stat_fn *emit, void *arg);

struct cache_block_view {
	uint64_t layout_id, offset, generation, position, age_ms, idle_ms, uses, block_bytes;
	const char *state, *tier;   /* fixed words: "stored" or "reserved"; of "gpu", "host", "disk" those that have it, as "gpu+disk" */
	uint32_t extent, tokens, pins, turn;
	uint8_t role, parent_bytes, parent[SLOT_KEY_MAX];
	bool checksum_ok;           /* of stored ones */
	struct kv_layout layout;
};
/* Up to `max` blocks of that key over the tenant's layouts (layout_id 0: all). Recomputes checksums. *n may
 * be 0. */
enum status cache_inspect(struct cache *c, const char *tenant, uint64_t layout_id, const uint8_t *key,
			  uint32_t key_bytes, uint64_t now_us, struct cache_block_view *out, uint32_t max,
			  uint32_t *n, const char **why);

/* Why a block is where it is, or is not. */
enum { CACHE_RANK_MAX = 4096, CACHE_FEATURES_MAX = 8, CACHE_TIERS_EXPLAINED = 2 + DEVICES_MAX };
/* One copy, as the policy of its tier sees it. */
struct cache_explained_tier {
	const char *tier, *policy;  /* fixed words: "gpu", "host" or "disk" */
	uint32_t gpu;               /* of a GPU's: its number */
	const char *kept;           /* why it stays for now, whatever its rank: "pinned", "moving", "only" (it is nowhere else, and goes down
				     * first; on a disk: what memory or a GPU has stays there too); "": it may go */
	uint64_t idle_ms, uses;
	bool ranked, scored;
	uint32_t rank;              /* ranked: blocks that would go before it, less than CACHE_RANK_MAX */
	uint8_t rival_bytes;        /* the block that would go now; 0: none is known */
	uint8_t rival[SLOT_KEY_MAX];
	double score, rival_score;  /* scored: the greater stays longer, as a rule; in `unit`, fixed words */
	const char *unit;
	uint32_t features;
	struct {
		const char *name;
		uint32_t value;
	} feature[CACHE_FEATURES_MAX]; /* what the policy goes by */
};
struct cache_explained {
	uint64_t layout_id, id;
	const char *policy;         /* of memory: a fixed word */
	const char *tier;           /* fixed words, as in struct cache_block_view; "": it is not there */
	uint64_t age_ms, idle_ms, uses; /* of one that is there */
	uint32_t pins, turn;
	bool refused;               /* the policy would not have given it its place: it is among the first to go */
	bool unworthy;              /* no disk is to have it: it is dropped when it leaves memory */
	bool ahead;                 /* loaded ahead, and not used yet */
	bool ranked;                /* in memory, and among the first CACHE_RANK_MAX: */
	uint32_t rank;              /* blocks that would go before it */
	uint8_t rival_bytes;        /* of the block that would go now; 0: none is known */
	uint8_t rival[SLOT_KEY_MAX];
	uint64_t rival_idle_ms, rival_uses;
	const char *left;           /* the tier that a copy left last, "gpu", "host" or "disk", if none has come back there since; else "" */
	const char *left_reason;    /* "full", "drain", "shed", "refused", "lost" or "compact" */
	uint64_t left_ms_ago, left_idle_ms, left_uses;
	bool regretted;             /* it was asked for within a minute after */
	uint32_t tiers;
	struct cache_explained_tier at[CACHE_TIERS_EXPLAINED]; /* its copies: on GPUs, in memory, on disk */
};
/* What the graph ties a key to: an edge an entry, of each type the strongest first. key_bytes 0: of a block that is nowhere now; its
 * name, a hash of its key, is all that is left. UNAVAILABLE: there is no graph. Waits for the advisor's round, some milliseconds, or a second: on
 * a worker. */
struct cache_graph_edge {
	uint64_t name;
	float weight;               /* now: of what was observed, halved every half hour */
	const char *type;           /* a fixed word: "prefix_share", "co_attend", "temporal", "semantic", or "spill_link": the key's own
				     * copies, an entry a layout */
	const char *tier;           /* where it is, as in struct cache_block_view; "": nowhere */
	uint8_t key_bytes, key[SLOT_KEY_MAX];
};
enum status cache_graph(struct cache *c, const uint8_t *key, uint32_t key_bytes, struct cache_graph_edge *out, uint32_t max,
			uint32_t *n, const char **why);

/* Up to `max` layouts of the tenant (layout_id 0: all) that have the key, or remember that it left. *n may be 0. The rank is known
 * of the policies lru, fifo and gdsf, and of graph unless it goes by s3fifo or sieve (feature order_by: 0 its own, 1 lru, 2 s3fifo, 3 sieve). */
enum status cache_explain(struct cache *c, const char *tenant, uint64_t layout_id, const uint8_t *key, uint32_t key_bytes,
			  uint64_t now_us, struct cache_explained *out, uint32_t max, uint32_t *n, const char **why);

/* Scrub, in steps, so that the caller can rate-limit and give up: begins with *cursor 0, checks at most 256
 * blocks a call and stops after max_bytes, adds to *sum, sets *cursor to UINT64_MAX at the end. Damaged
 * blocks are removed and counted. */
struct cache_verified {
	uint64_t blocks, bytes, corrupt;
	uint64_t unread;                /* copies on a disk that did not give them: slow, failed, or without memory. Not in blocks */
};
enum status cache_verify_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes,
			      struct cache_verified *sum);

/* The same for the blocks on disks, read into memory of its own; waits for the disk. On a worker only. */
enum status cache_verify_disk_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes, struct cache_verified *sum);
/* Makes the catalog anew while the cache serves: forgets all blocks that it knows; then the steps of a scrub of the disks, from cursor 0
 * to the end, tell it of each copy that they find sound. A stop before the end costs the next start a scan of all headers.
 * UNAVAILABLE: there is no disk tier. BUSY: earlier runs' blocks are still being taken up, or it is under way already. */
enum status cache_catalog_renew(struct cache *c);

/* Empties the least used slab of each disk and layout size as long as the others of its size have room for its blocks
 * or `bytes_max` of slab files remain over the disk's budget (a changed configuration), and deletes the file. Blocks whose only copy was
 * there are evicted; those that memory has too are copied to other slabs first, or evicted if there is no place. *freed: bytes of files
 * deleted. One slab a call: MISS when there is nothing (more) to do, BUSY when something else uses the slab now, or there was no time
 * for all copies: call again. NOT_FOUND: no such disk. Else a disk failed. Lasts, half a second and a sync: on a worker. */
enum status cache_compact_step(struct cache *c, uint32_t disk, uint64_t bytes_max, uint64_t *freed);

/* Copies that the two scrubs together would check now. */
uint64_t cache_verify_blocks(struct cache *c);

/* The layouts that sessions or disks have brought, by the time of that: how many were written to out[max]. */
struct cache_layout_view {
	uint64_t layout_id, block_bytes;
	uint64_t host_blocks, disk_blocks, dirty_blocks; /* in memory, on disk, in memory alone */
	struct kv_layout layout;
};
uint32_t cache_layouts(struct cache *c, struct cache_layout_view *out, uint32_t max);

/* What there is to tell of each disk: how many were written to out[max], in the order of the options. */
struct cache_disk_state {
	const char *folder;         /* as in the options */
	const char *health;         /* a fixed word: "healthy", "full", "slow", "quarantined"; "unusable": not in use since the start */
	const char *engine;         /* "io_uring" or "threads"; "" if it is unusable, as are all numbers */
	const char *remedy;         /* of "unusable"; "" */
	char why[CACHE_WHY_MAX];    /* of the health; "" */
	char shortage[160];         /* as in struct disk_view */
	char refusal[160];          /* why io_uring is not the engine; "" */
	bool direct, wiped;         /* O_DIRECT is in use; its folder had been given up, and was emptied at the start */
	uint64_t blocks, budget_bytes, slab_bytes;
	uint64_t corrupt;           /* blocks whose bytes proved wrong, in this run */
	uint32_t slabs, slabs_damaged;
};
uint32_t cache_disks(struct cache *c, struct cache_disk_state *out, uint32_t max);

/* The same of each GPU. */
struct cache_gpu_view {
	uint8_t uuid[DEVICE_UUID_BYTES]; /* zeroes if it could not be opened */
	char name[DEVICE_NAME_MAX];
	uint32_t ordinal;           /* as in the options */
	uint64_t bytes;             /* budget */
	bool lost;                  /* until the next start */
	char why[160];
	char no_kernel[DEVICE_WORDS_MAX]; /* as in struct device_info */
	uint64_t corrupt_up, corrupt_down; /* copies that were found so on their way, ever */
};
uint32_t cache_gpus(struct cache *c, struct cache_gpu_view *out, uint32_t max); /* max 0: how many there are */

/* What the cache goes on without: GPUs that are lost, disks that have failed or could not be used at the start. A sentence each, with the number, the
 * name and the reason, disks first: how many there are, of which out[max] are written. */
struct cache_fault {
	char text[CACHE_WHY_MAX + 64];
};
uint32_t cache_faults(struct cache *c, struct cache_fault *out, uint32_t max);
/* There are such. */
bool cache_degraded(struct cache *c);

/* The same of the catalog. False: there is no disk tier. */
enum { CACHE_CATALOG_WHY_MAX = 400 };
struct cache_catalog_state {
	const char *found;          /* at the start, a fixed word: "sound", "none" or "damaged" */
	char why[CACHE_CATALOG_WHY_MAX]; /* of "damaged", and then of failing */
	bool rebuilding;            /* at the start it was made anew from the slots' headers */
	bool failing;               /* commits fail now */
	bool restored;              /* what earlier runs left has been taken up: so many blocks, in so long */
	uint64_t restored_blocks, restored_us;
	struct {
		char folder[160];
		const char *why;
	} left_out[CACHE_LEFT_OUT_MAX]; /* the first of the disks that an earlier run had and this one has not, but for unusable ones */
	uint32_t left_out_count;
	uint64_t readers_cleared;   /* as in struct catalog_view */
	int reader_pid;
	uint64_t reader_us, reader_grown_bytes;
	/* What the catalog named and could not be taken up: blocks on disks that are not in use; and blocks in slab files that are missing or damaged,
	 * the first of which are in lost[]. */
	uint64_t blocks_absent, blocks_lost;
	struct cache_lost_slab {
		uint32_t disk, slab;        /* of the options; as in the file's name */
		uint64_t blocks;
		const char *problem;        /* a fixed sentence about the file: "is missing" */
		bool sure;                  /* the run before ended in order: nothing has given the slab up after the catalog's last word */
	} lost[CACHE_LOST_SLABS_MAX];
	uint32_t slabs_lost;
};
bool cache_catalog(struct cache *c, struct cache_catalog_state *out);
/* For people, after a flush or a delete by this wait that has not done all: the catalog or the disk that keeps it from that, by its folder, the
 * cause, and what to do about it. "": there is no more to say than the status. Before cache_wait_end. */
void cache_durable_problem(struct cache *c, const struct cache_wait *w, char *text, size_t bytes);

/* Records requests into fd, as text that terrace-replay reads, until it is stopped or bytes_max (0: no bound) are written; what
 * comes after is counted as dropped. Nothing of a prompt is in it: blocks are named by salted hashes. A request is a Lookup or
 * Lease; a Lease after its Lookup is the same one. Takes fd over on OK. BUSY: one is being recorded already. */
enum status cache_trace_start(struct cache *c, int fd, uint64_t bytes_max, const char **why);
struct cache_trace_result {
	uint64_t requests, blocks, bytes;
	uint64_t dropped;           /* requests for which there was no room, or of another block size than the first */
	int error;                  /* errno of the write that failed; 0: none */
};
/* Writes what is left, and closes the file. NOT_FOUND: nothing is recorded. IO, EXHAUSTED (no room): the file is not whole; *out is written then too, with
 * zeros if the file does not take what is left within disk_close_ms: then it is closed when it does, if ever. Waits for the file: on a worker. */
enum status cache_trace_stop(struct cache *c, struct cache_trace_result *out, const char **why);
bool cache_tracing(struct cache *c);
/* errno of the write by which the recording that is under way has failed: what comes now is not in it. 0: none has. */
int cache_trace_error(struct cache *c);

/* Writes what only memory has to the disks, until all is there, wait_us are over, or the disks have no place for the rest,
 * also when they have been tried again: before the daemon stops. False: something remained, and *unsettled (may be NULL) tells what. */
struct cache_unsettled {
	uint64_t blocks;            /* in memory or on GPUs alone, or not written yet */
	bool no_place;              /* the disks are full or have failed, and nothing goes to them any more */
};
bool cache_settle(struct cache *c, uint64_t wait_us, struct cache_unsettled *unsettled);

/* Draining: OpenSession, Lease, Reserve and puts by stream are refused with UNAVAILABLE; commits, reads by
 * stream and releases go on. */
void cache_drain(struct cache *c, bool on);
bool cache_draining(const struct cache *c);
struct cache_load {
	uint64_t sessions, ghosts, leases, reservations;
};
void cache_load(struct cache *c, struct cache_load *out);

#endif
