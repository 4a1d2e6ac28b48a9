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

/* Begins to upload the block, or joins its upload. priority: of the load, if it comes from a disk. w may be NULL.
 * wait_end: w waits until it is copied; else until it has its place in the upload queue. OK: there, or on its way.
 * EXHAUSTED, UNAVAILABLE. now: BUSY if it would have to wait for anything. */
enum status vram_up(struct cache *c, struct gpu *g, struct block *b, enum ring_priority priority, struct cache_wait *w, bool wait_end,
		    bool now);
/* fetch() of the GPUs (block/tier.h). BUSY, memory has no place within the effort, may also be the transfer's end. */
enum status vram_fetch(struct cache *c, struct block *b, const struct fetch_how *how, struct cache_wait *w);
/* A load has ended, with any status: uploads that wait for it go on when the lock is left. */
void vram_host_came(struct cache *c, struct block *b, enum status s);
/* The block's upload to that GPU; NULL: it has none. */
struct vram_transfer *vram_up_of(const struct cache *c, const struct block *b, const struct gpu *g);
/* Begin transfers that wait for memory: of that GPU, or of the host. */
void vram_feed(struct cache *c, struct gpu *g);
void vram_feed_host(struct cache *c);
/* Goes on with the downloads that waited for checksums of that GPU, when the lock is left. A download whose checksum is
 * still due waits on. */
void vram_summed_end(struct cache *c, struct gpu *g);
/* Ends the transfer with status s, and tells its links. By the completion thread, or by an end. */
void vram_transfer_end(struct cache *c, struct vram_transfer *m, enum status s);
/* Has the transfer end with UNAVAILABLE when the lock is left. The caller has taken it out of all lists. */
void vram_transfer_fail(struct cache *c, struct vram_transfer *m);
void vram_spares_free(struct vram *v);

#endif
