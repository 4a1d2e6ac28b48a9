/* Room in memory: which block leaves for another. */
#ifndef TERRACE_DAEMON_MEMORY_EVICT_H
#define TERRACE_DAEMON_MEMORY_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/block/counters.h"
#include "store/status.h"

struct block;
struct cache;
struct memory_class;
struct memory_slot;
struct policy;
struct policy_event;
struct policy_node;
struct policy_ops;
struct pool;

/* A free slot of the class, evicting as needed. EXHAUSTED. If that is because pages must be taken, or another class's
 * span emptied, which takes long, c->grow is set: undo, leave the lock, room_grow(), try again. */
enum status room_take(struct cache *c, struct memory_class *k, struct memory_slot *out);
/* The same, but nothing goes for it that is nowhere else: BUSY. */
enum status room_take_spare(struct cache *c, struct memory_class *k, struct memory_slot *out);
/* For what comes down from a GPU, nobody being in a hurry for it: nothing goes for it that a GPU alone has beside, and that would have to come down again; and with
 * `drops` alone what is nowhere else. Else BUSY. */
enum status room_take_below(struct cache *c, struct memory_class *k, bool drops, struct memory_slot *out);
/* Evicts what so many slots cost at once, if nothing is lost with it: taken one by one, they then lie side by side. */
void room_clear(struct cache *c, struct memory_class *k, uint32_t slots);
/* Whether the policy would rather keep what it has than give a place to the block of this event, in a class that is full. What
 * follows a refused block in its chain is refused with it. */
bool room_refuses(struct cache *c, struct pool *p, const struct policy_event *e);
/* The same of one that is in memory, refused. */
bool room_keeps_out(struct cache *c, struct memory_class *k, const struct policy_event *e);
/* Whether the class has a slot, or one of a block that is on a disk or a GPU too and that no call is expected to want. */
bool room_spares(struct cache *c, struct memory_class *k);
/* Tells a policy of the room that its nodes have, if that is another by an eighth than *told. */
void room_tell(const struct policy_ops *ops, struct policy *policy, uint64_t slots, uint64_t *told);
/* Without the lock: takes pages for the class, or empties the span that it has claimed (memory/grow.c). It may wait a
 * tenth of a second. vain: the caller has tried ROOM_VAIN_MAX times, and got no further: the class is to do with what
 * it has, for a second. */
enum { ROOM_VAIN_MAX = 64 };
void room_grow(struct cache *c, struct memory_class *k, bool vain);
/* It would not be lost with its copy in memory. */
bool room_elsewhere(const struct block *b);
/* Takes a victim's copy out of memory; a block that is nowhere else is gone. */
void room_evict(struct cache *c, struct block *b, enum counter why);
void room_tick(struct cache *c);

#endif
