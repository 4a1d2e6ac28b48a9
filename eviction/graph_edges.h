/* The graph in memory: blocks, those in the cache (live) and those that left it, and the relations between them. One
 * thread owns it (the advisor); other threads post to it through a mailbox (graph_mail.h). No I/O and no clock: time is
 * passed in, in microseconds, and never goes back. The same calls give the same graph.
 *
 * Edges are directed and typed. An edge's weight halves every half life and grows with each observation. Nodes and
 * edges are bounded. For a new node, one is dropped that is not live and was not touched for long; for a new edge the
 * weakest of a few. Nothing is allocated after create. A node takes 32 bytes and 4 to 8 of index, an edge 28 bytes.
 */
#ifndef TERRACE_EVICTION_GRAPH_EDGES_H
#define TERRACE_EVICTION_GRAPH_EDGES_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum edge_type {
	EDGE_PREFIX_SHARE, /* parent to child in a chain */
	EDGE_CO_ATTEND,    /* blocks leased together */
	EDGE_TEMPORAL,     /* the end of a session's request to the end of its next one */
	EDGE_SEMANTIC,     /* blocks with near sketches */
	EDGE_SPILL_LINK,   /* copies of a block in several tiers */
	EDGE_TYPES,
};

enum {
	EDGES_OF_NODE = 16,        /* edges from one node, at most; then the weakest is dropped */
	EDGES_ASKED_MAX = 64,      /* nodes of one graph_edges_near() */
};

#define EDGE_MASK(type) (1u << (type))
#define EDGE_MASK_ALL ((1u << EDGE_TYPES) - 1)

struct graph_edges;

struct graph_edges_options {
	uint32_t nodes_max, edges_max; /* at least 2 and 1, at most 2^28 */
	uint32_t sessions_max;         /* sessions remembered for temporal edges, a power of two */
	uint64_t half_life_us;         /* of weights, at least 1 ms */
};

/* A node, and an edge, as a catalog keeps them. */
struct graph_node_record {
	uint64_t id, touched_us;
	bool live;
	bool entered;              /* graph_edges_before() is 0 because of requests, not because it is unknown */
	bool forgot;               /* an id of its graph_edges_after(), or the edge to it, was dropped */
};

struct graph_edge_record {
	uint64_t from, to;
	uint64_t touched_us;
	float weight;              /* at touched_us */
	uint16_t sessions;         /* different sessions in a row that went over the edge, at most 65535 */
	uint8_t type;
};

struct graph_near {
	uint64_t id;
	float weight;
	bool live;
};

struct graph_edges_counts {
	uint32_t nodes, live, edges;
	uint64_t forgotten_nodes, forgotten_edges; /* dropped to make room for others */
};

/* NULL: no memory, or options out of range. */
struct graph_edges *graph_edges_create(const struct graph_edges_options *o);
void graph_edges_destroy(struct graph_edges *g);

/* Notes a request for a chain. ids: in the order of the chain, none 0. Adds an edge from each to the next
 * (prefix_share), and one from the end of the session's previous request to the last id (temporal). `goes_on`: the rest
 * of the chain follows in the next call, which begins with this one's last id. Session 0: not known. */
void graph_edges_request(struct graph_edges *g, uint64_t now_us, uint64_t session, const uint64_t *ids,
			 uint32_t count, bool goes_on);

/* Notes another relation between two different blocks, neither of them 0. Adds `weight` (finite, over 0) to the
 * edge. */
void graph_edges_pair(struct graph_edges *g, uint64_t now_us, enum edge_type type, uint64_t from, uint64_t to,
		      float weight);

/* Notes that the block came into the cache, or left it. A live node is dropped only if the search for a node to drop
 * meets no other. */
void graph_edges_live(struct graph_edges *g, uint64_t now_us, uint64_t id, bool live);
/* As graph_edges_live, but only if the block has a node: no node is made or touched. */
void graph_edges_mark(struct graph_edges *g, uint64_t id, bool live);

/* Finds the blocks to which edges of the types in `mask` lead from the given ids (the first EDGES_ASKED_MAX of them),
 * the given ids left out. They are sorted by the sum of the weights now, the greatest first, and of equals the lesser
 * id. Returns how many it wrote, at most `max`. */
uint32_t graph_edges_near(struct graph_edges *g, uint64_t now_us, const uint64_t *ids, uint32_t count,
			  uint32_t mask, struct graph_near *out, uint32_t max);

/* The id that is before `id` in its chains. 0: a chain begins with `id`, or several ids were before it (keys need not
 * be chained, and a request may be for the rest of a chain), or `id` is not known. */
uint64_t graph_edges_before(const struct graph_edges *g, uint64_t id);
/* The ids with which chains went on from `id`, and of which `id` is the graph_edges_before(). Returns their number.
 * *all: chains went on from `id` with these alone, since `id` is known. False: `id` is not known; or the graph dropped
 * another such id, or the edge to it; or chains went on with an id whose graph_edges_before() is 0. */
uint32_t graph_edges_after(const struct graph_edges *g, uint64_t id, uint64_t out[EDGES_OF_NODE], bool *all);

/* Walks for a catalog: *cursor is 0 at first; false at the end. A walk in parts, with changes in between, may miss what
 * moved, but returns nothing that does not exist. now_us: as in the calls above. */
bool graph_edges_next_node(const struct graph_edges *g, uint64_t now_us, uint32_t *cursor, struct graph_node_record *out);
bool graph_edges_next_edge(const struct graph_edges *g, uint64_t now_us, uint32_t *cursor, struct graph_edge_record *out);

/* Puts back what a walk returned, nodes first. INVALID: an id is 0, a type is unknown, a weight or a time is
 * impossible, or a node of the edge is missing; the graph is unchanged then, but that graph_edges_after() of the edge's
 * first node has not all. */
enum status graph_edges_put_node(struct graph_edges *g, uint64_t now_us, const struct graph_node_record *r);
enum status graph_edges_put_edge(struct graph_edges *g, uint64_t now_us, const struct graph_edge_record *r);

struct graph_edges_counts graph_edges_count(const struct graph_edges *g);

#endif
