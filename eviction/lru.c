/* Least recently used: a use moves the node to the hot end; victims are sought from the cold end. */
#include "eviction/lru.h"

#include <stdlib.h>

#include "eviction/queue.h"

enum { DEMOTED_LOOKS = 16 };

#define DEMOTED 1u /* node.queue */

struct policy {
	struct queue queue, demoted;
};

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	(void)capacity;
	if (!p)
		return NULL;
	queue_init(&p->queue);
	queue_init(&p->demoted);
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
	queue_note_use(n, e);
	n->queue &= ~DEMOTED;
	queue_unlink(n);
	queue_push(&p->queue, n);
}

/* What is of use again goes among nodes that were used when it was, or on their cold side if too many are colder. */
static void demote(struct policy *p, struct policy_node *n, bool is)
{
	struct policy_node *at = is ? p->demoted.head.next : p->queue.head.next;

	if (is == (n->queue & DEMOTED))
		return;
	n->queue ^= DEMOTED;
	queue_unlink(n);
	for (int i = 0; i < DEMOTED_LOOKS && !is && at != &p->queue.head && at->last_use_us < n->last_use_us; i++)
		at = at->next;
	queue_push_before(at, n);
}

static void take_out(struct policy *p, struct policy_node *n)
{
	(void)p;
	queue_unlink(n);
}

static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	struct policy_node *n = queue_coldest(&p->demoted, may, arg, &scan_max);

	return n ? n : queue_coldest(&p->queue, may, arg, &scan_max);
}

static bool walk(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	victim(p, visit, arg, max);
	return true;
}

const struct policy_ops policy_lru = {
	.name = "lru",
	.help = "the least recently used block goes first",
	.create = create,
	.destroy = destroy,
	.insert = insert,
	.use = use,
	.demote = demote,
	.remove = take_out,
	.victim = victim,
	.walk = walk,
};
