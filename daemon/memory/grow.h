/* New extents of memory. */
#ifndef TERRACE_DAEMON_MEMORY_GROW_H
#define TERRACE_DAEMON_MEMORY_GROW_H

#include <stddef.h>

struct cache;
struct pool;

/* Takes what room_take left in c->grow. */
static inline struct pool *room_wants(struct cache *c)
{
	struct pool *p = c->grow;

	c->grow = NULL;
	return p;
}

#endif
