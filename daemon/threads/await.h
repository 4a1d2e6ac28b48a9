/* An answer that comes on another thread, or never: from a disk that hangs. The waiting thread gives up after a time,
 * by the monotonic clock. The thread that lets go last frees what both hold. Any thread.
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

/* Begins an answer that two threads hold: the one that waits, and the one that answers. */
void await_init(struct await *a);
void await_fini(struct await *a);
void await_answer(struct await *a);
/* False: no answer has come within wait_us. */
bool await_came(struct await *a, uint64_t wait_us);
/* Lets go of the answer. True: the other thread has let go, too, and the caller frees the struct that contains it. */
bool await_let_go(struct await *a);

#endif
