/* See owners.h. A node's hash is made once; a segment then costs two multiplications a member, over one array. */
#include "daemon/directory/owners.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct owners {
	_Atomic uint32_t holds;
	uint32_t count;              /* members */
	uint32_t candidates;         /* members that may own */
	uint64_t *hash;              /* of each candidate's node */
	uint32_t *candidate;         /* its index among the members */
	uint32_t *by_node;           /* indexes of the members, by node id */
	struct directory_member at[];
};

/* Changes every bit of the result with every bit of x (the finalizer of MurmurHash3). */
static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

static uint64_t node_hash(const uint8_t node[DIRECTORY_NODE_BYTES])
{
	uint64_t word[2];

	memcpy(word, node, sizeof word);
	return mix(word[0] + 0x9e3779b97f4a7c15ull) ^ mix(mix(word[1]) + 1);
}

static int node_order(const void *a, const void *b, void *arg)
{
	const struct owners *o = arg;
	const uint32_t *i = a, *k = b;

	return memcmp(o->at[*i].run.node, o->at[*k].run.node, DIRECTORY_NODE_BYTES);
}

enum status owners_create(const struct directory_member *at, uint32_t count, struct owners **out)
{
	struct owners *o = calloc(1, sizeof *o + count * sizeof o->at[0]);
	bool any = false;

	if (!o)
		return STATUS_EXHAUSTED;
	atomic_init(&o->holds, 1);
	o->count = count;
	o->hash = calloc((size_t)count + 1, sizeof o->hash[0]);
	o->candidate = calloc((size_t)count + 1, sizeof o->candidate[0]);
	o->by_node = calloc((size_t)count + 1, sizeof o->by_node[0]);
	if (!o->hash || !o->candidate || !o->by_node) {
		owners_drop(o);
		return STATUS_EXHAUSTED;
	}
	for (uint32_t i = 0; i < count; i++) {
		o->at[i] = at[i];
		o->by_node[i] = i;
		any |= !at[i].draining;
	}
	qsort_r(o->by_node, count, sizeof o->by_node[0], node_order, o);
	for (uint32_t i = 0; i < count; i++) {
		if (at[i].draining && any)
			continue;
		o->hash[o->candidates] = node_hash(at[i].run.node);
		o->candidate[o->candidates++] = i;
	}
	*out = o;
	return STATUS_OK;
}

struct owners *owners_hold(struct owners *o)
{
	atomic_fetch_add_explicit(&o->holds, 1, memory_order_relaxed);
	return o;
}

void owners_drop(struct owners *o)
{
	if (!o || atomic_fetch_sub_explicit(&o->holds, 1, memory_order_acq_rel) != 1)
		return;
	free(o->hash);
	free(o->candidate);
	free(o->by_node);
	free(o);
}

uint32_t owners_members(const struct owners *o)
{
	return o->count;
}

const struct directory_member *owners_member(const struct owners *o, uint32_t index)
{
	assert(index < o->count);
	return &o->at[index];
}

uint32_t owners_find(const struct owners *o, const uint8_t node[DIRECTORY_NODE_BYTES])
{
	uint32_t low = 0, high = o->count;

	while (low < high) {
		const uint32_t middle = low + (high - low) / 2;
		const int order = memcmp(o->at[o->by_node[middle]].run.node, node, DIRECTORY_NODE_BYTES);

		if (!order)
			return o->by_node[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return OWNERS_NONE;
}

uint64_t owners_weight(const uint8_t node[DIRECTORY_NODE_BYTES], uint64_t segment)
{
	return mix(node_hash(node) ^ segment);
}

void owners_of(const struct owners *o, uint64_t segment, uint32_t out[OWNERS_A_SEGMENT])
{
	uint64_t best[OWNERS_A_SEGMENT] = { 0, 0 };
	uint32_t at[OWNERS_A_SEGMENT] = { OWNERS_NONE, OWNERS_NONE };

	for (uint32_t i = 0; i < o->candidates; i++) {
		const uint64_t weight = mix(o->hash[i] ^ segment);

		if (at[1] != OWNERS_NONE && weight <= best[1])
			continue;
		const bool first = at[0] == OWNERS_NONE || weight > best[0];

		if (first) {
			best[1] = best[0];
			at[1] = at[0];
		}
		best[!first] = weight;
		at[!first] = i;
	}
	for (uint32_t k = 0; k < OWNERS_A_SEGMENT; k++)
		out[k] = at[k] == OWNERS_NONE ? OWNERS_NONE : o->candidate[at[k]];
}
