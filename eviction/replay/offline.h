/* `graph` with a model fitted offline: a bound for what its features can tell, so that what the online model leaves lying is
 * seen. The trace is cut into OFFLINE_FOLDS parts of as many requests each; in each part the policy is told by trees (boost.h)
 * that were fitted on other parts. All else (classes, worth, ranks, when it is refreshed) is the policy's own.
 */
#ifndef TERRACE_EVICTION_REPLAY_OFFLINE_H
#define TERRACE_EVICTION_REPLAY_OFFLINE_H

#include "eviction/replay.h"

enum { OFFLINE_FOLDS = 5 };

enum offline_kind {
	OFFLINE_PAST,  /* fitted on what happened before the part; in the first one the online model serves */
	OFFLINE_CROSS, /* fitted on all that happened in the other parts, later ones too */
};

/* As replay_run() of `graph` otherwise; prepare of the options is not called. EXHAUSTED: no memory. INVALID: no capacity. */
enum status offline_run(const struct trace *t, enum offline_kind kind, const struct replay_options *o,
			struct replay_result *out);

/* Up to which time the model of a part knows what became of an access at at_us; 0: it does not know of the access. begins_us: of
 * the parts, and behind the end. */
uint64_t offline_known_until(enum offline_kind how, const uint64_t begins_us[OFFLINE_FOLDS + 1], uint32_t part, uint64_t at_us);

#endif
