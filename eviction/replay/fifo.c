/* First in, first out: a use is counted but moves nothing; victims are sought from the oldest on. */
#include "eviction/replay/fifo.h"

#include <stdlib.h>

#include "eviction/queue.h"

struct policy {
	struct queue queue;
};

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	(void)capacity;
	if (p)
		queue_init(&p->queue);
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
}

static void take_out(struct policy *p, struct policy_node *n)
{
	(void)p;
	queue_unlink(n);
}

static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	return queue_coldest(&p->queue, may, arg, &scan_max);
}

static bool walk(struct policy *p, bool (*visit)(const struct policy_node *, void *), void *arg, uint32_t max)
{
	victim(p, visit, arg, max);
	return true;
}

const struct policy_ops policy_fifo = {
	.name = "fifo",
	.help = "the oldest block goes first, whatever its use",
	.create = create,
	.destroy = destroy,
	.insert = insert,
	.use = use,
	.remove = take_out,
	.victim = victim,
	.walk = walk,
};
