/* SIEVE (Zhang et al., NSDI 2024): one queue by age; a use only marks the node. A hand goes from the oldest node
 * towards the youngest, clears marks, and stops at the first node without one. It stays there for the next time.
 */
#include "eviction/sieve.h"

#include <stdlib.h>

#include "eviction/queue.h"

#define MARKED 1u /* node.queue */
#define DEMOTED 2u

enum { WALK_LOOKS = 8 };

struct policy {
	struct queue queue, demoted;
	struct policy_node *hand; /* the next to look at; the queue's head means the oldest */
};

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	(void)capacity;
	if (!p)
		return NULL;
	queue_init(&p->queue);
	queue_init(&p->demoted);
	p->hand = &p->queue.head;
	return p;
}

static void destroy(struct policy *p)
{
	free(p);
}

static void insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_insert(&p->queue, n, e);
}

static void take_out(struct policy *p, struct policy_node *n)
{
	if (p->hand == n)
		p->hand = n->next;
	queue_unlink(n);
}

/* Back to where the hand has just been. */
static void demote(struct policy *p, struct policy_node *n, bool is)
{
	if (is == !!(n->queue & DEMOTED))
		return;
	take_out(p, n);
	queue_push_before(is ? p->demoted.head.next : p->hand, n);
	n->queue = is ? (n->queue & ~MARKED) | DEMOTED : n->queue & ~DEMOTED;
}

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	if (n->queue & DEMOTED)
		demote(p, n, false);
	queue_note_use(n, e);
	n->queue |= MARKED;
}

/* The hand passes a pinned node without clearing its mark. */
static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	struct policy_node *head = &p->queue.head;
	struct policy_node *first = queue_coldest(&p->demoted, may, arg, &scan_max);
	uint32_t pinned_in_a_row = 0;

	if (first)
		return first;
	while (scan_max > 0 && head->next != head) {
		struct policy_node *n = p->hand == head ? head->next : p->hand;

		if (may(n, arg)) {
			p->hand = n;
			if (!(n->queue & MARKED))
				return n;
			n->queue &= ~MARKED;
			pinned_in_a_row = 0;
		} else if (n == head->next && pinned_in_a_row++ > 0) {
			return NULL; /* a whole round of pinned nodes */
		}
		p->hand = n->next;
		scan_max--;
	}
	return NULL;
}

/* Visits nodes in the order in which the hand would take them: those that it meets unmarked in its first round, then
 * those that it would unmark in that round. Where few nodes are unmarked it stops early. */
static bool walk(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	const struct policy_node *head = &p->queue.head, *from = p->hand == head ? head->next : p->hand, *n = from;
	uint64_t looks;
	uint32_t marked = 0;

	if (queue_coldest(&p->demoted, visit, arg, &max))
		return true;
	looks = (uint64_t)max * WALK_LOOKS;
	while (from != head && max > 0 && looks-- > 0) {
		if (n != head && (n->queue & MARKED) == marked) {
			if (visit(n, arg))
				return true;
			max--;
		}
		n = n->next;
		if (n == from && marked++ == MARKED)
			return true;
	}
	return true;
}

const struct policy_ops policy_sieve = {
	.name = "sieve",
	.help = "the oldest block not used since a hand passed it goes first",
	.create = create,
	.destroy = destroy,
	.insert = insert,
	.use = use,
	.demote = demote,
	.remove = take_out,
	.victim = victim,
	.walk = walk,
};
