/* A GPU that is lost: what was there, and who waits. */
#ifndef TERRACE_DAEMON_VRAM_LOST_H
#define TERRACE_DAEMON_VRAM_LOST_H

#include <stdbool.h>

#include "store/status.h"

struct cache;
struct gpu;
struct vram_transfer;

/* The GPU gives nothing any more. */
void gpu_lost(struct gpu *g, const char *why);
/* All of its transfers that wait or stand in a queue end, and those that stand in one to come from it. */
void vram_transfers_fail(struct cache *c, struct gpu *g);
/* By its completion thread, of a lost one: takes some of its copies off the accounting; `swept` when there are no more. */
void vram_sweep(struct cache *c, struct gpu *g);
/* A transfer of a list ends so; what the sweep has left for it, on GPUs that were lost meanwhile, goes with it. */
void vram_read_ended(struct cache *c, struct vram_transfer *m, enum status s);
/* By its completion thread: leaves the lock, as the driver may take its time. True: the device says that it is lost.
 * From vram_stop on it is not asked any more: g->lost. */
bool gpu_asks(struct cache *c, struct gpu *g);

#endif
