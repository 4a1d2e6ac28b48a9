/* Where the time of a call goes: each step is counted once, whatever thread it is on, and what is emitted is what
 * Prometheus takes for a histogram. */
#include "daemon/block/histogram.h"
#include "daemon/block/lock.h"
#include "daemon/rpc/times.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/process/daemon.h"

enum { PAUSE_US = 3000, ROWS_MAX = 256 };

struct row {
	char name[96], labels[96];
	double value;
};
struct rows {
	struct row of[ROWS_MAX];
	uint32_t count;
};

static void take_row(void *arg, const char *name, const char *labels, double value, bool counter, const char *help)
{
	struct rows *r = arg;

	(void)help;
	ck_assert(counter && r->count < ROWS_MAX);
	snprintf(r->of[r->count].name, sizeof r->of[0].name, "%s", name);
	snprintf(r->of[r->count].labels, sizeof r->of[0].labels, "%s", labels);
	r->of[r->count++].value = value;
}

static double value_of(const struct rows *r, const char *name, const char *labels)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (!strcmp(r->of[i].name, name) && !strcmp(r->of[i].labels, labels))
			return r->of[i].value;
	return -1;
}

static void pause_a_little(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = PAUSE_US * 1000L }, NULL);
}

START_TEST(buckets_hold_what_is_not_longer)
{
	ck_assert_uint_eq(histogram_bucket(0), 0);
	ck_assert_uint_eq(histogram_bucket(1), 0);
	ck_assert_uint_eq(histogram_bucket(2), 1);
	ck_assert_uint_eq(histogram_bucket(3), 2);
	ck_assert_uint_eq(histogram_bucket(4), 2);
	ck_assert_uint_eq(histogram_bucket(5), 3);
	ck_assert_uint_eq(histogram_bucket(1 << 24), 24);
	ck_assert_uint_eq(histogram_bucket((1 << 24) + 1), HISTOGRAM_BUCKETS - 1);
	ck_assert_uint_eq(histogram_bucket(UINT64_MAX), HISTOGRAM_BUCKETS - 1);
}
END_TEST

START_TEST(rows_of_a_histogram)
{
	static struct histogram h, none;
	struct rows r = { .count = 0 };

	histogram_emit(&none, "t", "", "help", take_row, &r);
	ck_assert_uint_eq(r.count, 0);
	histogram_add(&h, 1);
	histogram_add(&h, 3);
	histogram_add(&h, UINT32_MAX);
	histogram_emit(&h, "t", "a=b", "help", take_row, &r);
	ck_assert_uint_eq(r.count, HISTOGRAM_BUCKETS + 2);
	ck_assert_double_eq(value_of(&r, "t_bucket", "a=b,le=1e-06"), 1);
	ck_assert_double_eq(value_of(&r, "t_bucket", "a=b,le=2e-06"), 1);
	ck_assert_double_eq(value_of(&r, "t_bucket", "a=b,le=4e-06"), 2);
	ck_assert_double_eq(value_of(&r, "t_bucket", "a=b,le=16.7772"), 2);
	ck_assert_double_eq(value_of(&r, "t_bucket", "a=b,le=+Inf"), 3);
	ck_assert_double_eq(value_of(&r, "t_count", "a=b"), 3);
	ck_assert_double_eq_tol(value_of(&r, "t_sum", "a=b"), (4 + (double)UINT32_MAX) / 1e6, 1e-9);
}
END_TEST

/* A call that waits for a worker, then for blocks, then for a worker again. */
START_TEST(steps_are_told_apart)
{
	static struct method_times m;
	static struct way_times w;
	struct call_times t;
	const uint64_t began_us = daemon_now_us();
	uint64_t sum = 0;

	memset(&t, 0, sizeof t);
	call_step_begin(&t, began_us);
	call_step_queued(&t);
	pause_a_little();
	call_step_queued(&t); /* there was no room in the queue: it has waited since the first time */
	pause_a_little();
	call_step_begin(&t, daemon_now_us());
	ck_assert_uint_ge(t.us[STEP_QUEUED], 2 * PAUSE_US);
	call_step_sleeps(&t);
	pause_a_little();
	call_step_woken(&t);
	pause_a_little();
	call_step_queued(&t);
	call_step_begin(&t, daemon_now_us());
	ck_assert_uint_ge(t.us[STEP_DISK], PAUSE_US);
	ck_assert_uint_ge(t.us[STEP_WAKE], PAUSE_US);
	const uint64_t copy = call_copy_begin();
	pause_a_little();
	call_copy_end(&t, copy);
	ck_assert_uint_ge(t.us[STEP_COPY], PAUSE_US);
	ck_assert_uint_eq(t.us[STEP_LOCK], 0);
	method_times_add(&m, &w, &t, STATUS_OK, began_us);
	for (uint32_t b = 0; b < HISTOGRAM_BUCKETS; b++)
		for (uint32_t i = 0; i < CALL_STEPS; i++)
			sum += atomic_load(&w.us[b][i]);
	ck_assert_uint_eq(sum, atomic_load(&m.took.us)); /* nothing is counted twice */
}
END_TEST

/* Sleeping without a wake, as when the deadline comes first, is waiting for blocks to its end; and a step that ends on
 * another thread than it began on counts no waits of that thread. */
START_TEST(what_never_comes)
{
	struct call_times t;

	memset(&t, 0, sizeof t);
	call_step_begin(&t, daemon_now_us());
	call_step_sleeps(&t);
	pause_a_little();
	call_step_begin(&t, daemon_now_us());
	ck_assert_uint_ge(t.us[STEP_DISK], PAUSE_US);
	ck_assert_uint_eq(t.us[STEP_WAKE], 0);
	call_step_end(&t);
	t.lock_us = 0; /* an ended step adds nothing more */
	call_step_end(&t);
	ck_assert_uint_eq(t.us[STEP_LOCK], 0);
}
END_TEST

static void *holds(void *arg)
{
	struct cache *c = arg;

	cache_lock(c);
	pause_a_little();
	cache_unlock(c);
	return NULL;
}

START_TEST(waits_for_the_lock)
{
	struct cache *c = calloc(1, sizeof *c);
	const uint64_t before_us = cache_lock_waited_us();
	struct call_times t;
	pthread_t other;

	ck_assert_ptr_nonnull(c);
	pthread_mutex_init(&c->lock, NULL);
	memset(&t, 0, sizeof t);
	cache_lock(c);
	cache_unlock(c);
	ck_assert_uint_eq(cache_lock_waited_us(), before_us); /* it was free */
	call_step_begin(&t, daemon_now_us());
	do { /* until the other one was first */
		ck_assert_int_eq(pthread_create(&other, NULL, holds, c), 0);
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
		cache_lock(c);
		cache_unlock(c);
		pthread_join(other, NULL);
	} while (cache_lock_waited_us() == before_us);
	call_step_end(&t);
	ck_assert_uint_eq(t.us[STEP_LOCK], cache_lock_waited_us() - before_us);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("times");
	TCase *t = tcase_create("times");

	tcase_add_test(t, buckets_hold_what_is_not_longer);
	tcase_add_test(t, rows_of_a_histogram);
	tcase_add_test(t, steps_are_told_apart);
	tcase_add_test(t, what_never_comes);
	tcase_add_test(t, waits_for_the_lock);
	suite_add_tcase(s, t);

	SRunner *r = srunner_create(s);

	srunner_run_all(r, CK_ENV);
	const int failed = srunner_ntests_failed(r);

	srunner_free(r);
	return failed != 0;
}
