/* Runs a policy over a trace, and the optimum over the same trace.
 *
 * A request hits the blocks before its first missing one. Then all its full blocks are made present: the missing ones
 * are inserted, for which the policy evicts others. The blocks of the request that is served are pinned meanwhile.
 * Where the policy refuses a block (admit), that block and the rest of its chain are not kept. Blocks behind an evicted
 * block in its chains are demoted until that block is back: no request hits them.
 */
#ifndef TERRACE_EVICTION_REPLAY_H
#define TERRACE_EVICTION_REPLAY_H

#include "eviction/policy.h"
#include "eviction/trace.h"

struct replay_options {
	uint64_t capacity;  /* blocks, at least 1 */
	uint32_t growth;    /* recompute.h: the growth for counting costs; 0: all tokens cost the same */
	uint32_t weigh;     /* the growth that the policy is told; 0: none */
	uint32_t from, to;  /* requests counted, [from, to); to 0: the end. Requests outside are run, not counted */
	void (*prepare)(struct policy *p, void *arg); /* called with the new policy; NULL: nothing to do */
	void *prepare_arg;
};

struct replay_result {
	uint64_t requests, tokens, hit_tokens, blocks, hit_blocks;
	uint64_t evicted, refused; /* blocks */
	double cost, saved;        /* of all tokens, and of those that hit, in units of a first token's cost */
};

/* EXHAUSTED: no memory. INVALID: no capacity. */
enum status replay_run(const struct trace *t, const struct policy_ops *ops, const struct replay_options *o,
		       struct replay_result *out);

/* Belady's optimum: the block whose next use is furthest away is evicted, and of equal ones the deepest. With `bypass`
 * a block whose next use is later than that of all present blocks is not kept. The bound is exact for single blocks.
 * Since only a prefix hits, it is a very good policy here rather than a proven bound. */
enum status replay_opt(const struct trace *t, bool bypass, const struct replay_options *o,
		       struct replay_result *out);

/* Adds a request, of which the first `hits` blocks hit; growth as in replay_options. */
void replay_count(struct replay_result *r, const struct trace *t, const struct trace_request *request,
		  uint32_t hits, uint32_t growth);

/* Shares in %, 0 when there was nothing. hit_tokens: tokens of full blocks that hit, of all prompt tokens. saved_cost:
 * the cost to compute those, of the cost to compute all. */
double replay_hit_tokens(const struct replay_result *r);
double replay_hit_blocks(const struct replay_result *r);
double replay_saved_cost(const struct replay_result *r);

#endif
