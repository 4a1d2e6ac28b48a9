/* `graph` and fixed policies: shadows that do what the policies do, the choice between them, and the policy over requests for which a fixed one is the
 * best, or one after the other: once it has seen them for a while it must come within 4 % of the best of them, and within 3 % of lru. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/duel.h"
#include "eviction/hash.h"
#include "eviction/memory.h"
#include "eviction/replay.h"
#include "eviction/replay/policies.h"

#ifdef TERRACE_SANITIZED
enum { FIRST_SIZE = 3, SIZE_STEP = 5, SLOW_SIZE_STEP = 5, SLOW_WORLDS = 1, SLOW_TURNS_US = 1000, REQUESTS = 24000, PHASE = 6000 };
#elif defined(TERRACE_TESTS_SMALL)
enum { FIRST_SIZE = 3, SIZE_STEP = 5, SLOW_SIZE_STEP = 5, SLOW_WORLDS = 100, SLOW_TURNS_US = 250 * 1000, REQUESTS = 24000, PHASE = 6000 };
#else
enum { FIRST_SIZE = 0, SIZE_STEP = 1, SLOW_SIZE_STEP = 2, SLOW_WORLDS = 100, SLOW_TURNS_US = 250 * 1000, REQUESTS = 48000, PHASE = 12000 };
#endif
enum { BLOCK = 16, CHAIN = 8, MOST = 64 };

/* ---- shadows ---- */

