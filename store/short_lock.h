/* Mutexes that are held for some microseconds at a time. A thread that finds one taken looks again for about as long
 * before it sleeps: to be put to sleep and woken up costs it, and the thread that lets the mutex go, more than the wait. */
#ifndef TERRACE_STORE_SHORT_LOCK_H
#define TERRACE_STORE_SHORT_LOCK_H

#include <pthread.h>

static inline void short_lock_init(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
	pthread_mutex_init(mutex, &attr);
	pthread_mutexattr_destroy(&attr);
}

#endif
