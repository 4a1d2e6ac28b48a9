/* Lookup, Lease and Touch of sessions with a grid against the plain definition of what a prefix needs
 * (daemon/prefix_model.h), over random sessions of 1 to 8 layouts of 1 to 8 units, with partial blocks, windows, states
 * and evictions. What is stored is read from the index itself. With --long [SESSIONS]: 100,000 of them. */
#include "daemon/block/grid.h"
#include "daemon/block/key.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/session/session.h"
#include "store/index.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"
#include "tests/daemon/prefix_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 40, UNIT = RIG_TOKENS, ATOM_BYTES = 576, NO_CELL = 4 };

struct round {
	struct rig *r;
	uint64_t base;                 /* number of the sequence's first key */
	uint32_t total;                /* keys of the sequence */
	struct model m;                /* the call's keys are some of them */
	bool stored[KEYS * MODEL_LAYOUTS];
	bool put[KEYS * MODEL_LAYOUTS]; /* of the sequence */
};

static uint32_t below(uint32_t n)
{
	return (uint32_t)rand() % n;
}

/* ---- a session ---- */

static void random_layouts(struct model *m)
{
	static const uint32_t windows[] = { 1, 2, 16, 17, 18, 33, 100, 128, 129, 4096 };

	*m = (struct model){ .unit = UNIT, .layouts = 1 + below(MODEL_LAYOUTS) };
	for (uint32_t l = 0; l < m->layouts; l++) {
		struct model_layout *x = &m->layout[l];

		*x = (struct model_layout){ .units = 1 + below(8), .partial = below(2) };
		if (below(3) == 0)
			x->window = windows[below(sizeof(windows) / sizeof(windows[0]))];
		else if (below(2))
			x->last = 1 + below(3);
	}
}

static bool open_random(struct rig *r, struct model *m)
{
	struct kv_layout layouts[MODEL_LAYOUTS];
	struct grid_wish wishes[MODEL_LAYOUTS];
	enum status s;

	random_layouts(m);
	for (uint32_t l = 0; l < m->layouts; l++) {
		const struct model_layout *x = &m->layout[l];

		layouts[l] = rig_layout(l, x->window);
		layouts[l].block_tokens = x->units * UNIT;
		wishes[l] = (struct grid_wish){ .last = x->last,
						.partial = x->partial,
						.sparse = (x->last || x->window) && below(2) };
	}
	const struct cache_open_call q = { .tenant = "", .layouts = layouts, .layout_count = m->layouts, .unit = UNIT,
					   .wishes = wishes, .engine = "test", .now_us = r->now };

	uint64_t session;

	s = cache_session_open(r->c, &q, &r->s, &r->why);
	if (!s)
		ck_assert_int_eq(cache_attach(r->c, r->s.token, 1, r->now, &r->attachment, &session, &r->why),
				 STATUS_OK);
	else /* their blocks never end together */
		ck_assert_msg(s == STATUS_INVALID && strstr(r->why, "no call"), "%s", r->why);
	return !s;
}

/* ---- puts ---- */

static uint32_t tokens_at(const struct model *m, uint32_t l, uint32_t position)
{
	return (position % m->layout[l].units + 1) * UNIT;
}

static void write_places(struct round *t, uint32_t position, const struct cache_place *places)
{
	for (uint32_t l = 0; l < t->m.layouts; l++) {
		if (places[l].extent == (uint32_t)CACHE_EXTENT_NONE)
			continue;
		ck_assert_uint_eq(places[l].tokens, tokens_at(&t->m, l, position));
		rig_fill(rig_block(t->r, &places[l]), t->r->s.block_bytes[l], t->base + position, l);
	}
}

