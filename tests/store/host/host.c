/* The host tier against a simple model: which slots are taken, what stands in them, what the budget
 * holds. */
#include "tests/store/host/rig.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef TERRACE_SANITIZED
enum { SCALE = 10 };
#else
enum { SCALE = 1 };
#endif

#define KIB 1024ull
#define MIB (1024 * KIB)

static struct host_tier *tier_of(uint64_t budget, uint64_t extent)
{
	return tier_with(&(struct host_options){ .budget_bytes = budget, .extent_bytes = extent });
}

START_TEST(options_out_of_bounds_are_refused)
{
	static const struct host_options bad[] = {
		{ .budget_bytes = 0, .extent_bytes = MIB },
		{ .budget_bytes = 4095, .extent_bytes = MIB },
		{ .budget_bytes = MIB, .extent_bytes = 0 },
		{ .budget_bytes = MIB, .extent_bytes = 4095 },
		{ .budget_bytes = MIB, .extent_bytes = (uint64_t)EXTENT_BYTES_MAX + 1 },
	};
	struct host_tier *t = NULL;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_int_eq(host_create(&bad[i], &t), STATUS_INVALID);
	ck_assert_ptr_null(t);
	host_destroy(NULL);
}
END_TEST

START_TEST(pools_are_one_a_tenant_and_layout)
{
	struct host_tier *t = tier_of(MIB, MIB);
	struct host_pool *a, *b;

	ck_assert_int_eq(host_pool_get(t, 1, 1, 0, &a), STATUS_INVALID);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 5000, &a), STATUS_INVALID);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 2 * MIB, &a), STATUS_INVALID);
	ck_assert_int_eq(host_pool_get(t, 1, 1, UINT64_MAX - 4095, &a), STATUS_INVALID);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 8 * KIB, &a), STATUS_OK);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 8 * KIB, &b), STATUS_OK);
	ck_assert_ptr_eq(a, b);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 12 * KIB, &b), STATUS_INVALID);
	ck_assert_int_eq(host_pool_get(t, 2, 1, 8 * KIB, &b), STATUS_OK);
	ck_assert_ptr_ne(a, b);
	ck_assert_int_eq(host_pool_get(t, 1, 2, 8 * KIB, &b), STATUS_OK);
	ck_assert_ptr_ne(a, b);
	for (uint32_t i = 3; i < HOST_POOLS_MAX; i++)
		ck_assert_int_eq(host_pool_get(t, 9, i, 8 * KIB, &b), STATUS_OK);
	ck_assert_int_eq(host_pool_get(t, 10, 1, 8 * KIB, &b), STATUS_EXHAUSTED);
	ck_assert_int_eq(host_pool_get(t, 1, 1, 8 * KIB, &b), STATUS_OK);
	ck_assert_uint_eq(usage_of(t).pools, HOST_POOLS_MAX);
	host_destroy(t);
}
END_TEST

/* budget, wished extent, slot -> the first extent's slots, and slots in all; in KiB. */
static const struct {
	uint64_t budget, extent, slot, first_slots, all_slots;
} sizes[] = {
	{ 8192, 1024, 8, 128, 1024 },   /* the wish */
	{ 8192, 4096, 8, 128, 1024 },   /* an eighth of the budget */
	{ 8192, 1000, 64, 15, 128 },    /* cut to whole slots; the last extent is smaller */
	{ 8192, 64, 1024, 1, 8 },       /* grown to one slot */
	{ 1024, 1024, 1024, 1, 1 },     /* the budget is one slot */
	{ 1024, 1024, 600, 1, 1 },      /* the rest holds none */
};

START_TEST(extents_have_the_promised_size)
{
	struct host_tier *t = tier_of(sizes[_i].budget * KIB, sizes[_i].extent * KIB);
	struct host_pool *p = pool_of(t, 1, sizes[_i].slot * KIB);
	struct host_slot s;
	uint64_t n = 0;

	ck_assert_uint_eq(usage_of(t).extents, 0);
	ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
	ck_assert_uint_eq(usage_of(t).slots, sizes[_i].first_slots);
	do
		n++;
	while (slot_take(p, &s) == STATUS_OK);
	ck_assert_uint_eq(n, sizes[_i].all_slots);
	ck_assert_uint_le(usage_of(t).extent_bytes, usage_of(t).budget_bytes);
	ck_assert_uint_eq(usage_of(t).slots_used, n);
	ck_assert_int_eq(slot_take(p, &s), STATUS_EXHAUSTED);
	ck_assert_uint_eq(usage_of(t).open_failures, 0);
	host_destroy(t);
}
END_TEST

