/* What `graph` has learned, over a restart: pieces that are taken up give the same decisions, the hits of each minute after a restart are
 * those of the same minute without one, and pieces that are not as they must be change nothing. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/graph_keep.h"
#include "eviction/hash.h"
#include "eviction/replay/read.h"

enum { PIECES = 256, CAPACITY = 1000, CHAIN = 8 };
#ifdef TERRACE_SANITIZED
enum { SOME = 64 };
#else
enum { SOME = 8 };
#endif

struct pieces {
	uint8_t bytes[PIECES][POLICY_PIECE_MAX];
	size_t size[PIECES];
	uint32_t count;
};

static uint32_t growth; /* of the policies that follow; 0: all blocks cost the same */

static const struct policy_ops *graph(void)
{
	return policy_find("graph");
}

static void keep_all(const struct policy *p, struct pieces *out)
{
	uint64_t cursor = 0;

	out->count = 0;
	while ((out->size[out->count] = graph()->keep(p, &cursor, out->bytes[out->count])) > 0) {
		ck_assert_uint_le(out->size[out->count], POLICY_PIECE_MAX);
		ck_assert_uint_lt(++out->count, PIECES);
	}
}

static bool any(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

/* Chains that go on after a while or never, by what their requests are like, in a policy of CAPACITY nodes. */
struct world {
	struct policy *p;
	struct policy_node node[CAPACITY];
	uint32_t used;
	uint64_t now_us;
};

static void ask(struct world *w, uint64_t first, uint32_t count, uint8_t hint)
{
	uint64_t ids[4 * CHAIN];
	struct policy_request q = { .now_us = w->now_us += 1000000, .ids = ids, .count = count, .block_tokens = 16, .hint = hint };

	for (uint32_t i = 0; i < count; i++)
		ids[i] = first + i;
	graph()->request(w->p, &q);
	for (uint32_t i = count; i-- > 0;) {
		const struct policy_event e = { .now_us = w->now_us, .id = ids[i], .position = i, .tokens = 16 };
		struct policy_node *n = NULL;

		for (uint32_t k = 0; k < w->used && !n; k++)
			if (w->node[k].prev && w->node[k].id == ids[i])
				n = &w->node[k];
		if (n) {
			graph()->use(w->p, n, &e);
			continue;
		}
		if (w->used < CAPACITY) {
			n = &w->node[w->used++];
		} else {
			n = graph()->victim(w->p, any, NULL, CAPACITY);
			if (!graph()->admit(w->p, &e, n))
				continue;
			graph()->remove(w->p, n);
		}
		graph()->insert(w->p, n, &e);
	}
}

static void world_init(struct world *w, uint64_t requests)
{
	memset(w, 0, sizeof(*w));
	w->p = policy_create(graph(), CAPACITY, growth);
	ck_assert_ptr_nonnull(w->p);
	w->now_us = 1000000000;
	for (uint64_t i = 0; i < requests; i++) {
		const uint64_t chain = hash_mix(i) % 3 && i > 40 ? i - 20 - hash_mix(i) % 20 : i;

		ask(w, 1 + chain * 4 * CHAIN, chain == i ? CHAIN : 2 * CHAIN, (uint8_t)(chain % POLICY_HINTS));
	}
}

static double score(const struct policy *p, const struct policy_node *n)
{
	struct policy_explained e;

	graph()->explain(p, n, &e);
	return e.score;
}

static uint32_t feature(const struct policy *p, const struct policy_node *n, const char *name)
{
	struct policy_explained e;

	graph()->explain(p, n, &e);
	for (uint32_t i = 0; i < e.features; i++)
		if (!strcmp(e.feature[i].name, name))
			return e.feature[i].value;
	return UINT32_MAX;
}

static struct policy *recalled(const struct pieces *from, uint64_t now_us, uint64_t idle_us)
{
	struct policy *p = policy_create(graph(), CAPACITY, growth);

	for (uint32_t i = 0; i < from->count; i++)
		ck_assert(graph()->recall(p, now_us, idle_us, from->bytes[i], from->size[i]));
	return p;
}

static struct world world;
static struct pieces kept, again;

/* Of a piece of blocks, each with its age, which is told to the last tick, and if it is a sample with what it tells. */
static void forget_ages(uint8_t *bytes, size_t size)
{
	size_t at = GRAPH_PIECE_HEAD + 4;

	while (at < size) {
		memset(bytes + at + 8, 0, 4);
		at += bytes[at + 17] & MEMORY_SAMPLED ? 21 + 8 : 21;
	}
	ck_assert_uint_eq(at, size);
}

/* What was taken up is what is given again, but for the time that has passed. */
START_TEST(what_is_kept_comes_back)
{
	struct policy *p;

	growth = _i ? 32 : 0;
	world_init(&world, 4000);
	keep_all(world.p, &kept);
	ck_assert_uint_gt(kept.count, 10);
	p = recalled(&kept, world.now_us, 0);
	graph()->request(p, &(struct policy_request){ .now_us = world.now_us }); /* its time */
	keep_all(p, &again);
	ck_assert_uint_eq(again.count, kept.count);
	for (uint32_t i = 0; i < kept.count; i++) {
		uint16_t kind;

		memcpy(&kind, kept.bytes[i] + 6, 2);
		ck_assert_uint_eq(again.size[i], kept.size[i]);
		if (kind == 3) {
			forget_ages(kept.bytes[i], kept.size[i]);
			forget_ages(again.bytes[i], again.size[i]);
			ck_assert_mem_eq(again.bytes[i] + GRAPH_PIECE_HEAD, kept.bytes[i] + GRAPH_PIECE_HEAD, kept.size[i] - GRAPH_PIECE_HEAD);
			continue;
		}
		ck_assert_mem_eq(again.bytes[i], kept.bytes[i], kept.size[i]);
	}
	graph()->destroy(p);
	graph()->destroy(world.p);
}
END_TEST

/* The same requests, to both: new chains are worth the same, and so are blocks that are there again. */
START_TEST(decisions_are_the_same)
{
	static struct policy_node node[CAPACITY];
	uint32_t worth = 0, checked = 0, dear = 0;
	struct policy *p;

	growth = _i ? 32 : 0;
	world_init(&world, 4000);
	keep_all(world.p, &kept);
	p = recalled(&kept, world.now_us, 0);
	for (uint32_t i = 0; i < CAPACITY; i++)
		graph()->insert(p, &node[i], &(struct policy_event){ .now_us = world.now_us, .id = world.node[i].id, .tokens = 16, .moved = true });
	for (uint32_t i = 0; i < CAPACITY; i++) {
		ck_assert_uint_eq(feature(p, &node[i], "class"), feature(world.p, &world.node[i], "class"));
		ck_assert_uint_eq(feature(p, &node[i], "turn"), feature(world.p, &world.node[i], "turn"));
		ck_assert_uint_eq(feature(p, &node[i], "uses_remembered"), feature(world.p, &world.node[i], "uses_remembered"));
		ck_assert_uint_eq(feature(p, &node[i], "chains_on"), feature(world.p, &world.node[i], "chains_on"));
		ck_assert_uint_eq(feature(p, &node[i], "order_by"), feature(world.p, &world.node[i], "order_by"));
		ck_assert_uint_eq(feature(p, &node[i], "cost_milli"), feature(world.p, &world.node[i], "cost_milli"));
		dear += growth && feature(p, &node[i], "cost_milli") > 1500;
		/* Half a second may make a bucket's difference. */
		ck_assert_int_le(abs((int)feature(p, &node[i], "age_bucket") - (int)feature(world.p, &world.node[i], "age_bucket")), 2);
	}
	for (uint64_t i = 0; i < 200; i++) {
		const uint64_t ids[CHAIN] = { (1 + i) << 40, (2 + i) << 41 };
		const uint64_t now_us = world.now_us + 1000 * i;
		const struct policy_request q = { .now_us = now_us, .ids = ids, .count = 2, .hint = (uint8_t)(i % POLICY_HINTS) };
		const struct policy_event e = { .now_us = now_us, .id = ids[0], .tokens = 16 };
		struct policy_node a = { .uses = 0 }, b = { .uses = 0 };

		graph()->request(p, &q);
		graph()->request(world.p, &q);
		graph()->insert(p, &a, &e);
		graph()->insert(world.p, &b, &e);
		ck_assert_double_eq_tol(score(p, &a), score(world.p, &b), 0.02 * score(world.p, &b));
		worth += score(p, &a) > 0;
		checked++;
		graph()->remove(p, &a);
		graph()->remove(world.p, &b);
	}
	ck_assert_uint_eq(worth, checked);
	ck_assert_int_eq(dear > 0, growth > 0);
	graph()->destroy(p);
	graph()->destroy(world.p);
}
END_TEST

static int first_used_first(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return x[0] != y[0] ? (x[0] > y[0] ? -1 : 1) : x[1] < y[1] ? -1 : x[1] > y[1];
}

/* The blocks come back, in the order in which they were used, at a time of a clock; in which order they go then, after an hour and some requests. */
static void order_on_a_clock(uint64_t now_us, uint64_t out[CAPACITY])
{
	const uint64_t idle_us = 600000000;
	static struct policy_node node[CAPACITY];
	static uint64_t told[CAPACITY][2];
	struct policy *p = recalled(&kept, now_us, idle_us);

	memset(node, 0, sizeof(node));
	for (uint32_t i = 0; i < CAPACITY; i++) {
		told[i][1] = world.node[i].id;
		ck_assert(graph()->last_use(p, now_us, told[i][1], &told[i][0]));
		ck_assert_uint_le(told[i][0], world.now_us - world.node[i].last_use_us + idle_us + 1000);
		ck_assert_uint_ge(told[i][0] + 1000, world.now_us - world.node[i].last_use_us + idle_us);
	}
	qsort(told, CAPACITY, sizeof(told[0]), first_used_first);
	for (uint32_t i = 0; i < CAPACITY; i++) {
		graph()->insert(p, &node[i], &(struct policy_event){ .now_us = now_us, .id = told[i][1], .tokens = 16, .moved = true });
		ck_assert_uint_le(now_us - node[i].last_use_us, told[i][0]);
	}
	for (uint64_t i = 0; i < 40; i++) {
		const struct policy_request q = { .now_us = now_us + (1 + i) * 60000000, .ids = &told[7 * i][1], .count = 1 };

		graph()->request(p, &q);
		graph()->use(p, &node[7 * i], &(struct policy_event){ .now_us = q.now_us, .id = told[7 * i][1], .tokens = 16 });
	}
	for (uint32_t i = 0; i < CAPACITY; i++) {
		struct policy_node *v = graph()->victim(p, any, NULL, CAPACITY);

		out[i] = v->id;
		graph()->remove(p, v);
	}
	graph()->destroy(p);
}

/* A clock that begins anew with the machine is younger than what is remembered. */
START_TEST(a_young_clock_is_as_good_as_an_old_one)
{
	static const uint64_t clocks[] = { 1, 1000000, 700 * 1000000ull, 1000 * 1000000ull, 3ull << 51 };
	static uint64_t first[CAPACITY], other[CAPACITY];

	for (uint64_t most = 1; most <= 1500; most += 1499) { /* by age, as nothing is known, and by worth */
		world_init(&world, 300 + most);
		keep_all(world.p, &kept);
		order_on_a_clock(world.now_us, first);
		for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
			order_on_a_clock(clocks[i] / 1000 * 1000 + world.now_us % 1000, other);
			ck_assert_mem_eq(first, other, sizeof(first));
		}
		graph()->destroy(world.p);
	}
}
END_TEST