/* Some keys in a row, in those layouts that `cells` names. */
static void put_run(struct round *t, uint32_t first, uint32_t count, const uint64_t *cells)
{
	struct cache_keys k = rig_keys(t->base + first, count);
	struct cache_place places[KEYS * MODEL_LAYOUTS];
	struct cache_commit_item items[KEYS] = { { 0 } };
	enum status statuses[KEYS];
	uint64_t reservations[KEYS];
	uint32_t n = 0;

	k.first = first;
	ck_assert_int_eq(
		cache_reserve(t->r->c,
			      &(struct cache_reserve_call){
				      .session = t->r->s.id,
				      .keys = &k,
				      .cells = cells,
				      .on = &(struct cache_on){ .attachment = t->r->attachment, .gpu = CACHE_HOST },
				      .may_grow = true,
				      .now_us = t->r->now,
				      .statuses = statuses,
				      .reservations = reservations,
				      .places = places,
				      .places_max = KEYS * MODEL_LAYOUTS },
			      &t->r->why),
		STATUS_OK);
	for (uint32_t i = 0; i < count; i++) {
		ck_assert_int_eq(statuses[i], cells[i] ? STATUS_OK : STATUS_EXISTS);
		for (uint32_t l = 0; l < t->m.layouts; l++)
			ck_assert_int_eq(places[i * t->m.layouts + l].extent != (uint32_t)CACHE_EXTENT_NONE,
					 cells[i] >> l & 1);
		write_places(t, first + i, &places[i * t->m.layouts]);
		if (cells[i])
			items[n++].reservation = reservations[i];
	}
	if (n)
		ck_assert_int_eq(cache_commit(t->r->c,
					      &(struct cache_commit_call){ .session = t->r->s.id,
									   .items = items,
									   .count = n,
									   .now_us = t->r->now,
									   .unix_ms = 1,
									   .statuses = statuses },
					      NULL, &t->r->why),
				 STATUS_OK);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_int_eq(statuses[i], STATUS_OK);
	free((void *)k.bytes);
}

static void put_stream(struct round *t, uint32_t position, uint32_t l)
{
	struct cache_write w;
	uint8_t key[RIG_KEY_BYTES];
	const struct cache_stream_call q = { .session = t->r->s.id, .layout = l, .key = key, .key_bytes = sizeof(key),
					     .position = position, .now_us = t->r->now };

	rig_key(key, t->base + position);
	ck_assert_int_eq(cache_write_begin(t->r->c, &q, &w, &t->r->why), STATUS_OK);
	rig_fill(w.block, w.block_bytes, t->base + position, l);
	ck_assert_int_eq(cache_write_end(t->r->c, t->r->s.id, &w, true, t->r->now, 1), STATUS_OK);
}

/* Else an open block has a slot in every layout. */
static bool session_is_chained(const struct round *t)
{
	for (uint32_t l = 0; l < t->m.layouts; l++)
		if (t->m.layout[l].units > 1)
			return true;
	return false;
}

/* One open block of a layout: STATUS_INVALID if it cannot begin at that position. */
static enum status reserve_open(struct round *t, uint32_t position, uint32_t l, uint64_t *id,
				struct cache_place *places)
{
	const struct slot_info info = { .position = (uint64_t)position * UNIT };
	const struct cache_keys nameless = { NULL, 1, 0 };
	const uint64_t cells = 1ull << l;
	enum status status;
	const struct cache_reserve_call q = { .session = t->r->s.id,
					      .keys = &nameless,
					      .info = &info,
					      .cells = &cells,
					      .open = true,
					      .on = &(struct cache_on){ .attachment = t->r->attachment,
									.gpu = CACHE_HOST },
					      .may_grow = true,
					      .now_us = t->r->now,
					      .statuses = &status,
					      .reservations = id,
					      .places = places,
					      .places_max = MODEL_LAYOUTS };

	ck_assert_int_eq(cache_reserve(t->r->c, &q, &t->r->why), STATUS_OK);
	return status;
}

static enum status commit_open(struct round *t, struct cache_commit_item *item)
{
	enum status status;
	const struct cache_commit_call q = { .session = t->r->s.id,
					     .items = item,
					     .count = 1,
					     .now_us = t->r->now,
					     .unix_ms = 1,
					     .statuses = &status };

	ck_assert_int_eq(cache_commit(t->r->c, &q, NULL, &t->r->why), STATUS_OK);
	return status;
}

