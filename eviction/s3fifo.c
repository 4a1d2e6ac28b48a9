/* S3-FIFO (Yang et al., SOSP 2023). It has a small queue for new blocks; a main queue for blocks that were used twice
 * in the small one, or were asked for again soon after they had left it; and the ids of the blocks that left the small
 * one. A use counts up to 3; in the main queue a count buys another round.
 */
#include "eviction/s3fifo.h"

#include <stdlib.h>

#include "eviction/ghosts.h"
#include "eviction/queue.h"

enum { SMALL_PERCENT = 10, COUNT_MAX = 3, COUNT_TO_MAIN = 2 };
enum { IN_SMALL, IN_MAIN };

/* node.queue: which queue | count << 1 | whether it stands among the demoted instead, and what others have (queue.h) */
#define DEMOTED 8u

struct policy {
	struct queue queues[2], demoted;
	uint64_t lengths[2];
	struct ghosts *ghosts;  /* NULL: the owner knows the ghosts */
};

static uint32_t count_of(const struct policy_node *n)
{
	return (n->queue & ~QUEUE_ORDER & ~DEMOTED) >> 1;
}

static void destroy(struct policy *p)
{
	if (!p)
		return;
	ghosts_destroy(p->ghosts);
	free(p);
}

struct policy *s3fifo_create_bare(void)
{
	struct policy *p = calloc(1, sizeof(*p));

	if (p) {
		queue_init(&p->queues[IN_SMALL]);
		queue_init(&p->queues[IN_MAIN]);
		queue_init(&p->demoted);
	}
	return p;
}

static struct policy *create(uint64_t capacity)
{
	struct policy *p = s3fifo_create_bare();

	if (!p)
		return NULL;
	p->ghosts = ghosts_create(capacity - capacity * SMALL_PERCENT / 100);
	if (!p->ghosts) {
		destroy(p);
		return NULL;
	}
	return p;
}

static void push(struct policy *p, struct policy_node *n, uint32_t which, uint32_t count)
{
	n->queue = (n->queue & QUEUE_ORDER) | which | count << 1;
	queue_push(&p->queues[which], n);
	p->lengths[which]++;
}

static void pull(struct policy *p, struct policy_node *n)
{
	p->lengths[n->queue & 1] -= !(n->queue & DEMOTED);
	queue_unlink(n);
}

/* Back to the hot end of the queue that it was in, with its count. */
static void demote(struct policy *p, struct policy_node *n, bool is)
{
	if (is == !!(n->queue & DEMOTED))
		return;
	pull(p, n);
	if (!is) {
		push(p, n, n->queue & 1, count_of(n));
		return;
	}
	n->queue |= DEMOTED;
	queue_push_before(p->demoted.head.next, n);
}

void s3fifo_insert(struct policy *p, struct policy_node *n, const struct policy_event *e, bool again)
{
	queue_node_init(n, e);
	push(p, n, again ? IN_MAIN : IN_SMALL, 0);
}

uint64_t s3fifo_new(const struct policy *p)
{
	return p->lengths[IN_SMALL];
}

bool s3fifo_is_new(const struct policy_node *n)
{
	return (n->queue & 1) == IN_SMALL;
}

static void insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	s3fifo_insert(p, n, e, ghosts_take(p->ghosts, e->id));
}

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	if (n->queue & DEMOTED)
		demote(p, n, false);
	queue_note_use(n, e);
	if (count_of(n) < COUNT_MAX)
		n->queue += 2;
}

static void take_out(struct policy *p, struct policy_node *n)
{
	if (p->ghosts && (n->queue & 1) == IN_SMALL)
		ghosts_add(p->ghosts, n->id);
	pull(p, n);
}

static bool earned(const struct policy_node *n)
{
	return count_of(n) >= ((n->queue & 1) == IN_SMALL ? COUNT_TO_MAIN : 1);
}

/* Moves a node to the hot end of the main queue. From the small queue it starts with count 0; in the main queue the
 * move costs one count. */
static void move(struct policy *p, struct policy_node *n)
{
	uint32_t count = (n->queue & 1) == IN_SMALL ? 0 : count_of(n) - 1;

	pull(p, n);
	push(p, n, IN_MAIN, count);
}

/* Looks among the demoted nodes first. Then it looks at the front of the small queue while that is too long, else of
 * the main one, and moves on the nodes that have earned it. Each step decides anew, so that a repeated call gives the
 * same answer. */
static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	uint64_t limit = (p->lengths[IN_SMALL] + p->lengths[IN_MAIN]) * SMALL_PERCENT / 100;
	struct policy_node *at[2] = { p->queues[IN_SMALL].head.next, p->queues[IN_MAIN].head.next };
	struct policy_node *first = queue_coldest(&p->demoted, may, arg, &scan_max);

	if (first)
		return first;
	for (; scan_max > 0; scan_max--) {
		uint32_t which = p->lengths[IN_SMALL] > limit ? IN_SMALL : IN_MAIN;
		struct policy_node *n;

		if (at[which] == &p->queues[which].head)
			which = !which;
		n = at[which];
		if (n == &p->queues[which].head)
			return NULL;
		at[which] = n->next;
		if (!may(n, arg))
			continue;
		if (!earned(n))
			return n;
		move(p, n);
		if (at[IN_MAIN] == &p->queues[IN_MAIN].head)
			at[IN_MAIN] = n;
	}
	return NULL;
}

const struct policy_ops policy_s3fifo = {
	.name = "s3fifo",
	.help = "new blocks prove themselves in a small queue before they reach the main one",
	.create = create,
	.destroy = destroy,
	.insert = insert,
	.use = use,
	.demote = demote,
	.remove = take_out,
	.victim = victim,
};
