/* Before a stop: blocks that no disk has are written to the disks. */
#ifndef TERRACE_DAEMON_CALL_SETTLE_H
#define TERRACE_DAEMON_CALL_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct cache_unsettled;

/* Writes for wait_us at most. False: *unsettled, which may be NULL, says what is left. */
bool cache_settle(struct cache *c, uint64_t wait_us, struct cache_unsettled *unsettled);

#endif
