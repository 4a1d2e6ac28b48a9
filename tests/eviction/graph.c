/* `graph` and what it is made of: features, the model, classes, memory; and the policy over synthetic requests,
 * friendly and hostile. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eviction/hash.h"
#include "eviction/memory.h"
#include "eviction/replay.h"
#include "eviction/survival.h"

#ifdef TERRACE_TESTS_SMALL
enum { FIRST_SIZE = 2, SIZE_STEP = 3, DELAY_STEP = 3, TURNS = 8000, PACES = 6000 };
#else
enum { FIRST_SIZE = 0, SIZE_STEP = 1, DELAY_STEP = 1, TURNS = 20000, PACES = 10000 };
#endif
enum { BLOCK = 16, CHAIN = 8 };

static struct features any_features(uint64_t r)
{
	return (struct features){ .fresh = (uint32_t)(r >> 8) & 1023, .count = (uint32_t)(r >> 20) & 2047,
				  .ttl_s = (uint32_t)(r >> 32) % 1000, .uses = (uint8_t)(1 + (r >> 42) % 255),
				  .children = (uint8_t)(r >> 50) % 9, .turn = (uint8_t)r, .gap = (uint8_t)((r >> 54) % 33),
				  .hint = (uint8_t)((r >> 3) % POLICY_HINTS), .role = (uint8_t)((r >> 5) % POLICY_ROLES),
				  .priority = (uint8_t)((r >> 7) % POLICY_PRIORITIES), .pace = (uint8_t)(r >> 11) };
}

START_TEST(features_stay_in_range)
{
	uint32_t seen[FEATURES] = { 0 }, all = 0, wrong = 0; /* Check's assertions take longer than what they look at */

	for (uint64_t i = 0; i < 200000; i++) {
		struct features f = any_features(hash_mix(i));
		uint32_t packed = features_pack(&f);

		for (int k = 0; k < FEATURES; k++) {
			const uint32_t step = features_step(packed, (enum feature)k);

			wrong += step >= features_steps[k];
			seen[k] |= 1u << step % 32;
		}
		wrong += features_step(packed, FEATURE_HINT) != f.hint || features_step(packed, FEATURE_ROLE) != f.role;
	}
	ck_assert_uint_eq(wrong, 0);
	for (int k = 0; k < FEATURES; k++) {
		ck_assert_uint_eq(seen[k], (1u << features_steps[k]) - 1); /* each step is for something */
		all += features_steps[k];
	}
	ck_assert_uint_eq(all, FEATURE_STEPS_ALL);
	ck_assert_uint_eq(features_pack(&(struct features){ .uses = 1 }), 0); /* what is not known is 0 */
	ck_assert_uint_eq(features_pack(&(struct features){ .uses = 1, .hint = 9, .role = 200, .priority = 77 }), 0);
}
END_TEST

/* A mean of logarithms that follows; one wait that is unlike the others moves it little, and what is beyond its ends is at them. */
START_TEST(a_pace_is_a_mean_of_late)
{
	uint8_t pace = features_pace(0, 8000), before;

	ck_assert_uint_eq(pace, 1 + 5 * 16); /* eight seconds are five octaves of a quarter of one */
	ck_assert_uint_eq(features_pace(pace, 8000), pace);
	before = pace;
	pace = features_pace(pace, 512000);
	ck_assert(pace > before && pace < before + 2 * 16);
	for (int i = 0; i < 20; i++)
		pace = features_pace(pace, 512000);
	ck_assert_uint_ge(pace, 1 + 11 * 16 - 3);
	ck_assert_uint_eq(features_pace(0, 0), 1);
	ck_assert_uint_eq(features_pace(0, UINT32_MAX), UINT8_MAX);
	ck_assert_uint_lt(features_pace(UINT8_MAX, 0), UINT8_MAX);
}
END_TEST

START_TEST(ages_fall_into_buckets)
{
	uint32_t before = 0;

	for (uint32_t b = 0; b + 1 < SURVIVAL_BUCKETS; b++) {
		ck_assert_uint_eq(survival_bucket(survival_end_us(b) - 1), b);
		ck_assert_uint_eq(survival_bucket(survival_end_us(b)), b + 1);
	}
	for (uint64_t age = 1; age < (uint64_t)1 << 60; age += 1 + age / 7) {
		uint32_t b = survival_bucket(age);

		ck_assert_uint_ge(b, before);
		ck_assert_uint_lt(b, SURVIVAL_BUCKETS);
		before = b;
	}
}
END_TEST

