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
/* Checks blocks in memory in steps, so that the caller can limit the rate and give up: begins with *cursor 0, checks at
 * most 256 blocks a call and stops after max_bytes, adds to *sum, sets *cursor to UINT64_MAX at the end. Damaged blocks
 * are removed and counted. */
enum status cache_verify_step(struct cache *c, uint64_t *cursor, uint64_t max_bytes,
			      struct cache_verified *sum);
/* The number of copies that the two scrubs together would check now. */
uint64_t cache_verify_blocks(struct cache *c);
/* The layouts that sessions or disks have brought so far. Returns how many were written to out[max]. */
uint32_t cache_layouts(struct cache *c, struct cache_layout_view *out, uint32_t max);

#endif