static void seal(uint8_t *bytes, size_t size)
{
	const uint64_t sum = graph_piece_sum(bytes, size);

	memcpy(bytes + 16, &sum, sizeof(sum));
}

/* The first piece, of a policy that goes by a fixed one and means to stay with it. */
static void choose(struct pieces *k, enum duel_row which)
{
	enum { LEADS_AT = GRAPH_PIECE_HEAD + 7 * 4, ROW_AT = GRAPH_PIECE_HEAD + 7 * 4 + DUEL_ROWS * (1 + DUEL_ROWS) * 4 + 4 + 2 };
	const uint8_t row[3] = { (uint8_t)which, 0, 0 };

	memcpy(&k->bytes[0][LEADS_AT + which * 4], &(float){ 1000 }, 4);
	memcpy(&k->bytes[0][ROW_AT], row, sizeof(row));
	seal(k->bytes[0], k->size[0]);
}

/* For s3fifo what is asked for again soon after it had gone is proven. What went in an earlier run did so too long ago, whatever the clock says. */
START_TEST(what_went_before_is_new_to_s3fifo)
{
	static const uint64_t days[] = { 0, 1, 30, 50 };
	static struct policy_node node[2][8 * CHAIN];

	world_init(&world, 1500);
	keep_all(world.p, &kept);
	choose(&kept, DUEL_S3FIFO);
	graph()->destroy(world.p);
	for (size_t i = 0; i < sizeof(days) / sizeof(days[0]); i++) {
		struct policy_event e = { .now_us = days[i] * 86400000000 + 3600000000, .tokens = 16 };
		struct policy *p = recalled(&kept, e.now_us, 0);
		uint32_t known = 0;

		memset(node, 0, sizeof(node));
		for (uint32_t round = 0; round < 2; round++)
			for (uint32_t b = 0; b < 8 * CHAIN; b++) {
				struct policy_node *n = &node[round][b];

				e.id = 1 + (600 + b) * 4 * CHAIN; /* gone long since */
				e.now_us += 100000000 * (round && b == 0); /* another access */
				if (round)
					graph()->remove(p, &node[0][b]);
				graph()->insert(p, n, &e);
				known += !round && feature(p, n, "uses_remembered") > 1;
				ck_assert_uint_eq(feature(p, n, "order_by"), DUEL_S3FIFO);
				ck_assert_uint_eq(n->queue >> 30, DUEL_S3FIFO);
				ck_assert_uint_eq(n->queue & 1, round); /* the main queue, the second time */
			}
		ck_assert_uint_gt(known, CHAIN);
		graph()->destroy(p);
	}
}
END_TEST

