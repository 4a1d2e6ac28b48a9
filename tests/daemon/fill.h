/* Fills a cache with blocks that have no memory, to measure the index and the lookups at a size whose slots
 * would not fit.
 *
 * Records, policy nodes and maps of spans are real; the slots are not. Seeded blocks are pinned for good. Looking
 * them up and leasing them is fine; reading, deleting, verifying or inspecting them is not.
 */
#ifndef TERRACE_TESTS_DAEMON_FILL_H
#define TERRACE_TESTS_DAEMON_FILL_H

#include "daemon/block/lock.h"
#include "daemon/block/values.h"
#include "store/status.h"
#include <stddef.h>
#include <stdint.h>

/* Stores the keys in one layout of the session. NOT_FOUND: no such session or layout. EXISTS: one of them
 * is there already, those before it are stored. EXHAUSTED: no memory. */
enum status cache_seed(struct cache *c, uint64_t session, uint32_t layout, const struct cache_keys *k,
		       uint64_t now_us);

/* sizeof(struct block). */
size_t cache_seed_block_struct_bytes(void);

#endif
