/* Names of leases, reservations and sessions: generation << TICKET_SLOT_BITS | slot, never 0, never used twice. With the cache's lock. */
#ifndef TERRACE_DAEMON_CACHE_TICKET_H
#define TERRACE_DAEMON_CACHE_TICKET_H

#include <stdint.h>

#include "store/status.h"

enum { TICKET_SLOT_BITS = 20, TICKET_SLOTS_MAX = 1 << TICKET_SLOT_BITS };

struct ticket {
	uint64_t id;                   /* 0: free */
	void *item;
	uint32_t next_free;
};
struct tickets {
	struct ticket *slots;
	uint64_t generation;
	uint32_t max, free, used;
};

/* EXHAUSTED: no memory for `max` of them. */
enum status tickets_init(struct tickets *t, uint32_t max, uint64_t generation);
void tickets_fini(struct tickets *t);
uint64_t tickets_give(struct tickets *t, void *item); /* 0: none free */
void *tickets_find(const struct tickets *t, uint64_t id); /* NULL: none of that name */
void tickets_drop(struct tickets *t, uint64_t id); /* no effect if there is none */

#endif
