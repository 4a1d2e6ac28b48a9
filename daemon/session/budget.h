/* Pinned bytes of memory and GPUs that leases may take. */
#ifndef TERRACE_DAEMON_SESSION_BUDGET_H
#define TERRACE_DAEMON_SESSION_BUDGET_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct gpu;
struct session;

/* Bytes that may still be pinned: in memory; on that GPU. */
uint64_t pins_free(const struct cache *c);
/* Whether so many bytes more may be pinned for the session's holder in memory, and on that GPU (NULL: on none): OK, or EXHAUSTED and why. */
enum status pins_ask(struct cache *c, const struct session *s, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes, const char **why);

#endif
