/* Several nodes that serve one trace: what each hits alone, what its peers add, and what they add if they also take
 * what it drops.
 *
 * Each node has its own memory and its own policy (eviction/replay_node.h). A request is served by one node. With
 * peers a node fetches the blocks that it lacks by the rules of the daemon's directory:
 *
 * - Told are the blocks at every told_every-th position of a chain, told_age_us after they were stored, or at once when
 *   a request hits them. Those that are about to leave (eviction/departures.h) are taken back, until they are hit.
 * - Asked for are told positions behind the local prefix. The holders of the deepest one are asked first, at most
 *   NODES_HOLDERS of them, each for all that is still missing.
 * - What makes the prefix longer is fetched, and is then stored like a computed block. With sent_is_use the sender's
 *   policy hears of a use of each block, the chain's first one first.
 *
 * With spill a block that leaves a node goes to the peer with the most free room, unless another node has it. It never
 * takes the place of a block that a request has stored there, but may take that of the one that was spilled first.
 * Spilled blocks leave before all others, and leave the peer when they are fetched back.
 *
 * The model leaves out what takes time: a request, a fetch and a message take none (the daemon tells changes in batches
 * of up to a second), no message is lost, and a node fetches even where computing would be quicker.
 */
#ifndef TERRACE_EVICTION_REPLAY_NODES_H
#define TERRACE_EVICTION_REPLAY_NODES_H

#include "eviction/replay.h"

enum {
	NODES_MAX = 16,
	NODES_HOLDERS = 4,                       /* as the daemon asks (daemon/peers/source.c) */
	NODES_TOLD_EVERY = 16,                   /* of the daemon's blocks (daemon/exports/exports.h) */
	NODES_TOLD_AGE_US = 10 * 1000 * 1000,
};

enum nodes_mode { NODES_LONE, NODES_PEERS, NODES_SPILL };

struct nodes_spread {
	uint32_t nodes;              /* 1 .. NODES_MAX */
	uint32_t load[NODES_MAX];    /* shares of the sessions; not all 0 */
	uint64_t seed;
	bool by_request;             /* each request on its own, as a router does that knows no sessions */
};

/* Says which node serves each request: node_of[request_count]. A session stays on its node, which is drawn with its
 * share of the load. Where the trace does not name sessions, a request goes on with the session of the request whose
 * whole chain, of two blocks at least, it begins with: the longest such chain, unless another request has gone on from
 * there. Any other request begins a session. *sessions: how many there are. EXHAUSTED: no memory. */
enum status nodes_spread(const struct trace *t, const struct nodes_spread *s, uint8_t *node_of, uint32_t *sessions);

/* Counts the blocks that each node's requests hold, each once a node. EXHAUSTED: no memory. */
enum status nodes_unique(const struct trace *t, const uint8_t *node_of, uint64_t unique[NODES_MAX]);

struct nodes_options {
	uint32_t nodes;
	uint64_t capacity[NODES_MAX]; /* blocks, of each at least 1 */
	enum nodes_mode mode;
	uint32_t told_every;         /* at least 1 */
	uint64_t told_age_us;
	bool sent_is_use;            /* as the daemon has it */
	uint32_t growth, weigh;      /* as in struct replay_options */
};

struct nodes_result {
	struct replay_result all;    /* its hits are local or fetched */
	uint64_t fetched, spilled;   /* blocks that went over the wire */
};

/* EXHAUSTED: no memory. INVALID: no nodes, or one without capacity. */
enum status nodes_run(const struct trace *t, const uint8_t *node_of, const struct policy_ops *ops,
		      const struct nodes_options *o, struct nodes_result *out);

#endif
