/* Makes and begins copy batches, and hands over their ends. */
#ifndef TERRACE_DAEMON_VRAM_COPY_QUEUE_H
#define TERRACE_DAEMON_VRAM_COPY_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"

struct block;
struct cache;
struct cache_keys;
struct gpu;
struct layout_pool;
struct vram_transfer;

void *gpu_submission(void *gpu);
/* Called without the lock when all parts of a batch have ended: hands the batch to the completion thread. */
void vram_copy_batch_ended(void *copy_batch);
void vram_enqueue(struct gpu *g, struct vram_transfer *m);
/* How many blocks a batch has if no lease waits for its layers; `most` at most. */
uint32_t vram_list_blocks(const struct layout_pool *p, uint32_t most);
/* Called when the cache's lock is released: gives enqueued transfers to the submission threads, and wakes threads that
 * wait for room. */
void vram_publish(struct cache *c);
/* The orders of the uploads that a fence must not overtake: at least *from and below *to. */
void vram_tail(struct gpu *g, uint64_t *from, uint64_t *to);
/* Whether a transfer in that direction is queued or staged. A transfer that has just left the queue is in a copy batch:
 * so look at the batches after this call, not before. */
bool vram_queued(struct gpu *g, enum device_way way);
/* Takes the transfers to or from GPU `of` out of the queue, in their order, so that the caller can end them. */
struct vram_transfer *vram_queue_take(struct gpu *g, enum device_way way, const struct gpu *of);
/* Lets no batch begin any more; with `over` the submission thread also ends. */
void vram_submission_halt(struct gpu *g, bool over);
/* Any thread. */
void vram_submission_wake(struct gpu *g);
/* The blocks that a call searches. */
struct vram_search {
	int32_t gpu;                   /* the GPU that the blocks are wanted on; CACHE_HOST: none */
	struct layout_pool *const *pools; /* [layouts] */
	uint32_t layouts;
	const struct cache_keys *keys;
	struct block **found;          /* [keys * layouts], as blocks_find writes it */
};

/* Without the lock, in a read section: blocks_find for a new call for that GPU. If some blocks seem to need copies, it
 * wakes the submission thread, which makes the device ready while the call still works: waking takes half as long as
 * the call. So the last block is searched before the others. The caller passes the returned GPU to vram_call_ended at
 * the call's end; NULL: nothing. */
struct gpu *vram_find(struct cache *c, const struct vram_search *s);
/* vram_find in two steps; in between the caller may search the first `from` blocks. announced: what the first step
 * returned. */
struct gpu *vram_find_last(struct cache *c, const struct vram_search *s);
struct gpu *vram_find_rest(struct cache *c, const struct vram_search *s, struct gpu *announced, uint32_t from);
/* Whether some of these blocks seem to be in memory and not on a GPU. */
bool vram_some_come(const struct cache *c, uint32_t count, struct block *const *found);
void vram_call_ended(struct gpu *announced);
/* Called without the lock when the caller's reply is sent: wakes the checksum threads for the batches that the call
 * made. */
void vram_call_replied(struct cache *c);
/* Notes that a call has come. With options.gpu_poll_us, submission threads stay awake so long after it. Any thread,
 * without the lock. */
void vram_called(struct cache *c);
/* Notes whether the last lease on this GPU (CACHE_HOST: on none) needed copies; the next Lease packet wakes the
 * submission thread only then. */
void vram_lease_brings(struct cache *c, int32_t gpu, const struct gpu *announced);
/* See cache_lease_announce. */
void vram_lease_announce(struct cache *c);

#endif
