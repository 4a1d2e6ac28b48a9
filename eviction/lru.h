/* `lru`: the least recently used node goes first. */
#ifndef TERRACE_EVICTION_LRU_H
#define TERRACE_EVICTION_LRU_H

#include "eviction/policy.h"

extern const struct policy_ops policy_lru;

#endif
