/* The worker pool: the bound of its queue, order, and that every accepted work runs exactly once. */
#include "daemon/block/peer.h"
#include "daemon/block/quota.h"
#include "daemon/block/values.h"
#include "daemon/threads/pool.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct job {
	struct work work; /* first */
	atomic_int runs;
	int order;
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_int done;

static void run(struct work *w)
{
	struct job *j = (struct job *)w;

	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
	j->order = atomic_fetch_add(&done, 1);
	atomic_fetch_add(&j->runs, 1);
}

START_TEST(full_queue_refuses)
{
	struct job jobs[6] = { 0 };
	struct workers_view v;
	struct workers *w;

	ck_assert_int_eq(workers_create(1, 4, &w), STATUS_OK);
	pthread_mutex_lock(&gate);
	for (int i = 0; i < 6; i++)
		jobs[i].work.run = run;
	ck_assert_int_eq(workers_submit(w, &jobs[0].work), STATUS_OK);
	do /* until the thread has taken it, and stands at the gate */
		workers_look(w, &v);
	while (v.running != 1);
	for (int i = 1; i < 5; i++)
		ck_assert_int_eq(workers_submit(w, &jobs[i].work), STATUS_OK);
	ck_assert_int_eq(workers_submit(w, &jobs[5].work), STATUS_EXHAUSTED);
	workers_look(w, &v);
	ck_assert_uint_eq(v.queued, 4);
	ck_assert_uint_eq(v.refused, 1);
	pthread_mutex_unlock(&gate);
	workers_destroy(w); /* runs the queued ones first */
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(atomic_load(&jobs[i].runs), 1);
		ck_assert_int_eq(jobs[i].order, i);
	}
	ck_assert_int_eq(atomic_load(&jobs[5].runs), 0);
}
END_TEST

/* What does not return is left, and what is queued behind it; once it does, all runs. */
START_TEST(a_stop_has_a_bound)
{
	struct job jobs[2] = { { .work.run = run }, { .work.run = run } }, late = { .work.run = run };
	struct workers_view v;
	struct workers *w;

	ck_assert_int_eq(workers_create(1, 4, &w), STATUS_OK);
	pthread_mutex_lock(&gate);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(workers_submit(w, &jobs[i].work), STATUS_OK);
	do
		workers_look(w, &v);
	while (v.running != 1);
	ck_assert(!workers_stop(w, 20 * 1000));
	ck_assert(!workers_stop(w, 0));
	workers_look(w, &v);
	ck_assert_uint_eq(v.running, 1);
	ck_assert_uint_eq(v.queued, 1);
	ck_assert_int_eq(workers_submit(w, &late.work), STATUS_UNAVAILABLE);
	pthread_mutex_unlock(&gate);
	ck_assert(workers_stop(w, 20 * 1000 * 1000));
	ck_assert_int_eq(atomic_load(&jobs[1].runs), 1);
	workers_destroy(w);
}
END_TEST

enum { MANY = 2000, SUBMITTERS = 4 };
static struct job many[SUBMITTERS][MANY];
static struct workers *pool;
static atomic_int accepted;

static void *submit_many(void *arg)
{
	struct job *jobs = arg;

	for (int i = 0; i < MANY; i++) {
		jobs[i].work.run = run;
		while (workers_submit(pool, &jobs[i].work) != STATUS_OK)
			usleep(50);
		atomic_fetch_add(&accepted, 1);
	}
	return NULL;
}

/* _i workers look before they sleep. */
START_TEST(many_submitters)
{
	pthread_t t[SUBMITTERS];

	ck_assert_int_eq(workers_create(3, 16, &pool), STATUS_OK);
	workers_poll(pool, (uint32_t)_i);
	for (int i = 0; i < SUBMITTERS; i++)
		pthread_create(&t[i], NULL, submit_many, many[i]);
	for (int i = 0; i < SUBMITTERS; i++)
		pthread_join(t[i], NULL);
	workers_destroy(pool);
	ck_assert_int_eq(atomic_load(&accepted), SUBMITTERS * MANY);
	for (int i = 0; i < SUBMITTERS; i++)
		for (int k = 0; k < MANY; k++)
			ck_assert_int_eq(atomic_load(&many[i][k].runs), 1);
}
END_TEST

