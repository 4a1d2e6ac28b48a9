/* The replay's table of policies. */
#include "eviction/replay/policies.h"

#include <string.h>

#include "eviction/graph.h"
#include "eviction/lru.h"
#include "eviction/replay/arc.h"
#include "eviction/replay/fifo.h"
#include "eviction/replay/gdsf.h"
#include "eviction/s3fifo.h"
#include "eviction/sieve.h"

const struct policy_ops *const replay_policy_table[] = {
	&policy_lru,
	&policy_fifo,
	&policy_s3fifo,
	&policy_sieve,
	&policy_arc,
	&policy_gdsf,
	&policy_graph,
	NULL,
};

const struct policy_ops *replay_policy_find(const char *name)
{
	for (const struct policy_ops *const *row = replay_policy_table; *row; row++)
		if (strcmp((*row)->name, name) == 0)
			return *row;
	return NULL;
}
