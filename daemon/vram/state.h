/* The VRAM tier's state, and that of a GPU. */
#ifndef TERRACE_DAEMON_VRAM_STATE_H
#define TERRACE_DAEMON_VRAM_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "daemon/block/gpu_class.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "store/clock.h"
#include "store/device.h"

struct block;
struct progress_page;
struct rate;
struct arena;
struct cache;
struct cache_wait_link;
struct commit_sums;
struct device;
struct copy_batch;
struct gpu_ends;
struct gpu_scratch;
struct list_times;
struct vram_prefetch;
struct vram_transfer;
struct vram_queue;

enum { VRAM_TRANSFER_BUCKETS = 4096 };

struct gpu {
	struct cache *cache;
	uint32_t number;
	struct device *device;
	struct device_info info;
	struct arena *arena;
	uint64_t budget;
	uint32_t reaches;              /* a bit for each other GPU whose copies can come here without host memory */
	struct vram_pool *pools[POOLS_MAX];
	struct vram_class *classes;
	struct gpu_accounting *accounting; /* of each tenant: gpu_accounting_of() */
	struct memory_lack lacks;             /* of its memory */
	struct vram_queue *queue;      /* [3] by enum device_way */
	uint64_t ups;                  /* how many uploads have entered their queue */
	struct vram_transfer *waiting, **waiting_end; /* transfers that wait for a slot here */
	struct vram_transfer *fences;  /* in the upload queue or under way, by hash_next */
	struct vram_slot *write_through, *write_through_last; /* copies that are to be downloaded, oldest first */
	uint64_t write_through_us;     /* not before that time, by the machine's clock */
	uint32_t downs;                /* downloads that have begun, of all tenants */
	struct rate *down_rate;        /* of downloads (vram/source.h) */
	struct vram_slot *prefetched_first, *prefetched_last; /* prefetched copies, oldest first */
	uint32_t fetching;             /* uploads in STEP_HOST */
	/* of the queues, and of what submission and completion thread wait for; a leaf lock */
	pthread_mutex_t queue_lock;
	struct gpu_ends *ends;         /* vram/gpu_ends.h */
	bool halted, over;             /* with it: no batch is made any more; the submission thread is to end */
	/* with it: a batch that was made, for the submission thread to begin. NULL: none */
	struct copy_batch *taken;
	/* with it: batches to be checked (vram/checksum.c) beside their copies, by the call that made them or by the
	 * submission thread */
	_Atomic(struct copy_batch *) to_look;
	bool completion_due;           /* with it */
	pthread_mutex_t summing_lock;  /* of the list of batches being summed, and of their progress; a leaf lock */
	struct copy_batch *summing, **summing_end;
	uint64_t corrupt_up, corrupt_down; /* copies found corrupt that way */
	uint64_t unsummed;             /* blocks put here without a checksum of their commit, */
	char unsummed_why[DEVICE_WORDS_MAX]; /* and why the last of them */
	bool freed;                    /* a slot was freed since the waiting transfers were last tried */
	uint32_t feeds;                /* how often the waiting transfers were tried, from 1 on */
	bool lost, swept;
	uint64_t asked_us;             /* when the device was last asked, by the machine's clock */
	uint32_t sweep_pool, sweep_extent, sweep_slot;
	char why[160];                 /* why it was lost */
	/* the completion thread makes an extent: its bytes are taken, but no slot is there yet */
	bool making;
	bool preallocate;              /* the completion thread is to preallocate free memory */
	uint64_t preallocate_refused;  /* room_epoch when no extent could be had */
	struct commit_sums *commit_sums; /* vram/commit_sums.h */
	struct gpu_scratch *scratch;   /* vram/scratch.h */
	pthread_t submission, completion;
	bool submission_started, completion_started;
	_Atomic uint32_t expected, calls_ended; /* calls that may have work for the submission thread: begun, ended */
	_Atomic uint32_t more_announced; /* calls that have begun to fill the upload queue and go on */
	_Atomic uint32_t rung;         /* how often there may have been something to begin */
	/* when the last call came after which the submission thread is to stay awake; 0: none has */
	_Atomic uint64_t called_us;
	_Atomic bool sleeps;           /* the submission thread seems to sleep, and may get work */
	_Atomic bool brings;           /* the last lease here needed copies: so may the next */
	_Atomic uint64_t announced_until_us; /* a Lease was announced: the submission thread stays awake until then */
	/* the submission thread's: how many calls had ended when it last gave up waiting, and had begun when it last
	 * made ready */
	uint32_t passed, readied;
	pthread_cond_t submission_work, completion_work; /* with queue_lock */
	struct list_times *times;      /* downloads that wait for a slot of host memory */
};