/* The model learns what comes back when, by features and by pairs of them, and the class keeps it. */
START_TEST(worth_follows_what_comes_back)
{
	static struct hazard m;
	static struct survival s;
	float often[SURVIVAL_BUCKETS], never[SURVIVAL_BUCKETS];
	uint32_t kinds[4], class[4];

	hazard_init(&m);
	survival_init(&s);
	for (uint32_t k = 0; k < 4; k++)
		kinds[k] = features_pack(&(struct features){ .uses = 1, .turn = k & 1 ? 3 : 1, .fresh = k & 2 ? 100 : 1 });
	ck_assert(!hazard_is_good(&m));
	/* Half of kinds 1 and 2 come back at one age and the rest never, 0 and 3 never: neither feature alone tells. */
	for (int i = 0; i < 8000; i++)
		for (uint32_t k = 0; k < 4; k++) {
			bool comes = (k == 1 || k == 2) && i % 2;

			for (uint32_t b = 0; b < (comes ? 10 : 16); b++)
				hazard_learn(&m, kinds[k], b, false, 1, 1);
			if (comes)
				hazard_learn(&m, kinds[k], 10, true, 1, 1);
		}
	ck_assert(hazard_is_good(&m));
	hazard_predict(&m, kinds[1], often);
	hazard_predict(&m, kinds[3], never);
	ck_assert(often[10] > 0.3f && often[10] < 0.7f);
	ck_assert(never[10] < 0.05f && often[5] < 0.05f);
	for (uint32_t k = 0; k < 4; k++) {
		float hazard[SURVIVAL_BUCKETS];

		hazard_predict(&m, kinds[k], hazard);
		class[k] = survival_class(&s, hazard, 1);
	}
	survival_update(&s);
	for (uint32_t b = 0; b <= 10; b++)
		ck_assert(s.worth[class[1]][b] > 5 * s.worth[class[3]][b] && s.worth[class[2]][b] > 5 * s.worth[class[0]][b]);
	/* Worth grows as the time comes near, and falls when it is over. */
	ck_assert(s.worth[class[1]][9] > s.worth[class[1]][0]);
	ck_assert(s.worth[class[1]][11] < s.worth[class[1]][9]);
}
END_TEST

START_TEST(classes_stay_in_range)
{
	static struct survival s;

	survival_init(&s);
	for (uint64_t i = 0; i < 20000; i++) {
		float hazard[SURVIVAL_BUCKETS];

		for (uint64_t b = 0; b < SURVIVAL_BUCKETS; b++)
			hazard[b] = exp2f(-(float)(hash_mix(i * 64 + b) % 2000) / 100) * 0.95f;
		ck_assert_uint_lt(survival_class(&s, hazard, exp2f((float)(i % 11))), CLASSES);
	}
}
END_TEST

START_TEST(memory_is_bounded_and_keeps_the_young)
{
	struct memory m;
	uint64_t ids = 5000;

	ck_assert(memory_init(&m, 100));
	memory_make(&m, ids + 1)->live = true;
	for (uint64_t id = 1; id <= ids; id++) {
		ck_assert_ptr_null(memory_find(&m, id));
		memory_access(&m, memory_make(&m, id), id, 0, 1, id * 1000);
		memory_advance(&m, id * 1000);
	}
	ck_assert_uint_eq(m.records_used, m.records_max);
	for (uint64_t id = 1; id <= ids; id++)
		ck_assert_int_eq(memory_find(&m, id) != NULL, id > ids + 1 - m.records_max);
	ck_assert_ptr_nonnull(memory_find(&m, ids + 1)); /* live ones are not forgotten */
	memory_fini(&m);
	memory_fini(&m);
}
END_TEST