START_TEST(a_slot_says_where_it_is)
{
	struct host_tier *t = tier_of(8 * MIB, MIB);
	struct host_pool *p = pool_of(t, 77, 12 * KIB);
	struct host_slot s, again;
	uint64_t layout;
	uint32_t tenant;
	bool draining;

	ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
	ck_assert_ptr_eq(s.pool, p);
	ck_assert_uint_eq(s.offset, s.index * 12 * KIB);
	ck_assert_ptr_eq(s.at, host_extent(t, s.extent)->base + s.offset);
	ck_assert_uint_eq(host_extent(t, s.extent)->id, s.extent);
	ck_assert_uint_ge(s.generation, 1);
	ck_assert(host_extent_owner(t, s.extent, &tenant, &layout, &draining));
	ck_assert_uint_eq(tenant, 1);
	ck_assert_uint_eq(layout, 77);
	ck_assert(!draining);
	ck_assert(host_extent_owner(t, s.extent, NULL, NULL, NULL));
	ck_assert(!host_extent_owner(t, s.extent + 1, &tenant, &layout, &draining));
	ck_assert_ptr_null(host_extent(t, s.extent + 1));
	ck_assert_ptr_null(host_extent(t, 0));
	host_slot_give(&s);
	ck_assert_int_eq(slot_take(p, &again), STATUS_OK);
	ck_assert_uint_eq(again.index, s.index);
	ck_assert_uint_gt(again.generation, s.generation);
	host_destroy(t);
}
END_TEST

START_TEST(generations_begin_where_the_caller_says)
{
	static const uint64_t asked[] = { 0, 1, 2, 977, 1ull << 40 };
	struct host_options o = { .budget_bytes = MIB, .extent_bytes = MIB, .first_generation = asked[_i] };
	uint64_t first = asked[_i] > 0 ? asked[_i] : 1;
	struct host_tier *t;
	struct host_pool *p;
	struct host_slot s;

	ck_assert_int_eq(host_create(&o, &t), STATUS_OK);
	p = pool_of(t, 1, 4096);
	for (uint64_t i = 0; i < 3; i++) {
		ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
		ck_assert_uint_eq(s.generation, first + i);
	}
	host_destroy(t);
}
END_TEST

/* A tier that makes and frees extents for years comes to the end of their ids. */
START_TEST(ids_come_again_when_their_extents_are_gone)
{
	struct host_tier *t = tier_with(&(struct host_options){ .budget_bytes = 128 * KIB, .extent_bytes = 64 * KIB, .first_extent_id = 7, .extent_ids = 4 });
	struct host_pool *p = pool_of(t, 1, 64 * KIB);
	struct host_slot stays, s;
	uint32_t last = 7;

	ck_assert_int_eq(slot_take(p, &stays), STATUS_OK);
	ck_assert_uint_eq(stays.extent, 7);
	for (int i = 0; i < 20; i++) {
		ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
		ck_assert_uint_eq(s.extent, last == 10 ? 8 : last + 1);
		last = s.extent;
		for (uint32_t id = 6; id < 12; id++)
			ck_assert(!host_extent(t, id) == (id != 7 && id != last));
		host_slot_give(&s);
		ck_assert_int_eq(host_extent_drain(t, s.extent), STATUS_OK);
		ck_assert_uint_eq(drain_poll(t), 1);
	}
	host_slot_give(&stays);
	host_destroy(t);
}
END_TEST

