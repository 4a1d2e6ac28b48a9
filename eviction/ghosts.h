/* A bounded set of ids of blocks that have left the cache, oldest first: what s3fifo and arc remember. */
#ifndef TERRACE_EVICTION_GHOSTS_H
#define TERRACE_EVICTION_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

struct ghosts;

/* Makes a set with room for `max` ids (0 counts as 1); all memory is taken now. NULL: no memory. */
struct ghosts *ghosts_create(uint64_t max);
void ghosts_destroy(struct ghosts *g);

/* Adds an id as the youngest; drops the oldest when the set is full. An id that is in the set already becomes the
 * youngest. 0 is ignored. */
void ghosts_add(struct ghosts *g, uint64_t id);

/* Takes an id out. Returns whether it was in the set. */
bool ghosts_take(struct ghosts *g, uint64_t id);

/* Drops the oldest until at most `count` are left. */
void ghosts_trim(struct ghosts *g, uint64_t count);

uint64_t ghosts_count(const struct ghosts *g);

#endif
