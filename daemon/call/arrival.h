/* Arrivals: blocks that the index does not know and that a source by name brings (block/source.h). call/arrival.c. With
 * the cache's lock unless it says otherwise. */
#ifndef TERRACE_DAEMON_CALL_ARRIVAL_H
#define TERRACE_DAEMON_CALL_ARRIVAL_H

#include <stdbool.h>

#include "store/status.h"

struct admission;
struct cache;
struct index_ident;
struct lease;
struct cache_wait;
struct key_run;

enum {
	ARRIVALS_MAX = 1024,           /* names that are asked for or fetched at a time, of all calls */
	ARRIVALS_A_CALL = 512,         /* names that one call asks for */
	ARRIVALS_SHARE = 8,            /* at most this part (1/8) of host memory is being fetched into */
	PULLS_MAX = 2,                 /* offers of other members that are fetched at a time */
	ARRIVAL_US = 10 * 1000 * 1000, /* a fetch that takes longer is cancelled */
};

/* Asks the sources by name for the blocks that the call's prefix lacks, and begins to fetch those that they have.
 * l->block holds what was found, as admit_prefix leaves it. True: something is under way, and a->wait is told of its
 * end; the call then looks again. False: the sources cannot make the prefix longer now. */
bool arrivals_begin(struct admission *a, const struct lease *l);
/* Only asks the sources, for a call that does not wait: what they have stays where it is. True: they have what
 * makes the prefix longer, or are being asked for it. */
bool arrivals_ask(struct admission *a, const struct lease *l);
/* Begins to fetch what another member offers (call/offer.h): names that a source has, that are not here yet, and for
 * which memory is free; no block is evicted for them. They come as BLOCK_FOR_PEER. The run has at most OFFER_BLOCKS_MAX
 * names. OK: all of it is under way, and w is told of its end. EXHAUSTED: there is room for some of it, of which w is
 * told, or for nothing. BUSY: soon, perhaps. MISS: nothing of it can be had. In a read section. */
enum status arrivals_pull(struct cache *c, const struct key_run *run, struct cache_wait *w);
/* A block of that name was deleted: an arrival under that name is not stored. */
void arrivals_forget(struct cache *c, const struct index_ident *ident);
/* Cancels fetches that take too long, or that no call waits for any more. In a read section. */
void arrivals_tick(struct cache *c);
/* Whether arrivals_chores has something to do. */
bool arrivals_want(const struct cache *c);
/* Without the lock: grows memory for arrivals that found none, and tells the calls that wait for that. */
void arrivals_chores(struct cache *c);
/* Without the lock, before the cache ends: cancels all arrivals, and waits until all have ended. False: a source has
 * not answered, and may still write to memory; the cache must stay as it is. */
bool arrivals_stop(struct cache *c);

#endif
