/* Runs a policy over a trace, and the optimum over the same trace.
 *
 * A request hits the blocks before its first one that is not there. Then all its full blocks are made
 * present: those that are not are inserted, for which the policy gives up others; the blocks of the
 * request being served are pinned meanwhile. Where the policy refuses a block (admit), it and the rest
 * of its chain are not kept. What stands in chains behind a block that is given up is demoted until that block is back:
 * no request hits it.
 */
#ifndef TERRACE_EVICTION_REPLAY_H
#define TERRACE_EVICTION_REPLAY_H

#include "eviction/policy.h"
#include "eviction/trace.h"

struct replay_options {
	uint64_t capacity;  /* blocks, at least 1 */
	uint32_t growth;    /* recompute.h: by which costs are counted; 0: all tokens cost the same */
	uint32_t weigh;     /* the one that the policy is told of; 0: none */
	uint32_t from, to;  /* requests counted, [from, to); to 0: the end. The others are run all the same. */
	void (*prepare)(struct policy *p, void *arg); /* called with the new policy; NULL: nothing to do */
	void *prepare_arg;
};

struct replay_result {
	uint64_t requests, tokens, hit_tokens, blocks, hit_blocks;
	uint64_t evicted, refused; /* blocks */
	double cost, saved;        /* of all tokens, and of those that hit, in units of a first token's */
};

/* EXHAUSTED: no memory. INVALID: no capacity. */
enum status replay_run(const struct trace *t, const struct policy_ops *ops, const struct replay_options *o,
		       struct replay_result *out);

/* Belady's optimum: what is used furthest in the future goes first, the deepest of equals. With
 * `bypass` a block that is used later than all that is there is not kept. The bound is exact for single
 * blocks; the rule that only a prefix hits makes it a very good policy rather than a proof. */
enum status replay_opt(const struct trace *t, bool bypass, const struct replay_options *o,
		       struct replay_result *out);

/* Adds a request of which `hits` blocks hit; growth as in replay_options. */
void replay_count(struct replay_result *r, const struct trace *t, const struct trace_request *request,
		  uint32_t hits, uint32_t growth);

/* Shares in %, 0 when there was nothing. hit_tokens: full blocks' tokens that hit, of all prompt tokens; saved_cost: what it would cost to
 * compute those, of what it would cost to compute all. */
double replay_hit_tokens(const struct replay_result *r);
double replay_hit_blocks(const struct replay_result *r);
double replay_saved_cost(const struct replay_result *r);

#endif
