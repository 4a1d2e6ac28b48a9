/* The live nodes of a policy by class and age: each class has one line, in the order of last use. The bucket of age of
 * a node follows from its last use and the time of the last lines_advance(): so no node is touched as it grows older.
 * The oldest node of a bucket is searched only when it is asked for, from its last known place. A *mark* on one node in
 * 64 lets the search skip nodes.
 *
 *     class 7   first ── ▪ ── ▪ ── mark ── ▪ ── ▪ ── mark ── ▪ ── last      a push goes behind the last
 *                └ bucket 12 ┘└──── bucket 3 ─────┘└─── bucket 0 ───┘
 *
 * It takes 40 bytes a node in the owner's struct, 3/8 of a byte a node in marks, and 150 KiB. Nothing is allocated
 * after lines_init().
 */
#ifndef TERRACE_EVICTION_LINES_H
#define TERRACE_EVICTION_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/queue.h"
#include "eviction/survival.h"

/* policy_node.queue holds the class, whether a front[] points at the node, and its mark. The highest bits are 0
 * (queue.h). */
enum { LINES_CLASS_BITS = 9, LINES_FRONT = 1 << LINES_CLASS_BITS, LINES_MARK_SHIFT = LINES_CLASS_BITS + 1 };

_Static_assert(CLASSES <= 1 << LINES_CLASS_BITS, "policy_node.queue");

struct line {
	struct queue nodes;
	uint32_t unmarked;                          /* nodes pushed since the last mark */
	uint32_t oldest_mark, youngest_mark;        /* 0: none */
	uint32_t filled;                            /* a bit for each bucket that may have nodes */
	struct policy_node *front[SURVIVAL_BUCKETS]; /* by bucket: all nodes before this one have outgrown the bucket;
						      * NULL: not known */
};

struct lines_mark {
	struct policy_node *node;
	uint64_t used_us;                           /* the node's last use */
	uint32_t older, younger;                    /* neighbours in the class; free marks are linked by `younger` */
};

struct lines {
	struct line *line;                          /* by class */
	struct lines_mark *marks;                   /* mark 0 is unused */
	uint32_t marks_max, free_mark, hand;
	uint64_t now_us;
};

/* Takes memory for `capacity` nodes. False: no memory. lines_fini accepts zeroed memory. */
bool lines_init(struct lines *l, uint64_t capacity);
void lines_fini(struct lines *l);

/* Adds a node behind the last one of the class. n->last_use_us is not before that one's. */
void lines_push(struct lines *l, struct policy_node *n, uint32_t class);
void lines_pull(struct lines *l, struct policy_node *n);

/* Adds a node that was used at used_us, as the youngest of its bucket of age. Returns the bucket. n->last_use_us
 * becomes used_us, or later where the order of the line needs it. */
uint32_t lines_insert(struct lines *l, struct policy_node *n, uint32_t class, uint64_t used_us);

static inline uint32_t lines_class(const struct policy_node *n)
{
	return n->queue & (LINES_FRONT - 1);
}

/* Whether a bucket begins with this node, or began with it at the last search. */
static inline bool lines_is_front(const struct policy_node *n)
{
	return n->queue & LINES_FRONT;
}

/* The node's bucket of age at the last lines_advance(); a node used since then is in bucket 0. */
uint32_t lines_bucket(const struct lines *l, const struct policy_node *n);

/* Sets the time: all nodes grow older. Then `filled` of each class is up to date: a bucket whose bit is not set has no
 * nodes. */
void lines_advance(struct lines *l, uint64_t now_us);

/* The oldest node of a bucket of a class. NULL: the bucket is empty, and its bit in `filled` is cleared. */
struct policy_node *lines_front(struct lines *l, uint32_t class, uint32_t bucket);
/* The node after it in the same bucket, or NULL. */
struct policy_node *lines_next(const struct lines *l, const struct policy_node *n);

#endif
