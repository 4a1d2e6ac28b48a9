/* What the policies are told of requests, and what they refuse; what left, and was asked for again. */
#include "daemon/advice/mailbox.h"
#include "daemon/block/block.h"
#include "daemon/block/by_id.h"
#include "daemon/block/lock.h"
#include "daemon/block/options.h"
#include "daemon/block/values.h"
#include "daemon/block/views.h"
#include "daemon/call/commit.h"
#include "daemon/call/explain.h"
#include "daemon/call/lease.h"
#include "daemon/call/lookup.h"
#include "daemon/call/reserve.h"
#include "daemon/disk/state.h"
#include "eviction/policy.h"
#include "eviction/replay.h"
#include "eviction/trace.h"
#include "store/slot.h"
#include "store/status.h"
#include "tests/daemon/cache_chain.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 128 };

/* lru that listens, and refuses while it is told to. */
static struct policy_ops fake;
static struct {
	uint32_t requests, count, tokens, refusals, moved;
	uint64_t session, last_id;
	uint16_t turn;
	uint8_t hint, priority;
	uint32_t ttl_s;
	bool refuse;
} heard;

static void hear(struct policy *p, const struct policy_request *q)
{
	(void)p;
	heard.requests++;
	heard.count = q->count;
	heard.tokens = q->tokens;
	heard.session = q->session;
	heard.turn = q->turn;
	heard.hint = q->hint;
	heard.priority = q->priority;
	heard.ttl_s = q->ttl_s;
	heard.last_id = q->ids[q->count - 1];
}

static bool judge(struct policy *p, const struct policy_event *e, const struct policy_node *v)
{
	(void)p;
	ck_assert_ptr_nonnull(v);
	ck_assert_uint_ne(e->id, 0);
	heard.refusals += heard.refuse;
	heard.moved += e->moved;
	return !heard.refuse;
}

static void listen_in(struct rig *r)
{
	fake = *policy_find("lru");
	fake.request = hear;
	fake.admit = judge;
	memset(&heard, 0, sizeof(heard));
	r->c->policy = &fake;
}

static void open_heard(struct rig *r)
{
	const struct cache_options o = rig_options(SLOTS);

	rig_open(r, &o, 1);
	listen_in(r);
}

static const uint64_t first[] = { 1, 2, 3, 4 }, second[] = { 1, 2, 3, 4, 5, 6 }, other[] = { 1, 2, 9 },
		      branch[] = { 1, 2, 3, 4, 8 };

START_TEST(a_request_is_told_once)
{
	uint64_t conversation;
	struct rig r;

	open_heard(&r);
	chain_request(&r, first, 4);
	rig_tick(r.c, r.now);
	ck_assert_uint_eq(heard.requests, 1);
	ck_assert_uint_eq(heard.count, 4);
	ck_assert_uint_eq(heard.tokens, 4 * RIG_TOKENS);
	ck_assert_uint_eq(heard.turn, 1);
	conversation = heard.session;
	/* A scheduler that asks again and again. */
	for (int i = 0; i < 10; i++) {
		rig_prefix(&r, 1, 4);
		rig_tick(r.c, r.now);
	}
	ck_assert_uint_eq(heard.requests, 2);
	chain_request(&r, second, 6);
	ck_assert_uint_eq(heard.requests, 3);
	ck_assert_uint_eq(heard.session, conversation);
	ck_assert_uint_eq(heard.turn, 3);
	chain_request(&r, other, 3);
	ck_assert_uint_ne(heard.session, conversation);
	ck_assert_uint_eq(heard.turn, 1);
	/* Another that goes on from where the first did already. */
	chain_request(&r, branch, 5);
	ck_assert_uint_ne(heard.session, conversation);
	ck_assert_double_eq(rig_stat(&r, "terrace_requests_total", ""), 5);
	ck_assert_double_eq(rig_stat(&r, "terrace_requests_repeated_total", ""), 4 + 9);
	rig_close(&r);
}
END_TEST

START_TEST(ids_are_those_of_the_blocks)
{
	struct block *b;
	struct rig r;

	open_heard(&r);
	chain_request(&r, first, 4);
	cache_lock(r.c);
	b = by_id_find(r.c, heard.last_id);
	ck_assert_ptr_nonnull(b);
	ck_assert_uint_eq(block_key(b)[0], 4);
	cache_unlock(r.c);
	rig_close(&r);
}
END_TEST