START_TEST(a_lent_extent_stays_in_the_budget_until_let_go)
{
	struct host_tier *t = tier_of(64 * KIB, 64 * KIB);
	struct host_pool *p = pool_of(t, 1, 64 * KIB), *q = pool_of(t, 2, 64 * KIB);
	struct host_slot s, other;
	uint32_t id;
	int fd;

	ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
	ck_assert_int_eq(extent_lend(host_extent(t, s.extent), 5, false, &fd), STATUS_OK);
	ck_assert_int_eq(host_extent_drain(t, s.extent), STATUS_OK);
	ck_assert_int_eq(host_extent_drain(t, s.extent), STATUS_OK);
	ck_assert_int_eq(host_extent_drain(t, s.extent + 1), STATUS_NOT_FOUND);
	ck_assert_uint_eq(extents_of(p, &id, 1), 0);
	ck_assert_uint_eq(drain_poll(t), 0);
	host_slot_give(&s);
	ck_assert_uint_eq(drain_poll(t), 0);
	ck_assert_uint_eq(usage_of(t).draining_bytes, 64 * KIB);
	ck_assert_int_eq(slot_take(p, &other), STATUS_EXHAUSTED);
	ck_assert_int_eq(slot_take(q, &other), STATUS_EXHAUSTED);
	close(fd);
	ck_assert_uint_eq(drain_poll(t), 1);
	ck_assert_uint_eq(drain_poll(t), 0);
	ck_assert_ptr_null(host_extent(t, s.extent));
	ck_assert_uint_eq(usage_of(t).extent_bytes, 0);
	ck_assert_int_eq(slot_take(q, &other), STATUS_OK);
	ck_assert_uint_gt(other.extent, s.extent);
	host_destroy(t);
}
END_TEST

START_TEST(a_refusal_of_the_kernel_is_told)
{
	struct host_tier *t = tier_of(8 * MIB, MIB);
	struct host_pool *p = pool_of(t, 1, 64 * KIB);
	struct rlimit limit, before;
	struct host_slot s;

	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 3;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(slot_take(p, &s), STATUS_EXHAUSTED);
	ck_assert_uint_eq(usage_of(t).open_failures, 1);
	ck_assert_int_eq(usage_of(t).open_error, EMFILE);
	ck_assert_uint_eq(usage_of(t).extent_bytes, 0);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
	ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
	host_destroy(t);
}
END_TEST

static struct host_slot given_twice(struct host_pool *p)
{
	struct host_slot s;

	ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
	host_slot_give(&s);
	return s;
}

#ifdef NDEBUG
START_TEST(a_slot_given_twice_changes_nothing)
{
	struct host_tier *t = tier_of(MIB, MIB);
	struct host_pool *p = pool_of(t, 1, 64 * KIB);
	struct host_slot s = given_twice(p), heir, other;

	host_slot_give(&s);
	ck_assert_int_eq(slot_take(p, &heir), STATUS_OK);
	ck_assert_uint_eq(heir.index, s.index);
	host_slot_give(&s); /* somebody else has it by now */
	ck_assert_uint_eq(usage_of(t).slots_used, 1);
	ck_assert_int_eq(slot_take(p, &other), STATUS_OK);
	ck_assert_ptr_ne(other.at, heir.at);
	host_destroy(t);
}
END_TEST
#else
START_TEST(a_slot_given_twice_aborts)
{
	struct host_tier *t = tier_of(MIB, MIB);
	struct host_slot s = given_twice(pool_of(t, 1, 64 * KIB)), heir;

	if (_i == 1)
		ck_assert_int_eq(slot_take(s.pool, &heir), STATUS_OK);
	host_slot_give(&s);
	host_destroy(t);
}
END_TEST
#endif

enum { POOLS = 3, HELD_MAX = 4096, LENT_MAX = 16 };

/* The model: what is taken, and which extents drain or are lent. */
struct model {
	struct host_tier *t;
	struct host_pool *pools[POOLS];
	uint64_t slot_bytes[POOLS];
	struct host_slot held[HELD_MAX];
	uint32_t held_count;
	uint32_t lent_id[LENT_MAX];
	int lent_fd[LENT_MAX];
	uint32_t lent_count;
	uint32_t draining[64], draining_count;
	uint64_t last_generation;
	uint32_t highest_id;
};

static uint64_t slot_size(const struct model *m, const struct host_pool *p)
{
	for (int i = 0; i < POOLS; i++)
		if (m->pools[i] == p)
			return m->slot_bytes[i];
	return 0;
}

