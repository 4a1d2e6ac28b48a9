/* Eviction policies: a table of functions without I/O and without a clock, so that the same code runs in the daemon and
 * in a replay.
 *
 * A policy orders *nodes*. The owner embeds struct policy_node in each thing that may be evicted. It tells the policy
 * of every insert, use and removal, and asks for victims. The caller passes the time, in microseconds, never going
 * back. One thread at a time (the caller's lock).
 *
 * The owner describes a block in struct policy_event. A field that the owner does not know is 0, which only costs
 * precision. Of one request the owner tells the deepest block first. So of blocks with equal standing the end of the
 * chain leaves first, and what stays is a prefix.
 *
 * A node is in at most one policy. To insert a node that is in a policy, or to use or remove one that is not, is a
 * programmer's error (asserted).
 */
#ifndef TERRACE_EVICTION_POLICY_H
#define TERRACE_EVICTION_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct policy_node {
	struct policy_node *prev, *next; /* the policy's links; both NULL while it is in no policy */
	uint64_t last_use_us;            /* set by insert and use. After a `moved` insert it may be the use that the
					  * policy remembers of the last run, which may be before the clock's 0: modulo
					  * 2^64 */
	uint64_t id;                     /* the id of the event, set by insert */
	uint32_t uses;                   /* since insert; stays at its maximum */
	uint32_t queue;                  /* the policy's own */
};

_Static_assert(sizeof(struct policy_node) == 40, "one a block: 40 bytes");

enum policy_hint {
	POLICY_HINT_NONE,
	POLICY_HINT_TOOL, /* the turn ends in a tool call: the session goes on soon */
	POLICY_HINT_TURN, /* the turn ends; the user answers or does not */
	POLICY_HINT_END,  /* the session is over */
	POLICY_HINTS,
};

/* The author of a block's tokens. */
enum policy_role {
	POLICY_ROLE_UNKNOWN,
	POLICY_ROLE_SYSTEM,
	POLICY_ROLE_USER,
	POLICY_ROLE_ASSISTANT,
	POLICY_ROLE_TOOL,
	POLICY_ROLES,
};

/* How much the client values a block: a feature to learn from, not an order. */
enum policy_priority {
	POLICY_PRIORITY_NORMAL,
	POLICY_PRIORITY_LOW,
	POLICY_PRIORITY_HIGH,
	POLICY_PRIORITIES,
};

/* A request as it arrives: the blocks of its prompt, in the order of the chain. */
struct policy_request {
	uint64_t now_us;
	uint64_t session;    /* 0: not known */
	const uint64_t *ids; /* ids of the full blocks, as in policy_event; the caller's, valid during the call only */
	uint32_t count;
	uint32_t tokens;     /* tokens of the prompt, with a last partial block; 0: not known */
	uint32_t block_tokens; /* in a full block; 0: not known */
	uint16_t turn;       /* 1 for a session's first; 0: not known */
	uint8_t hint;        /* enum policy_hint */
	uint8_t priority;    /* enum policy_priority */
	uint32_t ttl_s;      /* how long the client thinks it needs the blocks; 0: it does not say */
	const uint8_t *roles; /* enum policy_role of each block; NULL: not known */
};

struct policy_event {
	uint64_t now_us;
	uint64_t id;        /* the block's name, the same each time it comes and goes: a hash of its key. 0: none, and
			     * then the policy remembers nothing of the block once it is removed */
	uint32_t position;  /* blocks before it in its chain */
	uint32_t tokens;    /* in the block */
	uint32_t ttl_s;     /* as in policy_request; if request() has told of the block, the request's value counts */
	uint8_t role;       /* enum policy_role */
	uint8_t priority;   /* enum policy_priority */
	uint8_t hint;       /* enum policy_hint */
	bool moved;         /* of an insert: the block came from another tier. That is no access, since no request asked
			     * for it */
};

/* A policy keeps its state for a restart in pieces of at most so many bytes. */
enum { POLICY_PIECE_MAX = 4000 };

/* What a policy knows of a node, for people. */
enum { POLICY_FEATURES_MAX = 8 };
struct policy_explained {
	double score;        /* of two nodes the one with the greater score usually stays longer */
	const char *unit;    /* the unit of the score: fixed words */
	uint32_t features;
	struct {
		const char *name; /* fixed words */
		uint32_t value;
	} feature[POLICY_FEATURES_MAX];
};

struct policy;

