/* Shares: of each countable thing, what a process, a user, and those that come later may hold; that all of it comes back; the words and figures of
 * a refusal. */
#include "daemon/block/quota.h"
#include "daemon/block/options.h"
#include "daemon/block/peer.h"
#include "daemon/block/values.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 64, RESERVE = MAX / 16, HOLDERS = 12, STEPS = 20000, THREADS = 4 };

static const struct cache_peer greedy = { { CACHE_PEER_UID, 7 }, 70 }, sibling = { { CACHE_PEER_UID, 7 }, 71 };
static const struct cache_peer second = { { CACHE_PEER_UID, 8 }, 70 }, far = { { 0, 0xffff7f000001 }, 0 };

static struct quota *q;

static void setup(void)
{
	q = quota_create();
	ck_assert_ptr_nonnull(q);
	for (int t = 0; t < QUOTA_THINGS; t++)
		quota_bound(q, t, MAX);
}

static void teardown(void)
{
	quota_destroy(q);
}

/* As many as it gets. */
static uint64_t leak(struct quota_holder *h, enum quota_thing t, const char **why)
{
	uint64_t n = 0;

	while (quota_take(h, t, 1, why) == STATUS_OK)
		n++;
	return n;
}

/* One process takes all that it gets; then another of the same user, then its children, another user, an address. */
START_TEST(each_leaves_some)
{
	const enum quota_thing t = (enum quota_thing)_i;
	struct quota_holder *a = quota_join(q, &greedy), *b = quota_join(q, &sibling), *c = quota_join(q, &second), *d = quota_join(q, &far);
	struct quota_holder *child[HOLDERS];
	const char *why = "";

	ck_assert_uint_eq(leak(a, t, &why), MAX - 2 * RESERVE); /* alone: seven eighths */
	ck_assert_msg(strstr(why, "process 70 holds 56 of 64, and the 8 free ones are kept for others: "), "%s", why);
	ck_assert_uint_eq(leak(b, t, &why), 2);
	for (int i = 0; i < HOLDERS; i++) {
		child[i] = quota_join(q, &(struct cache_peer){ { CACHE_PEER_UID, 7 }, 100 + i });
		leak(child[i], t, &why);
	}
	ck_assert_uint_eq(quota_used(q, t), MAX - RESERVE); /* whatever it forks, fifteen sixteenths */
	ck_assert_msg(strstr(why, "user 7 holds 60 of 64, and the 4 free ones are kept for others: "), "%s", why);
	ck_assert_uint_eq(leak(c, t, &why), 2);
	ck_assert_uint_eq(leak(d, t, &why), 1);
	ck_assert_msg(strstr(why, "address 127.0.0.1 holds 1 of 64"), "%s", why);
	ck_assert_uint_eq(quota_used(q, t), MAX - 1);
	/* What the greedy process gives back goes to others first. */
	quota_give(a, t, 1);
	ck_assert_uint_eq(leak(a, t, &why), 0);
	ck_assert_uint_eq(leak(quota_join(q, &(struct cache_peer){ { CACHE_PEER_UID, 9 }, 1 }), t, &why), 1);
	ck_assert_int_eq(quota_take(quota_join(q, NULL), t, 1, &why), STATUS_OK); /* a caller that is not known has the rest */
	ck_assert_int_eq(quota_take(quota_join(q, NULL), t, 1, &why), STATUS_EXHAUSTED);
	ck_assert_msg(strstr(why, "0 of 64 are free, and user 7 holds 59: "), "%s", why);
	/* A process that has died has given all of it back. */
	quota_give(a, t, MAX - 2 * RESERVE - 1);
	quota_leave(a);
	a = quota_join(q, &greedy);
	ck_assert_uint_gt(leak(a, t, &why), MAX / 2);
	for (int i = 0; i < QUOTA_THINGS; i++)
		ck_assert(i == _i || quota_used(q, i) == 0);
}
END_TEST