START_TEST(reports_are_hints)
{
	static const struct {
		enum cache_event event;
		uint8_t hint;
	} table[] = { { CACHE_EVENT_TURN_END, POLICY_HINT_TURN }, { CACHE_EVENT_TOOL_CALL, POLICY_HINT_TOOL },
		      { CACHE_EVENT_SESSION_END, POLICY_HINT_END } };
	uint64_t conversation;
	struct rig r;

	open_heard(&r);
	chain_request(&r, first, 4);
	conversation = heard.session;
	for (int i = 0; i < 3; i++) {
		chain_report(&r, first, 4, table[i].event);
		ck_assert_uint_eq(heard.hint, table[i].hint);
		ck_assert_uint_eq(heard.session, conversation);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_requests_hinted_total", ""), 3);
	struct cache_keys k = rig_keys(1, 4);

	ck_assert_int_eq(cache_report(r.c, r.s.id, &k, &(struct cache_hint){ .event = CACHE_EVENT_NONE,
			.priority = -5, .ttl_ms = 1500 }, r.now, &r.why), STATUS_OK);
	ck_assert_uint_eq(heard.priority, POLICY_PRIORITY_LOW);
	ck_assert_uint_eq(heard.ttl_s, 2);
	ck_assert_int_eq(cache_report(r.c, r.s.id, &k, &(struct cache_hint){ .event = CACHE_EVENT_NONE }, r.now,
				      &r.why), STATUS_OK);
	ck_assert_double_eq(rig_stat(&r, "terrace_requests_hinted_total", ""), 4);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(what_engines_say_of_turns_goes_on)
{
	struct cache_keys k = rig_keys(50, 1);
	struct slot_info info = { .turn = 7 };
	struct cache_commit_item item = { 0 };
	struct cache_place place;
	enum status st;
	struct rig r;

	open_heard(&r);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.info = &info, .on = &(struct cache_on){ .attachment = r.attachment,
			.gpu = CACHE_HOST }, .may_grow = true, .now_us = r.now, .statuses = &st,
			.reservations = &item.reservation, .places = &place, .places_max = 1 }, &r.why),
			 STATUS_OK);
	ck_assert_int_eq(cache_commit(r.c, &(struct cache_commit_call){ .session = r.s.id, .items = &item,
			.count = 1, .now_us = r.now, .unix_ms = 1, .statuses = &st }, NULL, &r.why), STATUS_OK);
	ck_assert_int_eq(st, STATUS_OK);
	rig_prefix(&r, 50, 1);
	rig_tick(r.c, r.now);
	ck_assert_uint_eq(heard.turn, 7);
	rig_prefix(&r, 50, 2);
	rig_tick(r.c, r.now);
	ck_assert_uint_eq(heard.turn, 8);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

/* A refused block has a place, but is the first to lose it, unless it is used. */
START_TEST(refused_blocks_go_first)
{
	struct cache_place places[8];
	struct cache_leased leased;
	struct rig r;

	open_heard(&r);
	ck_assert_uint_eq(rig_put(&r, 0, SLOTS), SLOTS);
	heard.refuse = true;
	ck_assert_uint_eq(rig_put(&r, 1000, 8), 8);
	ck_assert_uint_eq(heard.refusals, 8);
	ck_assert_uint_eq(rig_prefix(&r, 1000, 8), 8);
	heard.refuse = false;
	ck_assert_int_eq(rig_lease(&r, 1000, 2, true, places, &leased), STATUS_OK);
	heard.refuse = true;
	ck_assert_int_eq(cache_release(r.c, r.s.id, leased.lease), STATUS_OK);
	ck_assert_uint_eq(rig_put(&r, 2000, 6), 6);
	ck_assert_uint_eq(rig_prefix(&r, 1000, 8), 2); /* those that were used */
	ck_assert_uint_eq(rig_prefix(&r, 2000, 6), 6);
	/* Eight went for the first eight, the deepest; nothing for the others. */
	ck_assert_uint_eq(rig_prefix(&r, 0, SLOTS), SLOTS - 8);
	ck_assert_double_eq(rig_stat(&r, "terrace_refused_blocks_total", "tier=host"), 14);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=host,reason=refused"), 6);
	rig_check_accounting(r.c);
	rig_close(&r);
}
END_TEST

/* With disks, those of them that are on one go before others that are. */
START_TEST(refused_blocks_go_first_to_disk)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, 8 * SLOTS);
	o = rig_disk_options(&d, 1, SLOTS);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	listen_in(&r);
	rig_put(&r, 0, SLOTS);
	rig_quiet(&r);
	heard.refuse = true;
	rig_put(&r, 1000, 8);
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_put(&r, 2000, 6);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=host,reason=refused"), 6);
	ck_assert_uint_eq(rig_read_all(&r, 1000, 8), 8);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

