/* The eviction log: copies that lately left a tier, and whether they were asked for soon after (a regret). With the
 * cache's lock. */
#ifndef TERRACE_DAEMON_ADVICE_EVICTION_LOG_H
#define TERRACE_DAEMON_ADVICE_EVICTION_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/stat_row.h"
#include "daemon/block/values.h"

struct cache;
struct policy_node;

/* A copy that left a tier. */
enum { EVICTION_LOG_SETS = 1 << 14, EVICTION_LOG_WAYS = 4, EVICTION_LOG_AGES = 8 };

struct eviction_log_entry {
	uint64_t id, when_us;          /* id 0: free */
	uint32_t idle_ms;              /* how long unused when it left; stays at its maximum */
	uint32_t uses;
	uint8_t reason;                /* enum eviction_reason */
	uint8_t tier;                  /* enum eviction_tier: whose copy it was */
	bool regretted;
};

_Static_assert(sizeof(struct eviction_log_entry) == 32, "two in a cache line");

/* Notes that a copy leaves its tier. n: its node there. The log keeps the last copy of a block that left memory or the
 * disks, and beside it the last that left a GPU. */
void eviction_log_note(struct cache *c, uint64_t id, const struct policy_node *n, enum eviction_tier tier,
		       enum eviction_reason reason);
/* A note about that id follows soon: prefetches its entry. */
void eviction_log_hint(const struct cache *c, uint64_t id, bool gpu);
/* Forgets the eviction of a block that is there again: on a GPU, or in memory or on a disk. */
void eviction_log_forget(struct cache *c, uint64_t id, bool gpu);
const struct eviction_log_entry *eviction_log_find(const struct cache *c, uint64_t id, bool gpu);
/* Counts a regret if the block, which a request wants, has just left memory or the disks; gpu: or a GPU. */
void eviction_log_asked(struct cache *c, uint64_t id, bool gpu);
const char *eviction_reason_word(enum eviction_reason r);
/* The rows of Stats; without the lock. */
void eviction_log_stats(struct cache *c, cache_stat_fn *emit, void *arg);

#endif
