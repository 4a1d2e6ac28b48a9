/* The table of eviction policies: a new policy is one file and one row here. */
#include "eviction/policy.h"

#include <string.h>

#include "eviction/fifo.h"
#include "eviction/lru.h"

const struct policy_ops *const policy_table[] = {
	&policy_lru,
	&policy_fifo,
	NULL,
};

const struct policy_ops *policy_find(const char *name)
{
	for (const struct policy_ops *const *row = policy_table; *row; row++)
		if (strcmp((*row)->name, name) == 0)
			return *row;
	return NULL;
}
