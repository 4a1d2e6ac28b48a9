/* A cache that has to evict, driven by random operations and compared with a simple model.
 *
 * The model learns of stores and removals from a watch, so it also checks that the watch tells everything;
 * what each store's bytes must be it knows from what was written. Each version of a block has bytes of its
 * own: a stale one would show.
 */
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/call/stream.h"
#include "daemon/session/attachment.h"
#include "daemon/session/end.h"
#include "daemon/session/open.h"
#include "daemon/session/watch.h"
#include "eviction/policy.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 64, LAYOUTS = 3, SLOTS = 96, HELD = 12, RUN = 10, VERSION_SHIFT = 20 };

static const uint32_t windows[LAYOUTS] = { 0, 40, 0 };

struct held_lease {
	uint64_t id;
	uint32_t count;
	struct cache_place place[RUN * LAYOUTS];
	uint64_t content[RUN * LAYOUTS];    /* 0: no place */
};

struct held_reservation {
	uint64_t id, key, content;
	bool mine[LAYOUTS];                 /* layouts it has slots in */
	struct cache_place place[LAYOUTS];
};

struct model {
	struct rig r;
	struct cache_watch *w;
	uint64_t sequence, version;
	bool present[KEYS][LAYOUTS];
	uint64_t content[KEYS][LAYOUTS];    /* of the last store */
	struct held_lease lease[HELD];
	struct held_reservation reservation[HELD];
	uint64_t evicted, leased, stored;
};

static bool has_place(const struct cache_place *p)
{
	return p->extent != (uint32_t)CACHE_EXTENT_NONE;
}

static bool is_leased(const struct model *m, uint64_t content, uint32_t layout)
{
	for (int i = 0; i < HELD; i++)
		for (uint32_t j = layout; m->lease[i].id && j < m->lease[i].count * LAYOUTS; j += LAYOUTS)
			if (m->lease[i].content[j] == content)
				return true;
	return false;
}

static uint32_t present_blocks(const struct model *m)
{
	uint32_t count = 0;

	for (uint64_t n = 0; n < KEYS; n++)
		for (uint32_t l = 0; l < LAYOUTS; l++)
			count += m->present[n][l];
	return count;
}

static void learn(struct model *m)
{
	struct cache_watch_event e;

	while (cache_watch_next(m->w, &e) == STATUS_OK) {
		uint64_t n;

		ck_assert_uint_eq(e.sequence, ++m->sequence);
		ck_assert(e.kind == CACHE_STORED || e.kind == CACHE_REMOVED);
		memcpy(&n, e.key, 8);
		ck_assert(m->present[n][e.layout] == (e.kind == CACHE_REMOVED));
		m->present[n][e.layout] = e.kind == CACHE_STORED;
		if (e.reason == CACHE_REASON_EVICTED) {
			m->evicted++;
			ck_assert(!is_leased(m, m->content[n][e.layout], e.layout));
		}
	}
}

static uint32_t model_prefix(const struct model *m, uint64_t first, uint32_t count)
{
	for (uint32_t p = count; p > 0; p--) {
		bool ok = true;

		for (uint32_t l = 0; l < LAYOUTS; l++)
			for (uint32_t i = 0; i < p; i++) {
				bool needed = !windows[l] ||
					      (i + 1) * RIG_TOKENS + windows[l] - 1 > p * RIG_TOKENS;

				ok = ok && (!needed || m->present[first + i][l]);
			}
		if (ok)
			return p;
	}
	return 0;
}

static void lookup(struct model *m, uint64_t first, uint32_t count)
{
	struct cache_keys k = rig_keys(first, count);
	uint8_t states[RUN * LAYOUTS];
	uint32_t prefix;

	ck_assert_int_eq(cache_lookup(m->r.c, m->r.s.id, &k, &prefix, states, sizeof(states), &m->r.why),
			 STATUS_OK);
	ck_assert_uint_eq(prefix, model_prefix(m, first, count));
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t l = 0; l < LAYOUTS; l++)
			ck_assert_int_eq(states[i * LAYOUTS + l], m->present[first + i][l]);
	free((void *)k.bytes);
}

static void lease_check(struct model *m, const struct held_lease *h)
{
	for (uint32_t i = 0; i < h->count * LAYOUTS; i++)
		if (h->content[i])
			ck_assert(rig_matches(rig_block(&m->r, &h->place[i]), m->r.s.block_bytes[0],
					      h->content[i], i % LAYOUTS));
}

