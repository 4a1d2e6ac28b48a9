/* Queues of ends, as ends.h describes them.
 *
 * `arrived` is a stack that any thread pushes to. The thread whose push finds it empty becomes responsible: it runs
 * ends until none is left, or wakes the queue's thread. Under the lock, all that has arrived moves to the list `due`,
 * from which ends are run one by one. If another holder ran the ends meanwhile, the responsible thread finds nothing to
 * do.
 *
 * Ends appended with the lock stand in the list `own` until the lock is left. Ends beyond the bound then move to the
 * `due` of a queue. After ends_hold that is the caller's queue, and the caller goes on; else it is the common queue,
 * and the thread of struct ends is woken. So `own` is empty while the lock is free. While the common `due` is not
 * empty, a thread in ends_run is between two holds, or the thread of struct ends is on its way there.
 */
#include "daemon/block/ends.h"

#include "daemon/block/lock.h"
#include "daemon/block/tier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- what is queued ---- */

static void list_init(struct end_list *l)
{
	l->first = NULL;
	l->last = &l->first;
}

/* Adds the chain from `first` to the end whose `next` is *last. */
static void list_add(struct end_list *l, struct end *first, struct end **last)
{
	*l->last = first;
	l->last = last;
}

static struct end *list_take(struct end_list *l)
{
	struct end *e = l->first;

	l->first = e->next;
	if (!l->first)
		l->last = &l->first;
	return e;
}

/* Puts e before all others in the list. */
static void list_put_back(struct end_list *l, struct end *e)
{
	e->next = l->first;
	if (!l->first)
		l->last = &e->next;
	l->first = e;
}

void ends_append(struct cache *c, struct end *e)
{
	e->next = NULL;
	list_add(&c->ends->own, e, &e->next);
}

void ends_again(struct cache *c, struct end *e)
{
	c->ends->again = e;
}

void end_queue_init(struct end_queue *q)
{
	atomic_init(&q->arrived, NULL);
	list_init(&q->due);
}

bool end_queue_push(struct end_queue *q, struct end *e)
{
	struct end *_Atomic *arrived = &q->arrived;
	struct end *before = atomic_load_explicit(arrived, memory_order_relaxed);

	do
		e->next = before;
	while (!atomic_compare_exchange_weak_explicit(arrived, &before, e, memory_order_acq_rel, memory_order_relaxed));
	return !before;
}

bool ends_push(struct cache *c, struct end *e)
{
	return end_queue_push(&c->ends->queue, e);
}

static bool is_queued(const struct end_queue *q)
{
	return q->due.first || atomic_load_explicit(&q->arrived, memory_order_relaxed);
}

/* With the lock. Moves what has arrived to `due`, in the order of arrival. */
static void arrivals_take(struct end_queue *q)
{
	struct end *e = atomic_exchange_explicit(&q->arrived, NULL, memory_order_acquire), *first = NULL, *next;
	struct end **last = e ? &e->next : NULL;

	for (; e; e = next) {
		next = e->next;
		e->next = first;
		first = e;
	}
	if (first)
		list_add(&q->due, first, last);
}

/* ---- one hold of the lock ---- */

/* Has tiers begin what waited for room. GPUs come first: what they bring down may want memory before what disks
 * load. */
static void pump(struct cache *c, uint32_t tiers)
{
	for (int i = TIER_KINDS - 1; i >= 0; i--)
		if (tiers >> i & 1 && c->tiers[i] && c->tiers[i]->pump)
			c->tiers[i]->pump(c);
}

/* Runs ends of the list, *budget of them at most. Returns the tiers that are to be pumped, a bit each. */
static uint32_t list_run(struct cache *c, struct end_list *l, uint32_t *budget)
{
	uint32_t tiers = 0;

	for (; l->first && *budget; --*budget) {
		struct end *e = list_take(l);
		const uint32_t named = e->tiers;

		e->run(c, e); /* e may be freed */
		tiers |= c->ends->again ? 0 : named;
		if (c->ends->again)
			list_put_back(l, c->ends->again);
		c->ends->again = NULL;
	}
	return tiers;
}

