/* The function that takes rows of Stats. A leaf: it needs nothing, and any part may use it. */
#ifndef TERRACE_DAEMON_BLOCK_STAT_ROW_H
#define TERRACE_DAEMON_BLOCK_STAT_ROW_H

#include <stdbool.h>

/* Takes a row of Stats: name ("terrace_lookup_keys_total"), and labels "tier=host" or "", several separated by commas.
 * In a label's value a backslash stands before a comma or a backslash that belongs to it. */
typedef void cache_stat_fn(void *arg, const char *name, const char *labels, double value, bool counter,
			   const char *help);

#endif
