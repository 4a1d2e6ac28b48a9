/* The shared page by which streams wait for layers. */
#ifndef TERRACE_DAEMON_VRAM_PROGRESS_H
#define TERRACE_DAEMON_VRAM_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/host/extent.h"

struct cache;
struct gpu;

enum { VRAM_LINE = 64 };

/* The page is an array of 32-bit words, three for each GPU: word g says how many layers have been copied to GPU g,
 * word PROGRESS_PAGE_SUMMED + g how many of them have the right checksum, word PROGRESS_PAGE_FAILED + g is 1 once GPU
 * g's copies cannot be trusted. Clients read the same page, so local/socket.c asserts that the protocol has the same
 * numbers. */
enum { PROGRESS_PAGE_SUMMED = 256, PROGRESS_PAGE_FAILED = 512 };

/* What a lease's copies are watched by: a page of an attachment's, registered with the GPUs. */
struct progress_page {
	struct extent page;
	uint64_t address[DEVICES_MAX]; /* on each GPU; 0: not registered */
	uint32_t next[DEVICES_MAX];    /* the word of GPU g has been promised this value */
	uint32_t fences;               /* in queues or under way */
	bool dead;                     /* its attachment is gone */
	struct progress_page *dead_next;
};

/* Without the lock: the GPUs' addresses of an extent of host memory, DEVICES_MAX of them, 0 where it cannot be
 * registered. */
void vram_register(struct cache *c, const struct extent *e, uint64_t *address);
void vram_unregister(struct cache *c, void *memory, const uint64_t *address);

/* ---- progress pages ---- */

/* Without the lock: makes one, registered with the GPUs. NULL: no memory. */
struct progress_page *progress_page_create(struct cache *c);
void progress_page_destroy(struct cache *c, struct progress_page *b);
/* With the lock: its attachment is gone; it is destroyed by the chores, when no fence names it any more. */
void progress_page_let_go(struct cache *c, struct progress_page *b);
/* With the lock: copies to that GPU that the progress page was to tell of will not come. Says so there, once and for
 * all, and lets streams that wait go on. */
void progress_page_fail(struct progress_page *b, const struct gpu *g);
/* The same of all that fences in the GPU's queue of ups, or under way, tell of: copies up have failed, so that no fence
 * behind them may be believed. Before the device goes on. */
void vram_fences_fail(struct gpu *g);
/* With the lock: leases may be granted ahead of their copies to that GPU. Not where these have failed once: who
 * looked would not believe it any more. */
bool progress_page_tells(const struct progress_page *b, const struct gpu *g);
/* Any thread: copies of layers of that GPU have come so far. */
bool progress_page_copied(const struct progress_page *b, const struct gpu *g, uint32_t value);
/* Any thread: so far have the checksums of copies to that GPU been looked at. Never back. */
void progress_page_summed(struct progress_page *b, const struct gpu *g, uint32_t value);

#endif
