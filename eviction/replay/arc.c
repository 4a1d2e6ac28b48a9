/* ARC (Megiddo and Modha, FAST 2003): two queues by recency, one of nodes seen once and one of nodes seen again, and
 * the ids of the nodes that left each. An id that is asked for again moves the target length of the first queue:
 * towards the queue that should have kept the node.
 *
 * The owner asks for a victim before it names the newcomer. So the tie at exactly the target length is always decided
 * for the first queue.
 */
#include "eviction/replay/arc.h"

#include <stdlib.h>

#include "eviction/ghosts.h"
#include "eviction/queue.h"

enum { ONCE, AGAIN };

struct policy {
	struct queue queues[2];
	uint64_t lengths[2];
	struct ghosts *ghosts[2];
	uint64_t capacity;
	double target; /* of queues[ONCE] */
};

static void destroy(struct policy *p)
{
	if (!p)
		return;
	ghosts_destroy(p->ghosts[ONCE]);
	ghosts_destroy(p->ghosts[AGAIN]);
	free(p);
}

static struct policy *create(uint64_t capacity)
{
	struct policy *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->capacity = capacity ? capacity : 1;
	for (int i = ONCE; i <= AGAIN; i++) {
		queue_init(&p->queues[i]);
		p->ghosts[i] = ghosts_create(p->capacity);
		if (!p->ghosts[i]) {
			destroy(p);
			return NULL;
		}
	}
	return p;
}

static void push(struct policy *p, struct policy_node *n, uint32_t which)
{
	n->queue = which;
	queue_push(&p->queues[which], n);
	p->lengths[which]++;
}

/* A ghost of `which` was asked for: its queue should have been longer, by the share of the other's ghosts. */
static void adapt(struct policy *p, uint32_t which)
{
	double mine = (double)ghosts_count(p->ghosts[which]) + 1;
	double other = (double)ghosts_count(p->ghosts[!which]);
	double step = other > mine ? other / mine : 1;

	p->target += which == ONCE ? step : -step;
	if (p->target < 0)
		p->target = 0;
	if (p->target > (double)p->capacity)
		p->target = (double)p->capacity;
}

static void insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_node_init(n, e);
	for (uint32_t i = ONCE; i <= AGAIN; i++)
		if (ghosts_take(p->ghosts[i], e->id)) {
			adapt(p, i);
			push(p, n, AGAIN);
			return;
		}
	push(p, n, ONCE);
}

static void pull(struct policy *p, struct policy_node *n)
{
	p->lengths[n->queue]--;
	queue_unlink(n);
}

static void use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	queue_note_use(n, e);
	pull(p, n);
	push(p, n, AGAIN);
}

/* Once-seen nodes and ghosts together are at most the capacity, all four lists at most twice that. */
static void take_out(struct policy *p, struct policy_node *n)
{
	uint64_t once, all;

	ghosts_add(p->ghosts[n->queue], n->id);
	pull(p, n);
	once = p->lengths[ONCE];
	ghosts_trim(p->ghosts[ONCE], once < p->capacity ? p->capacity - once : 0);
	all = once + p->lengths[AGAIN] + ghosts_count(p->ghosts[ONCE]);
	ghosts_trim(p->ghosts[AGAIN], all < 2 * p->capacity ? 2 * p->capacity - all : 0);
}

static struct policy_node *victim(struct policy *p, bool (*may)(const struct policy_node *, void *),
				  void *arg, uint32_t scan_max)
{
	uint32_t first = (double)p->lengths[ONCE] >= p->target && p->lengths[ONCE] > 0 ? ONCE : AGAIN;
	struct policy_node *n = queue_coldest(&p->queues[first], may, arg, &scan_max);

	return n ? n : queue_coldest(&p->queues[!first], may, arg, &scan_max);
}

const struct policy_ops policy_arc = {
	.name = "arc",
	.help = "balances recent against repeatedly used blocks by what comes back",
	.create = create,
	.destroy = destroy,
	.insert = insert,
	.use = use,
	.remove = take_out,
	.victim = victim,
};
