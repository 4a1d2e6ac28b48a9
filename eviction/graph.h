/* `graph`: expected reuse by class of graph features, learned online. */
#ifndef TERRACE_EVICTION_GRAPH_H
#define TERRACE_EVICTION_GRAPH_H

#include "eviction/policy.h"

extern const struct policy_ops policy_graph;

#endif
