/* Edges between blocks besides those of their chains.
 *
 * *Leased together* (co_attend): two chains that one session holds under lease at the same time, neither a beginning of
 * the other: agents that work side by side, documents that are attended together. An edge leads from the end of each
 * chain to the first block of the other that they do not share; from there prefix_share leads on in the other chain's
 * order. A new lease gets edges to and from the last four leases of the session. Their weight is one divided by the
 * number of the session's other leases: with hundreds of unrelated leases at a time the edges stay weak, and chains
 * that stay together get strong ones.
 *
 * *Alike* (semantic): at a commit the worker that has just computed a block's checksums also decodes some of its
 * attention keys: of the middle layer's first head, the first 64 tokens, in the rotated domain, where every dim is a
 * random projection of the original. 64 dims of their mean go to the advisor by a mailbox without a lock; it makes a
 * sketch of them (eviction/sketch.h) and ties the block to those that are near, both ways, by one less a tenth a bit.
 * Of a session's layouts the first counts, blocks in host memory only.
 */
#include "daemon/advice/advice.h"
#include "daemon/advice/graph.h"
#include "daemon/block/block.h"
#include "daemon/block/key.h"
#include "daemon/block/layout_pool.h"
#include "daemon/block/lock.h"
#include "daemon/block/slot_at.h"
#include "daemon/session/lease.h"
#include "daemon/session/reservation.h"
#include "daemon/session/session.h"
#include "eviction/graph_edges.h"
#include "eviction/graph_mail.h"
#include "eviction/sketch.h"
#include "kernels/codec.h"
#include "store/slot.h"

#include <math.h>
#include <string.h>

enum {
	TOGETHER = 4,                  /* leases of a session that a new one is tied to */
	SKETCH_TOKENS = 64,
	SUM_DIMS = 8,                 /* every head dim is a multiple */
	SKETCH_WORDS = 2 + SKETCH_BITS / 8,
	SKETCHES_A_PASS = 8192,
	NEAR_MAX = 8,
};

/* ---- leased together ---- */

/* The next of a lease's blocks that stand for its chain, from number *at on; *at moves behind it. NULL: there are no
 * more. In a plain session all blocks stand for it. */
static const struct block *chain_next(const struct lease *l, uint32_t *at)
{
	while (l->main && *at < l->count && block_pool(l->block[*at]) != l->main)
		(*at)++;
	return *at < l->count ? l->block[(*at)++] : NULL;
}

static const struct block *end_of(const struct lease *l)
{
	uint32_t n = l->count;

	while (l->main && n && block_pool(l->block[n - 1]) != l->main)
		n--;
	return n ? l->block[n - 1] : NULL;
}

/* Whether the chain of lease a is the beginning of that of lease `of`, in a session with a grid. The chains are
 * compared block by block. */
static bool is_beginning_of_chain(const struct lease *a, const struct lease *of)
{
	const struct block *mine, *its, *end = NULL, *met = NULL;
	uint32_t i = 0, j = 0;

	while ((mine = chain_next(a, &i)) && (its = chain_next(of, &j))) {
		end = mine;
		met = its;
	}
	return !mine && end && end == met;
}

/* Whether the chain of lease a is the beginning of that of lease `of`: its last block is in that one at the same
 * place. */
static bool is_beginning(const struct lease *a, const struct lease *of)
{
	if (a->main)
		return is_beginning_of_chain(a, of);
	return a->count <= of->count && of->block[a->count - 1] == end_of(a);
}

static uint64_t name_of(const struct block *b)
{
	return key_name_of(b->pool->tenant->number, block_key(b), block_key_bytes(b));
}

/* The first block of l's chain that the other's does not have, in a session with a grid. */
static const struct block *chain_parts_from(const struct lease *l, const struct lease *other)
{
	uint32_t i = 0, j = 0;
	const struct block *b = chain_next(l, &i);

	while (b && b == chain_next(other, &j))
		b = chain_next(l, &i);
	return b ? b : end_of(l);
}

/* The first block of l's chain that the other's does not have. Chains that have parted do not meet again. */
static const struct block *parts_from(const struct lease *l, const struct lease *other)
{
	uint32_t same = 0, end = l->count < other->count ? l->count : other->count;

	if (l->main)
		return chain_parts_from(l, other);

	while (same < end) {
		const uint32_t middle = same + (end - same) / 2;

		if (l->block[middle] == other->block[middle])
			same = middle + 1;
		else
			end = middle;
	}
	return same < l->count ? l->block[same] : end_of(l);
}

/* Adds an edge from the end of one chain to the beginning of the part that the other has alone. */
static void tie(struct cache *c, const struct lease *from, const struct lease *to, float weight)
{
	const struct graph_mail_event e = { .now_us = c->now_us, .kind = GRAPH_MAIL_PAIR, .type = EDGE_CO_ATTEND, .count = 2,
					    .weight = weight, .ids = { name_of(end_of(from)), name_of(parts_from(to, from)) } };

	if (e.ids[0] != e.ids[1])
		graph_mail_post(c->advice->advisor->mail, &e);
}

