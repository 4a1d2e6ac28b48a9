/* What degrades the daemon, in words. */
#ifndef TERRACE_DAEMON_CALL_FAULTS_H
#define TERRACE_DAEMON_CALL_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct cache_fault;

/* What the cache works without: disks that have failed or could not be used at the start, then lost GPUs. Returns how
 * many there are; at most `max` are written to out[]. */
uint32_t cache_faults(struct cache *c, struct cache_fault *out, uint32_t max);
/* Whether there is any fault. */
bool cache_degraded(struct cache *c);

#endif
