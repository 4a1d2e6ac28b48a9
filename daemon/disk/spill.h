/* Which blocks are written to disks, and when. */
#ifndef TERRACE_DAEMON_DISK_SPILL_H
#define TERRACE_DAEMON_DISK_SPILL_H

#include <stdbool.h>

struct cache;
struct layout_pool;

/* Begins as many spills as the watermark asks for and the disks take. False: no disk has a place for the blocks that
 * there were to spill. */
bool spill_pump(struct cache *c);
/* Begins more spills of this layout, the coldest blocks first, because a caller waits for memory that they would spare.
 * False: none is under way, and none could be begun. */
bool spill_hurry(struct cache *c, struct layout_pool *p);

#endif
