/* An answer that comes on another thread, or never: from a disk that hangs. Who waits gives up after a time, by the clock that nobody
 * sets. What both hold is freed by whoever lets go last. Any thread.
 */
#ifndef TERRACE_DAEMON_THREADS_AWAIT_H
#define TERRACE_DAEMON_THREADS_AWAIT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct await {
	pthread_mutex_t lock;
	pthread_cond_t come;
	bool came;                     /* under the lock */
	_Atomic int holders;
};

/* Held by two: who waits, and who answers. */
void await_init(struct await *a);
void await_fini(struct await *a);
void await_answer(struct await *a);
/* False: it has not come within wait_us. */
bool await_came(struct await *a, uint64_t wait_us);
/* True: nobody else holds it, and it has ended: what it is part of is the caller's to free. */
bool await_let_go(struct await *a);

#endif
