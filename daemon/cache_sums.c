/* See cache_sums.h. A batch is a counter that its caller and some helpers take numbers from. A helper that the pool comes to late finds
 * none left, and nobody waits for it. */
#include "daemon/cache_sums.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SUM_QUEUE = 256, SUM_THREADS_MAX = 16, TURN = 64 };

struct sums {
	pthread_mutex_t lock;          /* of the pointer */
	struct workers *pool;          /* NULL: none any more */
	uint32_t threads;
};

struct batch;
struct helper {
	struct work work;              /* first */
	struct batch *batch;
};

struct batch {
	struct cache *cache;
	void (*one)(void *arg, uint32_t i);
	void (*ended)(void *arg);     /* NULL: somebody waits for `over` */
	void *arg;
	uint32_t count;
	_Atomic uint32_t next, done, holders;
	sem_t over;
	struct helper helper[SUM_THREADS_MAX];
};

bool sums_create(struct cache *c)
{
	const uint32_t threads = c->options.sum_threads < SUM_THREADS_MAX ? c->options.sum_threads : SUM_THREADS_MAX;
	struct sums *s;

	if (!threads || !(c->options.disk_count || c->options.gpu_count))
		return true;
	s = calloc(1, sizeof(*s));
	if (!s || workers_create(threads, SUM_QUEUE, &s->pool)) {
		free(s);
		return false;
	}
	pthread_mutex_init(&s->lock, NULL);
	s->threads = threads;
	c->sums = s;
	return true;
}

void sums_stop(struct cache *c)
{
	struct workers *pool;

	if (!c->sums)
		return;
	pthread_mutex_lock(&c->sums->lock);
	pool = c->sums->pool;
	c->sums->pool = NULL;
	pthread_mutex_unlock(&c->sums->lock);
	workers_destroy(pool);
}

void sums_destroy(struct cache *c)
{
	sums_stop(c);
	if (c->sums)
		pthread_mutex_destroy(&c->sums->lock);
	free(c->sums);
	c->sums = NULL;
}

bool sums_submit(struct cache *c, struct work *work)
{
	bool taken;

	if (!c->sums)
		return false;
	pthread_mutex_lock(&c->sums->lock);
	taken = c->sums->pool && workers_submit(c->sums->pool, work) == STATUS_OK;
	pthread_mutex_unlock(&c->sums->lock);
	return taken;
}

static void batch_let_go(struct batch *b)
{
	if (atomic_fetch_sub_explicit(&b->holders, 1, memory_order_acq_rel) > 1)
		return;
	sem_destroy(&b->over);
	free(b);
}

/* So many at most. False: no number is left. */
static bool batch_work(struct batch *b, uint32_t most)
{
	uint32_t i;

	for (; most; most--) {
		i = atomic_fetch_add_explicit(&b->next, 1, memory_order_relaxed);
		if (i >= b->count)
			return false;
		b->one(b->arg, i);
		if (atomic_fetch_add_explicit(&b->done, 1, memory_order_acq_rel) + 1 < b->count)
			continue;
		if (b->ended)
			b->ended(b->arg);
		else
			sem_post(&b->over);
	}
	return true;
}

/* Of a long batch the pool's others have their turn in between. */
static void help(struct work *w)
{
	struct batch *b = ((struct helper *)w)->batch;

	while (batch_work(b, TURN))
		if (sums_submit(b->cache, w))
			return;
	batch_let_go(b);
}

/* So many helpers, if the pool takes them; how many it took. */
static uint32_t ask_for_help(struct cache *c, struct batch *b, uint32_t wanted)
{
	for (uint32_t i = 0; i < wanted; i++) {
		b->helper[i] = (struct helper){ .work = { .run = help }, .batch = b };
		atomic_fetch_add_explicit(&b->holders, 1, memory_order_relaxed);
		if (!sums_submit(c, &b->helper[i].work)) {
			batch_let_go(b);
			return i;
		}
	}
	return wanted;
}

/* Held by the caller. NULL: no pool, or no memory. */
static struct batch *batch_create(struct cache *c, uint32_t count, void (*one)(void *arg, uint32_t i), void (*ended)(void *arg), void *arg)
{
	struct batch *b = c->sums ? malloc(sizeof(*b)) : NULL;

	if (!b)
		return NULL;
	b->cache = c;
	b->one = one;
	b->ended = ended;
	b->arg = arg;
	b->count = count;
	atomic_init(&b->next, 0);
	atomic_init(&b->done, 0);
	atomic_init(&b->holders, 1);
	sem_init(&b->over, 0, 0);
	return b;
}

bool sums_begin(struct cache *c, uint32_t count, void (*one)(void *arg, uint32_t i), void (*over)(void *arg), void *arg)
{
	struct batch *b = batch_create(c, count, one, over, arg);
	bool begun;

	if (!b)
		return false;
	begun = ask_for_help(c, b, count < c->sums->threads ? count : c->sums->threads);
	batch_let_go(b);
	return begun;
}

void sums_each(struct cache *c, uint32_t count, void (*one)(void *arg, uint32_t i), void *arg)
{
	struct batch *b = count > 1 ? batch_create(c, count, one, NULL, arg) : NULL;

	if (!b) {
		for (uint32_t i = 0; i < count; i++)
			one(arg, i);
		return;
	}
	ask_for_help(c, b, count - 1 < c->sums->threads ? count - 1 : c->sums->threads);
	batch_work(b, UINT32_MAX);
	while (sem_wait(&b->over))
		continue;
	batch_let_go(b);
}
