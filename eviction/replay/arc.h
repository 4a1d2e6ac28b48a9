/* `arc`: the adaptive replacement cache. */
#ifndef TERRACE_EVICTION_REPLAY_ARC_H
#define TERRACE_EVICTION_REPLAY_ARC_H

#include "eviction/policy.h"

extern const struct policy_ops policy_arc;

#endif
