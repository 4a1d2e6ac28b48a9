/* The command line of terrace-replay. */
#ifndef TERRACE_EVICTION_REPLAY_OPTIONS_H
#define TERRACE_EVICTION_REPLAY_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "eviction/replay/nodes.h"

/* Policies that are a replay's only. */
#define OPTIONS_OFFLINE_PAST "offline-past"
#define OPTIONS_OFFLINE_CROSS "offline-cross"

enum { OPTIONS_FOLDS_MAX = 100, OPTIONS_POLICIES_MAX = 16, OPTIONS_SIZES_MAX = 32, OPTIONS_NAME_MAX = 16 };

struct options {
	const char *trace, *csv, *svg;
	char policies[OPTIONS_POLICIES_MAX][OPTIONS_NAME_MAX];
	double sizes[OPTIONS_SIZES_MAX];   /* shares of the trace's unique blocks, above 0, at most 1 */
	uint32_t policy_count, size_count;
	double recall, false_rate;         /* both 0: no hints */
	double from, to;                   /* shares of the trace's requests that are counted */
	uint32_t growth, weigh;            /* as in struct replay_options */
	uint32_t folds;                    /* parts of the trace in time that are counted one by one; 0: as from and to
					    * say */
	bool hint, json, help;
	struct nodes_spread spread;        /* nodes 0: one cache, and what follows is not read */
	uint32_t loads;                    /* that --load names */
	uint32_t told_every;
	double token_bytes;                /* on the wire */
	bool sent_is_none;                 /* a block that is sent is not used */
	bool own_room;                     /* sizes are shares of each node's own blocks */
	bool offline;                      /* what an offline model gains, and what that is compared with */
};

/* Reads the arguments. False: *why says what is wrong, with the argument in it. */
bool options_parse(int argc, char **argv, struct options *out, char *why, size_t why_bytes);

/* The text that --help prints. */
const char *options_usage(void);

#endif