START_TEST(an_access_is_pending_for_a_minute)
{
	const uint64_t now = 5000000, minute = 60 * 1000000;
	struct record *r;
	struct memory m;

	ck_assert(memory_init(&m, 100));
	r = memory_make(&m, 7);
	ck_assert(!memory_is_pending(r, now));
	memory_access(&m, r, 7, 0, 1, now);
	ck_assert(memory_is_pending(r, now));
	ck_assert(memory_is_pending(r, now + minute - 1000));
	ck_assert(!memory_is_pending(r, now + minute));
	r->pending = false; /* it was inserted */
	ck_assert(!memory_is_pending(r, now + 1));
	memory_access(&m, r, 7, 0, 1, now + minute);
	ck_assert(memory_is_pending(r, now + minute + 1));
	memory_fini(&m);
}
END_TEST

/* What is used alike at once teaches as much as one after the other does, near enough, and as often. */
START_TEST(lessons_add_up)
{
	static struct hazard together, apart;
	float a[SURVIVAL_BUCKETS], b[SURVIVAL_BUCKETS];
	const uint32_t kind = features_pack(&(struct features){ .uses = 1, .turn = 3 });

	hazard_init(&together);
	hazard_init(&apart);
	for (uint64_t i = 0; i < 4000; i++) {
		uint32_t other = i % 2 ? kind : 0, blocks = 1 + (uint32_t)(hash_mix(i) % 6);
		bool came = hash_mix(i + 1) % 10 < (i % 2 ? 6u : 1u);

		hazard_learn(&together, other, 5, came, (float)blocks * 0.5f, blocks);
		for (uint32_t k = 0; k < blocks; k++)
			hazard_learn(&apart, other, 5, came, 0.5f, 1);
	}
	ck_assert_float_eq(together.events[5], apart.events[5]);
	ck_assert_float_eq(together.hits[5], apart.hits[5]);
	hazard_predict(&together, kind, a);
	hazard_predict(&apart, kind, b);
	ck_assert(a[5] > 0.5f && a[5] < 0.7f && fabsf(a[5] - b[5]) < 0.05f);
	hazard_predict(&together, 0, a);
	hazard_predict(&apart, 0, b);
	ck_assert_msg(a[5] < 0.2f && fabsf(a[5] - b[5]) < 0.05f, "%f %f", (double)a[5], (double)b[5]);
}
END_TEST

static float chance_of(const struct hazard *m, uint8_t hint)
{
	float out[SURVIVAL_BUCKETS];

	hazard_predict(m, features_pack(&(struct features){ .uses = 1, .turn = 2, .hint = hint }), out);
	return out[5];
}

/* A session that is said to be over is taken to be, and what comes back all the same is believed instead. */
START_TEST(an_end_is_an_end_until_it_is_learned_otherwise)
{
	const uint32_t ended = features_pack(&(struct features){ .uses = 1, .turn = 2, .hint = POLICY_HINT_END });
	static struct hazard m;

	hazard_init(&m);
	ck_assert_float_eq(chance_of(&m, POLICY_HINT_END), chance_of(&m, POLICY_HINT_NONE)); /* nobody has said so yet */
	hazard_learn(&m, features_pack(&(struct features){ .uses = 1, .turn = 2, .hint = POLICY_HINT_TOOL }), 5, true, 1, 1);
	ck_assert_float_lt(chance_of(&m, POLICY_HINT_END), chance_of(&m, POLICY_HINT_NONE) / 15);
	ck_assert_float_gt(chance_of(&m, POLICY_HINT_END), chance_of(&m, POLICY_HINT_NONE) / 25);
	ck_assert_float_gt(chance_of(&m, POLICY_HINT_TURN), chance_of(&m, POLICY_HINT_NONE) / 1.1f);
	for (uint32_t i = 0; i < 20000; i++)
		hazard_learn(&m, ended, 5, i % 2, 1, 1);
	ck_assert_float_gt(chance_of(&m, POLICY_HINT_END), 0.4f);
	ck_assert_float_lt(chance_of(&m, POLICY_HINT_END), 0.6f);
}
END_TEST

/* The head of a system prompt, in every request, comes back at once; nothing is learned from that of requests like it. */
START_TEST(what_is_in_all_teaches_nothing)
{
	const struct features everywhere = { .uses = 255, .children = 9, .turn = 1 }, rare = { .uses = 1, .turn = 1 };
	struct memory m;

	for (int taught = 0; taught < 2; taught++) {
		float events = 0;

		ck_assert(memory_init(&m, 20));
		for (uint64_t now = 1; now <= 100; now++) {
			struct record *r = memory_find(&m, 7);

			memory_access(&m, r ? r : memory_make(&m, 7), 7, features_pack(taught ? &rare : &everywhere), 1, now * 1000000);
			memory_advance(&m, now * 1000000);
		}
		for (int b = 0; b < SURVIVAL_BUCKETS; b++)
			events += m.hazard.events[b];
		ck_assert_int_eq(events > 50, taught);
		memory_fini(&m);
	}
}
END_TEST

