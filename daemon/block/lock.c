/* The cache's lock, its time, its epoch, and whether it drains. */
#include "daemon/block/lock.h"

#include "store/clock.h"
#include "store/index.h"
#include "store/index_thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static _Thread_local uint64_t waited_us;

/* The clock is read only where another thread has the lock. */
void cache_lock(struct cache *c)
{
	uint64_t since_us;

	if (!pthread_mutex_trylock(&c->lock))
		return;
	since_us = clock_us();
	pthread_mutex_lock(&c->lock);
	waited_us += clock_us() - since_us;
}

uint64_t cache_lock_waited_us(void)
{
	return waited_us;
}

void cache_unlock(struct cache *c)
{
	if (c->before_unlock)
		c->before_unlock(c);
	pthread_mutex_unlock(&c->lock);
}

void cache_called(struct cache *c)
{
	if (c->on_call)
		c->on_call(c);
}

uint64_t cache_time(struct cache *c, uint64_t now_us)
{
	if (now_us > c->now_us)
		c->now_us = now_us;
	return c->now_us;
}

void cache_thread_enter(void)
{
	index_thread_enter();
}

void cache_thread_leave(void)
{
	index_thread_leave();
}

uint64_t cache_epoch(const struct cache *c)
{
	return c->epoch;
}

void cache_on_chores(struct cache *c, void (*call)(void *arg), void *arg)
{
	cache_lock(c);
	c->wake_chores = call;
	c->wake_chores_arg = arg;
	cache_unlock(c);
}

void cache_drain(struct cache *c, bool on)
{
	atomic_store(&c->hands_on, on && atomic_load(&c->may_hand_on));
	atomic_store(&c->draining, on);
}

void cache_may_hand_on(struct cache *c)
{
	atomic_store(&c->may_hand_on, true);
}

bool cache_hands_on(const struct cache *c)
{
	return atomic_load(&c->hands_on);
}

void cache_handed_on(struct cache *c)
{
	atomic_store(&c->hands_on, false);
}

bool cache_draining(const struct cache *c)
{
	return atomic_load(&c->draining);
}

void tier_wake(struct cache *c)
{
	if (c->wake_chores)
		c->wake_chores(c->wake_chores_arg);
}
