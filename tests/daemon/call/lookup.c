/* The rule of prefixes against its plain definition, over many layouts and windows, by lookup and by lease;
 * and bad input. */
#include "daemon/block/grid.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/stream.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 40, LAYOUTS = 5 };

/* A sequence: whole blocks, and the tokens of the last one. */
struct sequence {
	uint64_t first;
	uint32_t keys, last_tokens;
};

/* The token behind the first p blocks. */
static uint32_t end_of(const struct sequence *q, uint32_t p)
{
	return p * RIG_TOKENS - (p && p == q->keys ? RIG_TOKENS - q->last_tokens : 0);
}

/* What the token behind the first p blocks attends to, itself apart, must all be in present blocks. */
static bool usable(const struct sequence *q, const bool *present, uint32_t p, uint32_t window)
{
	uint32_t end = end_of(q, p), from = window == 0 || window - 1 > end ? 0 : end - (window - 1);

	for (uint32_t token = from; token < end; token++)
		if (!present[token / RIG_TOKENS])
			return false;
	return true;
}

static uint32_t naive(const struct sequence *q, bool present[][KEYS], const uint32_t *windows, uint32_t layouts)
{
	for (uint32_t p = q->keys; p > 0; p--) {
		bool ok = true;

		for (uint32_t l = 0; l < layouts; l++)
			ok = ok && usable(q, present[l], p, windows[l]);
		if (ok)
			return p;
	}
	return 0;
}

static void put_one(struct rig *r, uint32_t layout, uint64_t n, uint32_t tokens)
{
	const struct slot_info info = { .tokens = tokens };
	struct cache_write w;
	uint8_t key[RIG_KEY_BYTES];

	rig_key(key, n);
	ck_assert_int_eq(cache_write_begin(r->c, &(struct cache_stream_call){ .session = r->s.id,
			.layout = layout, .key = key, .key_bytes = sizeof(key), .info = &info, .now_us = r->now }, &w,
					   &r->why), 0);
	rig_fill(w.block, w.block_bytes, n, layout);
	ck_assert_int_eq(cache_write_end(r->c, r->s.id, &w, true, r->now, 1), STATUS_OK);
}

static void check_lease(struct rig *r, const struct cache_keys *k, const struct sequence *q, bool present[][KEYS],
			const uint32_t *windows, uint32_t prefix)
{
	struct cache_place places[KEYS * LAYOUTS];
	struct cache_leased leased = { 0 };
	enum status s = cache_lease(r->c, &(struct cache_lease_call){ .session = r->s.id, .keys = k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.now_us = r->now, .places = places, .places_max = KEYS * LAYOUTS }, &leased, NULL,
				    &r->why);

	ck_assert_int_eq(s, prefix ? STATUS_OK : STATUS_MISS);
	for (uint32_t i = 0; i < prefix; i++)
		for (uint32_t l = 0; l < r->s.layouts; l++) {
			const struct cache_place *p = &places[i * r->s.layouts + l];
			const uint32_t end = end_of(q, prefix);
			bool wanted = windows[l] == 0 || windows[l] - 1 >= end ||
				      (windows[l] > 1 && (i + 1) * RIG_TOKENS > end - (windows[l] - 1));

			ck_assert_int_eq(p->extent != (uint32_t)CACHE_EXTENT_NONE, wanted);
			if (!wanted)
				continue;
			ck_assert(present[l][i]);
			ck_assert_uint_eq(p->tokens, end_of(q, i + 1) - end_of(q, i));
			ck_assert(rig_matches(rig_block(r, p), r->s.block_bytes[l], q->first + i, l));
		}
	if (prefix) {
		ck_assert_uint_eq(leased.blocks, prefix);
		ck_assert_int_eq(cache_release(r->c, r->s.id, leased.lease), STATUS_OK);
	}
}

static void round_of(struct rig *r, unsigned round)
{
	static const uint32_t choice[] = { 0, 0, 1, 2, 16, 17, 18, 33, 100, 4096 };
	bool present[LAYOUTS][KEYS];
	uint32_t windows[LAYOUTS], layouts = 1 + rand() % LAYOUTS, keys = rand() % (KEYS + 1), prefix = 99,
				   expected;
	const struct sequence q = { round * 1000ull, keys, rand() % 2 ? RIG_TOKENS : 1 + rand() % RIG_TOKENS };
	const bool with_rules = rand() % 3 == 0; /* then the session has a grid, of one unit a block */
	struct grid_wish wishes[LAYOUTS] = { { 0 } };
	struct cache_keys k = rig_keys(q.first, keys);
	struct kv_layout l[LAYOUTS];
	uint8_t states[LAYOUTS * KEYS];
	enum status gone[KEYS];
	uint64_t session;

	for (uint32_t i = 0; i < layouts; i++) {
		windows[i] = choice[rand() % (sizeof(choice) / sizeof(choice[0]))];
		l[i] = rig_layout(i, windows[i]);
		wishes[i].sparse = windows[i] != 0;
	}
	ck_assert_int_eq(cache_session_open(r->c, &(struct cache_open_call){ .tenant = "default", .layouts = l,
			.layout_count = layouts, .wishes = with_rules ? wishes : NULL, .engine = "", .now_us = r->now },
					    &r->s, &r->why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r->c, r->s.token, 1, r->now, &r->attachment, &session, &r->why),
			 STATUS_OK);
	for (uint32_t i = 0; i < layouts; i++) {
		int holes = rand() % 3;

		for (uint32_t n = 0; n < keys; n++) {
			present[i][n] = holes == 0 || rand() % (holes * 12) != 0;
			if (present[i][n])
				put_one(r, i, q.first + n, end_of(&q, n + 1) - end_of(&q, n));
		}
	}
	expected = naive(&q, present, windows, layouts);
	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, NULL, 0, &r->why), STATUS_OK);
	ck_assert_uint_eq(prefix, expected);
	ck_assert_int_eq(cache_lookup(r->c, r->s.id, &k, &prefix, states, sizeof(states), &r->why),
			 STATUS_OK);
	ck_assert_uint_eq(prefix, expected);
	for (uint32_t n = 0; n < keys; n++)
		for (uint32_t i = 0; i < layouts; i++)
			ck_assert_uint_eq(states[n * layouts + i], present[i][n]);
	check_lease(r, &k, &q, present, windows, expected);
	ck_assert_int_eq(cache_delete(r->c, r->s.id, &k, gone, NULL, &r->why), STATUS_OK);
	ck_assert_int_eq(cache_session_close(r->c, r->s.id, r->now, &r->why), STATUS_OK);
	free((void *)k.bytes);
}

