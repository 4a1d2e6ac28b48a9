/* Blocks in memory that are on probation: not admitted by the policy, or prefetched and not used yet. They are in lists
 * of their class, which use the policy's links; the policy does not know them. With the class's lock. */
#ifndef TERRACE_DAEMON_MEMORY_PROBATION_H
#define TERRACE_DAEMON_MEMORY_PROBATION_H

#include <stdbool.h>

struct block;
struct cache;
struct memory_class;
struct policy_event;

/* Why a block is prefetched: see advice/prefetch.c. */
enum prefetch_kind { PREFETCH_NO, PREFETCH_ASKED, PREFETCH_EXPECTED, PREFETCH_KINDS };

/* How long a prefetched block may wait for its use. */
enum {
	PREFETCH_ASKED_US = 30 * 1000 * 1000, /* no request waits longer in its engine's queue */
	PREFETCH_EXPECTED_US = 5 * 1000 * 1000,
};

/* The block, which is `not_admitted`, has come to memory. */
void probation_not_admitted_enter(struct cache *c, struct block *b);
void probation_not_admitted_leave(struct block *b);
/* The block, which is `prefetched`, has come to memory. It leaves the list when it is used or evicted. */
void probation_prefetch_enter(struct cache *c, struct block *b);
void probation_prefetch_leave(struct block *b);
/* The oldest evictable prefetched block of the class: one that has waited too long for its use, or with `any` any of
 * them. NULL: none. */
struct block *probation_prefetch_victim(const struct cache *c, const struct memory_class *k, bool any);

#endif
