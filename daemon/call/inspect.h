/* Inspect, Verify and Layouts: what is stored, and whether it is sound. */
#ifndef TERRACE_DAEMON_CALL_INSPECT_H
#define TERRACE_DAEMON_CALL_INSPECT_H

#include <stdint.h>

#include "store/status.h"

struct cache;
struct cache_block_name;
struct cache_block_view;
struct cache_layout_view;
struct cache_verified;

/* Shows up to `max` blocks of that name. Recomputes their checksums. *n may be 0. */
enum status cache_inspect(struct cache *c, const struct cache_block_name *name, uint64_t now_us,
			  struct cache_block_view *out, uint32_t max, uint32_t *n, const char **why);
enum status cache_verify_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes,
			      struct cache_verified *sum);
/* The number of copies that the two scrubs together would check now. */
uint64_t cache_verify_blocks(struct cache *c);
uint32_t cache_layouts(struct cache *c, struct cache_layout_view *out, uint32_t max);

#endif
