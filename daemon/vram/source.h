/* The GPUs as a source of blocks for memory (block/source.h): what they have, and how long it takes to come down.
 * With the cache's lock. */
#ifndef TERRACE_DAEMON_VRAM_SOURCE_H
#define TERRACE_DAEMON_VRAM_SOURCE_H

struct block;
struct copy_batch;
struct gpu;
struct source;

/* All GPUs together. Blocks are brought one by one, by the tier's fetch: a download takes its own slot of memory, which
 * has to be one that the GPU can write to. */
extern struct source gpus_source;
void gpu_rate_init(struct gpu *g);
/* A download of that block has begun, or is over. */
void vram_down_begun(struct gpu *g, const struct block *b);
void vram_down_over(struct gpu *g, const struct block *b);
/* A copy batch has ended; of downloads it says how fast they are. Before their vram_down_over. */
void vram_copy_batch_timed(const struct copy_batch *f);

#endif
