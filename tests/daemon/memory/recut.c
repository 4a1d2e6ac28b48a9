/* Memory that changes class, against a shadow: many layouts of several classes put, lease, delete and abort at random in memory that is far
 * too small for them, so that spans are emptied and cut anew all the time. Each block's bytes say of which layout and key it is, in which
 * extent, at which place and of which take: an address that is computed with another class's stride, or a slot that two have at a time, is
 * seen. What is not committed leaves its slot full of ones, as another format's NaNs would.
 */
#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "daemon/cache.h"
#include "daemon/call/commit.h"
#include "daemon/call/delete.h"
#include "daemon/call/lease.h"
#include "daemon/call/reserve.h"
#include "daemon/session/attachment.h"
#include "daemon/session/open.h"
#include "kernels/format.h"
#include "store/status.h"
#include "tests/daemon/cache_rig.h"

#include <stdlib.h>
#include <string.h>

enum {
	SESSIONS = 7, LAYOUTS_MAX = 3, KEYS = 64, LEASES = 12,
	GRANULE = 64 << 10, GRANULES = 40, EXTENT_GRANULES = 10,
};

/* Of a session: its layouts' layers. The last one is a hybrid of three classes. */
static const uint32_t layers[SESSIONS][LAYOUTS_MAX] = { { 1 }, { 8 }, { 20 }, { 50 }, { 120 }, { 119 }, { 1, 8, 50 } };

struct held {
	uint64_t lease;
	uint32_t session, count;
	uint64_t key;
	struct cache_place place[LAYOUTS_MAX];
};

struct shadow {
	struct rig r[SESSIONS];
	struct cache_place stored[SESSIONS][KEYS][LAYOUTS_MAX]; /* of the last put that was stored; tokens 0: none */
	struct held lease[LEASES];
	uint32_t leases, found, puts;
};

static uint64_t word_at(uint32_t session, uint32_t layout, uint64_t key, const struct cache_place *p, uint64_t i)
{
	uint64_t x = (session * 8ull + layout) << 48 ^ key << 32 ^ (uint64_t)p->extent << 40 ^ p->offset ^ p->generation << 20;

	x = (x + i) * 0x9e3779b97f4a7c15ull;
	return x ^ x >> 29;
}

static void fill(struct shadow *s, uint32_t session, uint32_t layout, uint64_t key, const struct cache_place *p)
{
	uint64_t *at = (uint64_t *)rig_block(&s->r[0], p);

	for (uint64_t i = 0; i < s->r[session].s.block_bytes[layout] / 8; i++)
		at[i] = word_at(session, layout, key, p, i);
}

static void check(struct shadow *s, uint32_t session, uint32_t layout, uint64_t key, const struct cache_place *p)
{
	const uint64_t *at = (const uint64_t *)rig_block(&s->r[0], p);

	for (uint64_t i = 0; i < s->r[session].s.block_bytes[layout] / 8; i++)
		ck_assert_msg(at[i] == word_at(session, layout, key, p, i),
			      "session %u, layout %u, key %llu, extent %u at %llu: word %llu of %llu is another block's", session, layout,
			      (unsigned long long)key, p->extent, (unsigned long long)p->offset, (unsigned long long)i,
			      (unsigned long long)s->r[session].s.block_bytes[layout] / 8);
}

static void session_open(struct shadow *s, uint32_t n)
{
	struct kv_layout l[LAYOUTS_MAX];
	struct rig *r = &s->r[n];
	uint32_t count = 0, first = 200 * n;

	for (uint32_t i = 0; i < LAYOUTS_MAX && layers[n][i]; i++, count++) {
		l[i] = rig_layout(first, 0);
		l[i].layers = layers[n][i];
		first += layers[n][i];
	}
	if (n)
		*r = (struct rig){ .c = s->r[0].c, .now = s->r[0].now };
	ck_assert_int_eq(cache_session_open(r->c, &(struct cache_open_call){ .tenant = "", .layouts = l,
			.layout_count = count, .engine = "", .now_us = r->now }, &r->s, &r->why), STATUS_OK);
	ck_assert_int_eq(cache_attach(r->c, r->s.token, 1, r->now, &r->attachment, &(uint64_t){ 0 }, &r->why), STATUS_OK);
}

