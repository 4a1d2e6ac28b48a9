/* Transfers to and from GPUs, from their beginning to their end. */
#ifndef TERRACE_DAEMON_VRAM_TRANSFER_H
#define TERRACE_DAEMON_VRAM_TRANSFER_H

#include <stdbool.h>

#include "store/ring/ring.h"
#include "store/status.h"

struct block;
struct cache;
struct cache_wait;
struct fetch_how;
struct gpu;
struct vram;
struct vram_transfer;

/* Joins the transfer if there is one. priority: of a read from a disk, if it comes from there. w may be NULL. wait_end:
 * until it is copied; else until it has its place in the order of the ups. OK: there, or on its way. EXHAUSTED,
 * UNAVAILABLE. now: without waiting for anything: BUSY if it would have to. */
enum status vram_up(struct cache *c, struct gpu *g, struct block *b, enum ring_priority priority, struct cache_wait *w, bool wait_end,
		    bool now);
/* The table's fetch (block/tier.h) of the GPUs. BUSY, for which memory has no place within the effort, may be its end,
 * too. */
enum status vram_fetch(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
/* The end of a load, whatever it was: ups that wait for it go on when the lock is left. */
void vram_host_came(struct cache *c, struct block *b, enum status s);
/* Its transfer to that GPU; NULL. */
struct vram_transfer *vram_up_of(const struct cache *c, const struct block *b, const struct gpu *g);
/* Transfers that wait for memory, on a GPU, of the host. */
void vram_feed(struct cache *c, struct gpu *g);
void vram_feed_host(struct cache *c);
/* Moves down that have come, and waited for sums of that GPU, end when the lock is left, or wait for those that are due
 * yet. False: there are none. */
bool vram_summed_end(struct cache *c, struct gpu *g);
/* It ends so, and those that wait for it are told. By the completion thread, or by an end. */
void vram_transfer_end(struct cache *c, struct vram_transfer *m, enum status s);
/* It ends with UNAVAILABLE when the lock is left. It is in no list any more. */
void vram_transfer_fail(struct cache *c, struct vram_transfer *m);
void vram_spares_free(struct vram *v);

#endif
