/* The word by which a call goes from hand to hand: no wake is lost, whenever it comes. Three threads as the server has them; instead of gRPC a
 * count of empty batches. */
#include "daemon/rpc/engine.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* So many, or as many as a busy machine makes in that time. No round takes as long as LOST_S. */
enum { ROUNDS = 50000, ENOUGH_S = 15, LOST_S = 40 };

static struct wire_call w;
static atomic_uint batches, work, asked;
static atomic_bool over;

/* Mostly not: the others are on their way. */
static void give_way(void)
{
	static _Thread_local unsigned turns;

	if (++turns % 256 == 0)
		sched_yield();
}

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static void wake(void)
{
	atomic_store_explicit(&w.woken, true, memory_order_release);
	if (state_wake(&w))
		atomic_fetch_add(&batches, 1);
}

/* Takes the call, asks for something, and puts it aside until that has come. */
static void *worker(void *arg)
{
	const enum call_state aside = *(const enum call_state *)arg;

	for (unsigned i = 1; i <= ROUNDS; i++) {
		while (atomic_load(&work) < i) {
			if (atomic_load(&over))
				return NULL;
			give_way();
		}
		atomic_fetch_add(&asked, 1);
		for (volatile unsigned n = i % 128; n; n--) /* so that the wake comes before, then, and after */
			;
		if (state_put_aside(&w, aside))
			atomic_fetch_add(&batches, 1);
	}
	return NULL;
}

static void *disk(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= ROUNDS; i++) {
		while (atomic_load(&asked) < i) {
			if (atomic_load(&over))
				return NULL;
			give_way();
		}
		wake();
	}
	return NULL;
}

/* Each wake comes once: what is not heeded now, nobody tells of again. */
START_TEST(no_wake_is_lost)
{
	static const enum call_state aside[] = { CALL_SLEEPING, CALL_WAITING };
	const time_t begun = now_s();
	time_t heeded_s = begun;
	pthread_t threads[2];

	set_state(&w, CALL_WORKING);
	atomic_store(&work, 1);
	ck_assert(!pthread_create(&threads[0], NULL, worker, (void *)&aside[_i]));
	ck_assert(!pthread_create(&threads[1], NULL, disk, NULL));
	for (unsigned heeded = 0; heeded < ROUNDS && heeded_s - begun < ENOUGH_S;) {
		if (!atomic_load(&batches)) {
			ck_assert_msg(now_s() - heeded_s < LOST_S, "a wake was lost after %u", heeded);
			give_way();
			continue;
		}
		atomic_fetch_sub(&batches, 1);
		ck_assert(is_woken(&w));
		if (state_unwake(&w) != aside[_i] || !atomic_exchange(&w.woken, false))
			continue;
		heeded++;
		heeded_s = now_s();
		set_state(&w, CALL_WORKING);
		atomic_fetch_add(&work, 1);
	}
	atomic_store(&over, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rpc_state");
	TCase *t = tcase_create("rpc_state");
	SRunner *r;

	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, no_wake_is_lost, 0, 2);
	suite_add_tcase(suite, t);
	r = srunner_create(suite);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
