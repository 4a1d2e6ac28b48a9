/* What became of blocks that were brought somewhere ahead of their use: how much of what is wished for next is granted by that. Of one kind
 * of wish; with the cache's lock. */
#ifndef TERRACE_DAEMON_ADVICE_PREFETCH_OUTCOME_H
#define TERRACE_DAEMON_ADVICE_PREFETCH_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

enum {
	TRIED_MIN = 64,                /* blocks whose end is known, before it is judged */
	TRIED_MAX = 512,               /* then what came before counts half */
	TRIED_WASTED_SHARE = 4,        /* if more than one part of so many was wasted it is in doubt, */
	TRIED_GRANT_EVERY = 8,         /* and one wish of so many is granted */
};

struct ahead_tried {
	uint32_t open;                 /* blocks whose end is not known */
	uint32_t blocks, wasted, asked; /* whose end is known; of these; wishes since it is in doubt */
};

static inline void tried_ended(struct ahead_tried *t, bool wasted)
{
	t->open--;
	t->blocks++;
	t->wasted += wasted;
	if (t->blocks >= TRIED_MAX) {
		t->blocks /= 2;
		t->wasted /= 2;
	}
}

/* Blocks of the next wish, at most: all, or, if it is in doubt, `trial` or none. */
static inline uint32_t tried_grants(struct ahead_tried *t, uint32_t trial)
{
	if (t->blocks < TRIED_MIN || t->wasted * TRIED_WASTED_SHARE <= t->blocks)
		return UINT32_MAX;
	return t->asked++ % TRIED_GRANT_EVERY == 0 ? trial : 0;
}

/* Whether one of which an end is long in coming may have more blocks open: as many as were not wasted lately, and a few. */
static inline bool tried_proves_itself(const struct ahead_tried *t)
{
	return t->open < TRIED_MIN + t->blocks - t->wasted;
}

#endif
