/* See threads/await.h. */
#include "daemon/threads/await.h"

#include "daemon/threads/deadline.h"

void await_init(struct await *a)
{
	pthread_mutex_init(&a->lock, NULL);
	deadline_cond_init(&a->come);
	a->came = false;
	atomic_init(&a->holders, 2);
}

void await_fini(struct await *a)
{
	pthread_cond_destroy(&a->come);
	pthread_mutex_destroy(&a->lock);
}

void await_answer(struct await *a)
{
	pthread_mutex_lock(&a->lock);
	a->came = true;
	pthread_cond_signal(&a->come);
	pthread_mutex_unlock(&a->lock);
}

bool await_came(struct await *a, uint64_t wait_us)
{
	const struct timespec until = deadline_in(wait_us);
	bool came;

	pthread_mutex_lock(&a->lock);
	while (!a->came && !pthread_cond_timedwait(&a->come, &a->lock, &until))
		continue;
	came = a->came;
	pthread_mutex_unlock(&a->lock);
	return came;
}

bool await_let_go(struct await *a)
{
	if (atomic_fetch_sub_explicit(&a->holders, 1, memory_order_acq_rel) > 1)
		return false;
	await_fini(a);
	return true;
}