static bool pinned(const struct policy_node *n, void *asked)
{
	(void)n;
	++*(uint32_t *)asked;
	return false;
}

/* Nodes that stand in two orders are looked at no oftener than those of one; and told of in their order, but of s3fifo's. */
START_TEST(a_search_is_bounded_over_all_orders)
{
	struct policy_event e = { .now_us = 3600000000, .tokens = 16 };
	struct policy_node node[2 * CHAIN] = { { 0 } };
	const enum duel_row row = _i ? DUEL_SIEVE : DUEL_S3FIFO;
	uint32_t told = 0;
	struct policy *p;

	world_init(&world, 1500);
	keep_all(world.p, &kept);
	choose(&kept, row);
	graph()->destroy(world.p);
	p = policy_create(graph(), CAPACITY, growth);
	for (uint32_t i = 0; i < 2 * CHAIN; i++) {
		if (i == CHAIN)
			ck_assert(graph()->recall(p, e.now_us, 0, kept.bytes[0], kept.size[0]));
		e.id = 1 + i;
		graph()->insert(p, &node[i], &e);
		ck_assert_uint_eq(node[i].queue >> 30, i < CHAIN ? DUEL_OWN : row);
	}
	for (uint32_t max = 0; max < 3 * CHAIN; max++) {
		uint32_t asked = 0;

		ck_assert_ptr_null(graph()->victim(p, pinned, &asked, max));
		ck_assert_uint_le(asked, max);
		ck_assert_uint_ge(asked, max < 2 * CHAIN ? max : 2 * CHAIN);
	}
	ck_assert_int_eq(graph()->walk(p, pinned, &told, UINT32_MAX), row == DUEL_SIEVE);
	ck_assert_uint_eq(told, row == DUEL_SIEVE ? 2 * CHAIN : 0);
	graph()->destroy(p);
}
END_TEST

