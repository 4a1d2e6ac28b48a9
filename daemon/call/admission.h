/* What a Lease and a Warm have in common: what is found, of which the longest prefix counts, and what brings it to where it is wanted. For
 * call/lease.c, call/warm.c and call/bring.c. All with the lock. */
#ifndef TERRACE_DAEMON_CALL_ADMISSION_H
#define TERRACE_DAEMON_CALL_ADMISSION_H

#include "daemon/vram/placement.h"
#include "store/ring/ring.h"
#include "store/status.h"

struct cache_on;
struct lease;

/* One Lease, or Warm. */
struct admission {
	struct cache *cache;
	struct layout_pool *const *pools;
	uint32_t layouts;
	const struct cache_keys *keys;
	struct vram_want want;
	struct cache_wait *wait;
	bool all;                      /* all keys or none */
	bool deferred;                 /* the policies are told by deferred_notify */
	bool pinned;                   /* all of its blocks, to be pinned where they are leased: lease_pin */
	uint32_t prefetched;           /* keys whose copies bring_prefetch has begun, */
	bool coming;                   /* and of which the GPU's submission thread knows that more comes */
};

/* ---- call/lease.c ---- */

/* l->block holds what was found, [key][layout]; those that have ended become NULL, and so do those that are on disk only unless
 * they may be waited for. The keys of the longest prefix of the first `keys`. In a read section. */
uint32_t admit_prefix(const struct admission *a, uint32_t keys, bool wait, struct lease *l);
/* Leaves only what a lease of the first n keys uses; the bytes that pinning it would add in memory, and on the GPU. */
uint64_t admit_trim(const struct admission *a, uint32_t n, struct lease *l, uint64_t *gpu_bytes);
/* Where the call wants them. INVALID: there is no such GPU, or it can never have a block of the session's
 * (session/budget.h). UNAVAILABLE: it is lost. */
enum status admit_want(struct admission *admission, const struct cache_on *on, const char **why);

/* ---- call/bring.c: [n][a->layouts] blocks, NULL for those that nobody needs ---- */

/* Begins what brings them to their places, in the name of the call's wait; wait_end: it waits until they are there, and not for their places alone.
 * False: all have theirs. */
bool bring_begin(struct admission *a, uint32_t n, struct block **block, enum ring_priority priority, bool wait_end);
/* The same of the first n keys of a call that waits for the end and has not looked for its others yet: if all that they need is copies, which begin at
 * once. bring_begin leaves them out from then on. False: it is not, or the prefix ends among them; nothing has begun. */
bool bring_prefetch(struct admission *a, uint32_t n, struct lease *l);
/* Without waiting: how many of the first n keys have their place, or could be given it. */
uint32_t bring_now(struct admission *a, uint32_t n, struct block *const *block);

#endif
