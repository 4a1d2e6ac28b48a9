/* The end of the VRAM tier's threads. */
#ifndef TERRACE_DAEMON_VRAM_STOP_H
#define TERRACE_DAEMON_VRAM_STOP_H

#include <stdbool.h>

struct cache;

/* Without the lock: no copy begins any more, and no thread of the tier's runs after it. False: a GPU has not ended its copies, or its driver not
 * returned, within gpu_close_ms, which is not waited for without `wait`: the cache is to stay as it is, to the end of the process. */
bool vram_stop(struct cache *c, bool wait);
/* After the blocks are gone. False: a call of the driver's took longer than gpu_close_ms, and as above. */
bool vram_destroy(struct cache *c);
/* The last thing that a mover or keeper does, with the lock. */
void vram_thread_ended(struct cache *c);
/* What each thread does that comes back from a driver, without the lock: does not return once the GPUs are left behind. */
void vram_came_back(const struct cache *c);

#endif
