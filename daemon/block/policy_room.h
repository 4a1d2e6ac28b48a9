/* Tells a policy what room its nodes have. */
#ifndef TERRACE_DAEMON_BLOCK_POLICY_ROOM_H
#define TERRACE_DAEMON_BLOCK_POLICY_ROOM_H

#include <stdint.h>

#include "eviction/policy.h"

/* Tells the policy its room, but only if the room differs from *told by an eighth. */
static inline void room_tell(const struct policy_ops *ops, struct policy *policy, uint64_t slots, uint64_t *told)
{
	const uint64_t change = slots > *told ? slots - *told : *told - slots;

	if (!ops->resize || change <= *told / 8)
		return;
	ops->resize(policy, slots);
	*told = slots;
}

#endif
