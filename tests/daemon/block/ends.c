/* The queue of ends: what is queued runs once, in order, with the lock, never inside what queues it, and at most
 * ENDS_A_HOLD of it in one hold of the lock. Over a cache that has nothing but the lock, the queue and a tier whose pump
 * counts. */
#include "daemon/block/ends.h"

#include "daemon/block/lock.h"
#include "daemon/block/tier.h"
#include "tests/daemon/cache_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BURST = 4096, THREADS = 4, EACH = BURST / THREADS };

struct note {
	struct end end;
	uint32_t producer, number;
	pthread_t by;                  /* the thread that ran it */
	_Atomic uint32_t times;
	struct note *then;             /* it queues that one; NULL: none */
	uint32_t parts;                /* that are to come, behind this one */
};

static struct world {
	struct cache c;
	struct note note[BURST];
	/* With the lock: */
	bool running;                  /* an end or a pump */
	/* the number that was run last, of each producer, from 1 on */
	uint32_t last[THREADS + 2];
	uint32_t in_hold, most_in_hold, holds, pumps, pumps_in_hold;
	struct note *from_pump;        /* the pump queues it, once */
	_Atomic uint32_t run;
} *w;

static void note_run(struct cache *c, struct end *e)
{
	struct note *n = (struct note *)e;

	ck_assert_ptr_eq(c, &w->c);
	ck_assert(!w->running);
	if (n->parts) {
		n->parts--;
		w->in_hold++;
		ends_again(c, e);
		return;
	}
	w->running = true;
	ck_assert_uint_eq(atomic_fetch_add(&n->times, 1), 0);
	ck_assert_uint_gt(n->number, w->last[n->producer]);
	w->last[n->producer] = n->number;
	n->by = pthread_self();
	w->in_hold++;
	if (n->then)
		ends_append(c, &n->then->end);
	w->running = false;
	atomic_fetch_add(&w->run, 1);
}

static void pump(struct cache *c)
{
	ck_assert(!w->running);
	w->running = true;
	w->pumps++;
	w->pumps_in_hold++;
	if (w->from_pump)
		ends_append(c, &w->from_pump->end);
	w->from_pump = NULL;
	w->running = false;
}

/* The last thing in a hold of the lock. */
static void hold_over(struct cache *c)
{
	(void)c;
	if (w->in_hold > w->most_in_hold)
		w->most_in_hold = w->in_hold;
	w->holds += w->in_hold > 0;
	w->in_hold = w->pumps_in_hold = 0;
}

static const struct tier_ops counting = { .name = "counting", .pump = pump };

static void world_open(void)
{
	w = calloc(1, sizeof(*w));
	ck_assert_ptr_nonnull(w);
	pthread_mutex_init(&w->c.lock, NULL);
	w->c.tiers[TIER_DISK] = &counting;
	w->c.publish = hold_over;
	for (uint32_t i = 0; i < BURST; i++) {
		w->note[i].end = (struct end){ .run = note_run, .tiers = 1u << TIER_DISK };
		w->note[i].number = i + 1;
	}
	ck_assert(ends_create(&w->c));
}

static void world_close(void)
{
	ends_destroy(&w->c, true);
	pthread_mutex_destroy(&w->c.lock);
	free(w);
}

static void each_was_run_once(uint32_t count)
{
	ck_assert_uint_eq(atomic_load(&w->run), count);
	for (uint32_t i = 0; i < count; i++)
		ck_assert_uint_eq(atomic_load(&w->note[i].times), 1);
	ck_assert_uint_le(w->most_in_hold, ENDS_A_HOLD);
}

static uint32_t run_by(pthread_t thread)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < BURST; i++)
		n += atomic_load(&w->note[i].times) && pthread_equal(w->note[i].by, thread);
	return n;
}

START_TEST(none_runs_inside_what_queues_it)
{
	world_open();
	w->note[0].then = &w->note[1];
	w->note[1].then = &w->note[2];
	w->from_pump = &w->note[3];
	cache_lock(&w->c);
	ends_append(&w->c, &w->note[0].end);
	ck_assert_uint_eq(atomic_load(&w->run), 0);
	cache_unlock(&w->c);
	each_was_run_once(4);
	ck_assert_uint_eq(run_by(pthread_self()), 4);
	world_close();
}
END_TEST

