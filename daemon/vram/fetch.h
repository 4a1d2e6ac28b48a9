/* Blocks on their way to a GPU that have to come from a disk or another GPU first. */
#ifndef TERRACE_DAEMON_VRAM_FETCH_H
#define TERRACE_DAEMON_VRAM_FETCH_H

#include <stdbool.h>

#include "store/status.h"

struct cache;
struct gpu;
struct vram_transfer;

/* Whether the transfer must not, or must not yet, evict blocks of which there is no other copy. */
bool vram_only_spare(const struct cache *c, const struct vram_transfer *m);
/* Begins the load from a disk or the download from another GPU with which the upload begins, or joins one. */
enum status vram_load(struct cache *c, const struct vram_transfer *m);
/* is: counts the upload as one that has, or will have, a slot in host memory on its way. Else the upload is in its
 * queue or at its end, and counts no longer. */
void vram_fetched(struct vram_transfer *m, bool is);
/* Whether other uploads that wait for a full GPU already use as much memory as they may. */
bool vram_fetched_enough(struct cache *c, const struct vram_transfer *m);
/* Whether host memory has no place for the upload's block but by evicting blocks of which there is no other copy. */
bool vram_memory_short(struct cache *c, const struct vram_transfer *m);
/* vram_memory_comes_free: whether uploads that are queued, under way, or to come by host memory will make room there.
 * vram_memory_comes: whether anything will for this transfer. Their ends also end other waits. */
bool vram_memory_comes_free(struct gpu *g);
bool vram_memory_comes(struct cache *c, const struct vram_transfer *m);
/* Called when memory has room to spare again: transfers that wait for it look again soon. */
void vram_memory_spares(struct cache *c);

#endif