static bool any(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

static uint64_t popular(uint64_t random, uint64_t count)
{
	return (uint64_t)exp((double)(random >> 11) / 9007199254740992.0 * log((double)count));
}

/* All blocks are followed in a small cache: each shadow hits what the policy itself hits. */
START_TEST(shadows_are_the_policies)
{
	enum { CAPACITY = 200, IDS = 2000, ACCESSES = 3000 };
	static const char *const names[DUEL_ROWS] = { "fifo", "lru", "s3fifo", "sieve" }; /* some own one */
	static struct policy_node node[DUEL_ROWS][IDS];
	struct policy *own = replay_policy_find("fifo")->create(CAPACITY), *p[DUEL_ROWS];
	struct duel *d = duel_create(CAPACITY, replay_policy_find("fifo"), own);
	uint32_t used[DUEL_ROWS] = { 0 };
	double hits[DUEL_ROWS] = { 0 };
	bool full = false;

	memset(node, 0, sizeof(node));
	ck_assert_uint_eq(duel_capacity(d), CAPACITY);
	for (int r = 0; r < DUEL_ROWS; r++)
		p[r] = replay_policy_find(names[r])->create(CAPACITY);
	for (uint64_t i = 1; i <= ACCESSES; i++) {
		const uint64_t id = 1 + (hash_mix(i) % 3 ? popular(hash_mix(i + 1), IDS - 1) : hash_mix(i + 2) % (IDS - 1));
		const struct policy_event e = { .now_us = i * 1000, .id = id, .tokens = BLOCK };
		bool hit[DUEL_ROWS];

		ck_assert(duel_follows(d, id));
		duel_access(d, &e, 1, true);
		for (int r = 0; r < DUEL_ROWS; r++) {
			const struct policy_ops *ops = replay_policy_find(names[r]);
			struct policy_node *n = &node[r][id];

			hit[r] = n->prev;
			if (n->prev) {
				ops->use(p[r], n, &e);
				continue;
			}
			if (used[r]++ == CAPACITY) {
				used[r]--;
				ops->remove(p[r], ops->victim(p[r], any, NULL, UINT32_MAX));
			}
			ops->insert(p[r], n, &e);
		}
		for (int r = 0; full && r < DUEL_ROWS; r++)
			hits[r] += hit[r];
		full = full || used[0] == CAPACITY;
	}
	duel_access(d, &(struct policy_event){ .now_us = (ACCESSES + 1) * 1000ull, .id = 1 }, 1, true); /* the last request is over */
	ck_assert_float_eq(duel_standing(d)->hits, (float)hits[DUEL_OWN]);
	for (int r = DUEL_LRU; r < DUEL_ROWS; r++) {
		ck_assert_float_eq(duel_standing(d)->lead[r], (float)(hits[r] - hits[DUEL_OWN]));
		ck_assert_float_ge(duel_standing(d)->variance[r][DUEL_OWN], fabsf(duel_standing(d)->lead[r]));
		replay_policy_find(names[r])->destroy(p[r]);
	}
	replay_policy_find(names[0])->destroy(p[0]);
	duel_destroy(d);
	replay_policy_find("fifo")->destroy(own);
}
END_TEST

static const struct {
	uint32_t first, count;
} calls[] = { { 1, 4 }, { 11, 4 }, { 1, 4 }, { 21, 2 }, { 11, 4 }, { 1, 4 }, { 31, 3 }, { 41, 4 }, { 1, 4 } };

enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

/* What the shadows hit when requests come so many at a time. */
static struct duel_standing stood(uint32_t at_a_time, float cost)
{
	struct policy *own = replay_policy_find("lru")->create(10);
	struct duel *d = duel_create(10, replay_policy_find("lru"), own);
	struct duel_standing out;

	for (uint32_t i = 0; i < 40 * CALLS; i++) {
		const uint32_t first = calls[i % CALLS].first, count = calls[i % CALLS].count;

		duel_request_end(d);
		for (uint32_t b = count; b-- > 0;)
			duel_access(d, &(struct policy_event){ .now_us = 1 + i / at_a_time, .id = first + b, .position = b }, first == 1 ? cost : 1, true);
	}
	duel_request_end(d);
	duel_request_end(d); /* nothing was told */
	out = *duel_standing(d);
	duel_destroy(d);
	replay_policy_find("lru")->destroy(own);
	return out;
}

START_TEST(two_requests_of_one_time_are_two)
{
	const struct duel_standing alone = stood(1, 1), crowded = stood(1000, 1), pairs = stood(2, 1);

	ck_assert_float_gt(alone.hits, 300);
	ck_assert_float_lt(alone.lead[DUEL_SIEVE], alone.lead[DUEL_LRU] + 1000);
	ck_assert_mem_eq(&alone, &crowded, sizeof(alone));
	ck_assert_mem_eq(&alone, &pairs, sizeof(alone));
}
END_TEST

/* A hit counts as much as it saves, and changes nothing else. */
START_TEST(hits_count_by_what_they_save)
{
	const struct duel_standing plain = stood(1, 1), dear = stood(1, 5);
	const float of_one = (dear.hits - plain.hits) / 4; /* hits of the chain that costs more */

	ck_assert_float_gt(of_one, 100);
	ck_assert_float_lt(of_one, plain.hits - 100);
	ck_assert_float_eq_tol(of_one, roundf(of_one), 1e-3f);
	ck_assert_float_eq_tol(stood(1, 3).hits, plain.hits + 2 * of_one, 1e-2f);
	ck_assert_uint_eq(dear.events, plain.events);
}
END_TEST

/* However large the cache is: no more than 1024 blocks a shadow, and the share of the blocks that goes with that. */
START_TEST(shadows_are_bounded)
{
	for (uint64_t capacity = 1; capacity < 1ull << 34; capacity = capacity * 5 + 3) {
		struct policy *own = replay_policy_find("lru")->create(capacity);
		struct duel *d = duel_create(capacity, replay_policy_find("lru"), own);
		uint64_t followed = 0, asked = 1 << 18;

		ck_assert_uint_le(duel_capacity(d), 1024);
		ck_assert_uint_ge(duel_capacity(d), capacity < 512 ? capacity : 512);
		for (uint64_t id = 1; id <= asked; id++)
			followed += duel_follows(d, id);
		if (asked * duel_capacity(d) / capacity > 100)
			ck_assert_double_eq_tol((double)followed / (double)asked, (double)duel_capacity(d) / (double)capacity, 0.3 * (double)duel_capacity(d) / (double)capacity);
		for (uint64_t i = 0; i < 20000; i++)
			duel_access(d, &(struct policy_event){ .now_us = i / 20, .id = 1 + (hash_mix(i / 20) + i % 17) % 9000 }, 1, true); /* some twice */
		for (int r = 0; r < DUEL_ROWS; r++)
			ck_assert(r != DUEL_LRU || duel_standing(d)->lead[r] == 0); /* lru against lru */
		duel_destroy(d);
		replay_policy_find("lru")->destroy(own);
	}
}
END_TEST

/* Another is chosen for more than chance and more than a hundredth; what is chosen stays until it is no better. */
START_TEST(the_choice_has_hysteresis)
{
	static const struct {
		float lead[DUEL_ROWS], variance;
		enum duel_row now, rest, chosen;
	} table[] = {
		{ { 0, 0, 0, 0 }, 0, DUEL_OWN, DUEL_OWN, DUEL_OWN },
		{ { 0, 100, 50, 0 }, 100, DUEL_OWN, DUEL_OWN, DUEL_LRU },
		{ { 0, 100, 50, 0 }, 1200, DUEL_OWN, DUEL_OWN, DUEL_OWN },    /* chance */
		{ { 0, 9, 5, 0 }, 1, DUEL_OWN, DUEL_OWN, DUEL_OWN },          /* not worth it */
		{ { 0, 5, 0, 0 }, 1, DUEL_LRU, DUEL_OWN, DUEL_LRU },          /* stays */
		{ { 0, 0, 0, 0 }, 1, DUEL_LRU, DUEL_OWN, DUEL_OWN },
		{ { 0, -5, -9, -9 }, 1, DUEL_SIEVE, DUEL_OWN, DUEL_OWN },
		{ { 0, 50, 60, 500 }, 100, DUEL_LRU, DUEL_OWN, DUEL_SIEVE },
		{ { 0, 50, 60, 55 }, 100, DUEL_LRU, DUEL_OWN, DUEL_LRU },
		{ { 0, -500, -400, -600 }, 100, DUEL_LRU, DUEL_LRU, DUEL_S3FIFO }, /* as long as the graph knows nothing, its own is not to be had */
		{ { 0, -100, -95, -99 }, 100, DUEL_LRU, DUEL_LRU, DUEL_LRU },
	};
	struct policy *own = replay_policy_find("lru")->create(10);
	struct duel *d = duel_create(10, replay_policy_find("lru"), own);

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct duel_standing s = { .hits = 1000 };

		memcpy(s.lead, table[i].lead, sizeof(s.lead));
		for (int a = 0; a < DUEL_ROWS; a++)
			for (int b = 0; b < DUEL_ROWS; b++)
				s.variance[a][b] = a == b ? 0 : table[i].variance;
		duel_set_standing(d, &s);
		ck_assert_msg(duel_choose(d, table[i].now, table[i].rest) == table[i].chosen, "row %zu", i);
	}
	duel_destroy(d);
	replay_policy_find("lru")->destroy(own);
}
END_TEST

