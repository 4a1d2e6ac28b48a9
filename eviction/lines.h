/* The live nodes of a policy by class and age: of each class one line, in the order of their last use. What bucket of age a node is in follows
 * from its last use and the time of the last lines_advance(), so that growing older touches no node. The oldest of a bucket is found when it is
 * asked for, from where it was last: a *mark* on one node in 64 lets the search leap.
 *
 *     class 7   first ── ▪ ── ▪ ── mark ── ▪ ── ▪ ── mark ── ▪ ── last      a push goes behind the last
 *                └ bucket 12 ┘└──── bucket 3 ─────┘└─── bucket 0 ───┘
 *
 * 40 bytes a node in the owner's struct, 3/8 of a byte in marks, and 150 KiB. Nothing is allocated after lines_init().
 */
#ifndef TERRACE_EVICTION_LINES_H
#define TERRACE_EVICTION_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "eviction/queue.h"
#include "eviction/survival.h"

/* policy_node.queue: the class, whether a front[] stands there, and its mark; its highest bits are 0 (queue.h). */
enum { LINES_CLASS_BITS = 9, LINES_FRONT = 1 << LINES_CLASS_BITS, LINES_MARK_SHIFT = LINES_CLASS_BITS + 1 };

_Static_assert(CLASSES <= 1 << LINES_CLASS_BITS, "policy_node.queue");

struct line {
	struct queue nodes;
	uint32_t unmarked;                          /* pushes since the last mark */
	uint32_t oldest_mark, youngest_mark;        /* 0: none */
	uint32_t filled;                            /* a bit a bucket: it may have nodes */
	struct policy_node *front[SURVIVAL_BUCKETS]; /* all before it have outgrown the bucket; NULL: nothing is known */
};

struct lines_mark {
	struct policy_node *node;
	uint64_t used_us;                           /* its last use */
	uint32_t older, younger;                    /* of the class; free ones are linked by younger */
};

struct lines {
	struct line *line;                          /* by class */
	struct lines_mark *marks;                   /* 0 is nobody's */
	uint32_t marks_max, free_mark, hand;
	uint64_t now_us;
};

/* For `capacity` nodes. False: no memory. fini accepts zeroed memory. */
bool lines_init(struct lines *l, uint64_t capacity);
void lines_fini(struct lines *l);

/* Behind the last of the class; last_use_us is not before that one's. */
void lines_push(struct lines *l, struct policy_node *n, uint32_t class);
void lines_pull(struct lines *l, struct policy_node *n);

/* As the youngest of the bucket of age in which one is that was used then, which is returned. Its last_use_us becomes what keeps the line in order. */
uint32_t lines_insert(struct lines *l, struct policy_node *n, uint32_t class, uint64_t used_us);

static inline uint32_t lines_class(const struct policy_node *n)
{
	return n->queue & (LINES_FRONT - 1);
}

/* Some bucket begins with it, or did when it was asked for. */
static inline bool lines_is_front(const struct policy_node *n)
{
	return n->queue & LINES_FRONT;
}

/* As of the last advance; what was used since is in bucket 0. */
uint32_t lines_bucket(const struct lines *l, const struct policy_node *n);

/* All grow older. `filled` of each class is up to date then: no bucket has nodes whose bit is not set. */
void lines_advance(struct lines *l, uint64_t now_us);

/* The oldest node of a bucket of a class, NULL if there is none, and then its bit in `filled` is not set any more. */
struct policy_node *lines_front(struct lines *l, uint32_t class, uint32_t bucket);
/* The one after it, in the same bucket, or NULL. */
struct policy_node *lines_next(const struct lines *l, const struct policy_node *n);

#endif
