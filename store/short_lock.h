/* Mutexes that are held for some microseconds at a time. A thread that finds such a mutex taken spins for about as long
 * before it sleeps. Sleeping and waking would cost more than the wait, for the sleeping thread and for the one that
 * unlocks.
 */
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
