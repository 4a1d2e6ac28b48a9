/* Room in memory: which block leaves for another. */
#ifndef TERRACE_DAEMON_MEMORY_EVICT_H
#define TERRACE_DAEMON_MEMORY_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "daemon/block/tier.h"
#include "store/status.h"

struct block;
struct cache;
struct memory_class;
struct memory_slot;
struct policy_event;
struct layout_pool;

/* The table's take, refuses, spares, grow and room_changed (block/tier.h) of memory. What follows a refused block in
 * its chain is refused with it. */
enum status room_take(struct cache *c, struct memory_class *k, enum take_effort effort, struct memory_slot *out);
bool room_refuses(struct cache *c, struct layout_pool *p, const struct policy_event *e);
bool room_spares(struct cache *c, struct memory_class *k);
void room_changed(struct cache *c);
/* Evicts what so many slots cost at once, if nothing is lost with it: taken one by one, they then lie side by side. */
void room_clear(struct cache *c, struct memory_class *k, uint32_t slots);
/* As refuses, of a block that is in memory already, refused. */
bool room_keeps_out(struct cache *c, struct memory_class *k, const struct policy_event *e);
/* Without the lock: takes pages for the class, or empties the span that it has claimed (memory/grow.c). It may wait a
 * tenth of a second. vain: the caller has tried ROOM_VAIN_MAX times, and got no further: the class is to do with what
 * it has, for a second. */
enum { ROOM_VAIN_MAX = 64 };
void room_grow(struct cache *c, struct memory_class *k, bool vain);
/* Takes a victim's copy out of memory; a block that is nowhere else is gone. */
void room_evict(struct cache *c, struct block *b, enum counter why);
void room_tick(struct cache *c);

#endif
