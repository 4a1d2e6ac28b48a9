/* What Lease and Warm have in common: finding blocks, the longest prefix, and bringing its blocks to where the call
 * wants them. For call/lease.c, call/warm.c and call/bring.c. All with the lock. */
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
	bool ahead;                    /* what other members have is to come also if the call does not wait for it */
	bool local;                    /* nothing is to come from other members */
	uint32_t tokens_a_second;      /* that the session's engine computes; 0: not known */
	bool deferred;                 /* deferred_notify tells the policies later */
	/* all of its blocks, or they are to be pinned where they are leased: lease_pin */
	bool pinned;
	uint32_t prefetched;           /* how many keys bring_prefetch has begun copies for; */
	bool coming;                   /* the GPU's submission thread knows that more copies of these follow */
};

/* ---- call/lease.c ---- */

/* The number of keys of the longest prefix of the first `keys`. l->block holds what was found, [key][layout]. Dead
 * blocks become NULL there; so do blocks that are on disk only, unless `wait`. In a read section. */
uint32_t admit_prefix(const struct admission *a, uint32_t keys, bool wait, struct lease *l);
/* Keeps only what a lease of the first n keys uses. Returns the bytes that pinning it would add in memory, and sets
 * *gpu_bytes to those on the GPU. */
uint64_t admit_trim(const struct admission *a, uint32_t n, struct lease *l, uint64_t *gpu_bytes);
/* Where the call wants the blocks. INVALID: there is no such GPU, or it can never hold a block of the session
 * (session/budget.h). UNAVAILABLE: the GPU is lost. */
enum status admit_want(struct admission *admission, const struct cache_on *on, const char **why);

/* ---- call/bring.c: [n][a->layouts] blocks, NULL where none is needed ---- */

/* Begins the transfers that bring the blocks to their places, for the call's wait. wait_end: the call waits until the
 * copies are there, and not only for their places. False: all blocks have their places. */
bool bring_begin(struct admission *a, uint32_t n, struct block **block, enum ring_priority priority, bool wait_end);
/* Begins the transfers for the first n keys of a call that waits for the end and has not yet searched its other keys.
 * It begins only if all that these keys need is copies, which can begin at once; bring_begin skips these keys later.
 * False: it did not begin, since more is needed or the prefix ends among these keys. */
bool bring_prefetch(struct admission *a, uint32_t n, struct lease *l);
/* Without waiting: how many of the first n keys have their place, or could be given one. */
uint32_t bring_now(struct admission *a, uint32_t n, struct block *const *block);

#endif