/* Runs the ends that the lock's holder queued. A pump may queue more, of what it could not begin: they run within the
 * same bound. True: the bound was reached, and the rest is in `due`. */
static bool own_run(struct cache *c, struct end_list *due, uint32_t *budget)
{
	struct ends *q = c->ends;

	while (q->own.first && *budget)
		pump(c, list_run(c, &q->own, budget));
	if (!q->own.first)
		return false;
	list_add(due, q->own.first, q->own.last);
	list_init(&q->own);
	return true;
}

/* ---- the thread that runs them ---- */

static void thread_wake(struct ends *q)
{
	pthread_mutex_lock(&q->mutex);
	q->woken = true;
	pthread_cond_signal(&q->wake);
	pthread_mutex_unlock(&q->mutex);
}

/* Runs ends and publishes copy batches: what cache_unlock does before it leaves the lock. */
static void before_unlock(struct cache *c)
{
	uint32_t budget = ENDS_A_HOLD;

	if (c->ends->own.first && own_run(c, &c->ends->queue.due, &budget))
		thread_wake(c->ends);
	if (c->publish)
		c->publish(c);
}

/* Runs one lot of ends. With the lock, which it leaves: cache_unlock would run as many again. True: there is more. */
static bool hold(struct cache *c, struct end_queue *q)
{
	uint32_t budget = ENDS_A_HOLD;
	bool more;

	arrivals_take(q);
	pump(c, list_run(c, &q->due, &budget));
	own_run(c, &q->due, &budget);
	more = is_queued(q);
	if (c->publish)
		c->publish(c);
	pthread_mutex_unlock(&c->lock);
	return more;
}

bool ends_hold(struct cache *c, struct end_queue *q)
{
	if (!is_queued(q))
		return false;
	hold(c, q);
	cache_lock(c);
	return true;
}

void ends_run(struct cache *c)
{
	cache_thread_enter(); /* the catalog's thread is not registered with the index */
	do
		cache_lock(c);
	while (hold(c, &c->ends->queue));
	cache_thread_leave();
}

void ends_arrive(struct cache *c, struct end *e)
{
	if (ends_push(c, e))
		ends_run(c);
}

static void *ends_main(void *arg)
{
	struct cache *c = arg;
	struct ends *q = c->ends;
	bool over = false;

	cache_thread_enter();
	while (!over) {
		pthread_mutex_lock(&q->mutex);
		while (!q->woken && !q->over)
			pthread_cond_wait(&q->wake, &q->mutex);
		over = q->over;
		q->woken = false;
		pthread_mutex_unlock(&q->mutex);
		ends_run(c);
	}
	cache_thread_leave();
	return NULL;
}

/* ---- birth and death ---- */

bool ends_create(struct cache *c)
{
	struct ends *q = c->ends = calloc(1, sizeof(*q));

	if (!q)
		return false;
	end_queue_init(&q->queue);
	list_init(&q->own);
	pthread_mutex_init(&q->mutex, NULL);
	pthread_cond_init(&q->wake, NULL);
	if (pthread_create(&q->thread, NULL, ends_main, c)) {
		free(q);
		c->ends = NULL;
		return false;
	}
	c->before_unlock = before_unlock;
	return true;
}

void ends_destroy(struct cache *c, bool ended)
{
	struct ends *q = c->ends;

	if (!q)
		return;
	if (!ended) {
		pthread_detach(q->thread);
		return;
	}
	pthread_mutex_lock(&q->mutex);
	q->over = true;
	pthread_cond_signal(&q->wake);
	pthread_mutex_unlock(&q->mutex);
	pthread_join(q->thread, NULL);
	c->before_unlock = NULL;
	c->ends = NULL;
	pthread_cond_destroy(&q->wake);
	pthread_mutex_destroy(&q->mutex);
	free(q);
}