/* Both ends of a slot carry its generation while it is taken: an overlap would overwrite one. */
static void mark(const struct model *m, const struct host_slot *s)
{
	memcpy(s->at, &s->generation, 8);
	memcpy(s->at + slot_size(m, s->pool) - 8, &s->generation, 8);
}

static void check_mark(const struct model *m, const struct host_slot *s)
{
	ck_assert_mem_eq(s->at, &s->generation, 8);
	ck_assert_mem_eq(s->at + slot_size(m, s->pool) - 8, &s->generation, 8);
}

static bool is_draining(const struct model *m, uint32_t id)
{
	for (uint32_t i = 0; i < m->draining_count; i++)
		if (m->draining[i] == id)
			return true;
	return false;
}

static void model_take(struct model *m, uint64_t dice)
{
	struct host_slot s;
	enum status status;

	if (m->held_count == HELD_MAX)
		return;
	status = slot_take(m->pools[dice % POOLS], &s);
	if (status != STATUS_OK) {
		ck_assert_int_eq(status, STATUS_EXHAUSTED);
		return;
	}
	ck_assert_ptr_eq(s.pool, m->pools[dice % POOLS]);
	ck_assert_uint_gt(s.generation, m->last_generation);
	m->last_generation = s.generation;
	ck_assert(!is_draining(m, s.extent));
	if (s.extent > m->highest_id)
		m->highest_id = s.extent;
	mark(m, &s);
	m->held[m->held_count++] = s;
}

static void model_give(struct model *m, uint64_t dice)
{
	uint32_t i;

	if (m->held_count == 0)
		return;
	i = (uint32_t)(dice % m->held_count);
	check_mark(m, &m->held[i]);
	host_slot_give(&m->held[i]);
	m->held[i] = m->held[--m->held_count];
}

static void model_drain(struct model *m, uint64_t dice)
{
	uint32_t ids[64], n = extents_of(m->pools[dice % POOLS], ids, 64);

	ck_assert_uint_le(n, 64);
	for (uint32_t i = 0; i < n; i++)
		ck_assert(!is_draining(m, ids[i]));
	if (n == 0 || m->draining_count == 64)
		return;
	n = (uint32_t)(dice / POOLS % n);
	ck_assert_int_eq(host_extent_drain(m->t, ids[n]), STATUS_OK);
	m->draining[m->draining_count++] = ids[n];
}

static void model_lend(struct model *m, uint64_t dice)
{
	if (m->lent_count == LENT_MAX || (m->lent_count > 0 && dice % 2)) {
		close(m->lent_fd[--m->lent_count]);
		return;
	}
	if (m->held_count == 0)
		return;
	m->lent_id[m->lent_count] = m->held[dice / 2 % m->held_count].extent;
	ck_assert_int_eq(extent_lend(host_extent(m->t, m->lent_id[m->lent_count]), 1 + (uint32_t)(dice % 7),
				     dice % 3 == 0, &m->lent_fd[m->lent_count]),
			 STATUS_OK);
	m->lent_count++;
}

static bool is_in_use(const struct model *m, uint32_t id)
{
	for (uint32_t i = 0; i < m->held_count; i++)
		if (m->held[i].extent == id)
			return true;
	for (uint32_t i = 0; i < m->lent_count; i++)
		if (m->lent_id[i] == id)
			return true;
	return false;
}

static void model_poll(struct model *m)
{
	uint32_t expected = 0, kept = 0;

	for (uint32_t i = 0; i < m->draining_count; i++) {
		if (is_in_use(m, m->draining[i]))
			m->draining[kept++] = m->draining[i];
		else
			expected++;
	}
	m->draining_count = kept;
	ck_assert_uint_eq(drain_poll(m->t), expected);
	for (uint32_t i = 0; i < kept; i++)
		ck_assert_ptr_nonnull(host_extent(m->t, m->draining[i]));
}

static void model_check(const struct model *m)
{
	struct host_usage u = usage_of(m->t);

	ck_assert_uint_eq(u.slots_used, m->held_count);
	ck_assert_uint_le(u.extent_bytes, u.budget_bytes);
	ck_assert_uint_le(u.draining_bytes, u.extent_bytes);
	ck_assert_uint_eq(u.open_failures, 0);
}

