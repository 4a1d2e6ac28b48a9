/* What degrades the daemon, in words. */
#ifndef TERRACE_DAEMON_CALL_FAULTS_H
#define TERRACE_DAEMON_CALL_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct cache_fault;

uint32_t cache_faults(struct cache *c, struct cache_fault *out, uint32_t max);
/* Whether anything does. */
bool cache_degraded(struct cache *c);

#endif