/* With sieve's hand where whatever is new goes at once, a cache hits nothing, and its shadow as much as before. */
START_TEST(a_stuck_sieve_is_left)
{
	struct policy *own = replay_policy_find("lru")->create(10);
	struct duel *d = duel_create(10, replay_policy_find("lru"), own);
	const struct duel_standing best = { .hits = 1000, .lead = { [DUEL_SIEVE] = 1000 } };
	enum duel_row row = DUEL_SIEVE;

	for (uint64_t i = 1; i <= 4000; i++) {
		const bool filling = i <= 100, stuck = i > 2000;

		if (filling)
			duel_set_standing(d, &best);
		duel_access(d, &(struct policy_event){ .now_us = i, .id = filling ? i : 1 + i % 5 }, 1, !filling && !stuck);
		if (duel_is_due(d))
			row = duel_choose(d, row, DUEL_OWN);
		ck_assert(row == DUEL_SIEVE || (row == DUEL_OWN && stuck));
	}
	ck_assert_int_eq(row, DUEL_OWN);
	duel_destroy(d);
	replay_policy_find("lru")->destroy(own);
}
END_TEST

/* ---- requests ---- */

static const uint64_t sizes[] = { 40, 100, 200, 320, 440 };
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static uint64_t next_id, begin_us, every_us, burst = 1;

