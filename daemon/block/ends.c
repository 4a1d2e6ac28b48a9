/* The queue of ends, as ends.h describes it.
 *
 * `arrived` is a stack that any thread pushes to. The thread whose push finds it empty becomes responsible: it takes
 * the lock and runs ends until none is left. Under the lock, all that has arrived moves to the list `due`, from which
 * ends are run one by one. If another holder ran the ends meanwhile, the responsible thread finds nothing to do.
 *
 * Ends appended with the lock stand in the list `own` until the lock is left. Ends beyond the bound then move to `due`,
 * and the queue's own thread is woken. So `own` is empty while the lock is free. While `due` is not empty, a thread in
 * ends_run is between two holds, or the queue's own thread is on its way there.
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

void ends_append(struct cache *c, struct end *e)
{
	e->next = NULL;
	list_add(&c->ends->own, e, &e->next);
}

bool ends_push(struct cache *c, struct end *e)
{
	struct end *_Atomic *arrived = &c->ends->arrived;
	struct end *before = atomic_load_explicit(arrived, memory_order_relaxed);

	do
		e->next = before;
	while (!atomic_compare_exchange_weak_explicit(arrived, &before, e, memory_order_acq_rel, memory_order_relaxed));
	return !before;
}

/* With the lock. Moves what has arrived to `due`, in the order of arrival. */
static void arrivals_take(struct ends *q)
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

static void pump(struct cache *c, uint32_t tiers)
{
	for (int i = 0; i < TIER_KINDS; i++)
		if (tiers >> i & 1 && c->tiers[i] && c->tiers[i]->pump)
			c->tiers[i]->pump(c);
}

/* Runs at most *budget of the list. Returns the tiers that are to be pumped, a bit each. */
static uint32_t list_run(struct cache *c, struct end_list *l, uint32_t *budget)
{
	uint32_t tiers = 0;

	for (; l->first && *budget; --*budget) {
		struct end *e = list_take(l);

		tiers |= 1u << e->tier;
		e->run(c, e); /* e may be freed */
	}
	return tiers;
}

/* A pump may queue ends of what it could not begin: they run within the same bound. True: the bound was reached, and
 * the rest is in `due`. */
static bool own_run(struct cache *c, uint32_t *budget)
{
	struct ends *q = c->ends;

	while (q->own.first && *budget)
		pump(c, list_run(c, &q->own, budget));
	if (!q->own.first)
		return false;
	list_add(&q->due, q->own.first, q->own.last);
	list_init(&q->own);
	return true;
}

/* ---- who runs them ---- */

static void thread_wake(struct ends *q)
{
	pthread_mutex_lock(&q->mutex);
	q->woken = true;
	pthread_cond_signal(&q->wake);
	pthread_mutex_unlock(&q->mutex);
}

/* What cache_unlock does before it leaves the lock. */
static void before_unlock(struct cache *c)
{
	uint32_t budget = ENDS_A_HOLD;

	if (c->ends->own.first && own_run(c, &budget))
		thread_wake(c->ends);
	if (c->publish)
		c->publish(c);
}

/* With the lock. True: there is more. */
static bool hold(struct cache *c)
{
	struct ends *q = c->ends;
	uint32_t budget = ENDS_A_HOLD;

	arrivals_take(q);
	pump(c, list_run(c, &q->due, &budget));
	own_run(c, &budget);
	return q->due.first || atomic_load_explicit(&q->arrived, memory_order_relaxed);
}

void ends_run(struct cache *c)
{
	bool more;

	cache_thread_enter(); /* the catalog's thread is not registered with the index */
	do {
		cache_lock(c);
		more = hold(c);
		if (c->publish)
			c->publish(c);
		pthread_mutex_unlock(&c->lock); /* cache_unlock would run as many again */
	} while (more);
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
	list_init(&q->own);
	list_init(&q->due);
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
