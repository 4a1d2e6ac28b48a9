/* Chooses the policy that the graph follows: its own, or a fixed one. For each choice a *shadow*, a small cache, is
 * simulated on the same share of all blocks, chosen by a hash of their ids, with the same share of the capacity. The
 * shadow with more hits of late decides. The graph's own policy is the default. A fixed policy replaces it while its
 * lead is larger than chance explains.
 *
 *     an access to one block in `every`  ──►  own  lru  s3fifo  sieve      each hits or misses, for itself
 *     once a request                     ──►  lead of each over each other, and its variance from request to request
 *
 * A shadow has 1024 blocks at most: 0.7 MiB in all. Nothing is allocated after duel_create(). One thread at a time.
 */
#ifndef TERRACE_EVICTION_DUEL_H
#define TERRACE_EVICTION_DUEL_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/policy.h"

enum duel_row { DUEL_OWN, DUEL_LRU, DUEL_S3FIFO, DUEL_SIEVE, DUEL_ROWS };

/* The standing of the policies. The sums are halved from time to time; those of hits cover all accesses that are
 * followed. */
struct duel_standing {
	float hits;                          /* hits of the graph's own shadow, each weighed by what it saves */
	float lead[DUEL_ROWS];               /* by how much a policy's hits exceed those of the graph's own */
	float variance[DUEL_ROWS][DUEL_ROWS]; /* of the lead of one over another */
	uint32_t events;                     /* accesses followed since the sums were halved */
};

struct duel;

/* Makes a duel for a cache of `capacity` blocks. own, own_policy: the graph's own policy for its shadow, and the
 * argument of its functions; both are the caller's. NULL: no memory. duel_destroy: NULL allowed. */
struct duel *duel_create(uint64_t capacity, const struct policy_ops *own, struct policy *own_policy);
void duel_destroy(struct duel *d);

/* The cache has room for `capacity` blocks now. What exceeds the capacity given to duel_create has no effect. */
void duel_resize(struct duel *d, uint64_t capacity);

/* The capacity of one shadow, in blocks. */
uint32_t duel_capacity(const struct duel *d);

/* Whether the shadows follow this block. */
bool duel_follows(const struct duel *d, uint64_t id);

/* Tells of an access to a block that is followed. cost: what a hit of it saves. live: the real cache has the block. All
 * accesses of one request have the same now_us; another request may have the same now_us too. */
void duel_access(struct duel *d, const struct policy_event *e, float cost, bool live);

/* Ends a request: later accesses belong to another request, even with the same now_us. */
void duel_request_end(struct duel *d);

/* Whether enough accesses have come since the last choice to make a new one. */
bool duel_is_due(const struct duel *d);

/* Chooses the policy to follow. now: the policy in force. rest: the default, unless another is better. sieve must also
 * hit in the real cache, not only in its shadow. Its hand in the real cache may be at a place where every new block is
 * evicted at once, and stay there while only new blocks come, while the shadow's hand is elsewhere. */
enum duel_row duel_choose(struct duel *d, enum duel_row now, enum duel_row rest);

const struct duel_standing *duel_standing(const struct duel *d);
void duel_set_standing(struct duel *d, const struct duel_standing *s);

#endif
