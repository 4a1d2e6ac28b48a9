/* `graph`: evicts by expected reuse, by class of graph features, learned online. */
#ifndef TERRACE_EVICTION_GRAPH_H
#define TERRACE_EVICTION_GRAPH_H

#include "eviction/policy.h"
#include "eviction/survival.h"

extern const struct policy_ops policy_graph;

/* A model of reuse that replaces the policy's own. For a replay that asks what the policy would do with a better
 * one. */
struct graph_model {
	/* Called at every access to a block with an id, when the policy learns of the access. It gets the block's
	 * features (features.h) and the weight that the access has for learning. True: `out` is, for each bucket of
	 * age, the expected share that comes back in it, of those that reach it. False: the policy uses its own model.
	 * The own model learns in either case. */
	bool (*tell)(void *arg, uint64_t id, uint32_t features, float weight, uint64_t now_us, float out[SURVIVAL_BUCKETS]);
	void *arg;
};

/* Sets the model of a policy into which nothing was inserted yet. The model is copied; its arg stays the caller's and
 * outlives the policy. */
void graph_set_model(struct policy *p, const struct graph_model *m);

#endif