/* Who commits and leases at once has not asked twice. */
START_TEST(a_lease_with_the_commit_is_no_use)
{
	struct cache_keys k = rig_keys(70, 1);
	struct cache_commit_item item = { 0 };
	struct cache_leased leased;
	struct cache_explained e;
	struct cache_place place;
	enum status st;
	uint32_t n;
	struct rig r;

	open_heard(&r);
	ck_assert_int_eq(cache_reserve(r.c, &(struct cache_reserve_call){ .session = r.s.id, .keys = &k,
			.on = &(struct cache_on){ .attachment = r.attachment, .gpu = CACHE_HOST },
			.may_grow = true, .now_us = r.now, .statuses = &st, .reservations = &item.reservation,
			.places = &place, .places_max = 1 }, &r.why), STATUS_OK);
	ck_assert_int_eq(cache_commit(r.c, &(struct cache_commit_call){ .session = r.s.id, .items = &item,
			.count = 1, .want_lease = true, .on = &(struct cache_on){ .attachment = r.attachment,
			.gpu = CACHE_HOST }, .now_us = r.now, .unix_ms = 1, .statuses = &st, .places = &place,
			.places_max = 1 }, &leased, &r.why), STATUS_OK);
	ck_assert_uint_ne(leased.lease, 0);
	ck_assert_int_eq(cache_explain(r.c, &(struct cache_block_name){ .tenant = "", .key = k.bytes,
			.key_bytes = k.key_bytes }, r.now, &e, 1, &n, &r.why), STATUS_OK);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(e.uses, 0);
	free((void *)k.bytes);
	rig_close(&r);
}
END_TEST

START_TEST(a_disk_may_refuse_too)
{
	struct cache_options o;
	struct rig_disks d;
	struct rig r;

	rig_disks_make(&d, NULL, 1, SLOTS);
	o = rig_disk_options(&d, 1, SLOTS);
	rig_open(&r, &o, 1);
	rig_restored(&r);
	listen_in(&r);
	r.c->tier->policy = &fake;
	for (uint32_t i = 0; i < 512; i += 8) { /* until the disk is full */
		ck_assert_uint_eq(rig_put(&r, i, 8), 8);
		rig_quiet(&r);
	}
	ck_assert_double_gt(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), 0);
	double displaced = rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full");

	heard.refuse = true;
	for (uint32_t i = 1000; i < 1512; i += 8) {
		ck_assert_uint_eq(rig_put(&r, i, 8), 8);
		rig_quiet(&r);
	}
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=disk,reason=full"), displaced);
	ck_assert_double_gt(rig_stat(&r, "terrace_refused_blocks_total", "tier=disk"), 0);
	ck_assert_uint_ge(heard.moved, 8); /* nobody has asked for what is spilled, by that */
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_total", "tier=host,reason=shed"), 0);
	/* A flush is an order. */
	ck_assert_int_eq(rig_flush(&r, 0, 0, NULL), STATUS_OK);
	rig_check_accounting(r.c);
	rig_close(&r);
	rig_disks_remove(&d);
}
END_TEST

START_TEST(what_is_asked_for_again_is_regretted)
{
	struct cache_options o = rig_options(SLOTS);
	struct rig r;

	rig_open(&r, &o, 1);
	rig_put(&r, 0, SLOTS);
	r.now += 20 * 1000000;
	rig_put(&r, 1000, 16);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_by_idle_total", "tier=host,idle_below_s=60"), 16);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_by_idle_total", "tier=host,idle_below_s=10"), 0);
	r.now += 5 * 1000000;
	ck_assert_uint_eq(rig_prefix(&r, SLOTS - 4, 4) + rig_prefix(&r, 0, 4), 4);
	rig_tick(r.c, r.now);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_regretted_total", "tier=host"), 4);
	r.now += 35 * 1000000;
	rig_prefix(&r, SLOTS - 4, 4); /* once each */
	rig_tick(r.c, r.now);
	ck_assert_double_eq(rig_stat(&r, "terrace_requests_total", ""), 3);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_regretted_total", "tier=host"), 4);
	r.now += 21 * 1000000;
	rig_prefix(&r, SLOTS - 8, 4); /* too late to be a pity */
	rig_tick(r.c, r.now);
	ck_assert_double_eq(rig_stat(&r, "terrace_evictions_regretted_total", "tier=host"), 4);
	rig_close(&r);
}
END_TEST