static void ask(struct trace *t, uint64_t i, uint64_t chain)
{
	const struct trace_request r = { .time_us = begin_us + i / burst * burst * every_us, .tokens = CHAIN * BLOCK };
	uint64_t ids[CHAIN];

	for (uint32_t b = 0; b < CHAIN; b++)
		ids[b] = chain * MOST + b;
	ck_assert_int_eq(trace_add(t, &r, ids, CHAIN), STATUS_OK);
}

static void once(struct trace *t, uint64_t i)
{
	ask(t, i, 1000000 + next_id++);
}

static void loop(struct trace *t, uint64_t i)
{
	ask(t, i, i % 60);
}

static void scan(struct trace *t, uint64_t i)
{
	if (i % 1000 < 400)
		once(t, i);
	else
		ask(t, i, hash_mix(i) % (1 + hash_mix(i + 1) % 100));
}

static void flood(struct trace *t, uint64_t i)
{
	if (hash_mix(i) % 4)
		once(t, i);
	else
		ask(t, i, hash_mix(i + 7) % 30);
}

static void favourites(struct trace *t, uint64_t i)
{
	ask(t, i, popular(hash_mix(i), 600));
}

static void favourites_in_a_flood(struct trace *t, uint64_t i)
{
	if (hash_mix(i + 9) % 2)
		once(t, i);
	else
		ask(t, i, popular(hash_mix(i), 300));
}

static uint64_t walk_at;

static void walk(struct trace *t, uint64_t i)
{
	walk_at += hash_mix(i) % 31 - 15;
	ask(t, i, walk_at);
}

static uint64_t phase = PHASE;

/* Each for a while. */
static void turns(struct trace *t, uint64_t i)
{
	static void (*const phases[])(struct trace *, uint64_t) = { loop, walk, favourites, flood };

	phases[i / phase % 4](t, i);
}

static void make(struct trace *t, void (*next)(struct trace *, uint64_t))
{
	trace_init(t, BLOCK);
	next_id = 0;
	walk_at = 50000;
	for (uint64_t i = 0; i < (next == turns ? 4 * phase : REQUESTS); i++)
		next(t, i);
}

static const struct {
	const char *name;
	void (*next)(struct trace *, uint64_t);
} worlds[] = {
	{ "loop", loop }, { "scan", scan }, { "flood", flood }, { "favourites", favourites },
	{ "favourites in a flood", favourites_in_a_flood }, { "walk", walk },
};

static double rate(const struct trace *t, const char *policy, uint64_t capacity, uint32_t from)
{
	struct replay_options o = { .capacity = capacity, .from = from };
	struct replay_result r;

	ck_assert_int_eq(replay_run(t, replay_policy_find(policy), &o, &r), STATUS_OK);
	return replay_hit_tokens(&r);
}

/* Fixed policies do not look at the clock: one run of each is good for all speeds. */
static void fixed(const struct trace *t, uint32_t from, double lru[SIZES], double best[SIZES])
{
	for (size_t s = FIRST_SIZE; s < SIZES; s += SIZE_STEP) {
		lru[s] = rate(t, "lru", sizes[s], from);
		best[s] = fmax(lru[s], fmax(rate(t, "s3fifo", sizes[s], from), rate(t, "sieve", sizes[s], from)));
	}
}

