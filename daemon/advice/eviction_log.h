/* What has lately left a tier, and whether it was asked for soon after (a regret). With the cache's lock. */
#ifndef TERRACE_DAEMON_ADVICE_EVICTION_LOG_H
#define TERRACE_DAEMON_ADVICE_EVICTION_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "daemon/block/values.h"

struct cache;
struct policy_node;

/* A copy that left a tier. */
enum { GONE_SETS = 1 << 14, GONE_WAYS = 4, GONE_AGES = 8 };

struct gone {
	uint64_t id, when_us;          /* id 0: free */
	uint32_t idle_ms;              /* since its last use, then; stays at its maximum */
	uint32_t uses;
	uint8_t reason;                /* enum gone_reason */
	uint8_t tier;                  /* enum gone_tier: whose copy it was */
	bool regretted;
};

_Static_assert(sizeof(struct gone) == 32, "two in a cache line");

/* A copy leaves its tier. n: its node there. The last one of memory and disks is remembered, and beside it the last one of GPUs. */
void gone_note(struct cache *c, uint64_t id, const struct policy_node *n, enum gone_tier tier, enum gone_reason reason);
/* Such a note is made soon. */
void gone_fetch(const struct cache *c, uint64_t id, bool gpu);
/* It is there again: on a GPU; in memory or on a disk. */
void gone_forget(struct cache *c, uint64_t id, bool gpu);
const struct gone *gone_find(const struct cache *c, uint64_t id, bool gpu);
/* A request wants it: whether it has just left is counted; gpu: off a GPU, too. */
void gone_asked(struct cache *c, uint64_t id, bool gpu);
const char *gone_word(enum gone_reason r);
/* The rows of Stats; without the lock. */
void gone_stats(struct cache *c, cache_stat_fn *emit, void *arg);

#endif
