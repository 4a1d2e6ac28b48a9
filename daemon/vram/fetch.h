/* Blocks on their way to a GPU that have to come from a disk or another GPU first. */
#ifndef TERRACE_DAEMON_VRAM_FETCH_H
#define TERRACE_DAEMON_VRAM_FETCH_H

#include <stdbool.h>

#include "store/status.h"

struct cache;
struct gpu;
struct vram_transfer;

/* Nothing that is nowhere else goes for it, or not yet. */
bool vram_only_spare(const struct cache *c, const struct vram_transfer *m);
/* Its way begins on a disk or another GPU, or it has joined what brings the block from there to memory. */
enum status vram_load(struct cache *c, const struct vram_transfer *m);
/* It has a slot of memory for its way, or will have; no more, in its queue or at its end. */
void vram_fetched(struct cache *c, struct vram_transfer *m, bool is);
/* Others that wait for a GPU that is full have as much as they may. */
bool vram_fetched_enough(struct cache *c, const struct vram_transfer *m);
/* Memory has no place for it but those of blocks that are nowhere else. */
bool vram_memory_short(struct cache *c, const struct vram_transfer *m);
/* Something under way makes room there: copies up that are queued, under way, or to come by memory, as they end; what it may wait for besides. */
bool vram_memory_comes_free(struct gpu *g);
bool vram_memory_comes(struct cache *c, const struct vram_transfer *m);
/* Memory has something to spare: who waits for it looks again, soon. */
void vram_memory_spares(struct cache *c);

#endif
