/* Before a stop: blocks that no disk has are written to the disks. */
#ifndef TERRACE_DAEMON_CALL_SETTLE_H
#define TERRACE_DAEMON_CALL_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct cache_unsettled;

/* Writes to the disks what they do not have, until all is written, wait_us are over, or the disks have no place for the
 * rest even at a second try. False: something is left; *unsettled, which may be NULL, says what. */
bool cache_settle(struct cache *c, uint64_t wait_us, struct cache_unsettled *unsettled);

#endif
