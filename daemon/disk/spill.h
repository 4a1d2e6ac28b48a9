/* Which blocks are written to disks, and when. */
#ifndef TERRACE_DAEMON_DISK_SPILL_H
#define TERRACE_DAEMON_DISK_SPILL_H

#include <stdbool.h>

struct cache;
struct layout_pool;

/* Starts as many spills as the watermark asks for and the disks take. False: there was something to spill, or nothing, and no disk has a place. */
bool spill_pump(struct cache *c);
/* Begins more of this pool's, the coldest first, because somebody waits for memory that they would spare. False: none is under way, and there
 * is nothing more to spare. */
bool spill_hurry(struct cache *c, struct layout_pool *p);

#endif
