/* The graph in memory: blocks, live and gone, and what ties them together. One thread owns it (the advisor);
 * the others tell it through a mailbox (graph_mail.h). No I/O and no clock: time is passed in, in
 * microseconds, never going back. The same calls give the same graph.
 *
 * Edges are directed and typed. An edge's weight halves every half life and grows with what is observed. Nodes and edges
 * are bounded: what is gone and long untouched gives way first, of edges the weakest of a few. Nothing is allocated
 * after create. A node takes 32 bytes and 4 to 8 of index, an edge 28 bytes.
 */
#ifndef TERRACE_EVICTION_GRAPH_EDGES_H
#define TERRACE_EVICTION_GRAPH_EDGES_H

#include <stdbool.h>
#include <stdint.h>

#include "store/status.h"

enum edge_type {
	EDGE_PREFIX_SHARE, /* parent to child in a chain */
	EDGE_CO_ATTEND,    /* leased together */
	EDGE_TEMPORAL,     /* the end of a session's request to the end of its next one */
	EDGE_SEMANTIC,     /* near sketches */
	EDGE_SPILL_LINK,   /* copies over tiers */
	EDGE_TYPES,
};

enum {
	EDGES_OF_NODE = 16,        /* at most; then the weakest gives way */
	EDGES_ASKED_MAX = 64,      /* nodes of one graph_edges_near() */
};

#define EDGE_MASK(type) (1u << (type))
#define EDGE_MASK_ALL ((1u << EDGE_TYPES) - 1)

struct graph_edges;

struct graph_edges_options {
	uint32_t nodes_max, edges_max; /* at least 2 and 1, at most 2^28 */
	uint32_t sessions_max;         /* remembered for temporal edges, a power of two */
	uint64_t half_life_us;         /* of weights, at least 1 ms */
};

/* What a catalog keeps. */
struct graph_node_record {
	uint64_t id, touched_us;
	bool live;
};

struct graph_edge_record {
	uint64_t from, to;
	uint64_t touched_us;
	float weight;              /* at touched_us */
	uint16_t sessions;         /* different ones in a row that went over it, at most 65535 */
	uint8_t type;
};

struct graph_near {
	uint64_t id;
	float weight;
	bool live;
};

struct graph_edges_counts {
	uint32_t nodes, live, edges;
	uint64_t forgotten_nodes, forgotten_edges; /* that gave way to others */
};

/* NULL: no memory, or options out of range. */
struct graph_edges *graph_edges_create(const struct graph_edges_options *o);
void graph_edges_destroy(struct graph_edges *g);

/* A request for a chain: ids in the order of the chain, none 0. Ties each to the next (prefix_share), and the
 * last to where the session's request before ended (temporal). `goes_on`: the rest of the chain follows in the next
 * call, beginning with this one's last id. Session 0: not known. */
void graph_edges_request(struct graph_edges *g, uint64_t now_us, uint64_t session, const uint64_t *ids,
			 uint32_t count, bool goes_on);

/* Something else ties two blocks, neither 0 nor each other. Adds `weight` (finite, over 0) to the edge. */
void graph_edges_pair(struct graph_edges *g, uint64_t now_us, enum edge_type type, uint64_t from, uint64_t to,
		      float weight);

/* The block came into the cache, or left it. Live nodes do not give way while there are others nearby. */
void graph_edges_live(struct graph_edges *g, uint64_t now_us, uint64_t id, bool live);
/* Whether the block is there, of one that has a node, as somebody found it: no node is made or touched for it. */
void graph_edges_mark(struct graph_edges *g, uint64_t id, bool live);

/* What edges of the types in `mask` lead to from the ids (at most EDGES_ASKED_MAX count), none of these among it,
 * by the sum of the weights now, the greatest first, of equals the lesser id. Returns how many, at most `max`. */
uint32_t graph_edges_near(struct graph_edges *g, uint64_t now_us, const uint64_t *ids, uint32_t count,
			  uint32_t mask, struct graph_near *out, uint32_t max);

/* The id before it in its chains; 0: there is none, a chain begins with it, or it was behind several (keys need not be
 * chained, and a request may be for the rest of a chain). */
uint64_t graph_edges_before(const struct graph_edges *g, uint64_t id);
/* The ids that chains went on with from it, and of which it is graph_edges_before(); returns how many. *all: none of
 * these has been forgotten for want of room in the node. */
uint32_t graph_edges_after(const struct graph_edges *g, uint64_t id, uint64_t out[EDGES_OF_NODE], bool *all);

/* Walks for a catalog: *cursor is 0 at first; false at the end. A walk in parts, with changes between, may miss
 * what moved but gives nothing that is not there. now_us as of the calls above. */
bool graph_edges_next_node(const struct graph_edges *g, uint64_t now_us, uint32_t *cursor, struct graph_node_record *out);
bool graph_edges_next_edge(const struct graph_edges *g, uint64_t now_us, uint32_t *cursor, struct graph_edge_record *out);

/* What a walk gave, nodes first. INVALID: an id of 0, an unknown type, a weight or a time that cannot be, or an edge
 * of nodes that are not there; the graph is as it was. */
enum status graph_edges_put_node(struct graph_edges *g, uint64_t now_us, const struct graph_node_record *r);
enum status graph_edges_put_edge(struct graph_edges *g, uint64_t now_us, const struct graph_edge_record *r);

struct graph_edges_counts graph_edges_count(const struct graph_edges *g);

#endif
