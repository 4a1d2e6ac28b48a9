/* Eviction policies: a table of functions without I/O and without a clock, so that the same code runs
 * in the daemon and in a replay.
 *
 * A policy orders *nodes*. The owner embeds struct policy_node in what may be evicted, tells the policy
 * of every insert, use and removal, and asks for victims. Time is whatever the caller passes, in
 * microseconds, never going back. One thread at a time (the caller's lock).
 *
 * What is known about a block travels in struct policy_event; a field that the owner does not know is 0
 * and costs precision only. Of one request the owner tells the deepest block first: blocks of equal
 * standing then leave from the end of the chain, and what stays is a prefix.
 *
 * A node is in at most one policy. Inserting one that is in, or using or removing one that is not, is a
 * programmer's error (asserted).
 */
#ifndef TERRACE_EVICTION_POLICY_H
#define TERRACE_EVICTION_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct policy_node {
	struct policy_node *prev, *next; /* the policy's; both NULL while not in it */
	uint64_t last_use_us;            /* set by insert and use; of what moved, the earlier use that the policy remembers of the last run, which
					  * may be before the clock's 0: modulo 2^64 */
	uint64_t id;                     /* the event's, set by insert */
	uint32_t uses;                   /* since insert; stays at its maximum */
	uint32_t queue;                  /* the policy's own */
};

_Static_assert(sizeof(struct policy_node) == 40, "one a block: 40 bytes");

enum policy_hint {
	POLICY_HINT_NONE,
	POLICY_HINT_TOOL, /* the turn ends in a tool call: the session goes on soon */
	POLICY_HINT_TURN, /* the turn ends; a person answers or does not */
	POLICY_HINT_END,  /* the session is over */
	POLICY_HINTS,
};

/* Who wrote the tokens of a block. */
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
	const uint64_t *ids; /* of the full blocks, as in policy_event; the caller's, for the call only */
	uint32_t count;
	uint32_t tokens;     /* of the prompt, a last partial block too; 0: not known */
	uint32_t block_tokens; /* in a full block; 0: not known */
	uint16_t turn;       /* 1 for a session's first; 0: not known */
	uint8_t hint;        /* enum policy_hint */
	uint8_t priority;    /* enum policy_priority */
	uint32_t ttl_s;      /* how long the client thinks it needs the blocks; 0: it does not say */
	const uint8_t *roles; /* enum policy_role of each block; NULL: not known */
};

struct policy_event {
	uint64_t now_us;
	uint64_t id;        /* the block's name over its comings and goings, as a hash of its key; 0: none,
			     * and the policy remembers nothing of the block once it is removed */
	uint32_t position;  /* blocks before it in its chain */
	uint32_t tokens;    /* in the block */
	uint32_t ttl_s;     /* as of a request; of a block of which request() has told, what it said counts */
	uint8_t role;       /* enum policy_role */
	uint8_t priority;   /* enum policy_priority */
	uint8_t hint;       /* enum policy_hint */
	bool moved;         /* insert: it came from another tier. Nobody has asked for it by that: it is no access */
};

/* A policy keeps its state for a restart in pieces of at most so many bytes. */
enum { POLICY_PIECE_MAX = 4000 };

