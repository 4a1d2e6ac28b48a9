/* A bounded set of ids of blocks that are gone, oldest first: what s3fifo and arc remember. */
#ifndef TERRACE_EVICTION_GHOSTS_H
#define TERRACE_EVICTION_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

struct ghosts;

/* Room for `max` ids (at least 1 is made of 0), all taken now. NULL: no memory. */
struct ghosts *ghosts_create(uint64_t max);
void ghosts_destroy(struct ghosts *g);

/* Adds an id as the youngest; the oldest gives way when the set is full. One that is in becomes the
 * youngest. 0 is ignored. */
void ghosts_add(struct ghosts *g, uint64_t id);

/* Takes an id out; whether it was in. */
bool ghosts_take(struct ghosts *g, uint64_t id);

/* Drops the oldest until at most `count` are left. */
void ghosts_trim(struct ghosts *g, uint64_t count);

uint64_t ghosts_count(const struct ghosts *g);

#endif
