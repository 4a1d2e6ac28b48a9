/* New extents of memory. */
#ifndef TERRACE_DAEMON_MEMORY_GROW_H
#define TERRACE_DAEMON_MEMORY_GROW_H

#include <stddef.h>

struct cache;
struct memory_class;

/* Takes what room_take left in c->grow. */
static inline struct memory_class *room_wants(struct cache *c)
{
	struct memory_class *k = c->grow;

	c->grow = NULL;
	return k;
}

#endif
