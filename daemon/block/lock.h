/* The cache's lock, its time and its state.
 *
 * Locks. `lock` guards everything in struct cache but the fields marked atomic. Blocks are pinned, published, removed
 * and evicted under it only, so that a block's state does not change while it is held. Lookups run without it, in a
 * read section of the index, and read records only. `extents` is held while a process gets a descriptor of an extent,
 * and while the kernel is asked which processes map an extent. A thread may *try* `extents` while it holds `lock`; it
 * never holds `extents` when it takes `lock`. A new extent is registered with disks and GPUs without `lock`, while
 * `growing` is set.
 *
 * Unless a comment says otherwise, a function of the cache is called with `lock` held.
 */
#ifndef TERRACE_DAEMON_BLOCK_LOCK_H
#define TERRACE_DAEMON_BLOCK_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "daemon/block/counters.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/options.h"
#include "store/status.h"

struct advice;
struct arrivals;
struct attachment;
struct block;
struct cache_wait;
struct cache_wait_link;
struct cache_watch;
struct damage_notes;
struct deleted;
struct ends;
struct exports;
struct fetch_how;
struct grants;
struct index;
struct lease;
struct loans;
struct policy_ops;
struct observers;
struct quota;
struct session;
struct source;
struct sums;
struct tier;
struct tier_ops;
struct vram;

enum { ATTACHMENT_BUCKETS = 1024, LEASES_DEFERRED = 16, CACHE_IDLED_MAX = 16 };

/* The tiers (block/tier.h), and their number. */
enum tier_kind { TIER_MEMORY, TIER_DISK, TIER_GPU, TIER_KINDS };

/* Sources of blocks' bytes (block/source.h). */
enum { SOURCES_MAX = 8 };

