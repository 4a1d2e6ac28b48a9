/* What holds of every policy whatever is asked: nothing is lost or comes twice, what may not go stays, the replay's counters add
 * up, the same replay gives the same text; and how far what stays of a chain is a prefix. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/replay.h"
#include "eviction/replay/policies.h"
#include "eviction/replay/read.h"
#include "eviction/replay/report.h"

#ifdef TERRACE_SANITIZED
enum { SEEDS = 1, STEPS = 3000, ROUNDS = 1500, SHARE_STEP = 3, TRACE_PARTS = 4 };
#elif defined(TERRACE_TESTS_SMALL)
enum { SEEDS = 1, STEPS = 6000, ROUNDS = 3000, SHARE_STEP = 3, TRACE_PARTS = 4 };
#else
enum { SEEDS = 3, STEPS = 6000, ROUNDS = 3000, SHARE_STEP = 1, TRACE_PARTS = 1 };
#endif
enum { NODES = 300, CHAIN = 6, BLOCK = 16 };

/* What is asked a million times: ck_assert() writes to the runner each time. */
static void must(bool holds, const char *what)
{
	if (!holds)
		ck_abort_msg("%s", what);
}

/* `graph` and `gdsf` once more, going by what blocks cost: of the longest chain here the last block some times what the first one does. */
enum { GROWTH = CHAIN * BLOCK / 4, WEIGHED_GRAPH = 0, WEIGHED_GDSF, WEIGHED };

static struct policy *create_graph(uint64_t capacity)
{
	return policy_create(replay_policy_find("graph"), capacity, GROWTH);
}

static struct policy *create_gdsf(uint64_t capacity)
{
	return policy_create(replay_policy_find("gdsf"), capacity, GROWTH);
}

static int rows_of_table(void)
{
	int rows = 0;

	while (replay_policy_table[rows])
		rows++;
	return rows;
}

/* Of the table, and then those. */
static const struct policy_ops *row(int i)
{
	static struct policy_ops weighed[WEIGHED];
	const int at = i - rows_of_table();

	if (at < 0)
		return replay_policy_table[i];
	weighed[at] = *replay_policy_find(at == WEIGHED_GDSF ? "gdsf" : "graph");
	weighed[at].create = at == WEIGHED_GDSF ? create_gdsf : create_graph;
	return &weighed[at];
}

/* ---- nodes ---- */

struct item {
	struct policy_node node;
	bool in, seen;
};

static struct item items[NODES];
static uint64_t rng, salt;
static uint32_t inside;

static uint32_t rnd(uint32_t below)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng >> 16) % below;
}

static struct item *item_of(const struct policy_node *n)
{
	return (struct item *)((char *)(uintptr_t)n - offsetof(struct item, node));
}

static bool may_always(const struct policy_node *n, void *arg)
{
	(void)arg;
	must(item_of(n)->in, "asked about what is not in");
	return true;
}

/* As the salt has it; arg: one in so many may go. */
static bool may_some(const struct policy_node *n, void *arg)
{
	must(item_of(n)->in, "asked about what is not in");
	return hash_mix(n->id * 31 + salt) % *(uint32_t *)arg == 0;
}

static void put(const struct policy_ops *ops, struct policy *p, const struct policy_event *e)
{
	struct item *it = &items[e->id - 1];

	if (it->in) {
		ops->use(p, &it->node, e);
		return;
	}
	ops->insert(p, &it->node, e);
	it->in = true;
	inside++;
}

static void take(const struct policy_ops *ops, struct policy *p, struct item *it)
{
	must(it->in, "the victim is not in");
	ops->remove(p, &it->node);
	must(!it->node.prev && !it->node.next, "what was removed has links");
	it->in = false;
	inside--;
}