static void lease(struct model *m, uint64_t first, uint32_t count, bool all)
{
	struct held_lease *h = &m->lease[rand() % HELD];
	uint32_t expected = model_prefix(m, first, count);
	struct cache_leased out;
	enum status s;

	if (h->id)
		return;
	s = rig_lease(&m->r, first, count, all, h->place, &out);
	if (expected == 0 || (all && expected < count)) {
		ck_assert_int_eq(s, STATUS_MISS);
		return;
	}
	ck_assert_int_eq(s, STATUS_OK);
	ck_assert_uint_eq(out.blocks, expected);
	h->id = out.lease;
	h->count = expected;
	m->leased++;
	for (uint32_t i = 0; i < expected * LAYOUTS; i++)
		h->content[i] = has_place(&h->place[i]) ? m->content[first + i / LAYOUTS][i % LAYOUTS] : 0;
	lease_check(m, h);
}

static void release(struct model *m)
{
	struct held_lease *h = &m->lease[rand() % HELD];

	if (!h->id)
		return;
	lease_check(m, h);
	ck_assert_int_eq(cache_release(m->r.c, m->r.s.id, h->id), STATUS_OK);
	h->id = 0;
}

static bool claimed(const struct model *m, uint64_t n)
{
	for (int i = 0; i < HELD; i++)
		for (uint32_t l = 0; l < LAYOUTS; l++)
			/* Its claim is on the layouts that it has slots in; a clash is on those that still
			 * lack the key. */
			if (m->reservation[i].id && m->reservation[i].key == n && m->reservation[i].mine[l] &&
			    !m->present[n][l])
				return true;
	return false;
}

static bool in_all(const struct model *m, uint64_t n)
{
	return m->present[n][0] && m->present[n][1] && m->present[n][2];
}

static void reserve(struct model *m, uint64_t n)
{
	struct held_reservation *h = &m->reservation[rand() % HELD];
	struct cache_keys k = rig_keys(n, 1);
	bool before[LAYOUTS], clash;
	enum status st;

	if (!h->id) {
		clash = claimed(m, n);
		memcpy(before, m->present[n], sizeof(before));
		ck_assert_int_eq(cache_reserve(m->r.c, &(struct cache_reserve_call){ .session = m->r.s.id,
				.keys = &k, .on = &(struct cache_on){ .attachment = m->r.attachment,
				.gpu = CACHE_HOST }, .may_grow = true, .now_us = m->r.now, .statuses = &st,
				.reservations = &h->id, .places = h->place, .places_max = LAYOUTS }, &m->r.why),
				 STATUS_OK);
		if (in_all(m, n))
			ck_assert_int_eq(st, STATUS_EXISTS);
		else if (clash)
			ck_assert_int_eq(st, STATUS_BUSY);
		else
			ck_assert(st == STATUS_OK || st == STATUS_EXHAUSTED);
		ck_assert_int_eq(st == STATUS_OK, h->id != 0);
		h->key = n;
		h->content = n | ++m->version << VERSION_SHIFT;
		learn(m);
		for (uint32_t l = 0; l < LAYOUTS && h->id; l++) {
			h->mine[l] = has_place(&h->place[l]);
			/* Making room in one layout may have cost the block in another. */
			ck_assert(h->mine[l] ? !m->present[n][l] : before[l]);
			if (h->mine[l])
				rig_fill(rig_block(&m->r, &h->place[l]), m->r.s.block_bytes[l], h->content,
					 l);
		}
	}
	free((void *)k.bytes);
}

static void finish(struct model *m, bool commit)
{
	struct held_reservation *h = &m->reservation[rand() % HELD];
	const struct cache_commit_item item = { .reservation = h->id };
	enum status st;

	if (!h->id)
		return;
	for (uint32_t l = 0; l < LAYOUTS; l++)
		if (h->mine[l])
			ck_assert(rig_matches(rig_block(&m->r, &h->place[l]), m->r.s.block_bytes[l],
					      h->content, l));
	if (commit) {
		bool won = false;

		ck_assert_int_eq(cache_commit(m->r.c, &(struct cache_commit_call){ .session = m->r.s.id,
				.items = &item, .count = 1, .now_us = m->r.now, .unix_ms = 1, .statuses = &st },
					      NULL, &m->r.why), STATUS_OK);
		for (uint32_t l = 0; l < LAYOUTS; l++)
			if (h->mine[l]) {
				won |= !m->present[h->key][l];
				if (!m->present[h->key][l])
					m->content[h->key][l] = h->content;
			}
		ck_assert_int_eq(st, won ? STATUS_OK : STATUS_EXISTS);
		m->stored += won;
	} else {
		ck_assert_int_eq(cache_abort(m->r.c, m->r.s.id, h->id), STATUS_OK);
	}
	h->id = 0;
}

static void drop(struct model *m, uint64_t n)
{
	struct cache_keys k = rig_keys(n, 1);
	bool there = m->present[n][0] || m->present[n][1] || m->present[n][2];
	enum status st;

	ck_assert_int_eq(cache_delete(m->r.c, m->r.s.id, &k, &st, NULL, &m->r.why), STATUS_OK);
	ck_assert_int_eq(st, there ? STATUS_OK : STATUS_MISS);
	free((void *)k.bytes);
}

