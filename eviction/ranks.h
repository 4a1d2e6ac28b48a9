/* Nodes in lines by class and age, and the order in which the pairs of class and age are evicted: by worth, or by age
 * alone. A victim is the front of the first pair that is not empty.
 */
#ifndef TERRACE_EVICTION_RANKS_H
#define TERRACE_EVICTION_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/lines.h"
#include "eviction/survival.h"

enum { RANKS_PAIRS = CLASSES * SURVIVAL_BUCKETS };

/* The order of the pairs, for the classes that ever had a block. */
struct ranks {
	uint16_t rank_of[RANKS_PAIRS], pair_at[RANKS_PAIRS];
	uint32_t count;
	bool by_age;
};

struct ranked {
	struct lines lines;
	const struct ranks *ranks;            /* the caller's; after a change of it: ranked_refill() */
	uint64_t filled[RANKS_PAIRS / 64];    /* a bit for each rank: the pair may have nodes */
};

static inline uint32_t ranks_pair(uint32_t class, uint32_t bucket)
{
	return class * SURVIVAL_BUCKETS + bucket;
}

static inline float ranks_worth(const struct survival *s, uint32_t pair)
{
	return s->worth[pair / SURVIVAL_BUCKETS][pair % SURVIVAL_BUCKETS];
}

/* Ranks all pairs of these classes; of equal ones the older goes first. */
void ranks_make(struct ranks *r, const struct survival *s, const uint16_t *classes, uint32_t count, bool by_age);

/* Takes memory for `capacity` nodes. False: no memory. ranked_fini accepts zeroed memory. */
bool ranked_init(struct ranked *r, uint64_t capacity, const struct ranks *ranks);
void ranked_fini(struct ranked *r);

/* Finds out anew which pairs have nodes, after lines_advance() or when the ranks have changed. */
void ranked_refill(struct ranked *r);

/* The node's pair at the last lines_advance(). */
uint32_t ranked_pair(const struct ranked *r, const struct policy_node *n);

/* As lines_push() and lines_insert(). */
void ranked_push(struct ranked *r, struct policy_node *n, uint32_t class);
void ranked_insert(struct ranked *r, struct policy_node *n, uint32_t class, uint64_t used_us);

/* policy_ops.walk. A node pushed since the last lines_advance() counts as of its time. */
void ranked_walk(struct ranked *r, const struct survival *s, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max);

/* policy_ops.victim. */
struct policy_node *ranked_victim(struct ranked *r, const struct survival *s, bool (*may)(const struct policy_node *, void *), void *arg,
				  uint32_t scan_max);

#endif
