/* The blocks of one node while a trace is replayed: the room that it has, and the policy that decides what leaves.
 *
 * replay_run() has one of them, a replay of several nodes (eviction/replay/nodes.h) has one a node. One thread. */
#ifndef TERRACE_EVICTION_REPLAY_NODE_H
#define TERRACE_EVICTION_REPLAY_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/policy.h"
#include "eviction/trace.h"
#include "store/status.h"

struct replay_cell;

struct replay_node {
	const struct trace *trace;
	const struct policy_ops *ops;
	struct policy *policy;
	struct replay_cell *cells; /* [unique] */
	uint64_t *ids;             /* of the request */
	uint32_t *behind;          /* blocks that a walk has found */
	uint64_t capacity, used;   /* blocks */
	uint32_t stamp;            /* number + 1 of the request that is served */
	uint64_t evicted, refused; /* blocks, since open */
	/* A block has left. NULL: nothing is told. */
	void (*left)(void *arg, uint32_t block);
	void *left_arg;
};

/* capacity: at least 1. weigh: the growth that the policy is told (recompute.h); 0: none. EXHAUSTED: no memory. Needs
 * replay_node_close in any case. */
enum status replay_node_open(struct replay_node *p, const struct trace *t, const struct policy_ops *ops,
			     uint64_t capacity, uint32_t weigh);
/* Accepts zeroed memory. */
void replay_node_close(struct replay_node *p);

bool replay_node_has(const struct replay_node *p, uint32_t block);
/* The blocks of the request before its first missing one. */
uint32_t replay_node_prefix(const struct replay_node *p, const struct trace_request *r);
/* Tells the policy of a use of a block that is present, of no request. */
void replay_node_use(struct replay_node *p, uint32_t block, uint32_t position, uint64_t now_us);
/* Serves the request of that number in the trace: makes its blocks present, as eviction/replay.h says, or reports its
 * chain to the policy. Times never go back. */
void replay_node_serve(struct replay_node *p, uint32_t number);

#endif
