/* The blocks of a layout that no disk has, in the order in which they came to be so, and walks along them. With the
 * cache's lock.
 *
 * A published block is in its layout's list while it has no copy on a disk. Moving between memory and GPUs does not
 * change its place. A block that loses its disk copy goes to the end. So a walk that has come to the end has seen every
 * block, and twice only blocks that went to the end anew. */
#ifndef TERRACE_DAEMON_BLOCK_UNWRITTEN_H
#define TERRACE_DAEMON_BLOCK_UNWRITTEN_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct layout_pool;
struct unwritten_walk;

/* Puts the published block into the list (it has no copy on a disk), or takes it out (it has one, or is no longer
 * published). A repeated call does nothing. */
void unwritten_set(struct block *b, bool is);
/* Begins at the first block. A walk that had begun is ended first; end() of a walk that has not begun does nothing. */
void unwritten_walk_begin(struct unwritten_walk *w, struct layout_pool *p);
void unwritten_walk_end(struct unwritten_walk *w);
/* The next block, which counts *budget down. NULL with *budget 0: call again to go on; NULL with some left: the walk is
 * over. */
struct block *unwritten_walk_next(struct unwritten_walk *w, uint32_t *budget);
/* The next call returns the last block again. */
void unwritten_walk_back(struct unwritten_walk *w);

#endif
