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

#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/vram/slot_map.h"
#include "store/clock.h"
#include "store/device.h"

struct block;
struct progress_page;
struct arena;
struct cache;
struct cache_wait_link;
struct commit_sums;
struct device;
struct copy_batch;
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
	uint32_t reaches;              /* other GPUs, whose copies come here without passing host memory, a bit each */
	struct vram_pool *pools[POOLS_MAX];
	struct vram_class *classes;
	struct gpu_accounting accounting;
	struct vram_queue *queue;      /* [3] by enum device_way */
	uint64_t ups;                  /* that have entered theirs */
	struct vram_transfer *waiting, **waiting_end; /* for a slot here */
	struct vram_transfer *fences;  /* in the queue of ups or under way, by hash_next */
	struct vram_slot *write_through, *write_through_last; /* copies that are to go down, oldest first */
	uint64_t write_through_us;     /* not before that, by the machine's clock */
	uint32_t downs;                /* moves down that have begun */
	struct rate down_rate;         /* of these */
	struct vram_slot *prefetched_first, *prefetched_last; /* copies that came ahead, oldest first */
	uint64_t prefetched_bytes;     /* of these */
	uint32_t fetching;             /* ups in STEP_HOST */
	/* of the queues, of what has ended, of what submission thread and completion thread wait for; nothing is locked
	 * in it */
	pthread_mutex_t queue_lock;
	struct copy_batch *ended, **ended_end; /* with it */
	bool halted, over;             /* with it: no list is made any more; the submission thread is to end */
	struct copy_batch *taken;      /* with it: made, and the submission thread's to begin. NULL: none */
	/* with it: lists that are to be looked at (vram/checksum.c) beside their copies, by who has brought them or the
	 * submission thread */
	_Atomic(struct copy_batch *) to_look;
	bool completion_due;           /* with it */
	pthread_mutex_t summing_lock;  /* of the list of those being summed, and of how far they are; nothing is locked in it */
	struct copy_batch *summing, **summing_end;
	uint64_t corrupt_up, corrupt_down; /* copies found so */
	uint64_t unsummed;             /* blocks put here without a sum of their commit, */
	char unsummed_why[DEVICE_WORDS_MAX]; /* and why the last of them */
	bool freed;                    /* a slot, since those that wait were looked at */
	uint32_t feeds;                /* times that those that wait were looked at, from 1 on */
	bool lost, swept;
	uint64_t asked_us;             /* when last, by the machine's clock */
	uint32_t sweep_pool, sweep_extent, sweep_slot;
	char why[160];                 /* why it was lost */
	/* the completion thread makes an extent: its bytes are taken, no slot is there yet */
	bool making;
	bool preallocate;              /* the completion thread is to see that free memory is there ahead of need */
	uint64_t preallocate_refused;  /* room_epoch at which none was to be had */
	struct commit_sums *commit_sums; /* vram/commit_sums.h */
	struct gpu_scratch *scratch;   /* vram/scratch.h */
	pthread_t submission, completion;
	bool submission_started, completion_started;
	_Atomic uint32_t expected, calls_ended; /* calls that may have work for it: begun, over */
	_Atomic uint32_t more_announced; /* calls that have begun to fill its queue of ups, and go on to */
	_Atomic uint32_t rung;         /* times that there may have been something to be begun */
	/* when a call came last, where the submission thread is to be awake for the next; 0: none has */
	_Atomic uint64_t called_us;
	_Atomic bool sleeps;           /* the submission thread does, it seems, and may have work again */
	_Atomic bool brings;           /* the last lease here had something to be copied: so may the next */
	_Atomic uint64_t announced_until_us; /* one was about to come: the submission thread is awake so long */
	/* the submission thread's: as many were over when it had waited long enough, had begun when it last made ready */
	uint32_t passed, readied;
	pthread_cond_t submission_work, completion_work; /* with queue_lock */
	struct list_times *times;      /* [LIST_KINDS] */
};

struct vram {
	const struct device_ops *ops;
	struct gpu *gpu[DEVICES_MAX];
	uint32_t count;
	struct vram_transfer *transfers[VRAM_TRANSFER_BUCKETS];
	struct vram_transfer *waiting_host, **waiting_host_end; /* downs that wait for a slot of host memory */
	uint64_t fetched_bytes;        /* slots of memory of ups on their way from a disk, until they have one on their GPU */
	uint32_t transfer_count;
	struct vram_transfer *spare;   /* ended moves, for new ones */
	uint32_t spare_count;
	bool staged;                   /* something is enqueued and not published */
	bool room_due;                 /* who waits for `room` is to be told */
	bool stopping;
	uint32_t threads;              /* submission threads and keepers that have not ended */
	_Atomic bool left;             /* who comes back from a driver stays there */
	uint32_t given_back;           /* calls of drivers that vram_destroy is done with */
	bool closed;
	struct progress_page *dead_progress_pages;
	struct vram_prefetch *prefetch; /* NULL: nothing is brought up ahead */
	struct cache *left_next;       /* of the caches whose GPUs were left behind */
	pthread_cond_t room;           /* a slot came free somewhere, or will not */
};

/* Lists of copies that have not ended. */
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

static inline struct gpu *vram_gpu_of_extent(const struct cache *c, uint32_t extent)
{
	return extent >> VRAM_EXTENT_BITS ? vram_gpu(c, (extent >> VRAM_EXTENT_BITS) - 1) : NULL;
}

/* What each thread does that comes back from a driver, without the lock: does not return once the GPUs are left
 * behind. */
static inline void vram_came_back(const struct cache *c)
{
	while (atomic_load_explicit(&c->vram->left, memory_order_relaxed))
		pause();
}

/* The last thing that a submission thread or completion thread does, with the lock. */
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

/* The bucket in which its transfers are, with others'. */
static inline struct vram_transfer **vram_transfers_of(const struct cache *c, const struct block *b)
{
	return &c->vram->transfers[((uintptr_t)b >> 6) % VRAM_TRANSFER_BUCKETS];
}

/* A call has begun to fill the GPU's queue of ups, and goes on to; it has published all. Any thread. */
static inline void vram_more_announce(struct gpu *g)
{
	atomic_fetch_add_explicit(&g->more_announced, 1, memory_order_relaxed);
}

static inline void vram_more_ended(struct gpu *g)
{
	atomic_fetch_sub_explicit(&g->more_announced, 1, memory_order_relaxed);
}

#endif