/* What a policy knows of a node, for people. */
enum { POLICY_FEATURES_MAX = 8 };
struct policy_explained {
	double score;        /* of two the one with the greater stays longer, as a rule */
	const char *unit;    /* of the score: fixed words */
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
	/* From now on, which is before the first node and the first piece, blocks are worth what they cost to compute again: a token with `growth` others
	 * before it twice what the first one does (recompute.h). growth: above 0. The row may be NULL: cost plays no part. */
	void (*weigh)(struct policy *p, uint32_t growth);
	/* The owner has room for so many nodes now; of more than create() was told the rest counts for nothing. Nodes stay. The row may be NULL: it does not
	 * matter. */
	void (*resize)(struct policy *p, uint64_t capacity);
	/* Frees the policy, not the nodes; those still in it keep dangling links and must not be used
	 * with a policy again before they are zeroed. NULL allowed. */
	void (*destroy)(struct policy *p);
	/* The uses and inserts that follow, up to the next call, are this request's. The row may be NULL,
	 * and an owner that knows no requests need not call it. */
	void (*request)(struct policy *p, const struct policy_request *r);
	/* Adds a node; uses becomes 0, last_use_us becomes now_us. */
	void (*insert)(struct policy *p, struct policy_node *n, const struct policy_event *e);
	/* The node was read by a caller that needed it. */
	void (*use)(struct policy *p, struct policy_node *n, const struct policy_event *e);
	/* is: the node cannot be of use as things are, and is the next to go, before what is cold. Else it can be
	 * again, and stands about where its last use puts it. Neither is a use or teaches anything. A use ends it, too.
	 * The row may be NULL: nodes stay where they are. */
	void (*demote)(struct policy *p, struct policy_node *n, bool is);
	/* Takes the node out; it may be inserted again. */
	void (*remove)(struct policy *p, struct policy_node *n);
	/* The node to evict first for which may(node, arg) is true, looking at no more than `scan_max`
	 * nodes; NULL if none. Does not remove it. A node that may not go (pinned) is passed over and
	 * keeps its place. `may` must not change the policy. */
	struct policy_node *(*victim)(struct policy *p,
				      bool (*may)(const struct policy_node *, void *), void *arg,
				      uint32_t scan_max);
	/* Tells `visit` of nodes in the order in which they would go if nothing else happened, pinned ones too, until it returns true or
	 * `max` were told of, or several times as many looked at. The order stays as it is. False: for now it cannot be told without changing it. The row may be NULL: never. */
	bool (*walk)(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max);
	/* Whether the event's block, which is not in, deserves the place of `v`, which victim() just gave.
	 * Advice: the owner may insert it all the same. The row may be NULL: always. */
	bool (*admit)(struct policy *p, const struct policy_event *e, const struct policy_node *v);
	/* What the policy knows of a node that is in it. The row may be NULL: no more than the node says. */
	void (*explain)(const struct policy *p, const struct policy_node *n, struct policy_explained *out);
	/* Saves what the policy has learned and remembers for the next run, in pieces that do not depend on each other:
	 * writes the piece at *cursor (0: the first), moves *cursor on and returns the piece's bytes; 0: that was all.
	 * A piece costs some 10 us. What is kept of blocks is of 2^17 at most. Rows keep and recall are both NULL: it
	 * learns nothing. */
	size_t (*keep)(const struct policy *p, uint64_t *cursor, uint8_t out[POLICY_PIECE_MAX]);
	/* Takes up a piece, idle_us after it was made, into a policy that was told of nothing yet: all in the order in which they were
	 * made, some may be missing. False: not one of a policy like this one, of another version, or damaged, and nothing has changed. */
	bool (*recall)(struct policy *p, uint64_t now_us, uint64_t idle_us, const uint8_t *bytes, size_t size);
	/* How long ago the block was used last, as far as what was taken up tells: blocks that come back as `moved` are told in that order, the
	 * deepest of one time first. False: it is not known. The row may be NULL. */
	bool (*last_use)(const struct policy *p, uint64_t now_us, uint64_t id, uint64_t *ago_us);
};

/* The table, ended by a NULL; and a row by name, or NULL. Any thread. */
extern const struct policy_ops *const policy_table[];
const struct policy_ops *policy_find(const char *name);

/* walk, or where there is none victim with `visit` as the filter: for a caller that searches for nodes and does not
 * evict them. A row whose victim moves nodes would treat the nodes that it has shown as passed. */
void policy_look(const struct policy_ops *ops, struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max);

/* demote, where the policy has it. */
static inline void policy_demote(const struct policy_ops *ops, struct policy *p, struct policy_node *n, bool is)
{
	if (ops->demote)
		ops->demote(p, n, is);
}

/* create, and weigh if growth is not 0. */
struct policy *policy_create(const struct policy_ops *ops, uint64_t capacity, uint32_t growth);

#endif