struct cache {
	struct cache_options options;
	uint64_t epoch, pending_key_seed;
	const char *left;              /* a part that did not end in time when the cache was destroyed */
	_Atomic bool draining;
	_Atomic bool may_hand_on, hands_on; /* to other members, what memory has, while it drains */
	_Atomic uint64_t counters[COUNTER_COUNT];
	_Atomic uint64_t load_bytes_s; /* of the disk that ended a load last, for calls without the lock; 0: none did */
	struct index *index;
	struct block **by_id;          /* published blocks, by the id that policies know them by (block/by_id.h) */
	uint64_t by_id_mask;
	struct arena *host;
	struct tier *tier;             /* of disks (disk/tier.h); NULL: none */
	struct vram *vram;             /* of GPUs (vram/vram.h); NULL: none */
	/* what each tier does for others (block/tier.h); NULL: no such tier */
	const struct tier_ops *tiers[TIER_KINDS];
	struct source *sources[SOURCES_MAX]; /* what brings blocks to memory (block/source.h); */
	uint32_t source_count;         /* how many sources there are; */
	uint32_t sources_by_name;      /* a bit each: sources that may have blocks that the index does not know */
	/* blocks on their way from those sources (call/arrival.h); NULL: there has been none yet */
	struct arrivals *arrivals;
	struct exports *exports;       /* what other members are told of (exports/exports.h); NULL: nothing */
	struct deleted *deleted;       /* names that others must not bring back (call/deleted.h); NULL: none yet */
	struct loans *loans;           /* to other members (call/loan.h); NULL: there has been none yet */
	/* tiers_fetch() */
	enum status (*fetch)(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
	const struct observers *observers; /* listeners to events (block/observer.h) */
	struct ends *ends;             /* of transfers (block/ends.h); NULL: there are no disks and no GPUs */
	void (*before_unlock)(struct cache *c); /* called before the lock is left; NULL: nothing */
	/* called after that, with GPUs: gives the copy batches to their threads; NULL: nothing */
	void (*publish)(struct cache *c);
	/* called when a call has come, without the lock; NULL: nothing waits for one */
	void (*on_call)(struct cache *c);
	struct sums *sums;             /* threads for checksums (threads/checksum_pool.h); NULL: none */
	struct quota *quota;           /* who may hold how much of this cache and of the daemon around it */
	const struct policy_ops *policy;

	pthread_mutex_t lock, extents;
	pthread_cond_t growth;         /* `growing` has been cleared */
	bool growing;
	struct timespec growth_until;  /* how long other threads wait for the one that grows */
	uint64_t now_us;               /* the latest time that a caller gave */
	struct tenant *tenants;        /* the first is `default`; what changes in them is under the lock */
	uint32_t tenant_count;
	struct layout_pool *pools[POOLS_MAX];
	uint32_t pool_count;
	struct memory_class *classes[CLASSES_MAX]; /* of slots of host memory */
	uint32_t class_count;
	struct memory_extent *memory_extents; /* registered */
	struct session *sessions;
	struct grants *grants;         /* session/grants.h */
	uint64_t last_session;         /* public number */
	uint32_t session_hint;         /* where to look for a free one */
	uint32_t tick_hint;            /* where the last tick ran out of probes */
	uint64_t idled[CACHE_IDLED_MAX]; /* sessions that the ticking thread has ended because they were idle */
	uint32_t idled_count;
	uint32_t open_sessions, detached_sessions;
	struct attachment *attachment_hash[ATTACHMENT_BUCKETS];
	uint32_t last_attachment, attachment_total;
	struct lease *deferred[LEASES_DEFERRED]; /* leases that the policies have not been told of yet */
	_Atomic uint32_t deferred_count; /* written under the lock */
	struct cache_watch *watches;
	uint32_t watch_count;

	uint64_t preallocate_refused;  /* room_epoch when no page could be had for preallocation */
	uint32_t trades;               /* classes that have a claim */
	uint64_t spills_stuck_us;      /* when a caller last waited for spills in vain; 0: never */
	uint64_t read_bytes;           /* that reads by stream have pinned; a block counts once for each read */
	/* rises when a pinned block is removed, or a pinned copy on a GPU is found corrupt */
	uint64_t pinned_lost;
	uint64_t unusable_blocks;      /* block_unusable() */
	uint64_t room_epoch, room_epoch_us; /* rises when a refused extent is worth asking for again */
	struct damage_notes *damages;  /* block/check.c */
	struct advice *advice;         /* advice/advice.h */
	struct memory_class *grow;     /* the class that room_take could not serve: see there */
	struct memory_lack lacks;             /* of host memory */
	struct retires *retire;        /* extents that go from tenant to tenant (session/retire.h); NULL: one tenant */
	uint64_t for_peer_bytes;       /* slots of blocks that are BLOCK_FOR_PEER */
	uint64_t offered_bytes;        /* slots that are pinned for other members to take copies (call/loan.h) */
	/* memory is short: ends the oldest loan that pins such slots. False: there is none; NULL: never was one */
	bool (*offer_withdraw)(struct cache *c);
	bool gpu_busy;                 /* the same of a GPU's memory: see vram_room_wait */
	void (*wake_chores)(void *arg);
	void *wake_chores_arg;
	void (*on_extent)(void *arg);  /* called when there is one extent more */
	uint64_t extents_made;         /* of all tiers */
	/* added to the generations of takes, as a lost catalog had promised higher ones */
	uint64_t generation_lift;
	uint64_t moving_bytes;         /* slots that transfers of all tiers pin */
	bool loads_wait;               /* loads are waiting for memory */
	bool settles;                  /* before a stop: everything is to be written to disks */
	struct cache_wait_link *spare_links; /* links of ended waits, kept for new ones; */
	uint32_t spare_link_count, spare_links_max; /* how many, and at most how many */
	void *on_extent_arg;
};

/* A thread may stay entered while it waits between calls: it is quiescent then. */
void cache_thread_enter(void);
void cache_thread_leave(void);
/* Random, new at each start, never 0. */
uint64_t cache_epoch(const struct cache *c);
/* call(arg) is called when there are chores that should not wait for the next tick, on any thread, under the cache's
 * lock. Set it before other threads call. */
void cache_on_chores(struct cache *c, void (*call)(void *arg), void *arg);
/* To be called when a call, or a part of one, has come: see gpu_poll_us. */
void cache_called(struct cache *c);
/* While it drains, OpenSession, Lease, Reserve and puts by stream answer UNAVAILABLE; commits, reads by stream and
 * releases go on. */
void cache_drain(struct cache *c, bool on);
bool cache_draining(const struct cache *c);
/* A drain is to hand blocks of memory on to other members. Before it serves. */
void cache_may_hand_on(struct cache *c);
/* Whether a drain does that still; cache_handed_on: it has ended. */
bool cache_hands_on(const struct cache *c);
void cache_handed_on(struct cache *c);
void cache_lock(struct cache *c);
void cache_unlock(struct cache *c);
/* How long the calling thread has waited for the lock in all, in microseconds. */
uint64_t cache_lock_waited_us(void);
/* Sets the time to the caller's, unless that is earlier. Returns the time. */
uint64_t cache_time(struct cache *c, uint64_t now_us);
void tier_wake(struct cache *c);

/* Whether blocks may come from elsewhere: there is a source by name. */
static inline bool cache_has_others(const struct cache *c)
{
	return c->sources_by_name;
}

static inline void cache_count(struct cache *c, enum counter which, uint64_t n)
{
	atomic_fetch_add_explicit(&c->counters[which], n, memory_order_relaxed);
}

#endif