/* As the tail of a sequence that grows from the boundary before up to the key. */
static void put_open(struct round *t, uint32_t position, uint32_t l)
{
	const uint32_t units = t->m.layout[l].units, first = position - position % units;
	struct cache_commit_item item = { .tokens = UNIT, .keep_open = true };
	struct cache_place places[MODEL_LAYOUTS];

	if (units > 1)
		ck_assert_int_eq(reserve_open(t, first + 1, l, &item.reservation, places), STATUS_INVALID);
	ck_assert_int_eq(reserve_open(t, first, l, &item.reservation, places), STATUS_OK);
	rig_fill(rig_block(t->r, &places[l]), t->r->s.block_bytes[l], t->base + position, l);
	ck_assert_int_eq(commit_open(t, &item), STATUS_OK);
	item.tokens = (units + 1) * UNIT;
	ck_assert_int_eq(commit_open(t, &item), STATUS_INVALID);
	rig_key(item.key, t->base + position);
	item.key_bytes = RIG_KEY_BYTES;
	item.keep_open = false;
	for (uint32_t n = 1; n <= position - first + 1; n++) {
		const bool ends = n == position - first + 1;

		item.tokens = n * UNIT - !ends;
		ck_assert_int_eq(commit_open(t, &item), ends ? STATUS_OK : STATUS_INVALID);
		item.tokens = n * UNIT;
		if (!ends && !model_has_cell(&t->m, l, first + n - 1))
			ck_assert_int_eq(commit_open(t, &item), STATUS_INVALID);
	}
}

/* A sequence with holes; some of it by stream, some as blocks that were open. */
static void put_random(struct round *t)
{
	const uint32_t holes = 1 + below(60);
	uint64_t cells[KEYS] = { 0 };

	for (uint32_t i = 0; i < t->total; i++)
		for (uint32_t l = 0; l < t->m.layouts; l++) {
			bool *put = &t->put[i * t->m.layouts + l];

			*put = model_has_cell(&t->m, l, i) && below(holes) != 0;
			if (*put && below(16))
				cells[i] |= 1ull << l;
		}
	for (uint32_t at = 0, n; at < t->total; at += n) {
		n = 1 + below(t->total - at);
		put_run(t, at, n, cells + at);
	}
	for (uint32_t i = 0; i < t->total; i++)
		for (uint32_t l = 0; l < t->m.layouts; l++)
			if (t->put[i * t->m.layouts + l] && !(cells[i] >> l & 1)) {
				if (below(2) && session_is_chained(t))
					put_open(t, i, l);
				else
					put_stream(t, i, l);
			}
}

/* What the index has of the call's keys, whatever their positions. */
static void look_into_index(struct round *t)
{
	struct layout_pool *pools[CACHE_LAYOUTS_MAX];
	struct cache_keys k = rig_keys(t->base + t->m.first, t->m.keys);
	struct block *found[KEYS * MODEL_LAYOUTS];
	const uint32_t layouts = session_pools(t->r->c, t->r->s.id, pools);

	index_read_lock();
	blocks_find(t->r->c, pools, layouts, &k, found);
	index_read_unlock();
	for (uint32_t i = 0; i < t->m.keys * layouts; i++) {
		t->stored[i] = found[i];
		ck_assert(!found[i] || t->put[t->m.first * layouts + i]);
	}
	free((void *)k.bytes);
}

/* ---- checks ---- */

static void check_lookup(struct round *t, const struct cache_keys *k)
{
	const uint32_t expected = model_prefix(&t->m);
	uint8_t states[KEYS * MODEL_LAYOUTS];
	uint32_t prefix = 99;

	ck_assert_int_eq(cache_lookup(t->r->c, t->r->s.id, k, &prefix, NULL, 0, &t->r->why), STATUS_OK);
	ck_assert_uint_eq(prefix, expected);
	ck_assert_int_eq(cache_lookup(t->r->c, t->r->s.id, k, &prefix, states, sizeof(states), &t->r->why), STATUS_OK);
	ck_assert_uint_eq(prefix, expected);
	for (uint32_t i = 0; i < t->m.keys; i++)
		for (uint32_t l = 0; l < t->m.layouts; l++) {
			const uint32_t at = i * t->m.layouts + l;

			ck_assert_uint_eq(states[at],
					  !model_has_cell(&t->m, l, t->m.first + i) ? NO_CELL : t->stored[at]);
		}
}

static void check_place(struct round *t, uint32_t prefix, uint32_t i, uint32_t l, const struct cache_place *p)
{
	const uint32_t position = t->m.first + i;
	const bool needed = model_needs(&t->m, l, t->m.first + prefix, position);

	ck_assert_int_eq(p->extent != (uint32_t)CACHE_EXTENT_NONE, needed);
	if (!needed)
		return;
	ck_assert(t->stored[i * t->m.layouts + l]);
	ck_assert_uint_eq(p->tokens, tokens_at(&t->m, l, position));
	ck_assert(rig_matches(rig_block(t->r, p), p->tokens / RIG_TOKENS * ATOM_BYTES, t->base + position, l));
}