struct vram {
	const struct device_ops *ops;
	struct gpu *gpu[DEVICES_MAX];
	uint32_t count;
	struct vram_transfer *transfers[VRAM_TRANSFER_BUCKETS];
	/* slots of memory that uploads coming from a disk hold until they have a slot on their GPU */
	struct vram_transfer *waiting_host, **waiting_host_end;
	uint32_t transfer_count;
	struct vram_transfer *spare;   /* ended transfers, for reuse */
	uint32_t spare_count;
	bool staged;                   /* something is staged and not published */
	bool room_due;                 /* threads that wait for `room` are to be woken */
	bool stopping;
	uint32_t threads;              /* submission and completion threads that have not ended */
	_Atomic bool left;             /* threads that come back from a driver must stop there */
	uint32_t given_back;           /* driver calls that vram_destroy is done with */
	bool closed;
	struct progress_page *dead_progress_pages;
	struct vram_prefetch *prefetch; /* NULL: no prefetch to GPUs */
	struct cache *left_next;       /* list of the caches whose GPUs were left behind */
	pthread_cond_t room;           /* a slot came free somewhere, or will not */
};

/* Copy batches that have not ended. */
uint32_t gpu_copy_batches(const struct gpu *g, enum device_way way);
bool gpu_has_copy_batches(const struct gpu *g);

static inline uint64_t vram_clock_us(void)
{
	return clock_us();
}

static inline struct gpu *vram_gpu(const struct cache *c, uint32_t number)
{
	return c->vram && number < c->vram->count ? c->vram->gpu[number] : NULL;
}

static inline struct gpu_accounting *gpu_accounting_of(const struct gpu *g, const struct tenant *t)
{
	return &g->accounting[t - g->cache->tenants];
}

static inline struct gpu *vram_gpu_of_extent(const struct cache *c, uint32_t extent)
{
	return extent >> VRAM_EXTENT_BITS ? vram_gpu(c, (extent >> VRAM_EXTENT_BITS) - 1) : NULL;
}

/* Every thread calls it, without the lock, when it comes back from a driver: it does not return once the GPUs are left
 * behind. */
static inline void vram_came_back(const struct cache *c)
{
	while (atomic_load_explicit(&c->vram->left, memory_order_relaxed))
		pause();
}

/* The last call of a submission or completion thread, with the lock. */
static inline void vram_thread_ended(struct cache *c)
{
	c->vram->threads--;
	pthread_cond_broadcast(&c->vram->room);
}

/* Any thread. */
static inline void vram_completion_wake(struct gpu *g)
{
	pthread_mutex_lock(&g->queue_lock);
	g->completion_due = true;
	pthread_cond_signal(&g->completion_work);
	pthread_mutex_unlock(&g->queue_lock);
}

/* The bucket with the block's transfers, and others. */
static inline struct vram_transfer **vram_transfers_of(const struct cache *c, const struct block *b)
{
	return &c->vram->transfers[((uintptr_t)b >> 6) % VRAM_TRANSFER_BUCKETS];
}

/* announce: a call has begun to fill the GPU's upload queue, and goes on. The other: it has published all. Any
 * thread. */
static inline void vram_more_announce(struct gpu *g)
{
	atomic_fetch_add_explicit(&g->more_announced, 1, memory_order_relaxed);
}

static inline void vram_more_ended(struct gpu *g)
{
	atomic_fetch_sub_explicit(&g->more_announced, 1, memory_order_relaxed);
}

#endif