/* Works come one by one, while workers look, while they are about to stop looking, and while they sleep. None is left
 * to a worker that does not come for it. */
START_TEST(none_waits_for_a_worker_that_sleeps)
{
	static struct job jobs[MANY];
	struct workers *w;

	ck_assert_int_eq(workers_create(3, 16, &w), STATUS_OK);
	workers_poll(w, (uint32_t)_i);
	for (int i = 0; i < MANY; i++) {
		jobs[i].work.run = run;
		ck_assert_int_eq(workers_submit(w, &jobs[i].work), STATUS_OK);
		for (int waited = 0; !atomic_load(&jobs[i].runs); waited++) {
			ck_assert_int_lt(waited, 100 * 1000);
			usleep(waited < 10 ? 0 : 100);
		}
		if (i % 3)
			usleep((useconds_t)(i % 16 * 10));
	}
	workers_destroy(w);
	for (int i = 0; i < MANY; i++)
		ck_assert_int_eq(atomic_load(&jobs[i].runs), 1);
}
END_TEST

/* A process has its share of the queue, others have theirs, and a work that begins gives its place back; the daemon's own work has no share. */
START_TEST(places_are_shared)
{
	enum { PLACES = 32, RESERVE = 2 };
	static struct job jobs[2 * PLACES];
	struct quota *q = quota_create();
	struct quota_holder *a = quota_join(q, &(struct cache_peer){ { CACHE_PEER_UID, 7 }, 70 });
	struct quota_holder *b = quota_join(q, &(struct cache_peer){ { CACHE_PEER_UID, 8 }, 70 });
	struct job gatekeeper = { .work.run = run }, own = { .work.run = run };
	const char *why = "";
	struct workers_view v;
	struct workers *w;
	int n = 0;

	quota_bound(q, QUOTA_WORK, PLACES);
	ck_assert_int_eq(workers_create(1, PLACES, &w), STATUS_OK);
	pthread_mutex_lock(&gate);
	ck_assert_int_eq(workers_submit(w, &gatekeeper.work), STATUS_OK);
	do
		workers_look(w, &v);
	while (v.running != 1);
	for (int i = 0; i < 2 * PLACES; i++)
		jobs[i].work.run = run;
	while (quota_submit(w, &jobs[n].work, a, &why) == STATUS_OK)
		n++;
	ck_assert_int_eq(n, PLACES - 2 * RESERVE);
	ck_assert_ptr_nonnull(strstr(why, "too many calls that wait for a worker: process 70 holds 28 of 32"));
	ck_assert_int_eq(quota_submit(w, &jobs[n].work, b, &why), STATUS_OK);
	ck_assert_int_eq(quota_submit(w, &jobs[n + 1].work, b, &why), STATUS_OK);
	ck_assert_int_eq(workers_submit(w, &own.work), STATUS_OK);
	ck_assert_uint_eq(quota_used(q, QUOTA_WORK), PLACES - RESERVE);
	pthread_mutex_unlock(&gate);
	workers_destroy(w);
	for (int i = 0; i < n + 2; i++)
		ck_assert_int_eq(atomic_load(&jobs[i].runs), 1);
	ck_assert_uint_eq(quota_used(q, QUOTA_WORK), 0);
	quota_destroy(q);
}
END_TEST

START_TEST(bad_options)
{
	struct workers *w;

	ck_assert_int_eq(workers_create(0, 1, &w), STATUS_INVALID);
	ck_assert_int_eq(workers_create(65, 1, &w), STATUS_INVALID);
	ck_assert_int_eq(workers_create(1, 0, &w), STATUS_INVALID);
	workers_destroy(NULL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("workers");
	TCase *t = tcase_create("workers");
	SRunner *r;

	tcase_set_timeout(t, 30);
	tcase_add_test(t, full_queue_refuses);
	tcase_add_test(t, a_stop_has_a_bound);
	tcase_add_test(t, places_are_shared);
	tcase_add_loop_test(t, many_submitters, 0, 3);
	tcase_add_loop_test(t, none_waits_for_a_worker_that_sleeps, 0, 4);
	tcase_add_test(t, bad_options);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
