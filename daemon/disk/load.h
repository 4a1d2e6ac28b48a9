/* Loads: disk to memory. */
#ifndef TERRACE_DAEMON_DISK_LOAD_H
#define TERRACE_DAEMON_DISK_LOAD_H

#include <stdbool.h>

#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait;

/* As spill_begin. Joins what is under way, which is then as urgent as this. */
enum status load_begin(struct cache *c, struct block *b, enum ring_priority priority, struct cache_wait *w);
/* On its way to a GPU. spare: however urgent, it takes what memory can spare: BUSY, as its end too. */
enum status load_begin_for_gpu(struct cache *c, struct block *b, enum ring_priority priority, bool spare);
/* Loads that waited for memory. */
void loads_feed(struct cache *c);

#endif