/* The LRU cache of the samples is an LRU cache: with every block a sample, hits agree with a list of
 * the last `capacity` ids. */
START_TEST(the_shadow_is_lru)
{
	enum { CAPACITY = 20, IDS = 60 };
	uint64_t last[IDS + 1] = { 0 };
	struct memory m;

	ck_assert(memory_init(&m, CAPACITY));
	ck_assert_uint_eq(m.sample_every, 1);
	for (uint64_t now = 1; now <= 5000; now++) {
		uint64_t id = 1 + hash_mix(now) % (now % 3 ? IDS / 3 : IDS);
		struct record *r = memory_find(&m, id);
		struct memory_access a;
		uint32_t younger = 0;

		for (uint64_t other = 1; other <= IDS; other++)
			younger += last[other] > last[id];
		a = memory_access(&m, r ? r : memory_make(&m, id), id, 0, 1, now * 1000);
		ck_assert_int_eq(a.sampled, last[id] != 0);
		if (a.sampled)
			ck_assert_int_eq(a.lru_hit, younger < CAPACITY);
		last[id] = now;
	}
	memory_fini(&m);
}
END_TEST

/* After a pause much has grown older: it is told in parts, and all of it. */
START_TEST(a_pause_is_learned_from_in_parts)
{
	enum { SAMPLES = 7000, PAUSE_BUCKETS = 20 };
	const uint64_t now = survival_end_us(PAUSE_BUCKETS - 1) + 1;
	static struct memory m;
	float before = 0;

	ck_assert(memory_init(&m, SAMPLES / 11 + 1));
	for (uint64_t id = 1; id <= SAMPLES; id++)
		memory_access(&m, memory_make(&m, id), id, (uint32_t)id & 7, 1, 1);
	for (int call = 0; call < 3; call++) {
		float all = 0;

		memory_advance(&m, now);
		for (int b = 0; b < SURVIVAL_BUCKETS; b++)
			all += m.hazard.events[b];
		ck_assert_float_gt(all, before);
		ck_assert_float_le(all, before + (1 << 16));
		before = all;
	}
	memory_access(&m, memory_find(&m, 1), 1, 0, 1, now); /* what is learned in a row is told when something else is */
	memory_advance(&m, now + survival_end_us(0));
	for (int b = 1; b < PAUSE_BUCKETS; b++)
		ck_assert_float_eq(m.hazard.events[b], SAMPLES);
	memory_fini(&m);
}
END_TEST

static uint32_t bucket_of(const struct policy *p, const struct policy_node *n)
{
	struct policy_explained e;

	policy_find("graph")->explain(p, n, &e);
	if (strcmp(e.feature[2].name, "age_bucket") != 0)
		ck_abort_msg("%s", e.feature[2].name);
	return e.feature[2].value;
}

/* However many there are: growing older touches no node. */
START_TEST(nodes_are_as_old_as_they_are_after_a_pause)
{
	enum { NODES = 300000, PARTS = 2 };
	const struct policy_ops *ops = policy_find("graph");
	struct policy_node *nodes = calloc(NODES, sizeof(nodes[0]));
	struct policy *p = ops->create(NODES);
	uint32_t moved[PARTS] = { 0 };
	uint64_t now = 1;

	ck_assert(nodes && p);
	for (uint32_t i = 0; i < NODES; i++) {
		const struct policy_event e = { .now_us = now += i % 3, .id = i + 1, .tokens = BLOCK };

		ops->insert(p, &nodes[i], &e);
	}
	for (int part = 0; part < PARTS; part++) {
		const struct policy_request none = { .now_us = now += part ? 600000 : 3600000000u };

		ops->request(p, &none);
		for (uint32_t i = 0; i < NODES; i++)
			moved[part] += bucket_of(p, &nodes[i]) == survival_bucket(now - nodes[i].last_use_us);
	}
	ck_assert_uint_eq(moved[0], NODES);
	ck_assert_uint_eq(moved[1], NODES);
	ops->destroy(p);
	free(nodes);
}
END_TEST