/* A request for a chain, of which some blocks may be refused: told, then served deepest first. */
static void ask(const struct policy_ops *ops, struct policy *p, uint64_t now)
{
	uint32_t count = 1 + rnd(CHAIN), from = rnd(NODES / CHAIN) * CHAIN;
	uint8_t roles[CHAIN];
	uint64_t ids[CHAIN];

	for (uint32_t k = 0; k < count; k++) {
		ids[k] = from + k + 1;
		roles[k] = (uint8_t)(k % POLICY_ROLES);
	}
	if (ops->request && rnd(4)) {
		const struct policy_request r = { .now_us = now, .ids = ids, .count = count, .tokens = count * BLOCK, .roles = roles,
						  .hint = (uint8_t)rnd(POLICY_HINTS), .priority = (uint8_t)rnd(POLICY_PRIORITIES) };

		ops->request(p, &r);
	}
	for (uint32_t k = count; k-- > 0;) {
		const struct policy_event e = { .now_us = now, .id = ids[k], .position = k, .tokens = BLOCK, .moved = rnd(9) == 0 };
		struct policy_node *v = inside > NODES / 2 ? ops->victim(p, may_always, NULL, UINT32_MAX) : NULL;

		if (v && !items[e.id - 1].in) {
			if (ops->admit && !ops->admit(p, &e, v))
				continue;
			take(ops, p, item_of(v));
		}
		put(ops, p, &e);
	}
}

static void any_step(const struct policy_ops *ops, struct policy *p, uint64_t now)
{
	struct item *it = &items[rnd(NODES)];

	if (rnd(8) > 0)
		ask(ops, p, now);
	else if (it->in)
		take(ops, p, it);
}

static struct policy *begin(const struct policy_ops *ops, uint64_t seed)
{
	struct policy *p = ops->create(NODES / 2);

	ck_assert_ptr_nonnull(p);
	memset(items, 0, sizeof(items));
	inside = 0;
	rng = seed * 0x9e3779b97f4a7c15ull;
	return p;
}

/* Takes victims until so many are left: each was in, none comes twice, none is missing. */
static void evict_down_to(const struct policy_ops *ops, struct policy *p, uint32_t left)
{
	for (int i = 0; i < NODES; i++)
		items[i].seen = false;
	while (inside > left) {
		struct policy_node *v = ops->victim(p, may_always, NULL, UINT32_MAX);

		must(v != NULL, "a node is lost");
		must(item_of(v) >= items && item_of(v) < items + NODES && !item_of(v)->seen, "a node came twice");
		item_of(v)->seen = true;
		take(ops, p, item_of(v));
	}
	if (!left)
		ck_assert_ptr_null(ops->victim(p, may_always, NULL, UINT32_MAX));
}

START_TEST(victims_are_a_permutation_of_what_is_in)
{
	const struct policy_ops *ops = row(_i);

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct policy *p = begin(ops, seed);
		uint64_t now = 0;

		for (int s = 0; s < STEPS; s++) {
			any_step(ops, p, now += rnd(700000));
			if (rnd(200) == 0)
				evict_down_to(ops, p, rnd(3) ? inside / 2 : 0);
		}
		evict_down_to(ops, p, 0);
		ops->destroy(p);
	}
}
END_TEST

static uint32_t that_may(uint32_t one_in)
{
	uint32_t count = 0;

	for (int i = 0; i < NODES; i++)
		count += items[i].in && may_some(&items[i].node, &one_in);
	return count;
}

/* Whatever may go is found, nothing else ever is, and those passed over are all still there after. */
START_TEST(what_may_not_go_is_never_chosen)
{
	const struct policy_ops *ops = row(_i);
	uint32_t chosen = 0, none = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct policy *p = begin(ops, seed);
		uint64_t now = 0;

		for (int s = 0; s < STEPS; s++) {
			uint32_t one_in = 1u << rnd(9);
			struct policy_node *v;

			any_step(ops, p, now += rnd(700000));
			salt = (uint64_t)s;
			v = ops->victim(p, may_some, &one_in, UINT32_MAX);
			must((v != NULL) == (that_may(one_in) > 0), "what may go is not found, or nothing may and something is");
			must(!v || (item_of(v)->in && may_some(v, &one_in)), "the victim may not go");
			none += !v;
			chosen += v != NULL;
			if (v && rnd(2))
				take(ops, p, item_of(v));
		}
		evict_down_to(ops, p, 0);
		ops->destroy(p);
	}
	ck_assert_uint_gt(chosen, STEPS / 4);
	ck_assert_uint_gt(none, STEPS / 40);
}
END_TEST

