/* Blocks on their way to a GPU that have to come from a disk or another GPU first. */
#ifndef TERRACE_DAEMON_VRAM_FETCH_H
#define TERRACE_DAEMON_VRAM_FETCH_H

#include <stdbool.h>

#include "store/status.h"

struct cache;
struct gpu;
struct vram_transfer;

/* Whether the transfer must not drop blocks without another copy, or not yet. */
bool vram_only_spare(const struct cache *c, const struct vram_transfer *m);
/* The upload begins with a load from a disk or a download from another GPU, or joins one. */
enum status vram_load(struct cache *c, const struct vram_transfer *m);
/* Counts the upload as one that has, or will have, a slot of memory on its way; or no longer, in its queue or at its
 * end. */
void vram_fetched(struct cache *c, struct vram_transfer *m, bool is);
/* Whether other uploads that wait for a full GPU already use as much memory as they may. */
bool vram_fetched_enough(struct cache *c, const struct vram_transfer *m);
/* Whether memory has no place for it but those of blocks without another copy. */
bool vram_memory_short(struct cache *c, const struct vram_transfer *m);
/* Whether something under way makes room there: uploads that are queued, under way, or to come by memory. Their ends
 * also end other waits. */
bool vram_memory_comes_free(struct gpu *g);
bool vram_memory_comes(struct cache *c, const struct vram_transfer *m);
/* Memory has room to spare again: transfers that wait for it look again soon. */
void vram_memory_spares(struct cache *c);

#endif
