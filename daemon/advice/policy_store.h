/* What a policy has learned about a layout, in the catalog, until it is needed again. */
#ifndef TERRACE_DAEMON_ADVICE_POLICY_STORE_H
#define TERRACE_DAEMON_ADVICE_POLICY_STORE_H

struct cache;
struct learner;

/* Before there are other threads: reads what earlier runs had learned, so that nobody waits for the catalog's disk later. */
void policy_state_load(struct cache *c);
void policy_state_free(struct cache *c);
/* Listens to `policy_made` (block/observer.h): tells the policy what an earlier run had learned. Some ms. */
void policy_state_recall(struct cache *c, const struct learner *l);

#endif