/* ---- a replay that is watched ---- */

static struct {
	const struct policy_ops *ops;
	const struct trace *trace;
	uint64_t capacity, inserts, uses, removes;
	bool *in;              /* by id */
	uint32_t *parent;      /* by id, the block before it in its chain; 0: none */
	uint64_t looks, there, orphans; /* in every so many requests: blocks that are there, and those without their parent */
	uint32_t every, requests;
} watched;

static void look(void)
{
	for (uint32_t id = 1; id <= watched.trace->unique; id++) {
		watched.there += watched.in[id];
		watched.orphans += watched.in[id] && watched.parent[id] && !watched.in[watched.parent[id]];
	}
	watched.looks++;
}

static void watch_request(struct policy *p, const struct policy_request *r)
{
	if (watched.requests++ % watched.every == 0)
		look();
	if (watched.ops->request)
		watched.ops->request(p, r);
}

static void watch_insert(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	must(!watched.in[e->id], "inserted twice");
	watched.in[e->id] = true;
	watched.inserts++;
	must(watched.inserts - watched.removes <= watched.capacity, "more than the capacity");
	watched.ops->insert(p, n, e);
}

static void watch_use(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	must(watched.in[e->id], "used but not in");
	watched.uses++;
	watched.ops->use(p, n, e);
}

static void watch_remove(struct policy *p, struct policy_node *n)
{
	must(watched.in[n->id], "removed but not in");
	watched.in[n->id] = false;
	watched.removes++;
	watched.ops->remove(p, n);
}

static struct replay_result watch(const struct trace *t, const struct policy_ops *ops, uint64_t capacity, uint32_t every)
{
	const struct replay_options o = { .capacity = capacity };
	struct policy_ops watching = *ops;
	struct replay_result r;

	memset(&watched, 0, sizeof(watched));
	watched.ops = ops;
	watched.trace = t;
	watched.capacity = capacity;
	watched.every = every;
	watched.in = calloc((size_t)t->unique + 1, sizeof(watched.in[0]));
	watched.parent = calloc((size_t)t->unique + 1, sizeof(watched.parent[0]));
	ck_assert(watched.in && watched.parent);
	for (uint32_t i = 0; i < t->request_count; i++)
		for (uint32_t k = 1; k < t->requests[i].count; k++)
			watched.parent[t->blocks[t->requests[i].first + k] + 1] = t->blocks[t->requests[i].first + k - 1] + 1;
	watching.request = watch_request;
	watching.insert = watch_insert;
	watching.use = watch_use;
	watching.remove = watch_remove;
	ck_assert_int_eq(replay_run(t, &watching, &o, &r), STATUS_OK);
	look();
	free(watched.in);
	free(watched.parent);
	return r;
}

/* Chains over a small forest, some of them asked for often: the block behind `a` is 2a or 2a + 1. */
static void forest(struct trace *t, uint64_t seed)
{
	trace_init(t, BLOCK);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t ids[CHAIN], r = hash_mix(seed * 1000003 + i);
		uint32_t count = 1 + (uint32_t)(r >> 32) % CHAIN;
		struct trace_request q = { .time_us = i * 1300000ull, .tokens = count * BLOCK + 3 };

		for (uint32_t b = 0; b < count; b++)
			ids[b] = b ? 2 * ids[b - 1] + (r >> b & 1) : 4 + (r >> 20) % 4 + (r >> 40) % 5 * 1000;
		ck_assert_int_eq(trace_add(t, &q, ids, count), STATUS_OK);
	}
}