struct policy_ops {
	const char *name;
	const char *help;
	/* NULL: no memory. capacity: nodes expected, a hint. */
	struct policy *(*create)(uint64_t capacity);
	/* Makes blocks worth their cost to compute again: a token with `growth` others before it costs twice what the
	 * first one does (recompute.h). Called before the first node and the first piece. growth: above 0. May be NULL:
	 * the cost plays no part. */
	void (*weigh)(struct policy *p, uint32_t growth);
	/* The owner has room for `capacity` nodes now. What exceeds the capacity given to create() has no effect. Nodes
	 * stay. May be NULL: it does not matter. */
	void (*resize)(struct policy *p, uint64_t capacity);
	/* Frees the policy, not the nodes. Nodes that are still in it keep dangling links; zero them before any policy
	 * gets them again. NULL allowed. */
	void (*destroy)(struct policy *p);
	/* Begins a request: the uses and inserts that follow, up to the next call, belong to it. May be NULL. An owner
	 * that does not know requests need not call it. */
	void (*request)(struct policy *p, const struct policy_request *r);
	/* Adds a node; uses becomes 0, last_use_us becomes now_us. */
	void (*insert)(struct policy *p, struct policy_node *n, const struct policy_event *e);
	/* Notes that a caller which needed the node has read it. */
	void (*use)(struct policy *p, struct policy_node *n, const struct policy_event *e);
	/* Demotes a node, or (is false) ends that; nothing changes if it is so already. A demoted node cannot be of use
	 * as things are, and is the next to go, before cold nodes. Of several the one demoted last goes first. A use
	 * ends the demotion. Otherwise the node is then about where its last use puts it. The search for that place is
	 * short: where many nodes are colder the node comes out as one of the coldest, and in a queue by age as the
	 * youngest. A demotion is no use, and teaches nothing. May be NULL: nodes stay where they are. */
	void (*demote)(struct policy *p, struct policy_node *n, bool is);
	/* Takes the node out; it may be inserted again. */
	void (*remove)(struct policy *p, struct policy_node *n);
	/* Returns the node to evict first among those for which may(node, arg) is true; looks at no more than
	 * `scan_max` nodes; NULL: none. Does not remove it. A node that may not go (pinned) is passed over and keeps
	 * its place. `may` must not change the policy. */
	struct policy_node *(*victim)(struct policy *p,
				      bool (*may)(const struct policy_node *, void *), void *arg,
				      uint32_t scan_max);
	/* Visits nodes in the order in which they would be evicted if nothing else happened, pinned ones too. Ends when
	 * `visit` returns true, when `max` nodes were visited, or when several times as many were looked at. The order
	 * does not change. False: at present the order cannot be told without changing it. May be NULL: it never
	 * can. */
	bool (*walk)(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max);
	/* Whether the event's block, which is not in the policy, deserves the place of `v`, which victim() just
	 * returned. Advice: the owner may insert the block all the same. May be NULL: always true. */
	bool (*admit)(struct policy *p, const struct policy_event *e, const struct policy_node *v);
	/* What the policy knows of a node that is in it. May be NULL: no more than the node itself says. */
	void (*explain)(const struct policy *p, const struct policy_node *n, struct policy_explained *out);
	/* Saves what the policy has learned and remembers, for the next run, in pieces that do not depend on each
	 * other. Writes the piece at *cursor (0: the first), moves *cursor on and returns the piece's bytes; 0: there
	 * are no more. A piece takes some 10 us. At most 2^17 blocks are kept. `keep` and `recall` are both NULL for a
	 * policy that learns nothing. */
	size_t (*keep)(const struct policy *p, uint64_t *cursor, uint8_t out[POLICY_PIECE_MAX]);
	/* Reads a piece, idle_us after it was made, into a policy that was told of nothing yet. All pieces come in the
	 * order in which they were made; some may be missing. False: the piece is of another policy or version, or
	 * damaged, and nothing has changed. */
	bool (*recall)(struct policy *p, uint64_t now_us, uint64_t idle_us, const uint8_t *bytes, size_t size);
	/* How long ago the block was last used, as far as recalled pieces tell. The owner inserts blocks as `moved` in
	 * that order, the deepest of one time first. False: not known. May be NULL. */
	bool (*last_use)(const struct policy *p, uint64_t now_us, uint64_t id, uint64_t *ago_us);
};

/* The table of policies, ended by a NULL; and its row of that name, or NULL. Any thread. */
extern const struct policy_ops *const policy_table[];
const struct policy_ops *policy_find(const char *name);

/* Calls walk, or, where there is none, victim with `visit` as the filter. For a caller that searches for nodes and does
 * not evict them. A policy whose victim() moves nodes would treat the visited nodes as passed over. */
void policy_look(const struct policy_ops *ops, struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max);

/* Calls demote, if the policy has it. */
static inline void policy_demote(const struct policy_ops *ops, struct policy *p, struct policy_node *n, bool is)
{
	if (ops->demote)
		ops->demote(p, n, is);
}

/* Calls create, and weigh if growth is not 0. */
struct policy *policy_create(const struct policy_ops *ops, uint64_t capacity, uint32_t growth);

#endif
