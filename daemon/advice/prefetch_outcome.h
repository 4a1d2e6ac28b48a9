/* What became of blocks that were brought somewhere ahead of their use: how much of what is wished for next is granted by that. Of one kind
 * of wish; with the cache's lock. */
#ifndef TERRACE_DAEMON_ADVICE_PREFETCH_OUTCOME_H
#define TERRACE_DAEMON_ADVICE_PREFETCH_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

enum {
	OUTCOME_MIN = 64,              /* blocks whose end is known, before it is judged */
	OUTCOME_MAX = 512,             /* then what came before counts half */
	OUTCOME_WASTED_SHARE = 4,      /* if more than one part of so many was wasted it is in doubt, */
	OUTCOME_GRANT_EVERY = 8,       /* and one wish of so many is granted */
};

struct prefetch_outcome {
	uint32_t open;                 /* blocks whose end is not known */
	uint32_t blocks, wasted, asked; /* whose end is known; of these; wishes since it is in doubt */
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

/* Blocks of the next wish, at most: all, or, if it is in doubt, `trial` or none. */
static inline uint32_t prefetch_outcome_grants(struct prefetch_outcome *t, uint32_t trial)
{
	if (t->blocks < OUTCOME_MIN || t->wasted * OUTCOME_WASTED_SHARE <= t->blocks)
		return UINT32_MAX;
	return t->asked++ % OUTCOME_GRANT_EVERY == 0 ? trial : 0;
}

/* Whether one of which an end is long in coming may have more blocks open: as many as were not wasted lately, and a few. */
static inline bool prefetch_outcome_is_good(const struct prefetch_outcome *t)
{
	return t->open < OUTCOME_MIN + t->blocks - t->wasted;
}

#endif
