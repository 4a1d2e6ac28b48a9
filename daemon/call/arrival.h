/* Blocks that the index does not know and that a source by name brings (block/source.h): call/arrival.c. With the
 * cache's lock unless it says otherwise. */
#ifndef TERRACE_DAEMON_CALL_ARRIVAL_H
#define TERRACE_DAEMON_CALL_ARRIVAL_H

#include <stdbool.h>

struct admission;
struct cache;
struct index_ident;
struct lease;

enum {
	ARRIVALS_MAX = 1024,           /* names that are asked for or fetched at a time, of all calls */
	ARRIVALS_A_CALL = 512,         /* names that one call looks at */
	ARRIVALS_SHARE = 8,            /* of host memory, at most one part in so many is being fetched into */
	ARRIVAL_US = 10 * 1000 * 1000, /* a source is told to give up what takes longer */
};

/* Begins to ask the sources by name for what the call's prefix lacks, and to fetch what they have of that. l->block
 * holds what was found, as admit_prefix leaves it. True: something is under way, of which a->wait is told; the call
 * then looks again. False: the prefix does not get longer by them, now. */
bool arrivals_begin(struct admission *a, const struct lease *l);
/* A block of that name was deleted: what is under way under it is not to be stored. */
void arrivals_forget(struct cache *c, const struct index_ident *ident);
/* Gives up what takes too long, and what no call waits for any more. */
void arrivals_tick(struct cache *c);
/* Without the lock: makes the memory that arrivals found missing. */
void arrivals_chores(struct cache *c);
/* Without the lock, before the cache ends: gives up all of them, and waits until all have ended. False: a source has
 * not answered, and may still write to memory: the cache must stay as it is. */
bool arrivals_stop(struct cache *c);

#endif
