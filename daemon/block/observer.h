/* Observers: events of blocks, copies and extents for the parts above. The part below that reports an event does not
 * know its listeners; one table (daemon/cache.c) lists them. Listeners are called with the cache's lock, in the order
 * of the table, and must not change the block that the event is about.
 */
#ifndef TERRACE_DAEMON_BLOCK_OBSERVER_H
#define TERRACE_DAEMON_BLOCK_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "daemon/block/values.h"
#include "store/status.h"

struct block;
struct cache;
struct gpu;
struct policy;
struct policy_node;
struct policy_ops;
struct vram_slot;

/* A policy that learns, under the name that the catalog keeps its pieces by. */
struct learner {
	char whom;                     /* its kind: 'm' host memory, 'd' a disk, 'g' a GPU, 'k' the conversations */
	uint64_t where, what;          /* which one (0, the disk's id, the GPU's number), and the bytes of its slots */
	const struct policy_ops *ops;  /* NULL: conversations, which have no policy */
	struct policy *policy;
};

enum { OBSERVERS_MAX = 3 }; /* of one kind of news; a list ends with NULL */

struct observers {
	/* A block can be found under its key from now on. */
	void (*stored[OBSERVERS_MAX + 1])(struct cache *c, const struct block *b);
	/* A published block has got one copy more, or one less. */
	void (*moved[OBSERVERS_MAX + 1])(struct cache *c, const struct block *b);
	/* A block can no longer be found. */
	void (*removed[OBSERVERS_MAX + 1])(struct cache *c, const struct block *b, enum cache_reason reason);
	/* A block has joined or left the table of ids (block/by_id.h), before `stored` and `removed`. */
	void (*listed[OBSERVERS_MAX + 1])(struct cache *c, const struct block *b, bool in);
	/* A copy is about to leave a tier. n: its node in that tier's policy. */
	void (*left[OBSERVERS_MAX + 1])(struct cache *c, uint64_t id, const struct policy_node *n,
					enum eviction_tier tier,
					enum eviction_reason reason);
	/* `left` or `came_back` of that id comes soon: a listener may prefetch the memory that it will touch. */
	void (*soon[OBSERVERS_MAX + 1])(const struct cache *c, uint64_t id, bool gpu);
	/* A copy that had left is there again: on a GPU (gpu), else in memory or on a disk. */
	void (*came_back[OBSERVERS_MAX + 1])(struct cache *c, uint64_t id, bool gpu);
	/* How the prefetch of a block ended: COUNTER_PREFETCH_USED, _WASTED or _LATE. */
	void (*prefetch_ended[OBSERVERS_MAX + 1])(struct cache *c, struct block *b, enum counter how);
	/* How the prefetch of a copy on a GPU ended: COUNTER_GPU_PREFETCH_USED, _WASTED or _LATE. */
	void (*gpu_prefetch_ended[OBSERVERS_MAX + 1])(struct vram_slot *s, enum counter how);
	/* Copies on their way to that GPU are corrupt, and leases may have been granted for them: their slots are
	 * `failed`. */
	void (*copies_failed[OBSERVERS_MAX + 1])(struct cache *c, const struct gpu *g);
	/* A load of the block, which is `awaited`, has ended so: copies that wait for it in memory go on or end. */
	void (*load_ended[OBSERVERS_MAX + 1])(struct cache *c, struct block *b, enum status s);
	/* Memory has room to spare again. */
	void (*memory_spare[OBSERVERS_MAX + 1])(struct cache *c);
	/* A copy batch from or to a GPU has ended. */
	void (*copies_ended[OBSERVERS_MAX + 1])(struct cache *c);
	/* A tier has one extent more. */
	void (*extent_added[OBSERVERS_MAX + 1])(struct cache *c);
	/* What calls have noted of their requests must be reported now, of at most so many keys, but of one request at
	 * least. In a read section. */
	void (*requests_due[OBSERVERS_MAX + 1])(struct cache *c, uint32_t keys);
	/* The deferred uses of leases must be reported to the policies now. */
	void (*uses_due[OBSERVERS_MAX + 1])(struct cache *c);
	/* A policy was just made, and knows nothing yet: a listener may give it what an earlier run had learned. */
	void (*policy_made[OBSERVERS_MAX + 1])(struct cache *c, const struct learner *l);
};

void observe_stored(struct cache *c, const struct block *b);
void observe_moved(struct cache *c, const struct block *b);
void observe_removed(struct cache *c, const struct block *b, enum cache_reason reason);
void observe_listed(struct cache *c, const struct block *b, bool in);
void observe_left(struct cache *c, uint64_t id, const struct policy_node *n, enum eviction_tier tier,
		  enum eviction_reason reason);
void observe_soon(const struct cache *c, uint64_t id, bool gpu);
void observe_came_back(struct cache *c, uint64_t id, bool gpu);
void observe_prefetch_ended(struct cache *c, struct block *b, enum counter how);
void observe_gpu_prefetch_ended(struct cache *c, struct vram_slot *s, enum counter how);
void observe_copies_failed(struct cache *c, const struct gpu *g);
void observe_load_ended(struct cache *c, struct block *b, enum status s);
void observe_memory_spare(struct cache *c);
void observe_copies_ended(struct cache *c);
void observe_extent_added(struct cache *c);
void observe_requests_due(struct cache *c, uint32_t keys);
void observe_uses_due(struct cache *c);
void observe_policy_made(struct cache *c, const struct learner *l);

#endif
