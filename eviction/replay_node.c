/* One node of a replay. A block of the trace is an array element; its id for the policy is its number + 1. */
#include "eviction/replay_node.h"

#include <stdlib.h>

struct replay_cell {
	struct policy_node node;
	uint32_t stamp;          /* number + 1 of the request that pins it */
	/* number + 1 of the block before it in a chain, the first one behind it, the next behind the same; 0: none */
	uint32_t before, child, sibling;
	bool entered;            /* a chain begins with it, or it was behind several blocks: it needs no other one */
	bool in, demoted;
};

static struct replay_cell *cell_of(const struct policy_node *n)
{
	return (struct replay_cell *)((char *)(uintptr_t)n - offsetof(struct replay_cell, node));
}

static bool unpinned(const struct policy_node *n, void *stamp)
{
	return cell_of(n)->stamp != *(uint32_t *)stamp;
}

static struct policy_event event_of(const struct replay_node *p, const struct trace_request *r, uint32_t i)
{
	return (struct policy_event){ .now_us = r->time_us, .id = p->ids[i], .position = i,
				      .tokens = p->trace->block_tokens };
}

/* ---- what stands behind a block that is gone: no request hits it until that block is back ---- */

static void note_behind(struct replay_node *p, uint32_t before, uint32_t block)
{
	struct replay_cell *c = &p->cells[block];

	if (!c->before && !c->entered) {
		c->before = before + 1;
		c->sibling = p->cells[before].child;
		p->cells[before].child = block + 1;
	} else if (c->before != before + 1) {
		c->entered = true;
	}
}

static void chain_note(struct replay_node *p, const struct trace_request *r, const uint32_t *blocks)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (i)
			note_behind(p, blocks[i - 1], blocks[i]);
		else
			p->cells[blocks[i]].entered = true;
}

static void demote(struct replay_node *p, struct replay_cell *c, bool is)
{
	if (c->node.prev) /* else it is of the request that is being served */
		policy_demote(p->ops, p->policy, &c->node, is);
	c->demoted = is;
}

/* Marks the blocks behind the block, as far as they are there: they go first from now on, or no longer. */
static void behind(struct replay_node *p, uint32_t block, bool gone)
{
	uint32_t count = 0, at = 0;

	if (!p->ops->demote)
		return;
	p->behind[count++] = block;
	for (; at < count; at++)
		for (uint32_t i = p->cells[p->behind[at]].child; i; i = p->cells[i - 1].sibling)
			if (p->cells[i - 1].in && !p->cells[i - 1].entered && p->cells[i - 1].demoted != gone)
				p->behind[count++] = i - 1;
	while (--count)
		demote(p, &p->cells[p->behind[gone ? at - count : count]], gone);
}

/* Makes room for one more block. False: everything is pinned, or the policy does not admit the block. */
static bool make_room(struct replay_node *p, const struct policy_event *e)
{
	struct policy_node *v;
	uint32_t gone;

	if (p->used < p->capacity)
		return true;
	v = p->ops->victim(p->policy, unpinned, &p->stamp, UINT32_MAX);
	if (!v)
		return false;
	if (p->ops->admit && !p->ops->admit(p->policy, e, v))
		return false;
	p->ops->remove(p->policy, v);
	cell_of(v)->in = cell_of(v)->demoted = false;
	p->used--;
	p->evicted++;
	gone = (uint32_t)(cell_of(v) - p->cells);
	behind(p, gone, true);
	if (p->left)
		p->left(p->left_arg, gone);
	return true;
}

/* Makes room from the head of the chain on; returns how many blocks are present or may be inserted. */
static uint32_t admit_prefix(struct replay_node *p, const struct trace_request *r, const uint32_t *blocks)
{
	for (uint32_t i = 0; i < r->count; i++) {
		struct policy_event e;

		if (p->cells[blocks[i]].in)
			continue;
		e = event_of(p, r, i);
		if (!make_room(p, &e)) {
			p->refused += r->count - i;
			return i;
		}
		p->used++;
		p->cells[blocks[i]].in = true;
		p->cells[blocks[i]].node.prev = NULL;
		behind(p, blocks[i], false);
	}
	return r->count;
}

