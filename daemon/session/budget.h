/* What a session may have of memory, GPUs and disks: the bytes that leases may pin, and whether a tier can ever hold a
 * block of a layout.
 *
 * A block lies in one extent of host memory or of a GPU, and in one slab of a disk. The bytes that leases and
 * reservations hold of host memory or of a GPU have a bound, and one block must be within it. A layout whose block is
 * too large for host memory is refused when its session opens, since every block passes through host memory. A GPU or a
 * disk that is too small for a block is only unusable for that session: the session is told when it opens, and calls
 * that name such a GPU are refused.
 */
#ifndef TERRACE_DAEMON_SESSION_BUDGET_H
#define TERRACE_DAEMON_SESSION_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum { PINS_WISHES = 2 };

struct cache;
struct gpu;
struct kv_layout;
struct layout_pool;
struct quota_wish;
struct session;
struct tenant;

/* Bytes that may still be pinned: in memory; on that GPU. */
uint64_t pins_free(const struct cache *c, const struct tenant *t);
/* What to ask a holder's quota for such pins: writes it to w[PINS_WISHES]; gpu NULL: in memory alone. Returns how
 * many. */
uint32_t pins_wish(const struct cache *c, const struct tenant *t, uint64_t bytes, const struct gpu *g,
		   uint64_t gpu_bytes, struct quota_wish *w);
/* Whether so many bytes more may be pinned for the session's holder in memory, and on that GPU (NULL: on none): OK, or
 * EXHAUSTED and why. */
enum status pins_ask(struct cache *c, const struct session *s, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes, const char **why);

/* The first layout whose block can never lie in host memory: false, and *why is a sentence with the layout's number,
 * the cause and the option to raise, good until the thread's next call here. */
bool fit_host(const struct cache *c, const struct kv_layout *layouts, uint32_t count, const char **why);
/* The first layout whose block can never lie on that GPU: false, and *why says so as fit_host does. A GPU that could
 * not be opened has no bound. With the lock or without. */
bool fit_gpu(const struct cache *c, const struct gpu *g, struct layout_pool *const *pools, uint32_t count,
	     const char **why);

/* A GPU or a disk on which no block of some layout of a session can lie. */
struct cache_unfit {
	int32_t gpu, disk;             /* -1: it is the other */
	const char *why;               /* as fit_host's; valid during the call */
};
/* Calls tell for each of an open session's, GPUs by their numbers first, then disks. Tiers that could not be opened are
 * skipped. Without the lock. */
void cache_unfit(struct cache *c, uint64_t session, void (*tell)(void *arg, const struct cache_unfit *u), void *arg);

#endif
