/* How long a thread polls for an event before it sleeps, since a wake-up takes longer than many answers do. The time
 * follows from how long such waits take, much as KVM's halt polling does. After a short wait the next poll may last
 * twice as long as that wait; after a long one it is a quarter shorter than before. So a thread with long waits sleeps
 * at once. For the daemon's loop of local calls and for the library. Any thread; if two threads learn at once, the
 * result of one may be lost. */
#ifndef TERRACE_PROTO_ADAPTIVE_POLL_H
#define TERRACE_PROTO_ADAPTIVE_POLL_H

#include <stdatomic.h>
#include <stdint.h>

enum {
	ADAPTIVE_POLL_US_MAX = 200,    /* a longer wait is worth a sleep */
	ADAPTIVE_POLL_US_MORE = 10,    /* than twice the last wait */
	ADAPTIVE_POLL_PROCESSORS = 4,  /* with fewer, a polling thread takes the processor from the thread whose work it
				        * waits for */
};

/* Zeroed: no wait has ended yet. */
struct adaptive_poll {
	_Atomic uint32_t us;
};

/* The time to poll, from the begin of the wait. */
static inline uint64_t adaptive_poll_us(const struct adaptive_poll *p)
{
	return atomic_load_explicit(&p->us, memory_order_relaxed);
}

/* A wait has ended, with or without a sleep. */
static inline void adaptive_poll_learn(struct adaptive_poll *p, uint64_t waited_us)
{
	const uint32_t us = atomic_load_explicit(&p->us, memory_order_relaxed), less = us - (us + 3) / 4;
	uint32_t wanted = 0;

	if (waited_us <= ADAPTIVE_POLL_US_MAX)
		wanted = 2 * (uint32_t)waited_us + ADAPTIVE_POLL_US_MORE;
	if (wanted > ADAPTIVE_POLL_US_MAX)
		wanted = ADAPTIVE_POLL_US_MAX;
	atomic_store_explicit(&p->us, wanted > less ? wanted : less, memory_order_relaxed);
}

#endif
