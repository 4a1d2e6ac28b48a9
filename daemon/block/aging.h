/* Leases and reservations in the order of their birth, until they are overdue. With the cache's lock. */
#ifndef TERRACE_DAEMON_BLOCK_AGING_H
#define TERRACE_DAEMON_BLOCK_AGING_H

#include <stdbool.h>
#include <stdint.h>

/* Leases and reservations wait in a queue in order of birth until they are overdue. */
struct aging {
	struct aging *prev, *next;
	uint64_t since_us;
	bool overdue;
};

struct aging_queue {
	struct aging *first, *last;
	uint64_t overdue;              /* alive and overdue */
};

void aging_add(struct aging_queue *q, struct aging *a, uint64_t now_us);
void aging_remove(struct aging_queue *q, struct aging *a);
/* Takes items older than ttl_us from the queue. They stay counted as overdue until they end. */
void aging_tick(struct aging_queue *q, uint64_t now_us, uint64_t ttl_us);

#endif