void graph_feed_lease(struct cache *c, const struct session *s, const struct lease *l)
{
	const struct lease *held[TOGETHER];
	uint32_t count = 0, others = 0;

	if (!c->advice->advisor || !end_of(l))
		return;
	for (const struct lease *o = s->leases; o && others < LEASES_LOOKED_AT; o = o->next) {
		if (o == l || !end_of(o) || is_beginning(o, l) || is_beginning(l, o))
			continue;
		others++;
		if (count < TOGETHER)
			held[count++] = o;
	}
	for (uint32_t i = 0; i < count; i++) {
		tie(c, l, held[i], 1.0f / (float)others);
		tie(c, held[i], l, 1.0f / (float)others);
	}
}

/* ---- alike ---- */

/* Sums n rows of d floats. The sums of some dims at a time stay in registers; d is a multiple of that many. */
static void rows_sum(const float *rows, uint32_t n, uint32_t d, float *restrict sum)
{
	for (uint32_t i = 0; i < d; i += SUM_DIMS) {
		float part[SUM_DIMS] = { 0 };

		for (uint32_t t = 0; t < n; t++)
			for (uint32_t j = 0; j < SUM_DIMS; j++)
				part[j] += rows[t * d + i + j];
		memcpy(sum + i, part, sizeof(part));
	}
}

/* The mean of the first 64 rotated dims of the block's keys, scaled to the full range of 8 bits. False: it has none. */
static bool keys_mean(const struct layout_pool *p, const uint8_t *block, uint32_t tokens, int8_t out[SKETCH_BITS])
{
	float keys[SKETCH_TOKENS * KV_HEAD_DIM_MAX], sum[KV_HEAD_DIM_MAX], most = 0;
	const uint32_t n = tokens < SKETCH_TOKENS ? tokens : SKETCH_TOKENS;
	const uint32_t d = p->layout.head_dim_k; /* 0 of an opaque layout */
	const bool rotated = kv_format_info(p->layout.k_format)->rotated; /* its codes are */

	if (!n || d < SKETCH_BITS || d > KV_HEAD_DIM_MAX)
		return false;
	kv_decode(&p->layout, &p->geometry, block, p->layout.layers / 2, 0, KV_SIDE_K, 0, n, rotated, keys,
		  KV_DTYPE_F32, d);
	rows_sum(keys, n, d, sum);
	if (!rotated)
		kv_rotate(sum, d); /* is linear: once, not for each token */
	for (uint32_t i = 0; i < SKETCH_BITS; i++) {
		if (!isfinite(sum[i]))
			return false;
		most = fabsf(sum[i]) > most ? fabsf(sum[i]) : most;
	}
	if (!(most > 0))
		return false;
	for (uint32_t i = 0; i < SKETCH_BITS; i++)
		out[i] = (int8_t)lrintf(127 * sum[i] / most);
	return true;
}

void graph_feed_commit(struct cache *c, const struct reservation *r)
{
	const struct block *b = r->parts ? r->part[0].block : NULL;
	struct advisor *a = c->advice->advisor;
	int8_t mean[SKETCH_BITS];
	struct letter l;

	if (!a || !b || !b->span ||
	    !keys_mean(b->pool, block_slot_at(b) + SLOT_HEADER_BYTES, part_tokens(r, &r->part[0]), mean))
		return;
	if (!mailbox_begin(&a->sketch_mail, SKETCH_WORDS, &l))
		return;
	letter_write(&a->sketch_mail, &l, 0, key_name_of(b->pool->tenant->number, r->key, r->key_bytes));
	letter_write(&a->sketch_mail, &l, 1, b->pool->layout_id);
	for (uint32_t i = 0; i < SKETCH_BITS / 8; i++) {
		uint64_t word;

		memcpy(&word, mean + 8 * i, 8);
		letter_write(&a->sketch_mail, &l, 2 + i, word);
	}
	mailbox_send(&a->sketch_mail, &l);
}

static void tie_alike(struct advisor *a, uint64_t name, uint64_t layout_id, const int8_t mean[SKETCH_BITS])
{
	const uint64_t bits = sketches_bits(a->sketches, layout_id, mean);
	struct sketch_near near[NEAR_MAX];
	uint32_t found = bits ? sketches_add(a->sketches, name, bits, near, NEAR_MAX) : 0;

	for (uint32_t i = 0; i < found; i++) {
		float weight = 1 - (float)near[i].distance / (SKETCH_NEAR + 1);

		graph_edges_pair(a->graph, a->latest_us, EDGE_SEMANTIC, name, near[i].id, weight);
		graph_edges_pair(a->graph, a->latest_us, EDGE_SEMANTIC, near[i].id, name, weight);
	}
}

void graph_feed_pass(struct advisor *a)
{
	struct letter l;

	for (uint32_t n = 0; n < SKETCHES_A_PASS && mailbox_next(&a->sketch_mail, &l); n++) {
		const uint64_t name = letter_read(&a->sketch_mail, &l, 0), layout_id = letter_read(&a->sketch_mail, &l, 1);
		int8_t mean[SKETCH_BITS];

		for (uint32_t i = 0; i < SKETCH_BITS / 8; i++) {
			const uint64_t word = letter_read(&a->sketch_mail, &l, 2 + i);

			memcpy(mean + 8 * i, &word, 8);
		}
		mailbox_free(&a->sketch_mail, &l);
		tie_alike(a, name, layout_id, mean);
	}
}