/* The first that is free, whatever the order in which they came free: what is taken in one go lies by rising addresses. */
START_TEST(slots_are_taken_by_rising_address)
{
	enum { SLOTS = 1000, ROUNDS = 200 };
	struct host_tier *t = tier_of(8 * SLOTS * 4 * KIB, SLOTS * 4 * KIB);
	struct host_pool *p = pool_of(t, 1, 4 * KIB);
	bool taken[SLOTS];
	struct host_slot all[SLOTS];
	uint64_t rng = 1;

	for (uint32_t i = 0; i < SLOTS; i++) {
		ck_assert_int_eq(slot_take(p, &all[i]), STATUS_OK);
		ck_assert_uint_eq(all[i].index, i);
		taken[i] = true;
	}
	ck_assert_uint_eq(usage_of(t).extents, 1);
	for (int round = 0; round < ROUNDS; round++) {
		const uint32_t wanted = 1 + (uint32_t)(next(&rng) % 300);
		uint32_t given = 0, at = 0;

		for (uint32_t n = 0; n < wanted; n++) {
			const uint32_t i = (uint32_t)(next(&rng) % SLOTS);

			if (!taken[i])
				continue;
			host_slot_give(&all[i]);
			taken[i] = false;
			given++;
		}
		for (uint32_t n = 0; n < given; n++) {
			struct host_slot s;

			ck_assert_int_eq(slot_take(p, &s), STATUS_OK);
			while (taken[at])
				at++;
			ck_assert_uint_eq(s.index, at);
			all[at] = s;
			taken[at] = true;
		}
	}
	ck_assert_uint_eq(usage_of(t).extents, 1);
	host_destroy(t);
}
END_TEST

START_TEST(random_histories_agree_with_the_model)
{
	static struct model m;
	uint64_t rng = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 1);

	m = (struct model){
		.t = tier_of(4 * MIB, 256 * KIB),
		.slot_bytes = { 8 * KIB, 20 * KIB, 132 * KIB },
	};
	for (int i = 0; i < POOLS; i++)
		m.pools[i] = pool_of(m.t, (uint64_t)i, m.slot_bytes[i]);
	for (int step = 0; step < 20000 / SCALE; step++) {
		uint64_t dice = next(&rng), what = dice % 1000;
		/* Tides: now mostly taking, now mostly giving. */
		uint64_t takes = step / 500 % 2 ? 350 : 600;

		dice /= 1000;
		if (what < takes)
			model_take(&m, dice);
		else if (what < 960)
			model_give(&m, dice);
		else if (what < 970)
			model_drain(&m, dice);
		else if (what < 985)
			model_lend(&m, dice);
		else
			model_poll(&m);
		model_check(&m);
	}
	while (m.held_count > 0)
		model_give(&m, 0);
	while (m.lent_count > 0)
		close(m.lent_fd[--m.lent_count]);
	model_poll(&m);
	ck_assert_uint_eq(m.draining_count, 0);
	ck_assert_uint_eq(usage_of(m.t).draining_bytes, 0);
	ck_assert_uint_gt(m.highest_id, 30 / SCALE); /* extents came and went */
	host_destroy(m.t);
}
END_TEST

enum { THREADS = 4, EACH = 12 };

struct worker {
	pthread_t thread;
	struct host_tier *t;
	struct host_pool *pool;
	uint64_t seed, taken;
};

/* Takes and gives, each slot filled with its own generation; now and then an extent is drained. */
static void *churn(void *arg)
{
	struct worker *w = arg;
	struct host_slot held[EACH];
	uint64_t rng = w->seed;
	int n = 0;

	for (int step = 0; step < 20000 / SCALE; step++) {
		uint64_t dice = next(&rng);

		if (n < EACH && dice % 2 == 0 && slot_take(w->pool, &held[n]) == STATUS_OK) {
			memcpy(held[n].at + 4096, &held[n].generation, 8);
			n++;
			w->taken++;
		} else if (n > 0) {
			uint32_t i = (uint32_t)(dice >> 8) % (uint32_t)n;

			ck_assert_mem_eq(held[i].at + 4096, &held[i].generation, 8);
			host_slot_give(&held[i]);
			held[i] = held[--n];
		}
		if (dice % 512 == 0 && n > 0) {
			host_extent_drain(w->t, held[0].extent);
			drain_poll(w->t);
		}
	}
	while (n > 0)
		host_slot_give(&held[--n]);
	return NULL;
}