/* Whichever policy is in force, and wherever a node was: demoted it goes first, and then it is back where it was. */
START_TEST(a_demoted_node_is_first_in_all_orders)
{
	struct policy_event e = { .now_us = 3600000000, .tokens = 16 };
	struct policy_node node[2 * CHAIN] = { { 0 } };
	const enum duel_row row = _i ? DUEL_SIEVE : DUEL_S3FIFO;
	struct policy *p;

	world_init(&world, 1500);
	keep_all(world.p, &kept);
	choose(&kept, row);
	graph()->destroy(world.p);
	p = policy_create(graph(), CAPACITY, growth);
	for (uint32_t i = 0; i < 2 * CHAIN; i++) {
		if (i == CHAIN)
			ck_assert(graph()->recall(p, e.now_us, 0, kept.bytes[0], kept.size[0]));
		e.id = 1 + i;
		graph()->insert(p, &node[i], &e);
	}
	for (uint32_t i = 0; i < 2 * CHAIN; i++) {
		const uint32_t order = node[i].queue >> 30;

		graph()->demote(p, &node[i], true);
		ck_assert_ptr_eq(graph()->victim(p, any, NULL, UINT32_MAX), &node[i]);
		graph()->demote(p, &node[i], false);
		ck_assert_uint_eq(node[i].queue >> 30, order);
		ck_assert_ptr_ne(graph()->victim(p, any, NULL, UINT32_MAX), &node[i]);
	}
	graph()->destroy(p);
}
END_TEST

static uint32_t accepted; /* counted, since each of Check's assertions takes longer than what it looks at */

/* Whatever is wrong with a piece: the policy is as it was. */
static void refused(struct policy *p, const uint8_t *bytes, size_t size)
{
	accepted += graph()->recall(p, world.now_us, 0, bytes, size);
}

