/* Random histories of an arena against a model: takes, gives, trades. Each taken slot's bytes say
 * which class, span, index and generation it is, at its beginning and at its end, so that a wrong stride, an old span
 * or a slot that two have is seen. */
#include "store/host/extent.h"
#include "tests/store/arena/inside.h"
#include "tests/store/arena/rig.h"

#include <pthread.h>
#include <string.h>

enum { CLASSES = 6, HELD_MAX = 2048, EXTENTS_MAX = 64, STEPS = 40000 };

struct stamp {
	uint64_t stride, generation;
	uint32_t extent, granule, index, magic;
};

static struct stamp stamp_of(const struct arena_slot *s)
{
	return (struct stamp){ arena_class_stride(s->class), s->generation, s->extent, s->granule, s->index, 0x5107u };
}

static void stamp(const struct arena_slot *s)
{
	const struct stamp is = stamp_of(s);

	memset(s->at, 0xff, sizeof(is)); /* whatever was there */
	memcpy(s->at, &is, sizeof(is));
	memcpy(s->at + is.stride - sizeof(is), &is, sizeof(is));
}

static void stamp_check(const struct arena_slot *s)
{
	const struct stamp is = stamp_of(s);

	ck_assert_mem_eq(s->at, &is, sizeof(is));
	ck_assert_mem_eq(s->at + is.stride - sizeof(is), &is, sizeof(is));
}

struct model {
	struct arena *a;
	struct arena_class *class[CLASSES];
	struct arena_slot held[HELD_MAX];
	uint32_t count;
	uint64_t now_us, last_generation, cut, traded;
};

static void model_take(struct model *m, uint64_t dice)
{
	struct arena_class *k = m->class[dice % CLASSES];
	const bool reserve = dice / CLASSES % 8 == 0;
	const struct arena_usage before = usage_of(m->a);
	const uint64_t granule = arena_granule_bytes(m->a);
	struct arena_slot *s = &m->held[m->count];
	struct arena_growth g;
	struct arena_usage after;
	bool cut = false;
	enum status st;

	if (m->count == HELD_MAX)
		return;
	st = arena_take(k, reserve, s, &cut);
	if (st == STATUS_MISS) {
		if (dice / CLASSES / 8 % 2)
			arena_prepare(k, &g);
		else
			arena_preallocate(m->a, 1, &g);
		return;
	}
	ck_assert_int_eq(st, STATUS_OK);
	ck_assert_uint_gt(s->generation, m->last_generation);
	m->last_generation = s->generation;
	ck_assert_ptr_eq(s->span->class, k);
	ck_assert_ptr_eq(arena_span_at(m->a, s->extent, s->granule), s->span);
	ck_assert_uint_lt(s->index, s->span->slots);
	ck_assert_uint_eq(s->offset, s->granule * granule + s->index * arena_class_stride(k));
	ck_assert_ptr_eq(s->at, arena_extent(m->a, s->extent)->base + s->offset);
	ck_assert(cut == (s->span->owner == NULL));
	after = usage_of(m->a);
	if (cut && !reserve)
		ck_assert(after.granules_free + (after.budget_bytes - after.extent_bytes) / granule >= before.reserve);
	m->cut += cut;
	s->span->owner = s->span;
	arena_span_use(s->span, m->now_us);
	stamp(s);
	m->count++;
}

/* Returns whether the span ended. */
static bool model_give_at(struct model *m, uint32_t at)
{
	struct arena_slot s = m->held[at];
	struct arena_span *span = s.span;
	uint32_t others = 0;
	void *owner = NULL;
	bool ended;

	stamp_check(&s);
	m->held[at] = m->held[--m->count];
	for (uint32_t i = 0; i < m->count; i++)
		others += m->held[i].span == span;
	ended = arena_give(&s, &owner);
	ck_assert(ended == (others == 0));
	if (ended)
		ck_assert_ptr_eq(owner, span);
	else
		ck_assert_uint_eq(arena_span_taken(m->a, span), others);
	return ended;
}

static void model_give(struct model *m, uint64_t dice)
{
	if (m->count > 0)
		model_give_at(m, (uint32_t)(dice % m->count));
}

static void model_use(struct model *m, uint64_t dice)
{
	m->now_us += dice % (3 * ARENA_USE_STEP_US);
	if (m->count > 0)
		arena_span_use(m->held[dice % m->count].span, m->now_us);
}

/* Some span is held, or not any more: a slot of it is pinned, by what the arena is told. */
static void model_hold(struct model *m, uint64_t dice)
{
	struct arena_span *s = m->count > 0 ? m->held[dice % m->count].span : NULL;

	if (s)
		atomic_store(&s->held, atomic_load(&s->held) ? 0 : 1);
}

