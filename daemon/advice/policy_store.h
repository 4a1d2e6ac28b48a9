/* What a policy has learned about a layout, in the catalog, until it is needed again. */
#ifndef TERRACE_DAEMON_ADVICE_POLICY_STORE_H
#define TERRACE_DAEMON_ADVICE_POLICY_STORE_H

#include <stdint.h>

struct cache;
struct policy;
struct policy_ops;

/* Who keeps what it learns: whose and of what it is, as the catalog names it. */
struct learner {
	char whom;                     /* 'm' memory, 'd' disk, 'g' GPU, 'k' conversations */
	uint64_t where, what;
	const struct policy_ops *ops;  /* none of conversations */
	struct policy *policy;
};

/* Before there are other threads: reads what earlier runs had learned, so that nobody waits for the catalog's disk later. */
void learned_load(struct cache *c);
void learned_free(struct cache *c);
/* With the lock, of a policy that was just made: tells it what an earlier run had learned. Some ms. */
void learned_recall(struct cache *c, const struct learner *l);

#endif
