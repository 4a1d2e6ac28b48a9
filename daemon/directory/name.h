/* What the files of this folder name things by. */
#ifndef TERRACE_DAEMON_DIRECTORY_NAME_H
#define TERRACE_DAEMON_DIRECTORY_NAME_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "daemon/names/public_name.h"

enum { DIRECTORY_NODE_BYTES = 16, DIRECTORY_MEMBERS_MAX = 4096, DIRECTORY_HOLDERS_MAX = 4 };

/* One run of one daemon. A new epoch is another run, without what the earlier run had told or been told. */
struct directory_run {
	uint8_t node[DIRECTORY_NODE_BYTES];
	uint64_t epoch;
};

/* A member of the cluster, as the list of members has it (daemon/members). An `absent` member is one like the others
 * here: what it has told stays valid, and it stays an owner. What fails to answer is avoided (hints.h). */
struct directory_member {
	struct directory_run run;
	bool draining;               /* it owns no segment any more; what it has told stays valid */
};

/* A block that a holder has (or has no more), with the segment in which the block lies. */
struct directory_change {
	struct public_name name;
	uint64_t segment;            /* word[0] of the public name of the segment's first key */
	uint32_t tenant;
	bool remove;
};

static inline bool public_name_equal(const struct public_name *a, const struct public_name *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

static inline bool directory_run_equal(const struct directory_run *a, const struct directory_run *b)
{
	return a->epoch == b->epoch && !memcmp(a->node, b->node, sizeof a->node);
}

#endif
