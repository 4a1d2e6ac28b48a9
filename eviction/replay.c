/* The replay of one policy on one node. */
#include "eviction/replay.h"

#include "eviction/recompute.h"
#include "eviction/replay_node.h"

void replay_count(struct replay_result *out, const struct trace *t, const struct trace_request *r,
		  uint32_t hits, uint32_t growth)
{
	out->requests++;
	out->tokens += r->tokens;
	out->blocks += r->count;
	out->hit_blocks += hits;
	out->hit_tokens += (uint64_t)hits * t->block_tokens;
	out->cost += recompute_cost_of_first(r->tokens, growth);
	out->saved += recompute_cost_of_first((double)hits * t->block_tokens, growth);
}

enum status replay_run(const struct trace *t, const struct policy_ops *ops, const struct replay_options *o,
		       struct replay_result *out)
{
	uint32_t to = o->to ? o->to : t->request_count;
	struct replay_result result = { 0 };
	struct replay_node node;
	enum status s;

	if (o->capacity == 0)
		return STATUS_INVALID;
	s = replay_node_open(&node, t, ops, o->capacity, o->weigh);
	if (!s && o->prepare)
		o->prepare(node.policy, o->prepare_arg);
	for (uint32_t i = 0; !s && i < t->request_count; i++) {
		const struct trace_request *r = &t->requests[i];

		if (i >= o->from && i < to)
			replay_count(&result, t, r, replay_node_prefix(&node, r), o->growth);
		replay_node_serve(&node, i);
	}
	result.evicted = node.evicted;
	result.refused = node.refused;
	replay_node_close(&node);
	if (!s)
		*out = result;
	return s;
}

double replay_hit_tokens(const struct replay_result *r)
{
	return r->tokens ? 100.0 * (double)r->hit_tokens / (double)r->tokens : 0;
}

double replay_hit_blocks(const struct replay_result *r)
{
	return r->blocks ? 100.0 * (double)r->hit_blocks / (double)r->blocks : 0;
}

double replay_saved_cost(const struct replay_result *r)
{
	return r->cost > 0 ? 100 * r->saved / r->cost : 0;
}
