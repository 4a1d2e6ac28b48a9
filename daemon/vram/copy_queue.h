/* Lists of copies: made, begun, ended. */
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
/* A list has ended, in all its parts: the rest is the completion thread's. Without the lock. */
void vram_copy_batch_ended(void *copy_batch);
void vram_enqueue(struct gpu *g, struct vram_transfer *m);
/* As many blocks as a list has whose layers nobody waits for; `most` at most. */
uint32_t vram_list_blocks(const struct layout_pool *p, uint32_t most);
/* What was enqueued is the submission threads' now, and who waits for room looks again: as the lock is left. */
void vram_publish(struct cache *c);
/* A fence may not overtake ups whose order is from *from on, and below *to. */
void vram_tail(struct gpu *g, uint64_t *from, uint64_t *to);
/* Something stands in a queue, or has been enqueued. What no longer does is among the copy batches, if these are looked
 * at after it. */
bool vram_queued(struct gpu *g, enum device_way way);
/* Of a GPU's queue, in their order; for who ends them. */
struct vram_transfer *vram_queue_take(struct gpu *g, enum device_way way, const struct gpu *of);
/* No list begins any more; with `over` the submission thread ends. */
void vram_submission_halt(struct gpu *g, bool over);
/* Any thread. */
void vram_submission_wake(struct gpu *g);
/* The blocks of a call, which are looked for. */
struct vram_search {
	int32_t gpu;                   /* where they are wanted; CACHE_HOST: on none */
	struct layout_pool *const *pools; /* [layouts] */
	uint32_t layouts;
	const struct cache_keys *keys;
	struct block **found;          /* [keys * layouts], as blocks_find has it */
};

/* Without the lock, in a read section: blocks_find for a new call for that GPU. If some of them are to be copied
 * there, as it seems, its submission thread comes awake, and makes the device ready, while the call is still at its
 * work, since to be woken takes as long as half of that: so the last one is looked for before the others. What this
 * returns is told when it is over: NULL: nothing. */
struct gpu *vram_find(struct cache *c, const struct vram_search *s);
/* The same in two steps; between them the first `from` may be found. expecting: what the first step returned. */
struct gpu *vram_find_last(struct cache *c, const struct vram_search *s);
struct gpu *vram_find_rest(struct cache *c, const struct vram_search *s, struct gpu *announced, uint32_t from);
/* Some of these seem to be in memory and not on a GPU. */
bool vram_some_come(const struct cache *c, uint32_t count, struct block *const *found);
void vram_call_ended(struct gpu *announced);
/* Without the lock: the caller's reply is on its way, so that there is time to wake those that sum what it has brought. */
void vram_call_replied(struct cache *c);
/* A call has come: with options.gpu_poll_us submission threads are awake for so long after it. Any thread, without the
 * lock. */
void vram_called(struct cache *c);
/* A lease on that GPU (CACHE_HOST: on none) has something to be copied, or not. */
void vram_lease_brings(struct cache *c, int32_t gpu, const struct gpu *announced);
/* See cache_lease_announce. */
void vram_lease_announce(struct cache *c);

#endif
