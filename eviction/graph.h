/* `graph`: expected reuse by class of graph features, learned online. */
#ifndef TERRACE_EVICTION_GRAPH_H
#define TERRACE_EVICTION_GRAPH_H

#include "eviction/policy.h"
#include "eviction/survival.h"

extern const struct policy_ops policy_graph;

/* A model of reuse from elsewhere: for a replay that asks what the policy would do with a better one. */
struct graph_model {
	/* Told of every access to a block that has an id, when the policy learns of it: its features (features.h), and the weight
	 * of what it tells. True: out is the share expected to come back in each bucket of age, of those that reach it; false: the policy's own
	 * model says. That one learns all the same. */
	bool (*tell)(void *arg, uint64_t id, uint32_t features, float weight, uint64_t now_us, float out[SURVIVAL_BUCKETS]);
	void *arg;
};

/* Of a policy that nothing was inserted in yet; the model is copied, its arg is the caller's and outlives the policy. */
void graph_set_model(struct policy *p, const struct graph_model *m);

#endif