/* A tenant's users together have its calls, whatever else is free; one user may be of two tenants; and a refusal names
 * no user of another tenant. */
START_TEST(tenants_are_apart)
{
	const struct cache_tenant_options tenants[] = { { .name = "default", .number = 1 },
							{ .name = "small", .number = 5, .calls_max = 3 } };
	const struct cache_peer first = { { CACHE_PEER_UID, 7 }, 70, 5 }, other = { { CACHE_PEER_UID, 8 }, 80, 5 };
	const struct cache_peer large = { { CACHE_PEER_UID, 7 }, 70, 1 }, none = { { CACHE_PEER_UID, 9 }, 90, 77 };
	struct quota_holder *a, *b, *c, *d;
	const char *why = "";

	ck_assert_int_eq(quota_tenants(q, tenants, 2), STATUS_OK);
	a = quota_join(q, &first), b = quota_join(q, &other), c = quota_join(q, &large), d = quota_join(q, &none);
	ck_assert(a != c);
	for (int t = QUOTA_LEASES; t <= QUOTA_CALLS; t++) {
		const bool bound = t == QUOTA_CALLS || t == QUOTA_LOCAL;

		ck_assert_int_eq(quota_take(a, t, 2, &why), STATUS_OK);
		ck_assert_int_eq(quota_take(b, t, 1, &why), STATUS_OK);
		ck_assert_int_eq(quota_take(b, t, 1, &why), bound ? STATUS_EXHAUSTED : STATUS_OK);
		if (!bound)
			continue;
		ck_assert_msg(strstr(why, "tenant small holds all 3 that it may have: "), "%s", why);
		ck_assert(!quota_try(a, t, 1));
		ck_assert_int_eq(quota_take(d, t, 1, &why), STATUS_OK); /* a client of no tenant */
		ck_assert_uint_gt(leak(c, t, &why), MAX / 2);
		quota_give(a, t, 1);
		ck_assert_int_eq(quota_take(b, t, 1, &why), STATUS_OK);
	}
	quota_take(quota_join(q, NULL), QUOTA_CALLS, MAX - quota_used(q, QUOTA_CALLS), NULL);
	quota_give(a, QUOTA_CALLS, 1);
	quota_take(quota_join(q, NULL), QUOTA_CALLS, 1, NULL);
	ck_assert_int_eq(quota_take(a, QUOTA_CALLS, 1, &why), STATUS_EXHAUSTED);
	/* User 7 holds more, as the other tenant. */
	ck_assert_msg(strstr(why, "and user 8 holds 2: "), "%s", why);
	quota_leave(a), quota_leave(b), quota_leave(c), quota_leave(d);
}
END_TEST

/* Of few there are: one that has none gets one while there is any. */
static const struct few {
	uint64_t max, process, second, third;
} few[] = {
	{ 1, 1, 0, 0 }, { 2, 1, 1, 0 }, { 3, 1, 1, 1 }, { 4, 2, 1, 1 }, { 5, 3, 1, 1 }, { 8, 6, 1, 1 }, { 16, 14, 1, 1 }, { 17, 13, 2, 1 }, { 32, 28, 2, 1 },
};

START_TEST(there_are_few)
{
	const struct few *f = &few[_i];
	const char *why = "";

	quota_bound(q, QUOTA_SESSIONS, f->max);
	ck_assert_uint_eq(leak(quota_join(q, &greedy), QUOTA_SESSIONS, &why), f->process);
	ck_assert_uint_eq(leak(quota_join(q, &second), QUOTA_SESSIONS, &why), f->second);
	ck_assert_uint_eq(leak(quota_join(q, &far), QUOTA_SESSIONS, &why), f->third);
}
END_TEST

/* Of one thing, of which so many are free. */
static enum status ask(struct quota_holder *h, enum quota_thing t, uint64_t n, uint64_t free, const char **why)
{
	return quota_ask_all(h, &(struct quota_wish){ t, n, free, 0 }, 1, why);
}

