/* Blocks in memory that have not earned their place yet: refused by admission, or loaded ahead of their use. They hang
 * in lists of their class by the links that the policy would use, and the policy does not know them. With the class's
 * lock. */
#ifndef TERRACE_DAEMON_MEMORY_PROBATION_H
#define TERRACE_DAEMON_MEMORY_PROBATION_H

#include <stdbool.h>

struct block;
struct cache;
struct memory_class;
struct policy_event;

/* What is to be read ahead: see advice/prefetch.c. */
enum prefetch_kind { PREFETCH_NO, PREFETCH_ASKED, PREFETCH_EXPECTED, PREFETCH_KINDS };

/* So long the use of a block is waited for that was loaded ahead. */
enum {
	PREFETCH_ASKED_US = 30 * 1000 * 1000, /* a request waits in its engine's queue no longer */
	PREFETCH_EXPECTED_US = 5 * 1000 * 1000,
};

/* The block, which is `refused`, has come to memory. */
void probation_not_admitted_enter(struct cache *c, struct block *b);
void probation_not_admitted_leave(struct block *b);
/* The block, which is `ahead`, has come to memory; it leaves the list when it is used, or goes. */
void probation_prefetch_enter(struct cache *c, struct block *b);
void probation_prefetch_leave(struct block *b);
/* The oldest block of the class that was loaded ahead and may leave memory: one whose use is not waited for any longer,
 * or any; NULL: none. */
struct block *probation_prefetch_victim(const struct cache *c, const struct memory_class *k, bool any);

#endif
