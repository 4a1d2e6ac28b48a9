/* Copy batches: made, begun, ended. */
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
/* All parts of a batch have ended: the completion thread does the rest. Without the lock. */
void vram_copy_batch_ended(void *copy_batch);
void vram_enqueue(struct gpu *g, struct vram_transfer *m);
/* How many blocks a batch has if no lease waits for its layers; `most` at most. */
uint32_t vram_list_blocks(const struct layout_pool *p, uint32_t most);
/* When the lock is left: gives enqueued transfers to the submission threads, and wakes threads that wait for room. */
void vram_publish(struct cache *c);
/* A fence must not overtake the uploads whose order is at least *from and below *to. */
void vram_tail(struct gpu *g, uint64_t *from, uint64_t *to);
/* Whether a transfer is queued or staged that way. A transfer that has just left the queue is in a copy batch, so look
 * at those afterwards. */
bool vram_queued(struct gpu *g, enum device_way way);
/* Takes the transfers of that GPU out of the queue, in their order, to end them. */
struct vram_transfer *vram_queue_take(struct gpu *g, enum device_way way, const struct gpu *of);
/* No batch begins any more; with `over` the submission thread ends. */
void vram_submission_halt(struct gpu *g, bool over);
/* Any thread. */
void vram_submission_wake(struct gpu *g);
/* The blocks that a call searches. */
struct vram_search {
	int32_t gpu;                   /* where they are wanted; CACHE_HOST: on none */
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
/* The same in two steps, between which the first `from` may be searched. expecting: what the first step returned. */
struct gpu *vram_find_last(struct cache *c, const struct vram_search *s);
struct gpu *vram_find_rest(struct cache *c, const struct vram_search *s, struct gpu *announced, uint32_t from);
/* Whether some of these seem to be in memory and not on a GPU. */
bool vram_some_come(const struct cache *c, uint32_t count, struct block *const *found);
void vram_call_ended(struct gpu *announced);
/* Without the lock: the caller's reply is on its way: now wakes the checksum threads for the batches that the call
 * made. */
void vram_call_replied(struct cache *c);
/* A call has come: with options.gpu_poll_us, submission threads stay awake so long after it. Any thread, without the
 * lock. */
void vram_called(struct cache *c);
/* Notes whether the last lease on this GPU (CACHE_HOST: on none) needed copies; the next Lease packet wakes the
 * submission thread only then. */
void vram_lease_brings(struct cache *c, int32_t gpu, const struct gpu *announced);
/* See cache_lease_announce. */
void vram_lease_announce(struct cache *c);

#endif