/* A request a ms, where a cache turns over many times between two refreshes, and one in a quarter of a second. */
START_TEST(graph_follows_the_best)
{
	double lru[SIZES], best[SIZES];
	struct trace t;

	for (every_us = 1000; every_us <= (_i < SLOW_WORLDS ? 250 * 1000 : 1000); every_us *= 250) {
		make(&t, worlds[_i].next);
		if (every_us == 1000)
			fixed(&t, REQUESTS / 4, lru, best);
		for (size_t s = FIRST_SIZE; s < SIZES; s += every_us == 1000 ? SIZE_STEP : SLOW_SIZE_STEP) {
			const double graph = rate(&t, "graph", sizes[s], REQUESTS / 4);

			printf("%s, %llu us, %u: graph %.2f, the best fixed one %.2f\n", worlds[_i].name, (unsigned long long)every_us, (unsigned)sizes[s], graph, best[s]);
			ck_assert_msg(graph >= 0.96 * best[s], "%s at %u: graph %.2f, the best fixed one %.2f", worlds[_i].name, (unsigned)sizes[s], graph, best[s]);
			ck_assert_msg(graph >= 0.97 * lru[s], "%s at %u: graph %.2f, lru %.2f", worlds[_i].name, (unsigned)sizes[s], graph, lru[s]);
		}
		trace_fini(&t);
	}
}
END_TEST

/* Where each phase has another best one, no fixed policy is better over all of them. */
START_TEST(graph_follows_the_turns)
{
	double lru[SIZES], best[SIZES];
	struct trace t;

	phase = 12000; /* of fewer requests it learns too little */
	for (every_us = 1000; every_us <= SLOW_TURNS_US; every_us *= 250) {
		make(&t, turns);
		if (every_us == 1000)
			fixed(&t, 0, lru, best);
		for (size_t s = FIRST_SIZE; s < SIZES; s += every_us == 1000 ? SIZE_STEP : SLOW_SIZE_STEP) {
			const double graph = rate(&t, "graph", sizes[s], 0);

			printf("turns, %llu us, %u: graph %.2f, the best fixed one %.2f\n", (unsigned long long)every_us, (unsigned)sizes[s], graph, best[s]);
			ck_assert_msg(graph >= best[s], "turns at %u: graph %.2f, the best fixed one %.2f", (unsigned)sizes[s], graph, best[s]);
		}
		trace_fini(&t);
	}
}
END_TEST

/* Recorders round times, and a daemon has one for all that it was told at once: it must not matter that many requests have the same. */
START_TEST(graph_follows_the_best_of_crowds)
{
	double best, graph;
	struct trace t;

	for (burst = 1; burst <= 24; burst += 23) {
		every_us = 1000;
		make(&t, loop);
		best = fmax(rate(&t, "s3fifo", 320, REQUESTS / 4), rate(&t, "sieve", 320, REQUESTS / 4));
		graph = rate(&t, "graph", 320, REQUESTS / 4);
		printf("loop, %llu at a time: graph %.2f, the best fixed one %.2f\n", (unsigned long long)burst, graph, best);
		ck_assert_double_ge(graph, 0.96 * best);
		trace_fini(&t);
	}
}
END_TEST

/* Whatever the clock says at the beginning, and if it overflows 32 bits of milliseconds on the way. */
START_TEST(the_clock_may_begin_anywhere)
{
	static const uint64_t begins_ms[] = { 3600000, (1ull << 31) - 10000, (1ull << 32) - 10000, 50ull * 24 * 3600000 };
	struct replay_options o = { .capacity = 320 };
	struct replay_result first, other;
	struct trace t;

	every_us = 1000;
	for (size_t i = 0; i < sizeof(begins_ms) / sizeof(begins_ms[0]); i++) {
		begin_us = begins_ms[i] * 1000;
		make(&t, turns);
		ck_assert_int_eq(replay_run(&t, replay_policy_find("graph"), &o, i ? &other : &first), STATUS_OK);
		ck_assert(i == 0 || memcmp(&first, &other, sizeof(first)) == 0);
		trace_fini(&t);
	}
}
END_TEST

/* ---- room ---- */

static bool told_of_room;

static struct policy *create_for_eight(uint64_t capacity)
{
	struct policy *p = replay_policy_find("graph")->create(8 * capacity);

	if (p && told_of_room)
		replay_policy_find("graph")->resize(p, capacity);
	return p;
}

