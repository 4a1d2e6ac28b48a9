/* The blocks of a layout that no disk has, in the order in which they came to be so, and walks along them. With the
 * cache's lock.
 *
 * A published block is in its layout's list as long as it has no copy on a disk, wherever else it is: what moves
 * between memory and GPUs keeps its place. A block that loses its copy on a disk goes to the end. So a walk that has
 * come to the end has seen each block that it was to see, and none twice, but those that went to the end anew. */
#ifndef TERRACE_DAEMON_BLOCK_UNWRITTEN_H
#define TERRACE_DAEMON_BLOCK_UNWRITTEN_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct layout_pool;
struct unwritten_walk;

/* The published block has no copy on a disk, or has one, or is no longer published. Does nothing if it was known. */
void unwritten_set(struct block *b, bool is);
/* Begins at the first block. A walk that was begun is ended first, and end() of one that was not does nothing. */
void unwritten_walk_begin(struct unwritten_walk *w, struct layout_pool *p);
void unwritten_walk_end(struct unwritten_walk *w);
/* The next block; NULL with *budget 0: go on from here; NULL with some left: no more. Counts down *budget for each. */
struct block *unwritten_walk_next(struct unwritten_walk *w, uint32_t *budget);
/* The block that was seen last is the next one again. */
void unwritten_walk_back(struct unwritten_walk *w);

#endif
