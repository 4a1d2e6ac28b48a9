/* The end of the VRAM tier's threads. */
#ifndef TERRACE_DAEMON_VRAM_STOP_H
#define TERRACE_DAEMON_VRAM_STOP_H

#include <stdbool.h>

struct cache;

/* Without the lock: no copy begins any more, and no thread of the tier runs afterwards. False: a GPU has not ended its
 * copies, or its driver has not returned, within gpu_close_ms (without `wait`: at once). The cache must then stay as it
 * is until the process ends. */
bool vram_stop(struct cache *c, bool wait);
/* After the blocks are freed. False: a driver call took longer than gpu_close_ms; as above. */
bool vram_destroy(struct cache *c);

#endif
