/* The policies that a replay may name: those of the daemon (eviction/policy.h), and yardsticks to compare them with. */
#ifndef TERRACE_EVICTION_REPLAY_POLICIES_H
#define TERRACE_EVICTION_REPLAY_POLICIES_H

#include "eviction/policy.h"

/* Ended by a NULL. */
extern const struct policy_ops *const replay_policy_table[];
/* A row by name, or NULL. Any thread. */
const struct policy_ops *replay_policy_find(const char *name);

#endif
