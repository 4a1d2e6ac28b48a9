/* Leases and reservations in the order of their birth. What is overdue leaves the queue, so that a tick looks at the
 * oldest alone. */
#include "daemon/block/aging.h"


#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { TICK_AGINGS_MAX = 4096 };

void aging_add(struct aging_queue *q, struct aging *a, uint64_t now_us)
{
	*a = (struct aging){ .prev = q->last, .since_us = now_us };
	if (q->last)
		q->last->next = a;
	else
		q->first = a;
	q->last = a;
}

static void aging_unlink(struct aging_queue *q, struct aging *a)
{
	if (a->prev)
		a->prev->next = a->next;
	else
		q->first = a->next;
	if (a->next)
		a->next->prev = a->prev;
	else
		q->last = a->prev;
	a->prev = a->next = NULL;
}

void aging_remove(struct aging_queue *q, struct aging *a)
{
	if (a->overdue)
		q->overdue--;
	else
		aging_unlink(q, a);
}

/* Takes items older than ttl_us from the queue. They stay counted as overdue until they end. */
void aging_tick(struct aging_queue *q, uint64_t now_us, uint64_t ttl_us)
{
	for (int i = 0; i < TICK_AGINGS_MAX && q->first && now_us - q->first->since_us > ttl_us; i++) {
		struct aging *a = q->first;

		aging_unlink(q, a);
		a->overdue = true;
		q->overdue++;
	}
}
