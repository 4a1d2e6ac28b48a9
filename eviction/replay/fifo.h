/* `fifo`: the oldest node goes first, however much it was used. A yardstick for the others. */
#ifndef TERRACE_EVICTION_REPLAY_FIFO_H
#define TERRACE_EVICTION_REPLAY_FIFO_H

#include "eviction/policy.h"

extern const struct policy_ops policy_fifo;

#endif