START_TEST(who_holds_the_lock_runs_no_more_than_the_bound)
{
	world_open();
	cache_lock(&w->c);
	for (uint32_t i = 0; i < BURST; i++)
		ends_append(&w->c, &w->note[i].end);
	cache_unlock(&w->c);
	RIG_AWAIT(atomic_load(&w->run) == BURST);
	cache_lock(&w->c); /* the last of them is over */
	each_was_run_once(BURST);
	ck_assert_uint_eq(run_by(pthread_self()), ENDS_A_HOLD);
	ck_assert_uint_eq(w->holds, BURST / ENDS_A_HOLD);
	ck_assert_uint_eq(w->pumps, w->holds);
	cache_unlock(&w->c);
	world_close();
}
END_TEST

/* One that hands the rest on pays for none of it when it takes the lock again. */
START_TEST(the_rest_is_not_the_next_holders)
{
	world_open();
	for (uint32_t round = 0, at = 0; round < 8; round++) {
		cache_lock(&w->c);
		for (uint32_t i = 0; i < 4 * ENDS_A_HOLD; i++)
			ends_append(&w->c, &w->note[at++].end);
		cache_unlock(&w->c);
		for (int i = 0; i < 16; i++) {
			cache_lock(&w->c);
			cache_unlock(&w->c);
		}
		RIG_AWAIT(atomic_load(&w->run) == at);
	}
	ck_assert_uint_eq(run_by(pthread_self()), 8 * ENDS_A_HOLD);
	world_close();
}
END_TEST

static void *arrives(void *arg)
{
	const uint32_t producer = (uint32_t)(uintptr_t)arg;

	for (uint32_t i = producer * EACH; i < (producer + 1) * EACH; i++) {
		w->note[i].producer = producer;
		ends_arrive(&w->c, &w->note[i].end);
	}
	return NULL;
}

static void *appends(void *arg)
{
	const uint32_t producer = (uint32_t)(uintptr_t)arg;

	for (uint32_t i = producer * EACH; i < (producer + 1) * EACH; i++) {
		w->note[i].producer = producer;
		cache_lock(&w->c);
		ends_append(&w->c, &w->note[i].end);
		cache_unlock(&w->c);
	}
	return NULL;
}

/* What arrives while the lock is held is run by those that brought it; the holder runs none, however long it was. */
START_TEST(what_arrives_is_not_the_holders)
{
	pthread_t t[THREADS];

	world_open();
	cache_lock(&w->c);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, arrives, (void *)i);
	/* All but the first, which waits for the lock, have gone on. */
	RIG_AWAIT(rig_ends_arrived(&w->c) >= BURST - EACH);
	cache_unlock(&w->c);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	each_was_run_once(BURST);
	ck_assert_uint_eq(run_by(pthread_self()), 0);
	ck_assert_uint_eq(w->pumps, w->holds);
	world_close();
}
END_TEST

/* By both ways at a time, while others take the lock, again and again. */
START_TEST(each_is_run_once_and_in_its_order)
{
	pthread_t t[THREADS];

	for (int round = 0; round < RIG_ROUNDS(50); round++) {
		world_open();
		for (uintptr_t i = 0; i < THREADS; i++)
			pthread_create(&t[i], NULL, i & 1 ? appends : arrives, (void *)i);
		while (atomic_load(&w->run) < BURST / 2) {
			cache_lock(&w->c);
			cache_unlock(&w->c);
		}
		for (int i = 0; i < THREADS; i++)
			pthread_join(t[i], NULL);
		ends_run(&w->c);
		each_was_run_once(BURST);
		ck_assert_uint_eq(run_by(pthread_self()), 0);
		world_close();
	}
}
END_TEST

/* An end of many parts is run to its end before the next one, in bounded holds; the tier is pumped after its last part.
 */