/* ---- the graph's policy, told as a daemon is told ---- */

#ifdef TERRACE_SANITIZED
enum { ASKED = 1500 };
#else
enum { ASKED = 4000 };
#endif
enum { CHAIN = 8, POPULAR = 24, STEP_US = 2000000 };

/* One request in four is for a popular chain, the others are for what never comes back. */
static void flood(struct trace *t, uint32_t requests)
{
	uint64_t state = 3, ids[CHAIN];

	trace_init(t, RIG_TOKENS);
	for (uint32_t i = 0; i < requests; i++) {
		struct trace_request q = { .time_us = (i + 1ull) * STEP_US, .tokens = CHAIN * RIG_TOKENS };
		uint64_t chain;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		chain = state >> 62 ? POPULAR + i : (state >> 33) % POPULAR;
		for (uint32_t b = 0; b < CHAIN; b++)
			ids[b] = chain * CHAIN + b;
		ck_assert_int_eq(trace_add(t, &q, ids, CHAIN), STATUS_OK);
	}
}

/* Of a cache that is asked for each chain, and served and given the rest `late_us` later; in % of the blocks. */
static double hits_when_late(const struct trace *t, const char *policy, uint64_t late_us)
{
	struct cache_options o = rig_options(SLOTS);
	uint64_t keys[CHAIN], hits = 0;
	struct rig r;

	o.policy = policy;
	rig_open(&r, &o, 1);
	for (uint32_t i = 0; i < t->request_count; i++) {
		for (uint32_t b = 0; b < CHAIN; b++)
			keys[b] = t->blocks[t->requests[i].first + b];
		r.now = t->requests[i].time_us;
		rig_prefix(&r, keys[0], CHAIN);
		rig_tick(r.c, r.now);
		r.now += late_us;
		hits += chain_request(&r, keys, CHAIN);
	}
	rig_close(&r);
	return 100.0 * (double)hits / (double)t->block_count;
}

static double replayed(const struct trace *t, const char *policy)
{
	const struct replay_options o = { .capacity = SLOTS };
	struct replay_result result;

	ck_assert_int_eq(replay_run(t, policy_find(policy), &o, &result), STATUS_OK);
	return replay_hit_blocks(&result);
}

START_TEST(what_is_put_late_is_of_its_request)
{
	static const uint64_t late_us[] = { 0, 1, 1000000 };
	struct trace t;
	double expected;

	flood(&t, ASKED);
	expected = replayed(&t, "graph");
	ck_assert_double_gt(expected, replayed(&t, "lru") + 2); /* there is something to lose */
	for (size_t i = 0; i < sizeof(late_us) / sizeof(late_us[0]); i++)
		ck_assert_double_eq_tol(hits_when_late(&t, "graph", late_us[i]), expected, 1.0);
	trace_fini(&t);
}
END_TEST

/* ---- the mailbox ---- */

enum { WRITERS = 4, LETTERS = 20000 };

struct writer {
	struct mailbox *m;
	uint64_t number, sent;
	pthread_t thread;
};

/* A letter: writer, number of the letter, then words that follow from both. */
static void *write_letters(void *arg)
{
	struct writer *w = arg;

	for (uint64_t n = 0; n < (uint64_t)RIG_ROUNDS(LETTERS); n++) {
		uint32_t words = 2 + (uint32_t)(n * 7 + w->number) % 13;
		struct letter l;

		if (!mailbox_begin(w->m, words, &l))
			continue;
		letter_write(w->m, &l, 0, w->number);
		letter_write(w->m, &l, 1, n);
		for (uint32_t i = 2; i < words; i++)
			letter_write(w->m, &l, i, w->number * 1000000 + n * 16 + i);
		mailbox_send(w->m, &l);
		w->sent++;
	}
	return NULL;
}

static uint64_t read_letters(struct mailbox *m, uint64_t *last)
{
	uint64_t count = 0;
	struct letter l;

	for (; mailbox_next(m, &l); count++) {
		uint64_t who = letter_read(m, &l, 0), n = letter_read(m, &l, 1);

		ck_assert_uint_lt(who, WRITERS);
		ck_assert_uint_eq(l.words, 2 + (uint32_t)(n * 7 + who) % 13);
		ck_assert(last[who] == UINT64_MAX || n > last[who]); /* in order */
		last[who] = n;
		for (uint32_t i = 2; i < l.words; i++)
			ck_assert_uint_eq(letter_read(m, &l, i), who * 1000000 + n * 16 + i);
		mailbox_free(m, &l);
	}
	return count;
}

