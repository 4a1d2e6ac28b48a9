/* Room in memory: which block is evicted for another. */
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

/* take, refuses, spares, grow, room_changed and leaving of memory (block/tier.h). If a block is refused, later blocks
 * of its chain are refused too. */
enum status room_take(struct cache *c, struct memory_class *k, enum take_effort effort, struct memory_slot *out);
bool room_refuses(struct cache *c, struct layout_pool *p, const struct policy_event *e);
bool room_spares(struct cache *c, struct memory_class *k);
void room_changed(struct cache *c);
bool room_leaving(struct cache *c, uint32_t at, void (*visit)(void *arg, const struct block *b), void *arg);
/* Evicts enough for so many slots at once, if no block is lost by that. Slots taken one by one then lie side by
 * side. */
void room_clear(struct cache *c, struct memory_class *k, uint32_t slots);
/* Whether the policy refuses a block that is in memory already, not admitted. */
bool room_keeps_out(struct cache *c, struct memory_class *k, const struct policy_event *e);
/* Without the lock: takes pages for the class, or empties the span that it has claimed (memory/grow.c). It may take a
 * tenth of a second. vain: the caller has tried ROOM_VAIN_MAX times without progress: for a second the class must do
 * with what it has. */
enum { ROOM_VAIN_MAX = 64 };
void room_grow(struct cache *c, struct memory_class *k, bool vain);
/* Evicts a victim's copy from memory. A block without another copy is removed. */
void room_evict(struct cache *c, struct block *b, enum counter why);
void room_tick(struct cache *c);

#endif