START_TEST(prefixes_are_those_of_the_definition)
{
	struct cache_options o = rig_options(8192);
	struct rig r;

	o.extent_bytes = 64 * RIG_SLOT_BYTES;
	rig_open(&r, &o, 1);
	srand(7);
	for (unsigned i = 1; i <= RIG_ROUNDS(1500); i++)
		round_of(&r, i);
	rig_close(&r);
}
END_TEST

START_TEST(bad_keys_and_sessions_are_refused)
{
	const struct cache_options o = rig_options(64);
	uint8_t *bytes = calloc(CACHE_KEYS_MAX + 1, SLOT_KEY_MAX + 1);
	struct cache_keys k = { bytes, 1, 0 };
	uint32_t prefix = 77;
	struct rig r;

	rig_open(&r, &o, 9);
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, NULL, 0, &r.why), STATUS_INVALID);
	k.key_bytes = SLOT_KEY_MAX + 1;
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, NULL, 0, &r.why), STATUS_INVALID);
	k.key_bytes = SLOT_KEY_MAX;
	k.count = CACHE_KEYS_MAX + 1;
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, NULL, 0, &r.why), STATUS_INVALID);
	k.count = CACHE_KEYS_MAX; /* x 9 layouts is too much */
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, NULL, 0, &r.why), STATUS_INVALID);
	k.count = 3;
	uint8_t states[26];
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, states, 26, &r.why), STATUS_INVALID);
	k.first = GRID_FIRST_MAX + 1u;
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, NULL, 0, &r.why), STATUS_INVALID);
	k.first = 0;
	ck_assert_uint_eq(prefix, 77);
	ck_assert_int_eq(cache_lookup(r.c, 0, &k, &prefix, NULL, 0, &r.why), STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_lookup(r.c, r.s.id + (1 << 20), &k, &prefix, NULL, 0, &r.why),
			 STATUS_NOT_FOUND);
	ck_assert_int_eq(cache_lookup(r.c, UINT64_MAX, &k, &prefix, NULL, 0, &r.why), STATUS_NOT_FOUND);
	k.count = 0;
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, NULL, 0, &r.why), STATUS_OK);
	ck_assert_uint_eq(prefix, 0);
	rig_close(&r);
	free(bytes);
}
END_TEST

START_TEST(as_many_keys_as_a_call_has_in_eight_layouts)
{
	const struct cache_options o = rig_options(64);
	struct cache_keys k = rig_keys(0, CACHE_KEYS_MAX);
	uint8_t *states = calloc(CACHE_KEYS_MAX, 8);
	uint32_t prefix = 77;
	struct rig r;

	rig_open(&r, &o, 8);
	ck_assert_uint_eq(rig_put(&r, 0, 4), 4);
	ck_assert_int_eq(cache_lookup(r.c, r.s.id, &k, &prefix, states, CACHE_KEYS_MAX * 8, &r.why), STATUS_OK);
	ck_assert_uint_eq(prefix, 4);
	ck_assert_uint_eq(states[31], 1);
	ck_assert_uint_eq(states[32], 0);
	rig_close(&r);
	free(states);
	free((void *)k.bytes);
}
END_TEST

START_TEST(a_lookup_is_no_use_and_takes_no_lease)
{
	const struct cache_options o = rig_options(8);
	struct rig r;
	uint32_t stored = 0;

	rig_open(&r, &o, 1);
	for (uint64_t n = 0; n < 8; n++, r.now += 1000)
		stored += rig_put(&r, n, 1);
	ck_assert_uint_eq(stored, 8);
	for (int i = 0; i < 10; i++)
		ck_assert_uint_eq(rig_prefix(&r, 0, 8), 8);
	ck_assert_double_eq(rig_stat(&r, "terrace_pinned_bytes", "tier=host"), 0);
	/* The one looked at first is the oldest still: it goes. */
	ck_assert_uint_eq(rig_put(&r, 100, 1), 1);
	ck_assert_uint_eq(rig_prefix(&r, 0, 8), 0);
	ck_assert_uint_eq(rig_prefix(&r, 1, 7), 7);
	ck_assert_double_eq(rig_stat(&r, "terrace_lookups_total", ""), 12);
	ck_assert_double_eq(rig_stat(&r, "terrace_lookup_keys_total", ""), 8 * 11 + 7);
	ck_assert_double_eq(rig_stat(&r, "terrace_lookup_hits_total", ""), 80 + 7);
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { prefixes_are_those_of_the_definition,
				       bad_keys_and_sessions_are_refused,
				       as_many_keys_as_a_call_has_in_eight_layouts,
				       a_lookup_is_no_use_and_takes_no_lease };

	return rig_main("cache_lookup", tests, sizeof(tests) / sizeof(tests[0]));
}