/* Reserves, writes, and commits or gives up. */
static void put(struct shadow *s, uint32_t n, uint64_t key, bool commits)
{
	struct rig *r = &s->r[n];
	struct cache_keys k = rig_keys(key, 1);
	struct cache_place place[LAYOUTS_MAX];
	struct cache_commit_item item;
	enum status st;

	ck_assert_int_eq(cache_reserve(r->c, &(struct cache_reserve_call){ .session = r->s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r->attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r->now, .statuses = &st, .reservations = &item.reservation,
			.places = place, .places_max = r->s.layouts }, &r->why), STATUS_OK);
	free((void *)k.bytes);
	if (st == STATUS_EXISTS)
		return;
	if (st == STATUS_EXHAUSTED) { /* what is leased may be all of its class, and a part of each span */
		ck_assert_uint_gt(s->leases, 0);
		return;
	}
	ck_assert_int_eq(st, STATUS_OK);
	for (uint32_t l = 0; l < r->s.layouts; l++) {
		if (place[l].extent == (uint32_t)CACHE_EXTENT_NONE) /* that part of the key is there already */
			continue;
		memset(rig_block(&s->r[0], &place[l]), 0xff, r->s.block_bytes[l]);
		if (commits)
			fill(s, n, l, key, &place[l]);
	}
	if (!commits) {
		ck_assert_int_eq(cache_abort(r->c, r->s.id, item.reservation), STATUS_OK);
		return;
	}
	item = (struct cache_commit_item){ .reservation = item.reservation };
	ck_assert_int_eq(cache_commit(r->c, &(struct cache_commit_call){ .session = r->s.id, .items = &item,
			.count = 1, .now_us = r->now, .unix_ms = r->now / 1000 + 1, .statuses = &st }, NULL,
				      &r->why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	for (uint32_t l = 0; l < r->s.layouts; l++) {
		place[l].tokens = 1;
		if (place[l].extent != (uint32_t)CACHE_EXTENT_NONE)
			s->stored[n][key][l] = place[l];
	}
	s->puts++;
}

/* What is there is what was put last, where it was put. */
static void lease(struct shadow *s, uint32_t n, uint64_t key)
{
	struct held *h = &s->lease[s->leases];
	struct cache_leased leased;
	struct rig *r = &s->r[n];

	if (s->leases == LEASES || rig_lease(r, key, 1, true, h->place, &leased) != STATUS_OK)
		return;
	*h = (struct held){ .lease = leased.lease, .session = n, .count = r->s.layouts, .key = key,
			    .place = { h->place[0], h->place[1], h->place[2] } };
	for (uint32_t l = 0; l < r->s.layouts; l++) {
		const struct cache_place *p = &s->stored[n][key][l];

		ck_assert_uint_ne(p->tokens, 0);
		ck_assert_uint_eq(h->place[l].extent, p->extent);
		ck_assert_uint_eq(h->place[l].offset, p->offset);
		ck_assert_uint_eq(h->place[l].generation, p->generation);
		check(s, n, l, key, p);
	}
	s->leases++;
	s->found++;
}

/* And was not touched while it was leased. */
static void release(struct shadow *s, uint32_t i)
{
	struct held *h = &s->lease[i];

	for (uint32_t l = 0; l < h->count; l++)
		check(s, h->session, l, h->key, &h->place[l]);
	ck_assert_int_eq(cache_release(s->r[h->session].c, s->r[h->session].s.id, h->lease), STATUS_OK);
	*h = s->lease[--s->leases];
}

static void delete_one(struct shadow *s, uint32_t n, uint64_t key)
{
	struct cache_keys k = rig_keys(key, 1);
	enum status st;

	ck_assert_int_eq(cache_delete(s->r[n].c, s->r[n].s.id, &k, &st, NULL, &s->r[n].why), STATUS_OK);
	free((void *)k.bytes);
}

static void pass(struct shadow *s, uint64_t us)
{
	for (uint32_t n = 0; n < SESSIONS; n++)
		s->r[n].now += us;
	rig_tick(s->r[0].c, s->r[0].now);
}

/* One session is busy for a while, then another: so memory goes round. */
static void step(struct shadow *s, uint32_t busy)
{
	const uint32_t n = rand() % 4 ? busy : (uint32_t)rand() % SESSIONS;
	const uint64_t key = (uint64_t)rand() % KEYS;

	switch (rand() % 10) {
	case 0:
		delete_one(s, n, key);
		break;
	case 1:
		put(s, n, key, false);
		break;
	case 2:
	case 3:
		lease(s, n, key);
		break;
	case 4:
		if (s->leases)
			release(s, (uint32_t)rand() % s->leases);
		break;
	case 5:
		pass(s, (uint64_t)rand() % 400000);
		break;
	default:
		put(s, n, key, true);
	}
}

#ifdef TERRACE_SANITIZED
enum { STEPS = 2000 };
#else
enum { STEPS = 6000 };
#endif

START_TEST(every_slot_has_what_was_put_there)
{
	static struct shadow s;
	struct cache_options o = rig_options(1);
	double trades;

	memset(&s, 0, sizeof(s));
	srand(7 + (unsigned)_i);
	o.granule_bytes = GRANULE;
	o.host_bytes = (uint64_t)GRANULES * GRANULE;
	o.extent_bytes = EXTENT_GRANULES * GRANULE;
	o.policy = _i % 2 ? "graph" : "lru";
	rig_open(&s.r[0], &o, 1);
	for (uint32_t n = 0; n < SESSIONS; n++)
		session_open(&s, n);
	for (uint32_t i = 0; i < STEPS; i++) {
		step(&s, i / 200 * 3 % SESSIONS);
		if (i % 500 == 0)
			rig_check_accounting(s.r[0].c);
	}
	while (s.leases)
		release(&s, 0);
	trades = rig_stat(&s.r[0], "terrace_span_trades_total", "tier=host,reason=need") +
		 rig_stat(&s.r[0], "terrace_span_trades_total", "tier=host,reason=colder");
	ck_assert_double_ge(trades, 20); /* else nothing was shown */
	ck_assert_uint_ge(s.found, STEPS / 60);
	rig_close(&s.r[0]);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cache_recut");
	TCase *t = tcase_create("cache_recut");
	SRunner *runner;
	int failed;

	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, every_slot_has_what_was_put_there, 0, 4);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}
