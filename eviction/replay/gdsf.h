/* `gdsf`: Greedy-Dual-Size-Frequency. */
#ifndef TERRACE_EVICTION_REPLAY_GDSF_H
#define TERRACE_EVICTION_REPLAY_GDSF_H

#include "eviction/policy.h"

extern const struct policy_ops policy_gdsf;

#endif
