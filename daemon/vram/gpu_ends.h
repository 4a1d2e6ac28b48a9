/* The queue of ends of a GPU (block/ends.h): its copy batches, and its lists of sums of commits.
 *
 * The device's threads and the checksum threads append an end and return. The GPU's completion thread runs the ends
 * (vram/batch_end.h). A batch whose end needs what takes long goes to the completion thread first.
 */
#ifndef TERRACE_DAEMON_VRAM_GPU_ENDS_H
#define TERRACE_DAEMON_VRAM_GPU_ENDS_H

#include <stdbool.h>

#include "daemon/block/ends.h"

struct cache;
struct copy_batch;
struct gpu;

struct gpu_ends {
	struct end_queue queue;
	/* runs a part of the end of a copy batch; of a list of sums */
	void (*batch)(struct cache *c, struct end *e);
	void (*sums)(struct cache *c, struct end *e);
	struct copy_batch *unready, **unready_end; /* with the lock of the GPU's queues */
	/* with the cache's lock: a batch or a list has ended since transfers that wait for room were last tried; since
	 * the completion thread last freed slots ahead of need */
	bool feed_due, keep_due;
};

/* Makes a GPU's queues of ends. NULL: no memory. free() destroys them. */
struct gpu_ends *gpu_ends_create(void);

/* ---- with the lock of the GPU's queues, any thread ---- */

/* Has the completion thread run the end. The end may be gone when this returns. */
void gpu_ends_push(struct gpu *g, struct end *e);
/* Hands the completion thread a batch whose end needs work first. The thread pushes the end after that work. */
void gpu_ends_push_unready(struct gpu *g, struct copy_batch *f);
/* Takes the first batch whose end needs work. NULL: there is none. By the completion thread. */
struct copy_batch *gpu_ends_take_unready(struct gpu *g);

#endif
