/* Any bytes as a piece of what `graph` has learned, as they are and with a right head and sum: refused, or a policy that works and
 * gives pieces that another takes up. */
#include <stdlib.h>
#include <string.h>

#include "eviction/graph_keep.h"
#include "eviction/policy.h"

enum { CAPACITY = 64, BLOCKS = 8, TOKENS = 16, GROWTH = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool any(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

static void use_it(const struct policy_ops *ops, struct policy *p)
{
	struct policy_node node[BLOCKS] = { { .uses = 0 } };
	uint64_t ids[BLOCKS] = { 1, 2, 3, 4, 5, 6, 7, 8 };

	for (uint64_t round = 1; round < 4; round++) {
		const struct policy_request q = { .now_us = round * 7000000, .ids = ids, .count = BLOCKS, .block_tokens = TOKENS, .hint = (uint8_t)round };

		ops->request(p, &q);
		for (uint32_t i = BLOCKS; i-- > 0;) {
			const struct policy_event e = { .now_us = q.now_us, .id = ids[i], .position = i, .tokens = TOKENS, .moved = round == 1 };

			if (node[i].prev)
				ops->use(p, &node[i], &e);
			else
				ops->insert(p, &node[i], &e);
		}
	}
	for (uint32_t i = 0; i < BLOCKS; i++) {
		struct policy_node *n = ops->victim(p, any, NULL, BLOCKS);

		if (!n)
			abort();
		ops->remove(p, n);
	}
}

/* One that has refused all that it was given is as new. */
static void take_up(const uint8_t *bytes, size_t size)
{
	static struct policy *p;
	const struct policy_ops *ops = policy_find("graph");
	uint8_t piece[POLICY_PIECE_MAX];
	uint64_t cursor = 0;
	struct policy *q;
	size_t got;

	p = p ? p : policy_create(ops, CAPACITY, GROWTH);
	if (!p)
		abort();
	if (!ops->recall(p, 1000000, 5, bytes, size))
		return;
	q = policy_create(ops, CAPACITY, GROWTH);
	use_it(ops, p);
	while ((got = ops->keep(p, &cursor, piece)) > 0)
		if (!q || !ops->recall(q, 1000000, 5, piece, got))
			abort();
	ops->destroy(p);
	ops->destroy(q);
	p = NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct policy_ops *ops = policy_find("graph");
	static uint8_t head[POLICY_PIECE_MAX];
	uint8_t *bytes = malloc(size);
	uint64_t cursor = 0, sum;

	if (size && !bytes)
		abort();
	if (!head[0]) {
		struct policy *p = ops->create(CAPACITY);

		if (!p || !ops->keep(p, &cursor, head))
			abort();
		ops->destroy(p);
	}
	if (size)
		memcpy(bytes, data, size);
	take_up(bytes, size);
	if (size >= GRAPH_PIECE_HEAD && size <= POLICY_PIECE_MAX) {
		memcpy(bytes, head, 6);              /* magic, version */
		memcpy(bytes + 12, head + 12, 4);    /* shape */
		bytes[6] %= 4;
		bytes[7] = 0;
		sum = graph_piece_sum(bytes, size);
		memcpy(bytes + 16, &sum, sizeof(sum));
		take_up(bytes, size);
	}
	free(bytes);
	return 0;
}