/* Shares are of the tenant's bound, which is a small part of the thing's, and not of the thing's. */
START_TEST(a_tenants_own_bound)
{
	struct quota_holder *a = quota_join(q, &greedy), *b = quota_join(q, &second);
	struct quota_wish w = { QUOTA_PINNED, 10, 160, 160 };
	uint64_t held = 0;
	const char *why = "";

	quota_bound(q, QUOTA_PINNED, 16000);
	for (; quota_take_all(a, &w, 1, &why) == STATUS_OK; w.free -= w.n)
		held += w.n;
	ck_assert_uint_eq(held, 140); /* alone: seven eighths */
	ck_assert_msg(strstr(why, "process 70 holds 140 of 160, and the 20 free ones are kept for others: "), "%s", why);
	w.n = 7; /* and 6 for each of the two kinds of holders that may come */
	ck_assert_int_eq(quota_take_all(b, &w, 1, &why), STATUS_OK);
}
END_TEST

/* Bytes that several hold at once are charged to each, and what is free is the caller's to say: sharing costs nothing. */
START_TEST(shared_bytes)
{
	struct quota_holder *a = quota_join(q, &greedy), *b = quota_join(q, &second);
	const char *why = "";

	quota_bound(q, QUOTA_PINNED, 1600);
	for (int i = 0; i < 100; i++) { /* the same 800 bytes, a hundred times */
		ck_assert_int_eq(ask(a, QUOTA_PINNED, i ? 0 : 800, i ? 800 : 1600, &why), STATUS_OK);
		quota_add(a, QUOTA_PINNED, 800);
	}
	ck_assert_int_eq(ask(a, QUOTA_PINNED, 600, 800, &why), STATUS_OK);
	quota_add(a, QUOTA_PINNED, 600);
	ck_assert_int_eq(ask(a, QUOTA_PINNED, 1, 200, &why), STATUS_EXHAUSTED);
	ck_assert_msg(strstr(why, "too many pinned bytes: process 70 holds "), "%s", why);
	ck_assert_msg(strstr(why, ": release some leases, or raise pinned_share or host_bytes"), "%s", why);
	ck_assert_int_eq(ask(b, QUOTA_PINNED, 67, 200, &why), STATUS_OK);
	ck_assert_int_eq(ask(b, QUOTA_PINNED, 68, 200, &why), STATUS_EXHAUSTED);
	ck_assert_int_eq(ask(b, QUOTA_PINNED, 201, 200, &why), STATUS_EXHAUSTED);
}
END_TEST

static uint64_t reserved(uint64_t held, uint64_t max)
{
	return held < (max + 15) / 16 ? held : (max + 15) / 16;
}

/* Taken and given back at random by processes of three users: each grant is as the rule says, and nothing is left in
 * the accounting. */
START_TEST(by_the_rule)
{
	uint64_t held[HOLDERS] = { 0 }, used = 0, refused = 0;
	struct quota_holder *h[HOLDERS];

	for (int i = 0; i < HOLDERS; i++)
		h[i] = quota_join(q, &(struct cache_peer){ { CACHE_PEER_UID, 1000 + i % 3 }, 50 + i });
	srand(_i + 1);
	for (int step = 0; step < STEPS; step++) {
		const int i = rand() % (_i ? HOLDERS : 4);
		uint64_t of_user = 0;

		if (rand() % 3 == 0 && held[i]) {
			quota_give(h[i], QUOTA_LEASES, 1);
			held[i]--;
			used--;
			continue;
		}
		for (int j = i % 3; j < HOLDERS; j += 3)
			of_user += held[j];
		const bool may = used < MAX && MAX - used - 1 >= reserved(of_user, MAX) + reserved(held[i], MAX);

		ck_assert_int_eq(quota_take(h[i], QUOTA_LEASES, 1, NULL), may ? STATUS_OK : STATUS_EXHAUSTED);
		held[i] += may;
		used += may;
		refused += !may;
	}
	ck_assert_uint_gt(refused, STEPS / 20);
	ck_assert_uint_eq(quota_used(q, QUOTA_LEASES), used);
	for (int i = 0; i < HOLDERS; i++) {
		quota_give(h[i], QUOTA_LEASES, held[i]);
		quota_leave(h[i]);
	}
	ck_assert_uint_eq(quota_used(q, QUOTA_LEASES), 0);
}
END_TEST

