/* The VRAM tier as a whole: birth, registration, end. */
#ifndef TERRACE_DAEMON_VRAM_VRAM_H
#define TERRACE_DAEMON_VRAM_VRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

struct board;
struct cache;
struct extent;
struct gpu;

extern const struct tier_ops gpu_tier; /* block/tier.h */

/* Without the lock. A GPU that cannot be opened is lost from the beginning; EXHAUSTED, INVALID: of the tier as a whole. */
enum status vram_create(struct cache *c, const char **why);
enum status vram_start(struct cache *c, const char **why);
void vram_tick(struct cache *c);
/* True: there is something for vram_chores, which is called without the lock. */
bool vram_wants(struct cache *c);
void vram_chores(struct cache *c);
/* By its keeper: leaves the lock, as the driver may take its time. True: the device says that it is lost. From vram_stop on it
 * is not asked any more: g->lost. */
bool gpu_asks(struct cache *c, struct gpu *g);
/* Without the lock: the GPUs' addresses of an extent of host memory, DEVICES_MAX of them, 0 where it cannot be registered. */
void vram_register(struct cache *c, const struct extent *e, uint64_t *address);
void vram_unregister(struct cache *c, void *memory, const uint64_t *address);

/* ---- boards: vram/vram.c ---- */

/* Without the lock: makes one, registered with the GPUs. NULL: no memory. */
struct board *board_create(struct cache *c);
void board_destroy(struct cache *c, struct board *b);
/* With the lock: its attachment is gone; it is destroyed by the chores, when no mark names it any more. */
void board_let_go(struct cache *c, struct board *b);
/* With the lock: copies to that GPU that the board was to tell of will not come. Says so there, once and for all, and lets streams that
 * wait go on. */
void board_fail(struct board *b, const struct gpu *g);
/* With the lock: leases may be granted ahead of their copies to that GPU. Not where these have failed once: who looked would not believe
 * it any more. */
bool board_tells(const struct board *b, const struct gpu *g);
/* Any thread: copies of layers of that GPU have come so far. */
bool board_copied(const struct board *b, const struct gpu *g, uint32_t value);
/* Any thread: so far have the checksums of copies to that GPU been looked at. Never back. */
void board_summed(struct board *b, const struct gpu *g, uint32_t value);

#endif
