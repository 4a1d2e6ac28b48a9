/* The runs of terrace-replay --nodes, and their figures. */
#ifndef TERRACE_EVICTION_REPLAY_NODES_REPORT_H
#define TERRACE_EVICTION_REPLAY_NODES_REPORT_H

#include "eviction/replay/options.h"
#include "eviction/trace.h"

/* Runs each policy at each size, and prints or writes what the options want. Returns the exit status. */
int nodes_report(const struct trace *t, const struct options *o);

#endif