START_TEST(damage_is_refused)
{
	struct policy *p = graph()->create(CAPACITY), *other = graph()->create(CAPACITY + 1);
	static uint8_t bytes[POLICY_PIECE_MAX + 1];
	static struct pieces before;

	world_init(&world, 1500);
	keep_all(world.p, &kept);
	keep_all(p, &before);
	for (uint32_t i = 0; i < kept.count; i++) {
		for (size_t size = 0; size < kept.size[i]; size++)
			refused(p, kept.bytes[i], size);
		memcpy(bytes, kept.bytes[i], kept.size[i]);
		refused(p, bytes, kept.size[i] + 1);
		for (size_t bit = 0; bit < 8 * kept.size[i]; bit += i % SOME ? 97 : 1) { /* all bits of some */
			bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
			refused(p, bytes, kept.size[i]);
			bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
	}
	refused(other, kept.bytes[kept.count - 1], kept.size[kept.count - 1]); /* blocks of another index */
	ck_assert_uint_eq(accepted, 0);
	keep_all(p, &again);
	ck_assert_uint_eq(again.count, before.count);
	for (uint32_t i = 0; i < before.count; i++)
		ck_assert_mem_eq(again.bytes[i], before.bytes[i], before.size[i]);
	graph()->destroy(p);
	graph()->destroy(other);
	graph()->destroy(world.p);
}
END_TEST

/* With a right sum: what cannot be true. `at` behind the head of a piece of that kind, how many bytes, what. */
START_TEST(what_cannot_be_true_is_refused)
{
	static const float nan_ = NAN, inf = INFINITY, large = 1e9f, minus = -1, nothing = 0;
	static const uint16_t big = 60000, none = 0;
	static const uint32_t buckets = 0xf0000000, end = 7;
	static const uint8_t zero = 0, two = 2, rows = DUEL_ROWS, flags = MEMORY_FLAGS, hints = POLICY_HINTS;
	static const uint8_t children = RECORD_CHILDREN_MAX + 1, turn = RECORD_TURN_MAX + 1;
	static const struct {
		uint16_t kind;
		size_t at, bytes;
		const void *what;
	} table[] = {
		{ 0, 0, 4, &minus }, { 0, 8, 4, &nan_ }, { 0, 20, 4, &inf }, { 0, 28, 4, &nan_ }, { 0, 44, 4, &minus }, { 0, 112, 2, &big },
		{ 0, 114, 1, &rows }, { 0, 115, 1, &two }, { 0, 128, 4, &inf }, { 0, 256, 4, &nan_ }, { 0, 384, 4, &large },
		{ 1, 0, 2, &big }, { 1, 4, 4, &nan_ }, { 1, 4, 4, &large }, { 1, 8, 4, &minus },
		{ 2, 0, 2, &big }, { 2, 2, 2, &none }, { 2, 4, 4, &nan_ }, { 2, 4, 4, &nothing }, { 2, 4, 4, &large },
		{ 2, 8, 4, &nan_ }, { 2, 8, 4, &nothing }, { 2, 8, 4, &large }, { 2, 12, 4, &nan_ }, { 2, 12, 4, &minus }, { 2, 136, 4, &large },
		{ 3, 0, 4, &buckets }, { 3, 8, 4, &buckets }, { 3, 16, 2, &big }, { 3, 18, 1, &zero }, { 3, 21, 1, &flags },
		{ 3, 19, 1, &children }, { 3, 20, 1, &turn }, { 3, 22, 1, &hints }, { 3, 25, 4, &buckets }, { 3, 25, 4, &end }, { 3, 29, 4, &nan_ },
		{ 3, 29, 4, &large },
	};
	struct policy *p = graph()->create(CAPACITY);
	uint8_t bytes[POLICY_PIECE_MAX];
	uint16_t kinds = 0;

	world_init(&world, 1500);
	keep_all(world.p, &kept);
	for (uint32_t i = 0; i < kept.count; i++) {
		uint16_t kind;

		memcpy(&kind, kept.bytes[i] + 6, 2);
		if (kinds >> kind & 1)
			continue;
		kinds |= (uint16_t)(1u << kind);
		for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
			if (table[k].kind != kind)
				continue;
			memcpy(bytes, kept.bytes[i], kept.size[i]);
			seal(bytes, kept.size[i]);
			ck_assert_mem_eq(bytes, kept.bytes[i], kept.size[i]);
			memcpy(bytes + GRAPH_PIECE_HEAD + table[k].at, table[k].what, table[k].bytes);
			seal(bytes, kept.size[i]);
			refused(p, bytes, kept.size[i]);
		}
		for (size_t at = 0; at < 16; at += at == 4 ? 2 : 4) { /* magic, version, kind, entries, shape */
			memcpy(bytes, kept.bytes[i], kept.size[i]);
			bytes[at] ^= 1;
			seal(bytes, kept.size[i]);
			if (at != 6)
				refused(p, bytes, kept.size[i]);
		}
	}
	ck_assert_uint_eq(kinds, 15);
	ck_assert_uint_eq(accepted, 0);
	graph()->destroy(p);
	graph()->destroy(world.p);
}
END_TEST

