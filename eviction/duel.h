/* Which policy the graph goes by: its own, or a fixed one. Of each that may be chosen a small cache, its *shadow*, is followed on the same
 * share of all blocks, taken by a hash of their ids, with that share of the capacity. Which shadow has hit more of late decides: the graph's own
 * unless another is better by more than chance, and that one until it is no better.
 *
 *     an access to one block in `every`  ──►  own  lru  s3fifo  sieve      each hits or misses, for itself
 *     once a request                     ──►  lead of each over each other, and its variance from request to request
 *
 * Shadows have 1024 blocks at most: 0.7 MiB in all. Nothing is allocated after duel_create(). One thread at a time.
 */
#ifndef TERRACE_EVICTION_DUEL_H
#define TERRACE_EVICTION_DUEL_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/policy.h"

enum duel_row { DUEL_OWN, DUEL_LRU, DUEL_S3FIFO, DUEL_SIEVE, DUEL_ROWS };

/* How they stand. Sums are halved in time; those of hits count all accesses that are followed. */
struct duel_standing {
	float hits;                          /* of the graph's own, each as much as it saves */
	float lead[DUEL_ROWS];               /* hits more than the graph's own */
	float variance[DUEL_ROWS][DUEL_ROWS]; /* of the lead of one over another */
	uint32_t events;                     /* followed since the sums were halved */
};

struct duel;

/* For a cache of so many blocks. own: the row of the graph's own shadow and its policy, which is the caller's. NULL: no memory; destroy: NULL allowed. */
struct duel *duel_create(uint64_t capacity, const struct policy_ops *own, struct policy *own_policy);
void duel_destroy(struct duel *d);

/* The cache has room for so many now; of more than duel_create was told the rest counts for nothing. */
void duel_resize(struct duel *d, uint64_t capacity);

/* The capacity of a shadow. */
uint32_t duel_capacity(const struct duel *d);

/* Whether the block is one of those that are followed. */
bool duel_follows(const struct duel *d, uint64_t id);

/* An access to such a block, a hit of which saves so much; live: the cache itself has it. Those of one request have one time; two requests may have the
 * same. */
void duel_access(struct duel *d, const struct policy_event *e, float cost, bool live);

/* What comes is of another request than what was told so far, whatever its time. */
void duel_request_end(struct duel *d);

/* Whether so much has happened since the last choice that another is worth a look. */
bool duel_is_due(const struct duel *d);

/* What to go by now, of `now`: `rest` unless another is better. By sieve the cache must hit, too: its hand may stand where whatever is new goes at once,
 * and as long as nothing else is asked for it stays there, while the shadow's hand stands elsewhere. */
enum duel_row duel_choose(struct duel *d, enum duel_row now, enum duel_row rest);

const struct duel_standing *duel_standing(const struct duel *d);
void duel_set_standing(struct duel *d, const struct duel_standing *s);

#endif
