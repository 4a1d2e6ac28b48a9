/* Puts into words for people what `graph` knows of a node. */
#ifndef TERRACE_EVICTION_GRAPH_EXPLAIN_H
#define TERRACE_EVICTION_GRAPH_EXPLAIN_H

#include "eviction/duel.h"
#include "eviction/memory.h"
#include "eviction/policy.h"

struct graph_seen {
	float worth;
	float cost;                  /* what a hit of the class saves, a factor of its worth; 0: all blocks cost the
				      * same */
	enum duel_row order_by;      /* the policy by which victims are chosen now */
	uint32_t pair;               /* ranks_pair() of the node */
	const struct record *record; /* NULL: the graph remembers nothing of the block */
};

struct policy_explained graph_explained(const struct graph_seen *s);

#endif
