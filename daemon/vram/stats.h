/* The rows of Stats about GPUs. */
#ifndef TERRACE_DAEMON_VRAM_STATS_H
#define TERRACE_DAEMON_VRAM_STATS_H

#include <stdint.h>

#include "daemon/block/stat_row.h"

struct cache;
struct cache_gpu_view;
struct copy_batch;

/* The state of each GPU, in the order of the options. Returns how many were written to out[max]; max 0: how many there
 * are. */
uint32_t cache_gpus(struct cache *c, struct cache_gpu_view *out, uint32_t max);
void vram_stats(struct cache *c, cache_stat_fn *emit, void *arg);
/* All parts of a batch have ended. Any thread, once a batch. */
void vram_times_add(const struct copy_batch *f);

#endif
