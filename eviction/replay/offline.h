/* `graph` with a model that is fitted offline: a bound for what its features can tell, which shows what the online
 * model misses. The trace is cut into OFFLINE_FOLDS parts of equally many requests. In each part the policy's
 * predictions come from trees (boost.h) that were fitted on other parts. All else (classes, worth, ranks, when it is
 * refreshed) is the policy's own.
 */
#ifndef TERRACE_EVICTION_REPLAY_OFFLINE_H
#define TERRACE_EVICTION_REPLAY_OFFLINE_H

#include "eviction/replay.h"

enum { OFFLINE_FOLDS = 5 };

enum offline_kind {
	OFFLINE_PAST,  /* fitted on what happened before the part; in the first one the online model serves */
	OFFLINE_CROSS, /* fitted on all that happened in the other parts, later ones too */
};

/* Otherwise as replay_run() of `graph`, but `prepare` of the options is not called. EXHAUSTED: no memory. INVALID: no
 * capacity. */
enum status offline_run(const struct trace *t, enum offline_kind kind, const struct replay_options *o,
			struct replay_result *out);

/* The time up to which the model of a part knows what became of an access at at_us; 0: it does not know of the access.
 * begins_us: the beginnings of the parts, and the time behind the end. */
uint64_t offline_known_until(enum offline_kind how, const uint64_t begins_us[OFFLINE_FOLDS + 1], uint32_t part, uint64_t at_us);

#endif
