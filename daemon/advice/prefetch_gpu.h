/* Copies from memory to a GPU ahead of their use. */
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
/* With vram->ahead. A request was told, in a read section; a Lease of it came; copies are begun, of what is wished for. */
void vram_prefetch_request(struct cache *c, const struct request *r);
void vram_prefetch_leased(struct cache *c, const struct request *r);
void vram_prefetch_pump(struct cache *c);
/* What became of one that is `ahead`: COUNTER_GPU_PREFETCH_USED, _LATE or _WASTED. */
void vram_prefetch_end(struct vram_slot *s, enum counter how);

#endif
