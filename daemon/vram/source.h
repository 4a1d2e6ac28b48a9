/* The GPUs as a source of blocks for memory (block/source.h): what they have, and how long downloads take. With the
 * cache's lock. */
#ifndef TERRACE_DAEMON_VRAM_SOURCE_H
#define TERRACE_DAEMON_VRAM_SOURCE_H

struct block;
struct copy_batch;
struct gpu;
struct rate;
struct source;

/* All GPUs together. Blocks are brought one by one, by the tier's fetch: a download takes its own slot of memory, since
 * the GPU must be able to write to it. */
extern struct source gpus_source;
/* The rate of a new GPU. NULL: no memory. free() destroys it. */
struct rate *gpu_rate_create(void);
/* Called when a download of that block has begun, and when it is over. */
void vram_down_begun(struct gpu *g, const struct block *b);
void vram_down_over(struct gpu *g, const struct block *b);
/* Called when a copy batch has ended; a batch of downloads shows how fast they are. Call it before their
 * vram_down_over. */
void vram_copy_batch_timed(const struct copy_batch *f);

#endif