/* A layout's policy is made for all memory there is, and gets what others leave. */
START_TEST(room_for_less_is_no_loss)
{
	struct replay_options o = { .capacity = 320, .from = REQUESTS / 4 };
	struct policy_ops eight = *replay_policy_find("graph");
	double exact, hits[2];
	struct replay_result r;
	struct trace t;

	every_us = 1000;
	make(&t, loop);
	exact = rate(&t, "graph", o.capacity, o.from);
	eight.create = create_for_eight;
	for (int i = 0; i < 2; i++) {
		told_of_room = i;
		ck_assert_int_eq(replay_run(&t, &eight, &o, &r), STATUS_OK);
		hits[i] = replay_hit_tokens(&r);
	}
	printf("loop, room for an eighth: graph %.2f, told of it %.2f, made for it %.2f\n", hits[0], hits[1], exact);
	ck_assert_double_ge(hits[1], 0.96 * exact);
	ck_assert_double_lt(hits[0], hits[1]);
	trace_fini(&t);
}
END_TEST

/* Nor is it remembered then what is gone as if there were room for all: what each of many layouts remembers adds up. */
START_TEST(less_is_remembered_with_less_room)
{
	enum { ALL = 16000, LESS = 2000, TIMES = 11 };
	struct memory m;

	ck_assert(memory_init(&m, ALL));
	memory_resize(&m, LESS);
	for (uint64_t id = 1; id <= ALL * TIMES; id++) {
		memory_access(&m, memory_make(&m, id), id, 0, 1, id * 1000);
		if (id == 1)
			memory_find(&m, id)->live = true;
	}
	ck_assert_uint_eq(m.records_used, LESS * TIMES);
	ck_assert_ptr_nonnull(memory_find(&m, 1));
	for (uint64_t id = 2; id <= ALL * TIMES; id++)
		ck_assert_int_eq(memory_find(&m, id) != NULL, id > ALL * TIMES + 1 - LESS * TIMES);
	memory_resize(&m, ALL);
	for (uint64_t id = 1; id <= LESS * TIMES; id++)
		memory_make(&m, 1000000 + id);
	ck_assert_uint_eq(m.records_used, 2 * LESS * TIMES);
	memory_fini(&m);
}
END_TEST

/* ---- asking ---- */

static uint64_t victims, told, untold;

struct first {
	bool (*may)(const struct policy_node *, void *);
	void *arg;
	const struct policy_node *node;
};

static bool note_first(const struct policy_node *n, void *arg)
{
	struct first *f = arg;

	f->node = f->may(n, f->arg) ? n : NULL;
	return f->node;
}

/* Once in a while somebody asks why a block is where it is. */
static struct policy_node *victim_explained(struct policy *p, bool (*may)(const struct policy_node *, void *), void *arg, uint32_t scan_max)
{
	const struct policy_ops *graph = replay_policy_find("graph");
	struct first f = { .may = may, .arg = arg };
	bool walked = ++victims % 5 == 0 && graph->walk(p, note_first, &f, UINT32_MAX);
	struct policy_node *v = graph->victim(p, may, arg, scan_max);
	struct policy_explained e;

	if (walked)
		ck_assert_ptr_eq(v, f.node);
	if (v && victims % 5 == 0) {
		graph->explain(p, v, &e);
		ck_assert_str_eq(e.feature[0].name, "order_by");
		ck_assert(walked || e.feature[0].value != DUEL_LRU || v->queue >> 30 != DUEL_OWN);
		told += walked;
		untold += !walked;
	}
	return v;
}

/* Through all orders, and whatever is left of those before: what a walk tells is what goes, and asking changes nothing. */
START_TEST(asking_changes_nothing)
{
	struct replay_options o = { .capacity = 200 };
	struct policy_ops asked = *replay_policy_find("graph");
	struct replay_result a, b;
	struct trace t;

	asked.victim = victim_explained;
	every_us = 1000;
	make(&t, turns);
	ck_assert_int_eq(replay_run(&t, replay_policy_find("graph"), &o, &a), STATUS_OK);
	ck_assert_int_eq(replay_run(&t, &asked, &o, &b), STATUS_OK);
	ck_assert_mem_eq(&a, &b, sizeof(a));
	ck_assert_uint_gt(told, 1000);
	ck_assert_uint_gt(untold, 1000);
	trace_fini(&t);
}
END_TEST