static void check_lease(struct round *t, const struct cache_keys *k, bool all)
{
	const uint32_t prefix = model_prefix(&t->m), granted = all && prefix < t->m.keys ? 0 : prefix;
	struct cache_place places[KEYS * MODEL_LAYOUTS];
	struct cache_leased leased = { 0 };
	const struct cache_lease_call q = { .session = t->r->s.id,
					    .keys = k,
					    .all = all,
					    .on = &(struct cache_on){ .attachment = t->r->attachment,
								      .gpu = CACHE_HOST },
					    .now_us = t->r->now,
					    .places = places,
					    .places_max = KEYS * MODEL_LAYOUTS };

	ck_assert_int_eq(cache_lease(t->r->c, &q, &leased, NULL, &t->r->why), granted ? STATUS_OK : STATUS_MISS);
	if (!granted)
		return;
	ck_assert_uint_eq(leased.blocks, granted);
	for (uint32_t i = 0; i < granted; i++)
		for (uint32_t l = 0; l < t->m.layouts; l++)
			check_place(t, granted, i, l, &places[i * t->m.layouts + l]);
	ck_assert_int_eq(cache_release(t->r->c, t->r->s.id, leased.lease), STATUS_OK);
}

static void check_touch(struct round *t, const struct cache_keys *k)
{
	const bool plain = !t->r->s.unit; /* there a touch is a use of all that it names */
	uint32_t found, expected = 0;

	for (uint32_t i = 0; i < t->m.keys; i++) {
		bool hit = false;

		for (uint32_t l = 0; l < t->m.layouts; l++)
			hit |= t->stored[i * t->m.layouts + l] &&
			       (plain || model_needs(&t->m, l, t->m.first + t->m.keys, t->m.first + i));
		expected += hit;
	}
	ck_assert_int_eq(cache_touch(t->r->c, t->r->s.id, k, t->r->now, &found, &t->r->why), STATUS_OK);
	ck_assert_uint_eq(found, expected);
}

static void check_call(struct round *t)
{
	struct cache_keys k;

	t->m.first = below(2) ? 0 : below(t->total + 1);
	t->m.keys = below(t->total - t->m.first + 1);
	k = rig_keys(t->base + t->m.first, t->m.keys);
	k.first = t->m.first;
	t->m.stored = t->stored;
	look_into_index(t);
	check_lookup(t, &k);
	if (t->m.keys) {
		check_lease(t, &k, below(2));
		check_touch(t, &k);
	}
	free((void *)k.bytes);
}

static uint32_t session_round(struct rig *r, uint32_t number)
{
	struct round t = { .r = r, .base = number * 1000ull, .total = below(KEYS + 1) };
	uint32_t usable = 0;

	r->now += 1000;
	if (!open_random(r, &t.m))
		return 0;
	put_random(&t);
	for (int i = 0; i < 4; i++) {
		check_call(&t);
		usable += t.m.keys && model_prefix(&t.m);
	}
	ck_assert_int_eq(cache_session_close(r->c, r->s.id, r->now, &r->why), STATUS_OK);
	return usable;
}

static uint32_t sessions = RIG_ROUNDS(5000), seed = 21;

/* Memory for the blocks of a few sessions: the older ones go, and at times the first of the same session. */
static void run(const char *policy, uint32_t from)
{
	struct cache_options o = rig_options(700);
	uint32_t usable = 0;
	struct rig r;

	o.policy = policy;
	rig_open(&r, &o, 1);
	srand(from);
	for (uint32_t i = 1; i <= sessions / 2; i++)
		usable += session_round(&r, i);
	ck_assert_uint_gt(usable, sessions / 8);
	if (sessions > 100)
		ck_assert_double_gt(rig_stat(&r, "terrace_evictions_total", "tier=host,reason=full"), 0);
	rig_close(&r);
}

START_TEST(sessions_are_those_of_the_definition)
{
	run("lru", seed);
}
END_TEST

START_TEST(sessions_under_graph_too)
{
	run("graph", seed + 1);
}
END_TEST

int main(int argc, char **argv)
{
	const TTest *const tests[] = { sessions_are_those_of_the_definition, sessions_under_graph_too };

	if (argc > 1 && !strcmp(argv[1], "--long"))
		sessions = argc > 2 ? (uint32_t)atoi(argv[2]) : 100000;
	return rig_main("cache_units", tests, sizeof(tests) / sizeof(tests[0]));
}
