/* See threads/checksum_pool.h. A batch is a counter that its caller and some helpers take numbers from. A helper that
 * starts late finds none left, and the caller does not wait for it. Waking a thread takes time: the caller wakes a few
 * helpers, and each of them wakes more. */
#include "daemon/threads/checksum_pool.h"

#include "daemon/threads/pool.h"
#include "store/status.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SUM_QUEUE = 256, SUM_THREADS_MAX = 16, TURN = 64, ASKED_AT_FIRST = 3, ASKED_IN_A_HURRY = 6, ASKED_BY_EACH = 2, LOOKS = 32 };

struct sums {
	pthread_mutex_t lock;          /* of the pointer */
	struct workers *pool;          /* NULL: none any more */
	uint32_t threads;
};

struct batch;
struct helper {
	struct work work;              /* first */
	struct batch *batch;
	bool asked;                    /* it has asked for more */
};

struct batch {
	struct sums *sums;
	void (*one)(void *arg, uint32_t i);
	bool (*due)(void *arg, uint32_t i); /* NULL: all are */
	void (*ended)(void *arg);     /* NULL: a thread waits for `over` */
	void *arg;
	uint32_t count, wanted;       /* wanted: helpers, at most */
	_Atomic uint32_t next, done, holders, helpers;
	_Atomic uint32_t lookers;     /* that ask whether the next one is due */
	sem_t over;
	struct helper helper[SUM_THREADS_MAX];
};

bool sums_create(uint32_t threads, struct sums **out)
{
	struct sums *s = calloc(1, sizeof(*s));

	if (!s)
		return false;
	s->threads = threads < SUM_THREADS_MAX ? threads : SUM_THREADS_MAX;
	if (workers_create(s->threads, SUM_QUEUE, &s->pool)) {
		free(s);
		return false;
	}
	pthread_mutex_init(&s->lock, NULL);
	*out = s;
	return true;
}

void sums_stop(struct sums *s)
{
	struct workers *pool;

	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	pool = s->pool;
	s->pool = NULL;
	pthread_mutex_unlock(&s->lock);
	workers_destroy(pool);
}

void sums_destroy(struct sums *s)
{
	if (!s)
		return;
	sums_stop(s);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

bool sums_submit(struct sums *s, struct work *work)
{
	bool taken;

	if (!s)
		return false;
	pthread_mutex_lock(&s->lock);
	taken = s->pool && workers_submit(s->pool, work) == STATUS_OK;
	pthread_mutex_unlock(&s->lock);
	return taken;
}

static void batch_let_go(struct batch *b)
{
	if (atomic_fetch_sub_explicit(&b->holders, 1, memory_order_acq_rel) > 1)
		return;
	sem_destroy(&b->over);
	free(b);
}

/* Whether no number is left, or the next one is due. A thread that looks has no number yet. So the last thread waits
 * for it, or the looking thread sees that it is too late. */
static bool look(struct batch *b)
{
	bool due;
	uint32_t i;

	atomic_fetch_add(&b->lookers, 1);
	i = atomic_load(&b->next);
	due = i >= b->count || b->due(b->arg, i);
	atomic_fetch_sub(&b->lookers, 1);
	return due;
}

/* Whether the next number, or one before it, is due, or soon will be. */
static bool is_due(struct batch *b)
{
	for (int looks = 0; b->due && looks < LOOKS; looks++) {
		if (look(b))
			return true;
		sched_yield();
	}
	return !b->due;
}

/* Runs numbers of the batch that are due, `most` of them at most. False: no number is left. */
static bool batch_work(struct batch *b, uint32_t most)
{
	uint32_t i;

	for (; most && is_due(b); most--) {
		i = atomic_fetch_add(&b->next, 1);
		if (i >= b->count)
			return false;
		b->one(b->arg, i);
		if (atomic_fetch_add_explicit(&b->done, 1, memory_order_acq_rel) + 1 < b->count)
			continue;
		while (atomic_load(&b->lookers)) /* `arg` may be gone when it is over */
			sched_yield();
		if (b->ended)
			b->ended(b->arg);
		else
			sem_post(&b->over);
	}
	return true;
}

static uint32_t ask_for_help(struct batch *b, uint32_t most);

/* Runs a part of a batch on a thread of the pool, then queues itself again. So other work of the pool has its turn
 * between parts of a long batch, and while nothing is due. */
static void help(struct work *w)
{
	struct helper *h = (struct helper *)w;
	struct batch *b = h->batch;

	if (!h->asked)
		ask_for_help(b, ASKED_BY_EACH);
	h->asked = true;
	while (batch_work(b, TURN))
		if (sums_submit(b->sums, w))
			return;
	batch_let_go(b);
}

/* Adds helpers, as far as the pool takes them; returns how many it took. Called by a thread that holds the batch. */
static uint32_t ask_for_help(struct batch *b, uint32_t most)
{
	for (uint32_t asked = 0; asked < most; asked++) {
		const uint32_t i = atomic_fetch_add_explicit(&b->helpers, 1, memory_order_relaxed);

		if (i >= b->wanted)
			return asked;
		b->helper[i] = (struct helper){ .work = { .run = help }, .batch = b };
		atomic_fetch_add_explicit(&b->holders, 1, memory_order_relaxed);
		if (!sums_submit(b->sums, &b->helper[i].work)) {
			batch_let_go(b);
			return asked;
		}
	}
	return most;
}

/* Makes a batch, which the caller holds. NULL: no pool, or no memory. */
static struct batch *batch_create(struct sums *s, uint32_t count, uint32_t wanted, void (*one)(void *arg, uint32_t i),
				  void (*ended)(void *arg), void *arg)
{
	struct batch *b = s ? malloc(sizeof(*b)) : NULL;

	if (!b)
		return NULL;
	b->sums = s;
	b->one = one;
	b->due = NULL;
	b->ended = ended;
	b->arg = arg;
	b->count = count;
	b->wanted = wanted < s->threads ? wanted : s->threads;
	atomic_init(&b->helpers, 0);
	atomic_init(&b->next, 0);
	atomic_init(&b->lookers, 0);
	atomic_init(&b->done, 0);
	atomic_init(&b->holders, 1);
	sem_init(&b->over, 0, 0);
	return b;
}

bool sums_begin_due(struct sums *s, uint32_t count, void (*one)(void *arg, uint32_t i), bool (*due)(void *arg, uint32_t i),
		    void (*over)(void *arg), void *arg, bool hurry)
{
	struct batch *b = batch_create(s, count, count, one, over, arg);
	bool begun;

	if (!b)
		return false;
	b->due = due;
	begun = ask_for_help(b, hurry ? ASKED_IN_A_HURRY : ASKED_AT_FIRST);
	batch_let_go(b);
	return begun;
}

bool sums_begin(struct sums *s, uint32_t count, void (*one)(void *arg, uint32_t i), void (*over)(void *arg), void *arg)
{
	return sums_begin_due(s, count, one, NULL, over, arg, false);
}

void sums_each(struct sums *s, uint32_t count, void (*one)(void *arg, uint32_t i), void *arg)
{
	struct batch *b = count > 1 ? batch_create(s, count, count - 1, one, NULL, arg) : NULL;

	if (!b) {
		for (uint32_t i = 0; i < count; i++)
			one(arg, i);
		return;
	}
	ask_for_help(b, ASKED_AT_FIRST);
	batch_work(b, UINT32_MAX);
	while (sem_wait(&b->over))
		continue;
	batch_let_go(b);
}