static void stream(struct model *m, uint64_t n, uint32_t l)
{
	uint8_t key[RIG_KEY_BYTES];
	struct cache_write w;
	struct cache_read read;
	enum status s;

	rig_key(key, n);
	s = cache_read_begin(m->r.c, &(struct cache_stream_call){ .session = m->r.s.id, .layout = l, .key = key,
			.key_bytes = sizeof(key), .now_us = m->r.now }, &read, NULL, &m->r.why);
	ck_assert_int_eq(s, m->present[n][l] ? STATUS_OK : STATUS_MISS);
	if (!s) {
		ck_assert(rig_matches(read.block, read.block_bytes, m->content[n][l], l));
		cache_read_end(m->r.c, &read);
		return;
	}
	s = cache_write_begin(m->r.c, &(struct cache_stream_call){ .session = m->r.s.id, .layout = l,
			.key = key, .key_bytes = sizeof(key), .now_us = m->r.now }, &w, &m->r.why);
	if (s) {
		ck_assert(s == STATUS_EXHAUSTED || (s == STATUS_BUSY && claimed(m, n)));
		return;
	}
	m->content[n][l] = n | ++m->version << VERSION_SHIFT;
	rig_fill(w.block, w.block_bytes, m->content[n][l], l);
	ck_assert_int_eq(cache_write_end(m->r.c, m->r.s.id, &w, true, m->r.now, 1), STATUS_OK);
}

static void open_model_session(struct model *m)
{
	struct kv_layout l[LAYOUTS];
	uint64_t session;

	for (uint32_t i = 0; i < LAYOUTS; i++)
		l[i] = rig_layout(i, windows[i]);
	ck_assert_int_eq(cache_session_open(m->r.c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = LAYOUTS, .engine = "model", .now_us = m->r.now }, &m->r.s, &m->r.why),
			 STATUS_OK);
	ck_assert_int_eq(
		cache_attach(m->r.c, m->r.s.token, 1, m->r.now, &m->r.attachment, &session, &m->r.why), 0);
	ck_assert_int_eq(cache_watch_open(m->r.c, m->r.s.id, true, NULL, NULL, &m->w, &m->r.why), STATUS_OK);
	m->sequence = 0;
}

/* The session dies with all it holds; what is stored stays. */
static void reincarnate(struct model *m)
{
	learn(m);
	cache_watch_close(m->w);
	cache_attach_gone(m->r.c, m->r.attachment, m->r.now, NULL);
	memset(m->lease, 0, sizeof(m->lease));
	memset(m->reservation, 0, sizeof(m->reservation));
	ck_assert_double_eq(rig_stat(&m->r, "terrace_pinned_bytes", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&m->r, "terrace_reserved_bytes", "tier=host"), 0);
	ck_assert_double_eq(rig_stat(&m->r, "terrace_slots_used", "tier=host"), present_blocks(m));
	open_model_session(m);
}

static void step(struct model *m)
{
	uint32_t count = 1 + rand() % RUN, dice = rand() % 100;
	uint64_t first = rand() % (KEYS - count), n = rand() % KEYS;

	m->r.now += rand() % 20000;
	if (dice < 20)
		lookup(m, first, count);
	else if (dice < 32)
		lease(m, first, count, rand() % 2);
	else if (dice < 44)
		release(m);
	else if (dice < 66)
		reserve(m, n);
	else if (dice < 88)
		finish(m, dice < 84);
	else if (dice < 91)
		drop(m, n);
	else if (dice < 97)
		stream(m, n, rand() % LAYOUTS);
	else if (dice < 99)
		rig_tick(m->r.c, m->r.now);
	else if (rand() % 20 == 0)
		reincarnate(m);
	learn(m);
}

static void run(unsigned seed, const char *policy)
{
	struct cache_options o = rig_options(SLOTS);
	struct model *m = calloc(1, sizeof(*m));

	srand(seed);
	o.policy = policy;
	o.watch_queue = 4096;
	rig_open(&m->r, &o, 1);
	open_model_session(m);
	for (int i = 0; i < RIG_ROUNDS(20000); i++) {
		step(m);
		if (i % 500 == 0)
			rig_check_accounting(m->r.c);
	}
	ck_assert_uint_gt(m->evicted, 0);
	ck_assert_uint_gt(m->leased, 10);
	ck_assert_uint_gt(m->stored, 10);
	rig_close(&m->r);
	free(m);
}

START_TEST(of_many_seeds)
{
	for (unsigned seed = 1; seed <= 4; seed++)
		run(seed, "lru");
}
END_TEST

/* Whatever order a policy chooses, nothing of the rest changes. */
START_TEST(of_every_policy)
{
	for (unsigned i = 0; policy_table[i]; i++)
		run(100 + i, policy_table[i]->name);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = { of_many_seeds, of_every_policy };

	return rig_main("cache_model", tests, sizeof(tests) / sizeof(tests[0]));
}
