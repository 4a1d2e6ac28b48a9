/* How long a thread looks for what is to come before it sleeps: to be woken takes longer than many answers do. That goes by how long such waits take,
 * as KVM's halt polling does: a short one makes the next look twice as long, a long one a quarter less, so that who waits long each time sleeps at
 * once. For the daemon's loop of local calls and for the library. Any thread; of what two learn at once one may be
 * lost. */
#ifndef TERRACE_PROTO_ADAPTIVE_POLL_H
#define TERRACE_PROTO_ADAPTIVE_POLL_H

#include <stdatomic.h>
#include <stdint.h>

enum {
	ADAPTIVE_POLL_US_MAX = 200,    /* what takes longer is worth a sleep */
	ADAPTIVE_POLL_US_MORE = 10,    /* than twice the last wait */
	ADAPTIVE_POLL_PROCESSORS = 4,  /* with fewer, who looks keeps those from work that he looks for */
};

/* Zeroed: nothing has been waited for. */
struct adaptive_poll {
	_Atomic uint32_t us;
};

/* So long from when the wait begins. */
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