static bool may_go(const struct policy_node *n, void *arg)
{
	(void)n;
	(void)arg;
	return true;
}

/* However long it was between, what is older goes first while it goes by age. */
static uint32_t feature(const struct policy *p, const struct policy_node *n, const char *name)
{
	struct policy_explained e;

	policy_find("graph")->explain(p, n, &e);
	for (uint32_t i = 0; i < e.features; i++)
		if (!strcmp(e.feature[i].name, name))
			return e.feature[i].value;
	return UINT32_MAX;
}

/* A block that came from another tier was not asked for by that: not when it is unknown, not when it is known, not when it would be admitted. */
START_TEST(what_moved_was_not_asked_for)
{
	const struct policy_ops *ops = policy_find("graph");
	struct policy *p = ops->create(100);
	struct policy_node old = { .uses = 0 }, a = { .uses = 0 }, b = { .uses = 0 }, c = { .uses = 0 };
	struct policy_event e = { .now_us = 1000000, .id = 1, .tokens = BLOCK };

	ops->insert(p, &old, &e);
	ck_assert_uint_eq(feature(p, &old, "uses_remembered"), 1);
	e = (struct policy_event){ .now_us = 2000000, .id = 2, .tokens = BLOCK, .moved = true };
	ops->insert(p, &a, &e);
	e.id = 3;
	ops->admit(p, &e, &old);
	ops->insert(p, &b, &e);
	ck_assert_uint_eq(feature(p, &a, "uses_remembered"), 0);
	ck_assert_uint_eq(feature(p, &b, "uses_remembered"), 0);
	ops->remove(p, &old);
	e.id = 1;
	ops->insert(p, &old, &e);
	ck_assert_uint_eq(feature(p, &old, "uses_remembered"), 1);
	e = (struct policy_event){ .now_us = 3000000, .id = 2, .tokens = BLOCK };
	ops->use(p, &a, &e);
	ck_assert_uint_eq(feature(p, &a, "uses_remembered"), 1);
	e.now_us += 61 * 1000000;
	ops->use(p, &a, &e);
	ck_assert_uint_eq(feature(p, &a, "uses_remembered"), 2);
	e.id = 4;
	ops->insert(p, &c, &e);
	ck_assert_uint_eq(feature(p, &c, "uses_remembered"), 1);
	for (int i = 0; i < 4; i++)
		ops->remove(p, ops->victim(p, may_go, NULL, UINT32_MAX));
	ck_assert_ptr_null(ops->victim(p, may_go, NULL, UINT32_MAX));
	ops->destroy(p);
}
END_TEST

START_TEST(pauses_leave_the_order_by_age)
{
	enum { NODES = 2000 };
	const struct policy_ops *ops = policy_find("graph");
	static struct policy_node nodes[NODES];
	struct policy *p = ops->create(NODES);
	struct policy_request none = { .now_us = 1 };
	struct policy_explained e;
	uint64_t last = 0;

	ck_assert_ptr_nonnull(p);
	for (uint32_t i = 0; i < NODES; i++) {
		const struct policy_event event = { .now_us = none.now_us += hash_mix(i) % 97 ? 1000 : 1 << hash_mix(i + 1) % 31,
						    .id = i + 1, .role = (uint8_t)(i % POLICY_ROLES), .tokens = BLOCK };

		ops->insert(p, &nodes[i], &event);
	}
	none.now_us += 3600000000u;
	ops->request(p, &none);
	ops->explain(p, &nodes[0], &e);
	ck_assert_str_eq(e.feature[0].name, "order_by");
	ck_assert_uint_eq(e.feature[0].value, 1);
	for (uint32_t i = 0; i < NODES; i++) {
		struct policy_node *v = ops->victim(p, may_go, NULL, UINT32_MAX);

		ck_assert_ptr_nonnull(v);
		ck_assert_uint_ge(v->last_use_us, last);
		last = v->last_use_us;
		ops->remove(p, v);
	}
	ops->destroy(p);
}
END_TEST

/* ---- requests ---- */

static uint64_t next_id;