START_TEST(letters_arrive_whole_or_are_counted)
{
	struct writer w[WRITERS];
	uint64_t last[WRITERS] = { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX }, read = 0, sent = 0;
	struct mailbox m = { .words = NULL };

	ck_assert(mailbox_init(&m, 256));
	for (uint64_t i = 0; i < WRITERS; i++) {
		w[i] = (struct writer){ .m = &m, .number = i };
		ck_assert_int_eq(pthread_create(&w[i].thread, NULL, write_letters, &w[i]), 0);
	}
	for (int i = 0; i < RIG_ROUNDS(LETTERS); i++)
		read += read_letters(&m, last);
	for (int i = 0; i < WRITERS; i++) {
		pthread_join(w[i].thread, NULL);
		sent += w[i].sent;
	}
	read += read_letters(&m, last);
	ck_assert_uint_eq(read, sent);
	ck_assert_uint_eq(sent + atomic_load(&m.dropped), (uint64_t)WRITERS * RIG_ROUNDS(LETTERS));
	mailbox_fini(&m);
}
END_TEST

START_TEST(a_full_mailbox_refuses)
{
	struct mailbox m = { .words = NULL };
	struct letter l[5];

	ck_assert(mailbox_init(&m, 16));
	for (int i = 0; i < 4; i++)
		ck_assert(mailbox_begin(&m, 3, &l[i]));
	ck_assert(!mailbox_begin(&m, 3, &l[4]));
	ck_assert_uint_eq(atomic_load(&m.dropped), 1);
	mailbox_send(&m, &l[1]);
	ck_assert(!mailbox_next(&m, &l[4])); /* the first is not finished */
	mailbox_send(&m, &l[0]);
	ck_assert(mailbox_next(&m, &l[4]));
	mailbox_free(&m, &l[4]);
	ck_assert(mailbox_begin(&m, 3, &l[4]));
	ck_assert(!mailbox_begin(&m, 16, &l[0])); /* larger than it is */
	mailbox_fini(&m);
}
END_TEST

static struct {
	struct policy_request last;
	uint64_t ids[64];
	uint32_t requests;
} told;

static void hear_request(struct policy *p, const struct policy_request *q)
{
	(void)p;
	told.last = *q;
	memcpy(told.ids, q->ids, q->count * sizeof(told.ids[0]));
	told.requests++;
}

/* The class's policy hears once of a request, of the blocks of all layouts that are in it, in the order of the chain: told once a layout, it would
 * take the second for a return that was not waited for. */
START_TEST(layouts_of_one_class_are_one_request)
{
	enum { KEYS = 4 };
	struct cache_options o = rig_options(64);
	struct policy_ops ops;
	struct rig r;

	o.policy = "graph";
	rig_open(&r, &o, 2);
	memset(&told, 0, sizeof(told));
	cache_lock(r.c);
	ops = *r.c->policy;
	ops.request = hear_request;
	r.c->policy = &ops;
	cache_unlock(r.c);
	ck_assert_uint_eq(rig_put(&r, 0, KEYS), KEYS);
	ck_assert_uint_eq(rig_prefix(&r, 0, KEYS), KEYS);
	rig_tick(r.c, r.now += 50000);
	ck_assert_uint_eq(told.requests, 1);
	ck_assert_uint_eq(told.last.count, 2 * KEYS);
	ck_assert_uint_eq(told.last.tokens, KEYS * RIG_TOKENS);
	ck_assert_uint_eq(told.last.block_tokens, RIG_TOKENS / 2); /* of a block's place in the list */
	for (uint32_t i = 0; i < 2 * KEYS; i++) {
		const struct block *b;

		cache_lock(r.c);
		b = by_id_find(r.c, told.ids[i]);
		cache_unlock(r.c);
		ck_assert_ptr_nonnull(b);
		ck_assert_ptr_eq(b->pool, r.c->pools[i % 2]);
	}
	rig_close(&r);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		a_request_is_told_once, layouts_of_one_class_are_one_request, ids_are_those_of_the_blocks, reports_are_hints, what_engines_say_of_turns_goes_on,
		refused_blocks_go_first, refused_blocks_go_first_to_disk, a_lease_with_the_commit_is_no_use, a_disk_may_refuse_too, what_is_asked_for_again_is_regretted,
		what_is_put_late_is_of_its_request,
		letters_arrive_whole_or_are_counted, a_full_mailbox_refuses,
	};

	return rig_main("cache_advice", tests, sizeof(tests) / sizeof(tests[0]));
}
