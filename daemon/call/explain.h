/* Explain: why a block is where it is. */
#ifndef TERRACE_DAEMON_CALL_EXPLAIN_H
#define TERRACE_DAEMON_CALL_EXPLAIN_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_block_name;
struct cache_explained;

/* Explains up to `max` layouts that have the block, or remember that it left. *n may be 0. A rank is given by the
 * policies lru and sieve, and of graph unless it goes by s3fifo (feature order_by: 0 its own, 1 lru, 2 s3fifo, 3
 * sieve). */
enum status cache_explain(struct cache *c, const struct cache_block_name *name, uint64_t now_us,
			  struct cache_explained *out, uint32_t max, uint32_t *n, const char **why);

#endif