static void tell(struct replay_node *p, const struct trace_request *r, uint32_t count, uint32_t tokens)
{
	const struct policy_request q = { .now_us = r->time_us, .session = r->session, .ids = p->ids, .count = count, .tokens = tokens,
					  .block_tokens = p->trace->block_tokens, .turn = r->turn, .hint = r->hint };

	if (p->ops->request)
		p->ops->request(p->policy, &q);
}

/* Reports the chain to the policy as the daemon does; the blocks of the chain that are present count as used. */
static void report(struct replay_node *p, const struct trace_request *r)
{
	const uint32_t *blocks = p->trace->blocks + r->first;

	for (uint32_t i = 0; i < r->about; i++)
		p->ids[i] = (uint64_t)blocks[i] + 1;
	tell(p, r, r->about, r->about * p->trace->block_tokens);
	for (uint32_t i = r->about; i-- > 0;) {
		struct policy_event e = event_of(p, r, i);

		if (p->cells[blocks[i]].in && p->cells[blocks[i]].node.prev) {
			p->ops->use(p->policy, &p->cells[blocks[i]].node, &e);
			p->cells[blocks[i]].demoted = false;
		}
	}
}

static void serve(struct replay_node *p, const struct trace_request *r)
{
	const uint32_t *blocks = p->trace->blocks + r->first;
	uint32_t kept;

	for (uint32_t i = 0; i < r->count; i++) {
		p->cells[blocks[i]].stamp = p->stamp;
		p->ids[i] = (uint64_t)blocks[i] + 1;
	}
	chain_note(p, r, blocks);
	tell(p, r, r->count, r->tokens);
	kept = admit_prefix(p, r, blocks);
	for (uint32_t i = r->count; i-- > 0;) {
		struct replay_cell *c = &p->cells[blocks[i]];
		struct policy_event e = event_of(p, r, i);

		if (c->node.prev)
			p->ops->use(p->policy, &c->node, &e);
		else if (i < kept)
			p->ops->insert(p->policy, &c->node, &e);
		c->demoted = false;
	}
}

static uint32_t longest(const struct trace *t)
{
	uint32_t max = 1;

	for (uint32_t i = 0; i < t->request_count; i++)
		if (t->requests[i].count > max)
			max = t->requests[i].count;
	return max;
}

enum status replay_node_open(struct replay_node *p, const struct trace *t, const struct policy_ops *ops,
			     uint64_t capacity, uint32_t weigh)
{
	*p = (struct replay_node){ .trace = t, .ops = ops, .capacity = capacity };
	p->policy = policy_create(ops, capacity, weigh);
	p->cells = calloc((uint64_t)t->unique + 1, sizeof(p->cells[0]));
	p->ids = calloc(longest(t), sizeof(p->ids[0]));
	p->behind = calloc((uint64_t)t->unique + 1, sizeof(p->behind[0]));
	return p->policy && p->cells && p->ids && p->behind ? STATUS_OK : STATUS_EXHAUSTED;
}

void replay_node_close(struct replay_node *p)
{
	if (p->ops)
		p->ops->destroy(p->policy);
	free(p->cells);
	free(p->ids);
	free(p->behind);
	*p = (struct replay_node){ .trace = NULL };
}

bool replay_node_has(const struct replay_node *p, uint32_t block)
{
	return p->cells[block].in;
}

uint32_t replay_node_prefix(const struct replay_node *p, const struct trace_request *r)
{
	uint32_t n = 0;

	while (n < r->count && p->cells[p->trace->blocks[r->first + n]].in)
		n++;
	return n;
}

void replay_node_use(struct replay_node *p, uint32_t block, uint32_t position, uint64_t now_us)
{
	const struct policy_event e = { .now_us = now_us, .id = (uint64_t)block + 1, .position = position,
					.tokens = p->trace->block_tokens };

	p->ops->use(p->policy, &p->cells[block].node, &e);
	p->cells[block].demoted = false;
}

void replay_node_serve(struct replay_node *p, uint32_t number)
{
	const struct trace_request *r = &p->trace->requests[number];

	p->stamp = number + 1;
	if (r->about)
		report(p, r);
	else
		serve(p, r);
}
