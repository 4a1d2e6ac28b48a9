/* What `graph` knows of a node, for people. */
#ifndef TERRACE_EVICTION_GRAPH_EXPLAIN_H
#define TERRACE_EVICTION_GRAPH_EXPLAIN_H

#include "eviction/duel.h"
#include "eviction/memory.h"
#include "eviction/policy.h"

struct graph_seen {
	float worth;
	float cost;                  /* what a hit of the class saves, which is part of its worth; 0: all blocks cost the same */
	enum duel_row order_by;      /* what victims go by now */
	uint32_t pair;               /* ranks_pair() of the node */
	const struct record *record; /* NULL: nothing is remembered of it */
};

struct policy_explained graph_explained(const struct graph_seen *s);

#endif