static void *takes_and_gives(void *arg)
{
	const struct cache_peer peer = { { CACHE_PEER_UID, 1000 }, (uint64_t)(uintptr_t)arg % 2 + 1 };

	for (int i = 0; i < STEPS; i++) {
		struct quota_holder *h = quota_join(q, &peer);
		const uint64_t n = i % 3;

		if (quota_take(h, QUOTA_CALLS, n + 1, NULL) == STATUS_OK) {
			struct quota_holder *again = quota_join_again(h);

			quota_give(again, QUOTA_CALLS, n + 1);
			quota_leave(again);
		}
		quota_leave(h);
	}
	return NULL;
}

START_TEST(by_several_threads)
{
	pthread_t thread[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&thread[i], NULL, takes_and_gives, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	ck_assert_uint_eq(quota_used(q, QUOTA_CALLS), 0);
}
END_TEST

struct seen {
	int rows;
	double held, max, refused[3];
};

static void see(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	static const char *const reasons[] = { "thing=leases,reason=full", "thing=leases,reason=user", "thing=leases,reason=process" };
	struct seen *s = arg;

	ck_assert_ptr_nonnull(help);
	s->rows++;
	if (!strcmp(labels, "thing=leases"))
		*(strcmp(name, "terrace_quota_held") ? &s->max : &s->held) = value;
	for (int i = 0; i < 3; i++)
		if (!strcmp(labels, reasons[i])) {
			ck_assert(counter);
			ck_assert_str_eq(name, "terrace_quota_refused_total");
			s->refused[i] = value;
		}
}

START_TEST(figures)
{
	struct quota_holder *a = quota_join(q, &greedy), *c = quota_join(q, &second);
	struct seen s = { 0 };
	const char *why = "";

	leak(a, QUOTA_LEASES, &why);
	leak(a, QUOTA_LEASES, &why);
	while (quota_take(quota_join(q, NULL), QUOTA_LEASES, 1, &why) == STATUS_OK)
		;
	leak(c, QUOTA_LEASES, &why);
	quota_stats(q, see, &s);
	ck_assert_int_eq(s.rows, (2 + QUOTA_REFUSALS) * QUOTA_THINGS);
	ck_assert(s.held == MAX && s.max == MAX);
	ck_assert(s.refused[0] == 2 && s.refused[1] == 0 && s.refused[2] == 2);
	/* A thing without a bound is not told of. */
	quota_destroy(q);
	q = quota_create();
	quota_bound(q, QUOTA_LEASES, MAX);
	s = (struct seen){ 0 };
	quota_stats(q, see, &s);
	ck_assert_int_eq(s.rows, 2 + QUOTA_REFUSALS);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("quota");
	TCase *t = tcase_create("quota");
	SRunner *runner;
	int failures;

	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, each_leaves_some, 0, QUOTA_THINGS);
	tcase_add_loop_test(t, there_are_few, 0, sizeof(few) / sizeof(few[0]));
	tcase_add_test(t, tenants_are_apart);
	tcase_add_test(t, shared_bytes);
	tcase_add_test(t, a_tenants_own_bound);
	tcase_add_loop_test(t, by_the_rule, 0, 2);
	tcase_add_test(t, by_several_threads);
	tcase_add_test(t, figures);
	suite_add_tcase(suite, t);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	failures = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failures ? 1 : 0;
}
