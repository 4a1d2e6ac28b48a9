/* Another machine, as far as a network tells: a network namespace at the other end of a veth pair. A process that this
 * thread starts in it has that network alone. Where the kernel makes none (it wants root and the `ip` program), the
 * other machine is this one, over loopback.
 */
#ifndef TERRACE_BENCH_FAR_H
#define TERRACE_BENCH_FAR_H

#include <stdbool.h>

struct far {
	int home, there, here; /* namespaces: before, of the other machine, of this one; -1: none was made */
	const char *host;      /* the other machine's address */
	const char *own_host;  /* this one's, as the other machine reaches it */
	const char *network;   /* "veth" or "loopback", for a figure's name */
};

void far_make(struct far *f);
/* From now on this thread, and what it starts, is there, or here. */
void far_enter(const struct far *f);
void far_return(const struct far *f);
/* Back to the namespace from before. What was made goes away with the last process in it. */
void far_end(struct far *f);

#endif
