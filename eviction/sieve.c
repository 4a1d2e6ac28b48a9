/* SIEVE (Zhang et al., NSDI 2024): one queue by age; a use only marks. A hand goes from the oldest
 * towards the youngest, clears marks and stops at the first node without one; it stays there for the
 * next time.
 */
#include "eviction/sieve.h"

#include <stdlib.h>

#include "eviction/queue.h"

#define MARKED 1u /* node.queue */

enum { WALK_LOOKS = 8 };

struct policy {
	struct queue queue;
	struct policy_node *hand; /* the next to look at; the queue's head means the oldest */
};

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	(void)capacity;
	if (!p)
		return NULL;
	queue_init(&p->queue);
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

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	(void)p;
	queue_note_use(n, e);
	n->queue |= MARKED;
}

static void take_out(struct policy *p, struct policy_node *n)
{
	if (p->hand == n)
		p->hand = n->next;
	queue_unlink(n);
}

/* The hand passes a pinned node without clearing its mark. */
static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	struct policy_node *head = &p->queue.head;
	uint32_t pinned_in_a_row = 0;

	while (scan_max > 0 && head->next != head) {
		struct policy_node *n = p->hand == head ? head->next : p->hand;

		if (may(n, arg)) {
			p->hand = n;
			if (!(n->queue & MARKED))
				return n;
			n->queue &= ~MARKED;
			pinned_in_a_row = 0;
		} else if (n == head->next && pinned_in_a_row++ > 0) {
			return NULL; /* a whole round of pinned ones */
		}
		p->hand = n->next;
		scan_max--;
	}
	return NULL;
}

/* As the hand would go: what it meets unmarked in its first round, then what it would unmark in that. Where few are unmarked it stops early. */
static bool walk(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	const struct policy_node *head = &p->queue.head, *from = p->hand == head ? head->next : p->hand, *n = from;
	uint64_t looks = (uint64_t)max * WALK_LOOKS;
	uint32_t marked = 0;

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
	.remove = take_out,
	.victim = victim,
	.walk = walk,
};