static void ask(struct trace *t, uint64_t ms, uint64_t chain, uint32_t length, uint8_t hint)
{
	struct trace_request r = { .time_us = ms * 1000, .tokens = length * BLOCK, .hint = hint };
	uint64_t ids[64];

	for (uint32_t i = 0; i < length; i++)
		ids[i] = chain * 64 + i;
	ck_assert_int_eq(trace_add(t, &r, ids, length), STATUS_OK);
}

static void once(struct trace *t, uint64_t ms)
{
	ask(t, ms, 1000000 + next_id++, CHAIN, 0);
}

/* A loop somewhat larger than the cache. */
static void loop(struct trace *t)
{
	for (uint64_t i = 0; i < 8000; i++)
		ask(t, i * 250, i % 60, CHAIN, 0);
}

/* Chains asked for at random by a steep popularity, and between them scans of what never comes back. */
static void scan(struct trace *t)
{
	for (uint64_t i = 0; i < 8000; i++)
		if (i % 1000 < 400)
			once(t, i * 250);
		else
			ask(t, i * 250, hash_mix(i) % (1 + hash_mix(i + 1) % 100), CHAIN, 0);
}

static void flood(struct trace *t)
{
	for (uint64_t i = 0; i < 8000; i++)
		if (hash_mix(i) % 4)
			once(t, i * 250);
		else
			ask(t, i * 250, hash_mix(i + 7) % 30, CHAIN, 0);
}

/* Every 1000 requests other chains are popular, and what was learned of short and long ones turns round. */
static void phases(struct trace *t)
{
	for (uint64_t i = 0; i < 12000; i++) {
		uint64_t phase = i / 1000, popular = hash_mix(i) % 2;
		uint32_t length = (phase + popular) % 2 ? CHAIN / 2 : CHAIN;

		if (popular)
			ask(t, i * 250, phase * 1000 + hash_mix(i + 1) % 40, length, 0);
		else
			ask(t, i * 250, 1000000 + next_id++, length, 0);
	}
}

/* Recency is all that matters: a random walk over chains. */
static void walk(struct trace *t)
{
	uint64_t at = 5000;

	for (uint64_t i = 0; i < 12000; i++) {
		at = at + hash_mix(i) % 31 - 15;
		ask(t, i * 250, at, CHAIN, 0);
	}
}

/* Chains that come back five times within some seconds and then no more, but one in a hundred. */
static void few_from_afar(struct trace *t)
{
	for (uint64_t i = 0; i < 20000; i++)
		ask(t, i * 250, hash_mix(i) % 100 ? 100 + i / 100 * 20 + hash_mix(i + 1) % 20 : hash_mix(i + 1) % (100 + i / 5), CHAIN, 0);
}

/* What hits save, where a token with `growth` others before it costs twice what the first one does; 0: the tokens that hit. */
static double saved(const struct trace *t, const char *policy, uint64_t capacity, uint32_t growth)
{
	struct replay_options o = { .capacity = capacity, .growth = growth, .weigh = growth };
	struct replay_result r;

	ck_assert_int_eq(replay_run(t, policy_find(policy), &o, &r), STATUS_OK);
	return replay_saved_cost(&r);
}

static double rate(const struct trace *t, const char *policy, uint64_t capacity)
{
	return saved(t, policy, capacity, 0);
}

static const struct {
	const char *name;
	void (*make)(struct trace *);
	double gain; /* what graph must have over LRU, in points */
} worlds[] = {
	{ "loop", loop, 10 }, { "scan", scan, 0 }, { "flood", flood, 10 }, { "phases", phases, 0 }, { "walk", walk, -1 },
};

START_TEST(graph_is_never_far_below_lru)
{
	enum { GROWTH = CHAIN * BLOCK / 4 }; /* the last block costs some times what the first one does */
	static const uint64_t sizes[] = { 40, 100, 200, 320, 440 };
	double best = -100;
	struct trace t;

	trace_init(&t, BLOCK);
	worlds[_i].make(&t);
	for (size_t i = FIRST_SIZE; i < sizeof(sizes) / sizeof(sizes[0]); i += SIZE_STEP) {
		double lru = rate(&t, "lru", sizes[i]), graph = rate(&t, "graph", sizes[i]);
		double lru_cost = saved(&t, "lru", sizes[i], GROWTH), graph_cost = saved(&t, "graph", sizes[i], GROWTH);

		ck_assert_msg(graph >= 0.97 * lru, "%s at %u: graph %.2f, lru %.2f", worlds[_i].name, (unsigned)sizes[i], graph, lru);
		ck_assert_msg(graph_cost >= 0.97 * lru_cost, "%s at %u: by cost graph %.2f, lru %.2f", worlds[_i].name, (unsigned)sizes[i], graph_cost, lru_cost);
		best = fmax(best, graph - lru);
	}
	ck_assert_msg(best >= worlds[_i].gain, "%s: the best gain is %.2f", worlds[_i].name, best);
	trace_fini(&t);
}
END_TEST