START_TEST(the_counters_of_a_replay_add_up)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct trace t;

		forest(&t, seed);
		for (uint64_t capacity = 7; capacity < t.unique; capacity *= 2) {
			struct replay_result r = watch(&t, row(_i), capacity, 100);
			uint64_t left_out = r.blocks - watched.uses - watched.inserts, there = watched.inserts - watched.removes;
			uint64_t tokens = 0;

			for (uint32_t i = 0; i < t.request_count; i++)
				tokens += t.requests[i].tokens;
			ck_assert_uint_eq(r.requests, t.request_count);
			ck_assert_uint_eq(r.tokens, tokens);
			ck_assert_uint_eq(r.blocks, t.block_count);
			ck_assert_uint_eq(r.hit_tokens, r.hit_blocks * BLOCK);
			ck_assert_uint_le(r.hit_blocks, watched.uses);
			ck_assert_uint_le(watched.uses + watched.inserts, r.blocks);
			ck_assert_uint_le(left_out, r.refused); /* of a chain that was refused the rest may be there all the same */
			ck_assert_uint_eq(watched.removes, r.evicted);
			ck_assert_uint_gt(there, capacity / 2);
			ck_assert_uint_le(there, capacity);
		}
		trace_fini(&t);
	}
}
END_TEST

/* ---- the same twice ---- */

static void json(char *out, size_t bytes, const struct replay_result *r, const char *policy)
{
	struct row line = { .policy = policy, .size = 0.25, .capacity = 60, .result = *r };
	const struct options o = { 0 };
	FILE *f = fmemopen(out, bytes, "w");

	ck_assert_ptr_nonnull(f);
	report_json(f, &o, &line);
	ck_assert_int_eq(fclose(f), 0);
}

static struct replay_result run(const struct trace *t, const struct policy_ops *ops, uint32_t from, uint32_t to)
{
	const struct replay_options o = { .capacity = 60, .from = from, .to = to, .growth = GROWTH };
	struct replay_result r;

	ck_assert_int_eq(replay_run(t, ops, &o, &r), STATUS_OK);
	return r;
}

/* Twice, and in parts that are counted one by one: the same text, byte for byte. */
START_TEST(the_same_replay_gives_the_same_text)
{
	enum { PARTS = 5 };
	char first[512], second[512], parts[512];
	struct replay_result a, sum = { 0 };
	struct trace t;

	forest(&t, 3);
	a = run(&t, row(_i), 0, 0);
	json(first, sizeof(first), &a, row(_i)->name);
	a = run(&t, row(_i), 0, 0);
	json(second, sizeof(second), &a, row(_i)->name);
	for (uint32_t k = 0; k < PARTS; k++) {
		struct replay_result r = run(&t, row(_i), t.request_count * k / PARTS, t.request_count * (k + 1) / PARTS);

		sum.requests += r.requests;
		sum.tokens += r.tokens;
		sum.hit_tokens += r.hit_tokens;
		sum.blocks += r.blocks;
		sum.hit_blocks += r.hit_blocks;
		sum.evicted = r.evicted; /* of the whole replay */
		sum.refused = r.refused;
		sum.cost += r.cost;
		sum.saved += r.saved;
	}
	json(parts, sizeof(parts), &sum, row(_i)->name);
	ck_assert_str_eq(first, second);
	ck_assert_str_eq(first, parts);
	ck_assert_uint_gt(a.hit_blocks, 0);
	trace_fini(&t);
}
END_TEST

/* ---- prefixes ---- */

/* Chain i of some blocks of its own. */
static void chain(struct trace *t, uint32_t request, uint64_t i)
{
	uint32_t count = 1 + (uint32_t)(hash_mix(i) % CHAIN);
	const struct trace_request q = { .time_us = request * 1300000ull, .tokens = count * BLOCK };
	uint64_t ids[CHAIN];

	for (uint32_t b = 0; b < count; b++)
		ids[b] = i * CHAIN + b;
	ck_assert_int_eq(trace_add(t, &q, ids, count), STATUS_OK);
}

/* Of what is there, %. */
static double orphans(const struct trace *t, const struct policy_ops *ops, uint64_t capacity, uint32_t every)
{
	watch(t, ops, capacity, every);
	ck_assert_uint_gt(watched.there, watched.looks * capacity / 4);
	return 100 * (double)watched.orphans / (double)watched.there;
}

