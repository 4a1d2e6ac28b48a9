/* Prefetches from memory to a GPU. */
#ifndef TERRACE_DAEMON_ADVICE_PREFETCH_GPU_H
#define TERRACE_DAEMON_ADVICE_PREFETCH_GPU_H

#include <stdbool.h>

#include "daemon/block/counters.h"

struct cache;
struct request;
struct vram;
struct vram_slot;

bool vram_prefetch_create(struct cache *c); /* false: no memory */
void vram_prefetch_destroy(struct vram *v);
/* With vram->prefetch. In a read section: a request was told; a Lease of it came; begins copies that wishes ask for. */
void vram_prefetch_request(struct cache *c, const struct request *r);
void vram_prefetch_leased(struct cache *c, const struct request *r);
void vram_prefetch_pump(struct cache *c);
/* The prefetch of the copy ended so: COUNTER_GPU_PREFETCH_USED, _LATE or _WASTED. */
void vram_prefetch_end(struct vram_slot *s, enum counter how);

#endif
