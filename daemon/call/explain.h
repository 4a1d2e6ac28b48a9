/* Explain: why a block is where it is. */
#ifndef TERRACE_DAEMON_CALL_EXPLAIN_H
#define TERRACE_DAEMON_CALL_EXPLAIN_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_explained;

/* Up to `max` layouts of the tenant (layout_id 0: all) that have the key, or remember that it left. *n may be 0. The rank is known
 * of the policies lru, fifo and gdsf, and of graph unless it goes by s3fifo or sieve (feature order_by: 0 its own, 1 lru, 2 s3fifo, 3 sieve). */
enum status cache_explain(struct cache *c, const char *tenant, uint64_t layout_id, const uint8_t *key, uint32_t key_bytes,
			  uint64_t now_us, struct cache_explained *out, uint32_t max, uint32_t *n, const char **why);

#endif