/* ---- nodes ---- */

static uint64_t pinned;

static bool unpinned(const struct policy_node *n, void *arg)
{
	(void)arg;
	return n->id % 7 != pinned % 7;
}

/* Through all changes of who orders the nodes: each is in one place, keeps its uses, can be taken out, and comes up as a victim in the end. */
START_TEST(nodes_go_from_order_to_order)
{
	enum { CAPACITY = 320 };
	const struct policy_ops *ops = replay_policy_find("graph");
	static struct policy_node node[CAPACITY];
	static uint32_t uses[CAPACITY];
	struct policy *p = ops->create(CAPACITY);
	uint32_t used = 0, changes = 0, orders = 0, last = 0;
	struct trace t;

	every_us = 1000;
	make(&t, turns);
	memset(node, 0, sizeof(node));
	for (uint32_t i = 0; i < t.request_count; i++) {
		const struct trace_request *r = &t.requests[i];

		pinned = i;
		for (uint32_t b = r->count; b-- > 0;) {
			const struct policy_event e = { .now_us = r->time_us, .id = (uint64_t)t.blocks[r->first + b] + 1, .position = b, .tokens = BLOCK };
			struct policy_node *n = NULL;

			for (uint32_t k = 0; k < used && !n; k++)
				n = node[k].prev && node[k].id == e.id ? &node[k] : NULL;
			if (n) {
				ops->use(p, n, &e);
				ck_assert_uint_eq(n->uses, ++uses[n - node]);
				continue;
			}
			if (used < CAPACITY)
				n = &node[used++];
			else if (hash_mix(i * CHAIN + b) % 50)
				n = ops->victim(p, unpinned, NULL, UINT32_MAX);
			else
				n = &node[hash_mix(i) % CAPACITY]; /* dies for another reason */
			ck_assert_ptr_nonnull(n);
			if (n->prev)
				ops->remove(p, n);
			ops->insert(p, n, &e);
			uses[n - node] = 0;
			ck_assert_uint_eq(n->id, e.id);
			changes += n->queue >> 30 != last;
			last = n->queue >> 30;
			orders |= 1u << last;
		}
	}
	ck_assert_uint_ge(changes, 3);
	ck_assert_uint_gt(orders & (orders - 1), 0);
	for (uint32_t k = 0; k < CAPACITY; k++)
		ops->remove(p, ops->victim(p, any, NULL, UINT32_MAX));
	ck_assert_ptr_null(ops->victim(p, any, NULL, UINT32_MAX));
	for (uint32_t k = 0; k < CAPACITY; k++)
		ck_assert_ptr_null(node[k].prev);
	ops->destroy(p);
	trace_fini(&t);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("policy_duel");
	TCase *tc = tcase_create("duel");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 200);
	tcase_add_test(tc, shadows_are_the_policies);
	tcase_add_test(tc, two_requests_of_one_time_are_two);
	tcase_add_test(tc, hits_count_by_what_they_save);
	tcase_add_test(tc, shadows_are_bounded);
	tcase_add_test(tc, the_choice_has_hysteresis);
	tcase_add_test(tc, a_stuck_sieve_is_left);
	tcase_add_loop_test(tc, graph_follows_the_best, 0, (int)(sizeof(worlds) / sizeof(worlds[0])));
	tcase_add_test(tc, graph_follows_the_turns);
	tcase_add_test(tc, graph_follows_the_best_of_crowds);
	tcase_add_test(tc, the_clock_may_begin_anywhere);
	tcase_add_test(tc, room_for_less_is_no_loss);
	tcase_add_test(tc, less_is_remembered_with_less_room);
	tcase_add_test(tc, asking_changes_nothing);
	tcase_add_test(tc, nodes_go_from_order_to_order);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
