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

#endif
