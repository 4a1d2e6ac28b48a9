/* The ends of copy batches and of lists of sums, which a GPU's completion thread runs.
 *
 * One part of an end is one transfer of a batch, or one block of a list. One hold of the lock runs at most ENDS_A_HOLD
 * parts. After a hold in which batches or lists have ended, the tiers are pumped once, however many have ended.
 *
 * What takes long is done before the end, without the lock: a download that no checksum thread took is checked, and a
 * device that has lost a batch is asked whether it is lost.
 */
#ifndef TERRACE_DAEMON_VRAM_BATCH_END_H
#define TERRACE_DAEMON_VRAM_BATCH_END_H

#include <stdbool.h>

struct cache;
struct copy_batch;
struct end;
struct gpu;

/* Run a part of an end: gpu_ends.batch, gpu_ends.sums. */
void copy_batch_end_run(struct cache *c, struct end *e);
void sum_list_end_run(struct cache *c, struct end *e);
/* With the lock, by the completion thread: one hold of the lock, which it leaves. False: nothing is queued. */
bool gpu_ends_run(struct cache *c, struct gpu *g);
/* The member `pump` of the GPUs' table: tries transfers that wait for room, on the GPUs where something has ended, and
 * begins the downloads that are due. */
void gpu_ends_pump(struct cache *c);

#endif
