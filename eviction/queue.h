/* The intrusive list under the list-shaped policies: a ring through a head node, cold end first.
 *
 * The owner's nodes are the links, so nothing is allocated for a block, and every step but the search for a
 * victim takes constant time.
 */
#ifndef TERRACE_EVICTION_QUEUE_H
#define TERRACE_EVICTION_QUEUE_H

#include <assert.h>

#include "eviction/policy.h"

/* The two highest bits of node.queue belong to a policy that lets other policies order its nodes. */
enum { QUEUE_ORDER_SHIFT = 30 };
#define QUEUE_ORDER (3u << QUEUE_ORDER_SHIFT)

struct queue {
	struct policy_node head; /* head.next is the coldest, head.prev the hottest */
};

static inline void queue_init(struct queue *q)
{
	q->head.next = &q->head;
	q->head.prev = &q->head;
}

/* Links the node at the hot end. */
static inline void queue_push(struct queue *q, struct policy_node *n)
{
	n->next = &q->head;
	n->prev = q->head.prev;
	q->head.prev->next = n;
	q->head.prev = n;
}

/* Links the node on the cold side of another, or of the head: at the hot end. */
static inline void queue_push_before(struct policy_node *at, struct policy_node *n)
{
	n->next = at;
	n->prev = at->prev;
	at->prev->next = n;
	at->prev = n;
}

static inline void queue_unlink(struct policy_node *n)
{
	assert(n->prev && n->next);
	n->prev->next = n->next;
	n->next->prev = n->prev;
	n->prev = NULL;
	n->next = NULL;
}

/* Sets the node's fields as policy_ops.insert promises. */
static inline void queue_node_init(struct policy_node *n, const struct policy_event *e)
{
	assert(!n->prev && !n->next);
	n->last_use_us = e->now_us;
	n->id = e->id;
	n->uses = 0;
	n->queue = 0;
}

static inline void queue_insert(struct queue *q, struct policy_node *n, const struct policy_event *e)
{
	queue_node_init(n, e);
	queue_push(q, n);
}

/* Counts a use; the node keeps its place. */
static inline void queue_note_use(struct policy_node *n, const struct policy_event *e)
{
	assert(n->prev && n->next);
	n->last_use_us = e->now_us;
	if (n->uses < UINT32_MAX)
		n->uses++;
}

/* The coldest node that may go, among the *scan coldest; *scan falls by those that were passed over. */
static inline struct policy_node *queue_coldest(struct queue *q,
						bool (*may)(const struct policy_node *, void *),
						void *arg, uint32_t *scan)
{
	for (struct policy_node *n = q->head.next; n != &q->head && *scan > 0; n = n->next) {
		if (may(n, arg))
			return n;
		--*scan;
	}
	return NULL;
}

#endif
