/* The table of eviction policies: a new policy is one file and one row here. Policies that only a replay needs, as
 * yardsticks, have their table in replay/policies.c.
 */
#include "eviction/policy.h"

#include <string.h>

#include "eviction/graph.h"
#include "eviction/lru.h"
#include "eviction/s3fifo.h"
#include "eviction/sieve.h"

const struct policy_ops *const policy_table[] = {
	&policy_lru,
	&policy_s3fifo,
	&policy_sieve,
	&policy_graph,
	NULL,
};

const struct policy_ops *policy_find(const char *name)
{
	for (const struct policy_ops *const *row = policy_table; *row; row++)
		if (strcmp((*row)->name, name) == 0)
			return *row;
	return NULL;
}

void policy_look(const struct policy_ops *ops, struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	if (!ops->walk || !ops->walk(p, visit, arg, max))
		ops->victim(p, visit, arg, max);
}

struct policy *policy_create(const struct policy_ops *ops, uint64_t capacity, uint32_t growth)
{
	struct policy *p = ops->create(capacity);

	if (p && growth && ops->weigh)
		ops->weigh(p, growth);
	return p;
}