START_TEST(threads_never_share_a_slot)
{
	struct host_tier *t = tier_of(2 * MIB, 256 * KIB);
	struct host_pool *pools[2] = { pool_of(t, 1, 16 * KIB), pool_of(t, 2, 28 * KIB) };
	struct worker w[THREADS];
	struct host_usage u;
	uint64_t taken = 0;

	for (int i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ .t = t, .pool = pools[i % 2], .seed = 7919u * (uint64_t)(i + 1) };
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, churn, &w[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(w[i].thread, NULL);
		taken += w[i].taken;
	}
	/* One pool may have had the whole budget for a while: nobody evicts here. */
	ck_assert_uint_gt(taken, 1000 / SCALE);
	drain_poll(t);
	u = usage_of(t);
	ck_assert_uint_eq(u.slots_used, 0);
	ck_assert_uint_eq(u.draining_bytes, 0);
	host_destroy(t);
}
END_TEST

START_TEST(huge_pages_stay_within_the_budget)
{
	struct host_options o = { .budget_bytes = 3 * MIB, .extent_bytes = MIB, .huge_pages = true };
	struct host_tier *t;
	struct host_pool *p;
	struct host_slot s;
	uint32_t n = 0;

	ck_assert_int_eq(host_create(&o, &t), STATUS_OK);
	p = pool_of(t, 1, 64 * KIB);
	ck_assert(!usage_of(t).huge_pages);
	while (slot_take(p, &s) == STATUS_OK)
		n++;
	/* One extent of 2 MiB, huge if the machine has such pages; the rest in extents that are not
	 * rounded up. */
	ck_assert_uint_eq(n, 48);
	ck_assert_uint_eq(usage_of(t).extent_bytes, 3 * MIB);
	host_destroy(t);
}
END_TEST

START_TEST(a_pool_can_be_prepared)
{
	struct host_tier *t = tier_of(64 * KIB, 16 * KIB); /* extents of 8 KiB: two slots */
	struct host_pool *p = pool_of(t, 1, 4096);
	struct host_slot slot[4];
	uint32_t id = 0;

	ck_assert_int_eq(host_slot_try(p, &slot[0]), STATUS_MISS);
	ck_assert_uint_eq(usage_of(t).extents, 0);
	ck_assert_int_eq(host_pool_prepare(p, 1, &id), STATUS_OK);
	ck_assert_int_eq(host_pool_prepare(p, 2, &id), STATUS_OK);
	ck_assert_uint_eq(usage_of(t).extents, 1);
	ck_assert_int_eq(host_slot_try(p, &slot[0]), STATUS_OK);
	ck_assert_uint_eq(slot[0].extent, id);
	ck_assert_int_eq(host_pool_prepare(p, 2, &id), STATUS_OK);
	ck_assert_uint_eq(usage_of(t).extents, 2);
	ck_assert_uint_ne(slot[0].extent, id);
	for (int i = 1; i < 3; i++)
		ck_assert_int_eq(host_slot_try(p, &slot[i]), STATUS_OK);
	ck_assert_int_eq(host_pool_prepare(p, 100, &id), STATUS_OK);
	while (usage_of(t).extents < 8)
		ck_assert_int_eq(host_pool_prepare(p, 100, &id), STATUS_OK);
	ck_assert_int_eq(host_pool_prepare(p, 100, &id), STATUS_EXHAUSTED);
	host_destroy(t);
}
END_TEST

/* The bytes count until they are back. */
/* A new extent's slots are not taken before those who had it made have been told of it, as long as any other is free: also when that comes back
 * meanwhile, of an extent that was full. */