/* Those of a memory that was kept and taken up tell the same from then on, and an LRU cache would hold the same. */
/* The second run's clock says so much less. */
static void samples_over_clocks(uint64_t behind_us)
{
	enum { IDS = 5000, BLOCKS = 600 };
	static struct memory was, is;
	float events[SURVIVAL_BUCKETS], before = 0;
	struct memory_kept k;
	uint64_t now = 1000000000;
	uint32_t sampled = 0;

	ck_assert(memory_init(&was, BLOCKS) && memory_init(&is, BLOCKS));
	for (uint64_t i = 0; i < 3 * IDS; i++) {
		const uint64_t id = 1 + hash_mix(i) % IDS;
		struct record *r = memory_find(&was, id);

		memory_access(&was, r ? r : memory_make(&was, id), id, (uint32_t)i % 6, 0.5f, now += 1000 * (hash_mix(i) % 300));
		memory_find(&was, id)->uses = 1;
		memory_advance(&was, now);
	}
	for (uint32_t back = was.records_used; back-- > 0;) {
		ck_assert(memory_keep(&was, back, now, &k));
		sampled += k.flags & MEMORY_SAMPLED;
		memory_recall(&is, &k, now - behind_us, 0);
	}
	memory_settle(&is, now - behind_us);
	ck_assert_uint_gt(sampled, IDS / 2);
	ck_assert_uint_eq(is.lru_count, was.lru_count);
	memcpy(events, was.hazard.events, sizeof(events));
	for (uint64_t i = 0; i < 2 * IDS; i++) {
		const uint64_t id = 1 + hash_mix(~i) % IDS;
		struct record *a = memory_find(&was, id), *b = memory_find(&is, id);
		struct memory_access x, y;

		ck_assert_int_eq(!a, !b);
		x = memory_access(&was, a ? a : memory_make(&was, id), id, (uint32_t)i % 6, 0.5f, now += 1000 * (hash_mix(i) % 300));
		y = memory_access(&is, b ? b : memory_make(&is, id), id, (uint32_t)i % 6, 0.5f, now - behind_us);
		ck_assert_int_eq(x.sampled, y.sampled);
		ck_assert_int_eq(x.lru_hit, y.lru_hit);
		memory_advance(&was, now);
		memory_advance(&is, now - behind_us);
	}
	for (int b = 0; b < SURVIVAL_BUCKETS; b++) { /* what was half told then, and a millisecond's difference */
		ck_assert_float_eq_tol(is.hazard.events[b], was.hazard.events[b] - events[b], 3);
		before += events[b];
	}
	ck_assert_float_gt(before, 2 * IDS);
	memory_fini(&was);
	memory_fini(&is);
}

START_TEST(samples_are_kept)
{
	samples_over_clocks(0);
	samples_over_clocks(3000000000); /* most of what is remembered is from before the second clock's 0 */
}
END_TEST

/* Pieces in any order, some missing, some twice: it works. */
START_TEST(some_may_be_missing)
{
	world_init(&world, 1500);
	keep_all(world.p, &kept);
	graph()->destroy(world.p);
	for (uint64_t round = 0; round < 20; round++) {
		world_init(&world, 0);
		for (uint32_t i = 0; i < kept.count; i++) {
			const uint64_t r = hash_mix(round << 32 | i);

			if (r % 4)
				ck_assert(graph()->recall(world.p, world.now_us, r % 1000000007, kept.bytes[r >> 8 & 1 ? i : (r >> 9) % kept.count],
							  kept.size[r >> 8 & 1 ? i : (r >> 9) % kept.count]));
		}
		for (uint64_t i = 0; i < 300; i++)
			ask(&world, 1 + hash_mix(i) % 300 * 4 * CHAIN, CHAIN, 0);
		for (uint32_t i = 0; i < CAPACITY; i++) /* each can be found */
			graph()->remove(world.p, graph()->victim(world.p, any, NULL, CAPACITY));
		ck_assert_ptr_null(graph()->victim(world.p, any, NULL, CAPACITY));
		graph()->destroy(world.p);
	}
}
END_TEST

/* ---- the trace ---- */