/* Where LRU misses next to nothing of what comes back there is nothing to win: what goes is what LRU has go. */
START_TEST(where_lru_misses_little_graph_is_lru)
{
	uint32_t evicting = 0;
	struct trace t;

	trace_init(&t, BLOCK);
	few_from_afar(&t);
	for (uint64_t capacity = 1000; capacity <= 2000; capacity += 500) {
		struct replay_options o = { .capacity = capacity };
		struct replay_result lru, graph;

		ck_assert_int_eq(replay_run(&t, policy_find("lru"), &o, &lru), STATUS_OK);
		ck_assert_int_eq(replay_run(&t, policy_find("graph"), &o, &graph), STATUS_OK);
		ck_assert_uint_eq(graph.hit_blocks, lru.hit_blocks);
		ck_assert_uint_eq(graph.refused, 0);
		evicting += lru.evicted > 10 * capacity;
	}
	ck_assert_uint_eq(evicting, 3);
	trace_fini(&t);
}
END_TEST

/* Sessions of some turns; those that end say so. */
static void sessions(struct trace *t, bool tell)
{
	uint8_t turns[200] = { 0 };
	uint64_t chain[200];

	for (uint64_t i = 0; i < TURNS; i++) {
		uint64_t s = hash_mix(i) % 200;
		bool last = hash_mix(i + 3) % 3 == 0;

		if (turns[s] == 0)
			chain[s] = next_id++;
		turns[s]++;
		ask(t, i * 100, chain[s], 2u + turns[s] * 2u, last && tell ? POLICY_HINT_END : 0);
		if (last || turns[s] > 20)
			turns[s] = 0;
	}
}

START_TEST(a_hint_helps)
{
	struct trace silent, told;
	double graph;

	trace_init(&silent, BLOCK);
	trace_init(&told, BLOCK);
	sessions(&silent, false);
	next_id = 0;
	sessions(&told, true);
	graph = rate(&told, "graph", 600);
	ck_assert(graph > rate(&silent, "graph", 600) + 3);
	ck_assert(rate(&told, "lru", 600) < graph);
	trace_fini(&silent);
	trace_fini(&told);
}
END_TEST

/* Half of the sessions are soon back after tools and slow to answer a turn, the others the other way round: how long the last wait was does not
 * say which, as it may have been of either kind. */
static void paces(struct trace *t, bool tell)
{
	enum { SESSIONS = 60 };
	struct { uint64_t at, chain; uint32_t asked; } session[SESSIONS];

	for (uint64_t s = 0; s < SESSIONS; s++) {
		session[s].at = hash_mix(s) % 300;
		session[s].chain = next_id++;
		session[s].asked = 0;
	}
	for (uint64_t i = 0; i < PACES; i++) {
		const bool tool = hash_mix(i) % 2;
		uint64_t s = 0;

		for (uint64_t other = 1; other < SESSIONS; other++)
			if (session[other].at < session[s].at)
				s = other;
		ask(t, session[s].at * 1000, session[s].chain, 2 + session[s].asked, tell ? tool ? POLICY_HINT_TOOL : POLICY_HINT_TURN : 0);
		session[s].at += (tool == (s % 2 == 0) ? 4 : 256) + hash_mix(i + 1) % 4;
		if (++session[s].asked > 30) {
			session[s].asked = 0;
			session[s].chain = next_id++;
		}
	}
}

START_TEST(the_pace_of_a_session_is_learned)
{
	struct trace silent, told;

	trace_init(&silent, BLOCK);
	trace_init(&told, BLOCK);
	paces(&silent, false);
	next_id = 0;
	paces(&told, true);
	ck_assert(rate(&told, "graph", 150) > rate(&silent, "graph", 150) + 1.5);
	trace_fini(&silent);
	trace_fini(&told);
}
END_TEST