/* By looking at all there is: the oldest newest use of any run of granules that a span of the class could have. */
static bool coldest_by_hand(struct model *m, struct arena_class *k, uint32_t *newest)
{
	const uint32_t n = class_usage_of(k).span_granules;
	uint32_t ids[EXTENTS_MAX];
	const uint32_t extents = arena_extents(m->a, 1, 0, ids, EXTENTS_MAX);
	bool found = false;

	for (uint32_t e = 0; e < extents; e++) {
		const uint32_t granules = (uint32_t)(arena_extent_size(m->a, ids[e]) / arena_granule_bytes(m->a));

		for (uint32_t i = 0; i + n <= granules; i++) {
			uint32_t most = 0, spans = 0, j;

			for (j = i; j < i + n; j++) {
				struct arena_span *s = arena_span_at(m->a, ids[e], j);

				if (s && (s->class == k || atomic_load(&s->held)))
					break;
				spans += s != NULL;
				if (s && atomic_load(&s->newest) > most)
					most = atomic_load(&s->newest);
			}
			if (j == i + n && spans && (!found || most < *newest)) {
				*newest = most;
				found = true;
			}
		}
	}
	return found;
}

/* A class takes the coldest window: found, claimed, emptied, cut; now and then the claim is given up instead. */
static void model_trade(struct model *m, uint64_t dice)
{
	struct arena_class *k = m->class[dice % CLASSES];
	struct arena_window w, claim;
	struct arena_slot s;
	uint32_t newest = 0;
	bool found, cut;

	found = coldest_by_hand(m, k, &newest);
	if (arena_window_find(k, true, &w) != STATUS_OK) {
		ck_assert(!found);
		return;
	}
	ck_assert(found);
	ck_assert_uint_eq(w.newest, newest);
	ck_assert_int_eq(arena_claim(k, &w), STATUS_OK);
	for (uint32_t i = 0; i < m->count;) {
		const struct arena_span *span = m->held[i].span;
		const bool inside = span->extent == w.extent && span->granule < w.granule + w.granules &&
				    span->granule + span->granules > w.granule;

		if (inside && dice / CLASSES % 4 == 0) { /* half way it is given up */
			arena_unclaim(k);
			ck_assert(!arena_claimed(k, &claim));
			return;
		}
		if (inside)
			model_give_at(m, i);
		else
			i++;
	}
	ck_assert(arena_claimed(k, &claim));
	ck_assert_uint_eq(claim.spans, 0);
	/* Another class does not get it; the class does, once it has no free slot elsewhere. */
	while (m->count < HELD_MAX && arena_claimed(k, &claim)) {
		ck_assert_int_eq(arena_take(k, false, &s, &cut), STATUS_OK);
		if (cut) {
			ck_assert_uint_eq(s.extent, w.extent);
			ck_assert_uint_eq(s.granule, w.granule);
			s.span->owner = s.span;
			m->traded++;
		}
		arena_span_use(s.span, m->now_us);
		stamp(&s);
		m->last_generation = s.generation;
		m->held[m->count++] = s;
	}
	arena_unclaim(k);
}

static void model_check(struct model *m)
{
	const struct arena_usage u = usage_of(m->a);
	uint64_t used = 0;
	uint32_t spans = 0;

	for (int i = 0; i < CLASSES; i++) {
		const struct arena_class_usage k = class_usage_of(m->class[i]);

		used += k.slots_used;
		spans += k.spans;
	}
	ck_assert_uint_eq(u.slots_used, m->count);
	ck_assert_uint_eq(used, m->count);
	ck_assert_uint_eq(spans, u.spans);
	ck_assert_uint_le(u.extent_bytes, u.budget_bytes);
	ck_assert_uint_le(u.granules_ready, u.granules_free);
	ck_assert_uint_le(u.granules_free, u.granules);
}

/* Nothing is taken: all granules are free, in whole extents. */
static void model_end(struct model *m)
{
	struct arena_slot s;
	struct arena_usage u;

	while (m->count > 0)
		model_give_at(m, m->count - 1);
	u = usage_of(m->a);
	ck_assert_uint_eq(u.spans, 0);
	ck_assert_uint_eq(u.granules_free, u.granules);
	ck_assert_uint_eq(u.slots, 0);
	ck_assert_int_eq(slot_take(class_of(m->a, arena_extent_bytes(m->a)), true, &s), STATUS_OK);
	arena_destroy(m->a);
}