START_TEST(a_prepared_extent_comes_last)
{
	struct host_slot slot[64], more;
	uint32_t id[3], taken = 0;
	struct host_tier *t;
	struct host_pool *p;

	t = tier_of(64 * KIB, 16 * KIB);
	p = pool_of(t, 1, 4096);
	ck_assert_int_eq(host_pool_prepare(p, 1, &id[0]), STATUS_OK);
	while (!host_slot_try(p, &slot[taken]))
		taken++;
	ck_assert_uint_ge(taken, 2);
	ck_assert_int_eq(host_pool_prepare(p, 1, &id[1]), STATUS_OK);
	ck_assert_int_eq(host_pool_prepare(p, taken + 1, &id[2]), STATUS_OK);
	ck_assert_uint_ne(id[1], id[0]);
	ck_assert_uint_ne(id[2], id[1]);
	host_slot_give(&slot[1]);
	ck_assert_int_eq(host_slot_try(p, &more), STATUS_OK);
	ck_assert_uint_eq(more.extent, id[0]);
	ck_assert_int_eq(host_slot_try(p, &slot[1]), STATUS_OK);
	ck_assert_uint_eq(slot[1].extent, id[1]);
	host_slot_give(&slot[0]); /* before the one that is left, behind the one that has been used */
	for (uint32_t i = 1; i < taken; i++) {
		ck_assert_int_eq(host_slot_try(p, &more), STATUS_OK);
		ck_assert_uint_eq(more.extent, id[1]);
	}
	ck_assert_int_eq(host_slot_try(p, &more), STATUS_OK);
	ck_assert_uint_eq(more.extent, id[0]);
	ck_assert_int_eq(host_slot_try(p, &more), STATUS_OK);
	ck_assert_uint_eq(more.extent, id[2]);
	host_destroy(t);
}
END_TEST

START_TEST(doomed_extents_stay_in_the_budget)
{
	struct host_tier *t = tier_of(64 * KIB, 16 * KIB);
	struct host_pool *p = pool_of(t, 1, 4096);
	struct host_extent *doomed;
	struct host_slot slot;

	ck_assert_int_eq(slot_take(p, &slot), STATUS_OK);
	ck_assert_int_eq(host_extent_drain(t, slot.extent), STATUS_OK);
	ck_assert_ptr_null(host_doomed_take(t));
	host_slot_give(&slot);
	doomed = host_doomed_take(t);
	ck_assert_ptr_nonnull(doomed);
	ck_assert_ptr_null(host_extent(t, slot.extent));
	ck_assert_uint_eq(usage_of(t).extent_bytes, 8 * KIB);
	ck_assert_uint_eq(host_doomed_free(t, doomed), 1);
	ck_assert_uint_eq(usage_of(t).extent_bytes, 0);
	ck_assert_uint_eq(host_doomed_free(t, NULL), 0);
	host_destroy(t);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("store_host");
	TCase *tc = tcase_create("host");
	SRunner *runner;
	int failed;

	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, options_out_of_bounds_are_refused);
	tcase_add_test(tc, pools_are_one_a_tenant_and_layout);
	tcase_add_loop_test(tc, extents_have_the_promised_size, 0, sizeof(sizes) / sizeof(sizes[0]));
	tcase_add_test(tc, a_slot_says_where_it_is);
	tcase_add_test(tc, slots_are_taken_by_rising_address);
	tcase_add_loop_test(tc, generations_begin_where_the_caller_says, 0, 5);
	tcase_add_test(tc, ids_come_again_when_their_extents_are_gone);
	tcase_add_test(tc, a_lent_extent_stays_in_the_budget_until_let_go);
	tcase_add_test(tc, a_refusal_of_the_kernel_is_told);
#ifdef NDEBUG
	tcase_add_test(tc, a_slot_given_twice_changes_nothing);
#else
	tcase_add_loop_test_raise_signal(tc, a_slot_given_twice_aborts, SIGABRT, 0, 2);
#endif
	tcase_add_loop_test(tc, random_histories_agree_with_the_model, 0, 5);
	tcase_add_test(tc, a_pool_can_be_prepared);
	tcase_add_test(tc, a_prepared_extent_comes_last);
	tcase_add_test(tc, doomed_extents_stay_in_the_budget);
	tcase_add_test(tc, threads_never_share_a_slot);
	tcase_add_test(tc, huge_pages_stay_within_the_budget);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
