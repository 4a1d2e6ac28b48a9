/* Pages of memory: taken from the kernel when a class needs them, and before that. */
#ifndef TERRACE_DAEMON_MEMORY_GROW_H
#define TERRACE_DAEMON_MEMORY_GROW_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/block/lock.h"

struct arena_class;
struct memory_class;

/* With the lock: whether room_grow would wait for pages that another thread is taking. */
bool room_comes(const struct cache *c, const struct memory_class *k);
/* With the lock: whether room_preallocate should take pages now. */
bool room_wants_preallocation(const struct cache *c);
/* Without the lock: takes pages until one step's worth is free, and registers new extents with the disks and GPUs. The
 * first call makes the first extent. */
void room_preallocate(struct cache *c);

/* Without the lock: frees a retired extent that is empty and that no process has mapped, and takes memory for the
 * class, which lacked it, before others can. False: it was not freed. */
bool room_hand_over(struct cache *c, uint32_t extent, struct arena_class *to);

#endif
