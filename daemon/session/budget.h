/* Pinned bytes of memory and GPUs that leases may take. */
#ifndef TERRACE_DAEMON_SESSION_BUDGET_H
#define TERRACE_DAEMON_SESSION_BUDGET_H

#include <stdint.h>

#include "daemon/block/quota.h"
#include "store/status.h"

enum { PINS_WISHES = 2 };

struct cache;
struct gpu;
struct session;

/* Bytes that may still be pinned: in memory; on that GPU. */
uint64_t pins_free(const struct cache *c);
/* What to ask a holder's quota for such pins, into w[PINS_WISHES]; gpu NULL: in memory alone. Returns how many. */
uint32_t pins_wish(const struct cache *c, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes,
		   struct quota_wish *w);
/* Whether so many bytes more may be pinned for the session's holder in memory, and on that GPU (NULL: on none): OK, or EXHAUSTED and why. */
enum status pins_ask(struct cache *c, const struct session *s, uint64_t bytes, const struct gpu *g, uint64_t gpu_bytes, const char **why);

#endif