/* The same requests give the same hits, and without request() and without names the policy still works. */
START_TEST(replays_repeat)
{
	struct policy_ops silent = *policy_find("graph");
	struct replay_options o = { .capacity = 200 };
	struct replay_result a, b;
	struct trace t;

	trace_init(&t, BLOCK);
	flood(&t);
	ck_assert_int_eq(replay_run(&t, policy_find("graph"), &o, &a), STATUS_OK);
	ck_assert_int_eq(replay_run(&t, policy_find("graph"), &o, &b), STATUS_OK);
	ck_assert_mem_eq(&a, &b, sizeof(a));
	silent.request = NULL;
	ck_assert_int_eq(replay_run(&t, &silent, &o, &b), STATUS_OK);
	ck_assert_uint_gt(b.hit_blocks, 0);
	trace_fini(&t);
}
END_TEST

/* ---- what is served later than it is told ---- */

static uint64_t late_us;

static struct policy_event later(const struct policy_event *e)
{
	struct policy_event out = *e;

	out.now_us += late_us;
	return out;
}

static void insert_late(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	const struct policy_event l = later(e);

	policy_find("graph")->insert(p, n, &l);
}

static void use_late(struct policy *p, struct policy_node *n, const struct policy_event *e)
{
	const struct policy_event l = later(e);

	policy_find("graph")->use(p, n, &l);
}

static bool admit_late(struct policy *p, const struct policy_event *e, const struct policy_node *v)
{
	const struct policy_event l = later(e);

	return policy_find("graph")->admit(p, &l, v);
}

/* Blocks that come to be put or read after their request was told keep what the request said of them. */
START_TEST(what_comes_late_is_of_its_request)
{
	static const uint64_t delays[] = { 1, 1000, 99 * 1000 }; /* us; the next request is told 100 ms later */
	struct policy_ops late = *policy_find("graph");
	struct replay_options o = { .capacity = 600 };
	struct replay_result r;
	struct trace t;
	double at_once;

	late.insert = insert_late;
	late.use = use_late;
	late.admit = admit_late;
	trace_init(&t, BLOCK);
	sessions(&t, true);
	at_once = rate(&t, "graph", 600);
	for (size_t i = 0; i < sizeof(delays) / sizeof(delays[0]); i += DELAY_STEP) {
		late_us = delays[i];
		ck_assert_int_eq(replay_run(&t, &late, &o, &r), STATUS_OK);
		ck_assert_double_eq_tol(replay_hit_tokens(&r), at_once, 0.5);
	}
	ck_assert_double_gt(at_once, rate(&t, "lru", 600) + 3); /* there is something to lose */
	trace_fini(&t);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("policy_graph");
	TCase *tc = tcase_create("graph");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, features_stay_in_range);
	tcase_add_test(tc, classes_stay_in_range);
	tcase_add_test(tc, ages_fall_into_buckets);
	tcase_add_test(tc, a_pace_is_a_mean_of_late);
	tcase_add_test(tc, worth_follows_what_comes_back);
	tcase_add_test(tc, memory_is_bounded_and_keeps_the_young);
	tcase_add_test(tc, an_access_is_pending_for_a_minute);
	tcase_add_test(tc, lessons_add_up);
	tcase_add_test(tc, an_end_is_an_end_until_it_is_learned_otherwise);
	tcase_add_test(tc, what_is_in_all_teaches_nothing);
	tcase_add_test(tc, the_shadow_is_lru);
	tcase_add_test(tc, a_pause_is_learned_from_in_parts);
	tcase_add_test(tc, nodes_are_as_old_as_they_are_after_a_pause);
	tcase_add_test(tc, pauses_leave_the_order_by_age);
	tcase_add_test(tc, what_moved_was_not_asked_for);
	tcase_add_loop_test(tc, graph_is_never_far_below_lru, 0, (int)(sizeof(worlds) / sizeof(worlds[0])));
	tcase_add_test(tc, where_lru_misses_little_graph_is_lru);
	tcase_add_test(tc, a_hint_helps);
	tcase_add_test(tc, the_pace_of_a_session_is_learned);
	tcase_add_test(tc, replays_repeat);
	tcase_add_test(tc, what_comes_late_is_of_its_request);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