struct cell {
	struct policy_node node;
	uint32_t stamp, position;
	bool in;
};

struct told {
	uint64_t ago_us;
	uint32_t block, position;
};

struct drive {
	struct trace t;
	struct cell *cells;
	struct policy *p;
	uint64_t capacity, used;
	uint32_t stamp;
	uint64_t ids[4096];
};

static bool unpinned(const struct policy_node *n, void *arg)
{
	return ((const struct cell *)n)->stamp != ((const struct drive *)arg)->stamp;
}

static bool make_room(struct drive *d, const struct policy_event *e)
{
	struct policy_node *v;

	if (d->used < d->capacity)
		return true;
	v = graph()->victim(d->p, unpinned, d, UINT32_MAX);
	if (!v || !graph()->admit(d->p, e, v))
		return false;
	graph()->remove(d->p, v);
	((struct cell *)v)->in = false;
	d->used--;
	return true;
}

static uint32_t serve(struct drive *d, const struct trace_request *r)
{
	const struct policy_request q = { .now_us = r->time_us, .ids = d->ids, .count = r->count, .tokens = r->tokens };
	const uint32_t *blocks = d->t.blocks + r->first;
	uint32_t hits = 0, kept_blocks = r->count;

	d->stamp++;
	while (hits < r->count && d->cells[blocks[hits]].in)
		hits++;
	for (uint32_t i = 0; i < r->count; i++) {
		d->cells[blocks[i]].stamp = d->stamp;
		d->cells[blocks[i]].position = i;
		d->ids[i] = (uint64_t)blocks[i] + 1;
	}
	graph()->request(d->p, &q);
	for (uint32_t i = 0; i < kept_blocks; i++) {
		const struct policy_event e = { .now_us = r->time_us, .id = d->ids[i], .position = i, .tokens = 16 };

		if (d->cells[blocks[i]].in)
			continue;
		if (!make_room(d, &e)) {
			kept_blocks = i;
			break;
		}
		d->used++;
		d->cells[blocks[i]].in = true;
		d->cells[blocks[i]].node = (struct policy_node){ .uses = 0 };
	}
	for (uint32_t i = r->count; i-- > 0;) {
		const struct policy_event e = { .now_us = r->time_us, .id = d->ids[i], .position = i, .tokens = 16 };
		struct cell *c = &d->cells[blocks[i]];

		if (c->node.prev)
			graph()->use(d->p, &c->node, &e);
		else if (i < kept_blocks)
			graph()->insert(d->p, &c->node, &e);
	}
	return hits;
}

static int coldest_first(const void *a, const void *b)
{
	const struct told *x = a, *y = b;

	if (x->ago_us != y->ago_us)
		return x->ago_us > y->ago_us ? -1 : 1;
	return x->position > y->position ? -1 : x->position < y->position;
}

/* The blocks stay, as on a disk, and are told in the order that the policy remembers, if it does. */
static void tell_blocks(struct drive *d, uint64_t now_us)
{
	struct told *told = calloc(d->t.unique, sizeof(*told));
	uint32_t count = 0;

	for (uint32_t i = 0; i < d->t.unique; i++) {
		if (!d->cells[i].in)
			continue;
		told[count] = (struct told){ .block = i, .position = d->cells[i].position };
		if (!graph()->last_use(d->p, now_us, i + 1, &told[count].ago_us))
			told[count].ago_us = UINT64_MAX;
		count++;
	}
	qsort(told, count, sizeof(*told), coldest_first);
	for (uint32_t i = 0; i < count; i++) {
		const struct policy_event e = { .now_us = now_us, .id = told[i].block + 1, .position = told[i].position, .tokens = 16, .moved = true };
		struct cell *c = &d->cells[told[i].block];

		c->node = (struct policy_node){ .uses = 0 };
		graph()->insert(d->p, &c->node, &e);
	}
	free(told);
}

static void restart(struct drive *d, bool with_pieces, uint64_t now_us)
{
	struct policy *old = d->p;

	d->p = graph()->create(d->capacity);
	if (with_pieces) {
		uint8_t bytes[POLICY_PIECE_MAX];
		uint64_t cursor = 0;
		size_t size;

		while ((size = graph()->keep(old, &cursor, bytes)) > 0)
			ck_assert(graph()->recall(d->p, now_us, 0, bytes, size));
	}
	tell_blocks(d, now_us);
	graph()->destroy(old);
}

