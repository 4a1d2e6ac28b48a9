/* A GPU that is lost: its copies, and the calls that wait for it. */
#ifndef TERRACE_DAEMON_VRAM_LOST_H
#define TERRACE_DAEMON_VRAM_LOST_H

#include <stdbool.h>

#include "store/status.h"

struct cache;
struct gpu;
struct vram_transfer;

/* Marks the GPU as lost: it gives no data any more. */
void gpu_lost(struct gpu *g, const char *why);
/* Ends all of its transfers that wait or are queued, and queued transfers that would copy from it. */
void vram_transfers_fail(struct cache *c, struct gpu *g);
/* By its completion thread, of a lost GPU: takes some of its copies off the accounting; sets `swept` when there are no
 * more. */
void vram_sweep(struct cache *c, struct gpu *g);
/* Called when a transfer of a batch has ended with status s. Copies on lost GPUs that the sweep left for the transfer
 * end with it. */
void vram_read_ended(struct cache *c, struct vram_transfer *m, enum status s);
/* By its completion thread: asks the device whether it is lost, without the lock, as the driver may take long. After
 * vram_stop the device is not asked any more: returns g->lost. */
bool gpu_asks(struct cache *c, struct gpu *g);

#endif
