/* The VRAM tier as a whole: birth, registration, end. */
#ifndef TERRACE_DAEMON_VRAM_VRAM_H
#define TERRACE_DAEMON_VRAM_VRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct progress_page;
struct cache;
struct extent;
struct gpu;

extern const struct tier_ops gpu_tier; /* block/tier.h */

/* Without the lock. A GPU that cannot be opened is lost from the beginning; EXHAUSTED, INVALID: the tier as a whole
 * fails. */
enum status vram_create(struct cache *c, const char **why);
enum status vram_start(struct cache *c, const char **why);
void vram_tick(struct cache *c);
/* Whether there is work for vram_chores, which is called without the lock. */
bool vram_wants(struct cache *c);
void vram_chores(struct cache *c);

#endif
