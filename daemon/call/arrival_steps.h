/* Steps of arrivals that call/lack.c takes for a call; arrival.c has them. No other file includes this. With the lock,
 * in a read section. */
#ifndef TERRACE_DAEMON_CALL_ARRIVAL_STEPS_H
#define TERRACE_DAEMON_CALL_ARRIVAL_STEPS_H

#include <stdbool.h>
#include <stdint.h>

struct arrivals;
struct cache;
struct cache_wait;
struct index_ident;
struct key_run;
struct source;

/* The cache's arrivals, made if new. NULL: no memory. The others want that there are some. */
struct arrivals *arrivals_get(struct cache *c);
/* Whether the name is under way already; then the call joins it, and *comes is set if it waits for it. */
bool arrivals_join(struct cache *c, const struct index_ident *name, struct cache_wait *w, bool *comes);
/* How many more names may be under way. */
uint32_t arrivals_room(const struct cache *c);
/* Asks the source for these names. ahead: they are wanted also if the call does not wait. False: nothing was begun. */
bool arrival_ask(struct cache *c, struct source *s, const struct key_run *run, struct cache_wait *w, bool ahead);
/* Fetches these names from that source, as many as there is room for. Returns how many come. */
uint32_t arrival_fetch(struct cache *c, struct source *s, const struct key_run *run, struct cache_wait *w, bool ahead);
/* Whether what arrives waits for memory to grow, or for blocks to leave. */
bool arrivals_lack_memory(const struct cache *c);
/* Nothing comes, since memory is to grow before blocks leave for what arrives: the call looks again when it has grown,
 * or cannot. False: memory is not the reason. */
bool arrivals_await_memory(struct cache *c, struct cache_wait *w);

#endif