static void model_step(struct model *m, uint64_t dice, uint64_t takes)
{
	const uint64_t what = dice % 1000;

	dice /= 1000;
	if (what < takes)
		model_take(m, dice);
	else if (what < 900)
		model_give(m, dice);
	else if (what < 940)
		model_use(m, dice);
	else if (what < 965)
		model_hold(m, dice);
	else
		model_trade(m, dice);
}

START_TEST(random_histories_agree_with_the_model)
{
	static const uint64_t strides[CLASSES] = { 4 * KIB, 12 * KIB, 20 * KIB, 68 * KIB, 132 * KIB, 600 * KIB };
	static struct model m;
	uint64_t rng = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 1);

	m = (struct model){ .now_us = 1000 * ARENA_USE_STEP_US };
	m.a = arena_with(&(struct arena_options){ .budget_bytes = 8 * MIB, .extent_bytes = 2 * MIB,
						  .granule_bytes = _i % 2 ? 16 * KIB : 64 * KIB });
	for (int i = 0; i < CLASSES; i++)
		m.class[i] = class_of(m.a, strides[i]);
	for (int step = 0; step < STEPS / SCALE; step++) {
		/* Tides: now mostly taking, now mostly giving. */
		model_step(&m, next(&rng), step / 500 % 2 ? 350 : 700);
		model_check(&m);
	}
	ck_assert_uint_gt(m.cut, 1000 / SCALE);
	ck_assert_uint_gt(m.traded, 20 / SCALE);
	model_end(&m);
}
END_TEST

enum { THREADS = 4, EACH = 24 };

struct worker {
	pthread_t thread;
	struct arena *a;
	struct arena_class *class[2];
	uint64_t seed, taken;
};

/* Takes and gives, each slot stamped; now and then trades, and takes pages ahead. */
static void *churn(void *arg)
{
	struct worker *w = arg;
	struct arena_slot held[EACH];
	struct arena_window window;
	struct arena_growth g;
	uint64_t rng = w->seed;
	int n = 0;

	for (int step = 0; step < 20000 / SCALE; step++) {
		uint64_t dice = next(&rng);
		struct arena_class *k = w->class[dice / 2 % 2];

		if (n < EACH && dice % 2 == 0 && slot_take(k, dice / 4 % 16 == 0, &held[n]) == STATUS_OK) {
			stamp(&held[n]);
			arena_span_use(held[n].span, dice % 1000 * ARENA_USE_STEP_US);
			n++;
			w->taken++;
		} else if (n > 0) {
			uint32_t i = (uint32_t)(dice >> 8) % (uint32_t)n;

			stamp_check(&held[i]);
			arena_give(&held[i], NULL);
			held[i] = held[--n];
		}
		if (dice % 64 == 0 && arena_window_find(k, dice / 64 % 2, &window) == STATUS_OK)
			arena_claim(k, &window);
		if (dice % 64 == 1)
			arena_unclaim(k);
		if (dice % 128 == 4)
			arena_preallocate(w->a, 1, &g);
	}
	while (n > 0)
		arena_give(&held[--n], NULL);
	return NULL;
}

START_TEST(threads_never_share_a_slot)
{
	struct arena *a = arena_with(&(struct arena_options){ .budget_bytes = 4 * MIB, .extent_bytes = MIB });
	struct worker w[THREADS];
	struct arena_usage u;
	uint64_t taken_in_all = 0;

	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ .a = a, .seed = 7919u * (uint64_t)(i + 1) };
		w[i].class[0] = class_of(a, 16 * KIB);
		w[i].class[1] = class_of(a, (i % 2 ? 28 : 160) * KIB);
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, churn, &w[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(w[i].thread, NULL);
		taken_in_all += w[i].taken;
	}
	ck_assert_uint_gt(taken_in_all, 1000 / SCALE);
	for (int i = 0; i < THREADS; i++)
		for (int j = 0; j < 2; j++)
			arena_unclaim(w[i].class[j]);
	u = usage_of(a);
	ck_assert_uint_eq(u.slots_used, 0);
	ck_assert_uint_eq(u.spans, 0);
	ck_assert_uint_eq(u.granules_free, u.granules);
	arena_destroy(a);
}
END_TEST

int main(void)
{
	TCase *tc = tcase_create("model");

	tcase_set_timeout(tc, 200);
	tcase_add_loop_test(tc, random_histories_agree_with_the_model, 0, 4);
	tcase_add_test(tc, threads_never_share_a_slot);
	return run_cases("store_arena_model", &tc, 1);
}
