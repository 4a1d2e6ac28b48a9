/* Saves what a policy has learned about a layout in the catalog, until a policy needs it again. */
#ifndef TERRACE_DAEMON_ADVICE_POLICY_STORE_H
#define TERRACE_DAEMON_ADVICE_POLICY_STORE_H

struct cache;
struct learner;

/* Before there are other threads: reads what earlier runs had learned, so that no thread waits for the catalog's disk
 * later. */
void policy_state_load(struct cache *c);
void policy_state_free(struct cache *c);
/* A listener of `policy_made` (block/observer.h): gives the policy what an earlier run had learned. Takes some ms. */
void policy_state_recall(struct cache *c, const struct learner *l);

#endif