/* Hits in % of the tokens of some time after a restart: the first minute, the first five. how: 0 without one, 1 with pieces, 2 without. */
static void minutes_after(struct drive *d, double share, uint32_t restart_min, int how, double out[2])
{
	const uint64_t at_us = restart_min * 60000000ull, ends_us[2] = { at_us + 60000000, at_us + 300000000 };
	double hits[2] = { 0 }, tokens[2] = { 0 };
	bool done = how == 0;

	d->capacity = (uint64_t)(share * d->t.unique);
	d->p = graph()->create(d->capacity);
	d->used = 0;
	d->cells = calloc(d->t.unique, sizeof(*d->cells));
	for (uint32_t i = 0; i < d->t.request_count && d->t.requests[i].time_us < ends_us[1]; i++) {
		const struct trace_request *r = &d->t.requests[i];
		uint32_t got;

		if (!done && r->time_us >= at_us) {
			restart(d, how == 1, r->time_us);
			done = true;
		}
		got = serve(d, r);
		for (int k = 0; k < 2; k++) {
			const bool in = r->time_us >= at_us && r->time_us < ends_us[k];

			hits[k] += in ? (double)got * d->t.block_tokens : 0;
			tokens[k] += in ? r->tokens : 0;
		}
	}
	graph()->destroy(d->p);
	free(d->cells);
	for (int k = 0; k < 2; k++)
		out[k] = 100 * hits[k] / tokens[k];
}

START_TEST(a_restart_costs_no_hits)
{
#ifdef TERRACE_SANITIZED
	static const double shares[] = { 0.05 };
	enum { FIRST = 20, STEP = 20, LAST = 20 };
#elif defined(TERRACE_TESTS_SMALL)
	static const double shares[] = { 0.01, 0.1 };
	enum { FIRST = 20, STEP = 20, LAST = 20 };
#else
	static const double shares[] = { 0.01, 0.05, 0.1 };
	enum { FIRST = 12, STEP = 6, LAST = 48 };
#endif
	static struct drive d;
	double with[2] = { 0 }, bare[2] = { 0 };
	char why[160] = "";
	uint32_t n = 0;

	ck_assert_msg(!trace_read(TEST_DATA "/traces/mooncake_conversation.jsonl.xz", &d.t, why, sizeof(why)), "%s", why);
	for (size_t s = 0; s < sizeof(shares) / sizeof(shares[0]); s++)
		for (uint32_t min = FIRST; min <= LAST; min += STEP, n++) {
			double none[2], pieces[2], lost[2];

			minutes_after(&d, shares[s], min, 0, none);
			minutes_after(&d, shares[s], min, 1, pieces);
			minutes_after(&d, shares[s], min, 2, lost);
			printf("%2.0f %%, minute %u: %.2f %.2f without a restart, %.2f %.2f with what was kept, %.2f %.2f without it\n", 100 * shares[s],
			       min, none[0], none[1], pieces[0], pieces[1], lost[0], lost[1]);
			ck_assert_double_ge(pieces[0], none[0] - 1); /* the same minute of the same trace */
			ck_assert_double_ge(pieces[1], none[1] - 1);
			for (int k = 0; k < 2; k++) {
				with[k] += pieces[k] - none[k];
				bare[k] += lost[k] - none[k];
			}
		}
	printf("mean of %u: %+.2f in the first minute, %+.2f in the first five; without what was kept %+.2f and %+.2f\n", n, with[0] / n,
	       with[1] / n, bare[0] / n, bare[1] / n);
	ck_assert_double_gt(with[0] / n, -0.5);
	ck_assert_double_gt(with[1] / n, -0.5);
	ck_assert_double_lt(bare[1] / n, with[1] / n - 1); /* it is what was kept that does it */
	trace_fini(&d.t);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("policy_keep");
	TCase *t = tcase_create("all");
	SRunner *r;
	int failed;

	tcase_set_timeout(t, 200);
	tcase_add_loop_test(t, what_is_kept_comes_back, 0, 2);
	tcase_add_loop_test(t, decisions_are_the_same, 0, 2);
	tcase_add_test(t, a_young_clock_is_as_good_as_an_old_one);
	tcase_add_test(t, what_went_before_is_new_to_s3fifo);
	tcase_add_loop_test(t, a_search_is_bounded_over_all_orders, 0, 2);
	tcase_add_loop_test(t, a_demoted_node_is_first_in_all_orders, 0, 2);
	tcase_add_test(t, damage_is_refused);
	tcase_add_test(t, what_cannot_be_true_is_refused);
	tcase_add_test(t, samples_are_kept);
	tcase_add_test(t, some_may_be_missing);
	tcase_add_test(t, a_restart_costs_no_hits);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