START_TEST(parts_count_in_the_bound)
{
	world_open();
	w->note[0].parts = 3 * ENDS_A_HOLD - 1;
	cache_lock(&w->c);
	for (uint32_t i = 0; i < ENDS_A_HOLD; i++)
		ends_append(&w->c, &w->note[i].end);
	cache_unlock(&w->c);
	RIG_AWAIT(atomic_load(&w->run) == ENDS_A_HOLD);
	cache_lock(&w->c);
	each_was_run_once(ENDS_A_HOLD);
	ck_assert_uint_eq(run_by(pthread_self()), 0);
	ck_assert_uint_eq(w->holds, 4);
	ck_assert_uint_eq(w->pumps, 2); /* after the third hold, and the fourth */
	cache_unlock(&w->c);
	world_close();
}
END_TEST

static struct end_queue beside;

static void *pushes(void *arg)
{
	const uint32_t producer = (uint32_t)(uintptr_t)arg;

	for (uint32_t i = producer * EACH; i < (producer + 1) * EACH; i++) {
		if (i == EACH - 1 || i == 2 * EACH - 1)
			continue;
		w->note[i].producer = producer;
		end_queue_push(&beside, &w->note[i].end);
	}
	return NULL;
}

/* A queue with a thread of its own: no other thread runs what it has, and what its ends append is left to it, too. */
START_TEST(a_queue_beside_is_run_by_its_thread)
{
	pthread_t t[THREADS];
	uint32_t holds = 0;

	world_open();
	end_queue_init(&beside);
	cache_lock(&w->c);
	ck_assert(!ends_hold(&w->c, &beside));
	cache_unlock(&w->c);
	w->note[0].then = &w->note[EACH - 1]; /* which is not pushed */
	w->note[EACH - 1].producer = THREADS;
	w->from_pump = &w->note[2 * EACH - 1];
	w->note[2 * EACH - 1].producer = THREADS + 1;
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, pushes, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	ends_run(&w->c);
	ck_assert_uint_eq(atomic_load(&w->run), 0);
	cache_lock(&w->c);
	while (ends_hold(&w->c, &beside))
		holds++;
	cache_unlock(&w->c);
	each_was_run_once(BURST);
	ck_assert_uint_eq(run_by(pthread_self()), BURST);
	ck_assert_uint_eq(w->holds, BURST / ENDS_A_HOLD);
	ck_assert_uint_eq(holds, w->holds);
	world_close();
}
END_TEST

/* The first that is pushed to an empty queue, and no other, wakes the queue's thread. */
START_TEST(a_push_says_whether_the_queue_was_empty)
{
	world_open();
	end_queue_init(&beside);
	for (int round = 0; round < 2; round++) {
		ck_assert(end_queue_push(&beside, &w->note[2 * round].end));
		ck_assert(!end_queue_push(&beside, &w->note[2 * round + 1].end));
		cache_lock(&w->c);
		ck_assert(ends_hold(&w->c, &beside));
		cache_unlock(&w->c);
	}
	each_was_run_once(4);
	world_close();
}
END_TEST

/* A burst, and at once the end of the queue. */
START_TEST(none_is_lost_at_the_end)
{
	world_open();
	cache_lock(&w->c);
	for (uint32_t i = 0; i < BURST; i++)
		ends_append(&w->c, &w->note[i].end);
	cache_unlock(&w->c);
	ends_destroy(&w->c, true);
	ck_assert_ptr_null(w->c.ends);
	each_was_run_once(BURST);
	world_close();
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		none_runs_inside_what_queues_it,
		who_holds_the_lock_runs_no_more_than_the_bound,
		the_rest_is_not_the_next_holders,
		what_arrives_is_not_the_holders,
		each_is_run_once_and_in_its_order,
		parts_count_in_the_bound,
		a_queue_beside_is_run_by_its_thread,
		a_push_says_whether_the_queue_was_empty,
		none_is_lost_at_the_end,
	};

	return rig_main("cache_ends", tests, sizeof(tests) / sizeof(tests[0]));
}
