/* How prefetches of one kind of wish ended, and how many of the next wishes are granted by that. With the cache's
 * lock. */
#ifndef TERRACE_DAEMON_ADVICE_PREFETCH_OUTCOME_H
#define TERRACE_DAEMON_ADVICE_PREFETCH_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

enum {
	OUTCOME_MIN = 64,              /* ended prefetches, before the kind is judged */
	OUTCOME_MAX = 512,             /* after so many, earlier ones count half */
	OUTCOME_WASTED_SHARE = 4,      /* if more than one in so many was wasted, the kind is in doubt, */
	OUTCOME_GRANT_EVERY = 8,       /* and one wish of so many is granted */
};

struct prefetch_outcome {
	uint32_t open;                 /* prefetches that have not ended */
	/* prefetches that have ended; the wasted of these; wishes since it is in doubt */
	uint32_t blocks, wasted, asked;
};

static inline void prefetch_outcome_ended(struct prefetch_outcome *t, bool wasted)
{
	t->open--;
	t->blocks++;
	t->wasted += wasted;
	if (t->blocks >= OUTCOME_MAX) {
		t->blocks /= 2;
		t->wasted /= 2;
	}
}

/* How many blocks of the next wish may be prefetched: all, or, if the kind is in doubt, `trial` or none. */
static inline uint32_t prefetch_outcome_grants(struct prefetch_outcome *t, uint32_t trial)
{
	if (t->blocks < OUTCOME_MIN || t->wasted * OUTCOME_WASTED_SHARE <= t->blocks)
		return UINT32_MAX;
	return t->asked++ % OUTCOME_GRANT_EVERY == 0 ? trial : 0;
}

/* Whether a kind whose prefetches take long to end may have more of them open: as many as were not wasted lately, and a
 * few. */
static inline bool prefetch_outcome_is_good(const struct prefetch_outcome *t)
{
	return t->open < OUTCOME_MIN + t->blocks - t->wasted;
}

#endif
