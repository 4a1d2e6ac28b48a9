/* `sieve`: SIEVE. */
#ifndef TERRACE_EVICTION_SIEVE_H
#define TERRACE_EVICTION_SIEVE_H

#include "eviction/policy.h"

extern const struct policy_ops policy_sieve;

#endif