static bool is(const char *a, const char *b)
{
	return strcmp(a, b) == 0;
}

/* Chains that share nothing: of those asked for once a prefix stays, with every policy but a `gdsf` to which the end of a chain is worth
 * more than its head; and with some if they are asked for again, each as a whole. */
START_TEST(what_stays_of_a_chain_of_its_own_is_a_prefix)
{
	const char *name = row(_i)->name;
	struct trace lone, whole;

	trace_init(&lone, BLOCK);
	trace_init(&whole, BLOCK);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		chain(&lone, i, i);
		chain(&whole, i, hash_mix(i) % (1 + hash_mix(i + 1) % 200));
	}
	for (uint64_t capacity = 7; capacity < 500; capacity *= 2) {
		ck_assert_double_eq(orphans(&lone, row(_i), capacity, 13), 0);
		if (is(name, "lru") || is(name, "gdsf") || is(name, "graph"))
			ck_assert_double_eq(orphans(&whole, row(_i), capacity, 3), 0);
	}
	trace_fini(&lone);
	trace_fini(&whole);
}
END_TEST

/* Chains that branch: with lru what stays is closed under prefixes, with graph but for a few in a thousand. */
START_TEST(what_stays_of_branching_chains_is_a_prefix_nearly)
{
	struct trace t;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		forest(&t, seed);
		for (uint64_t capacity = 40; capacity < t.unique; capacity *= 2) {
			double graph = orphans(&t, replay_policy_find("graph"), capacity, 3), weighed = orphans(&t, row(rows_of_table() + WEIGHED_GRAPH), capacity, 3);

			ck_assert_double_eq(orphans(&t, replay_policy_find("lru"), capacity, 3), 0);
			ck_assert_msg(graph < 1 && weighed < 1, "seed %u, %u blocks: %.3f %%, by cost %.3f %%", (unsigned)seed, (unsigned)capacity, graph, weighed);
		}
		trace_fini(&t);
	}
}
END_TEST

START_TEST(what_stays_of_real_chains_is_a_prefix_nearly)
{
	static const double shares[] = { 0.05, 0.01, 0.1 };
	struct trace t;
	char why[128];

	ck_assert_int_eq(trace_read(TEST_DATA "/traces/mooncake_conversation.jsonl.xz", &t, why, sizeof(why)), STATUS_OK);
	t.request_count /= TRACE_PARTS;
	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i += SHARE_STEP) {
		uint64_t capacity = (uint64_t)(shares[i] * t.unique);
		double graph = orphans(&t, replay_policy_find("graph"), capacity, 100), weighed = orphans(&t, row(rows_of_table() + WEIGHED_GRAPH), capacity, 100);

		ck_assert_double_eq(orphans(&t, replay_policy_find("lru"), capacity, 100), 0);
		ck_assert_msg(graph < 0.1 && weighed < 0.1, "at %g: %.3f %%, by cost %.3f %%", shares[i], graph, weighed);
		printf("graph at %g: %.3f %% without the block before, by cost %.3f %%\n", shares[i], graph, weighed);
	}
	trace_fini(&t);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("policy_properties");
	TCase *tc = tcase_create("every policy");
	SRunner *runner;
	const int rows = rows_of_table() + WEIGHED;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_loop_test(tc, victims_are_a_permutation_of_what_is_in, 0, rows);
	tcase_add_loop_test(tc, what_may_not_go_is_never_chosen, 0, rows);
	tcase_add_loop_test(tc, the_counters_of_a_replay_add_up, 0, rows);
	tcase_add_loop_test(tc, the_same_replay_gives_the_same_text, 0, rows);
	tcase_add_loop_test(tc, what_stays_of_a_chain_of_its_own_is_a_prefix, 0, rows_of_table() + WEIGHED_GDSF);
	tcase_add_test(tc, what_stays_of_branching_chains_is_a_prefix_nearly);
	tcase_add_test(tc, what_stays_of_real_chains_is_a_prefix_nearly);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
