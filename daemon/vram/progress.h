/* The progress page: a shared page by which streams wait for layers. */
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

/* The progress page of an attachment, registered with the GPUs. */
struct progress_page {
	struct extent page;
	uint64_t address[DEVICES_MAX]; /* on each GPU; 0: not registered */
	uint32_t next[DEVICES_MAX];    /* the value that the word of GPU g will reach */
	uint32_t fences;               /* in queues or under way */
	bool dead;                     /* its attachment has ended */
	struct progress_page *dead_next;
};

/* Without the lock: the GPUs' addresses of an extent of host memory, DEVICES_MAX of them, 0 where it cannot be
 * registered. */
void vram_register(struct cache *c, const struct extent *e, uint64_t *address);
void vram_unregister(struct cache *c, void *memory, const uint64_t *address);

/* ---- progress pages ---- */

/* Without the lock: makes a page, registered with the GPUs. NULL: no memory. */
struct progress_page *progress_page_create(struct cache *c);
void progress_page_destroy(struct cache *c, struct progress_page *b);
/* With the lock: its attachment has ended; the chores destroy the page when no fence names it any more. */
void progress_page_let_go(struct cache *c, struct progress_page *b);
/* With the lock: copies to that GPU that the page was to report have failed. Notes that on the page for good, and lets
 * waiting streams go on. */
void progress_page_fail(struct progress_page *b, const struct gpu *g);
/* Calls progress_page_fail for the page of each fence in the GPU's upload queue or under way: uploads have failed, so
 * that no fence behind them can be trusted. Called before the device goes on. */
void vram_fences_fail(struct gpu *g);
/* With the lock: whether leases may be granted before their copies to that GPU are done. Not after such copies have
 * failed once, as clients do not trust that word any more. */
bool progress_page_tells(const struct progress_page *b, const struct gpu *g);
/* Any thread: whether the copies of layers to that GPU have reached this value. */
bool progress_page_copied(const struct progress_page *b, const struct gpu *g, uint32_t value);
/* Notes that the checksums of copies to that GPU have been verified up to this value, which never falls. Any thread. */
void progress_page_summed(struct progress_page *b, const struct gpu *g, uint32_t value);

#endif
