/* What is here of blocks that no session asks for: by tenant and layout. */
#ifndef TERRACE_DAEMON_CALL_PRESENT_H
#define TERRACE_DAEMON_CALL_PRESENT_H

#include <stdint.h>

struct cache;
struct cache_keys;

/* The ids of the layouts of the tenant of that number that the cache knows. Returns how many were written to
 * ids[max]. */
uint32_t cache_tenant_layouts(struct cache *c, uint32_t tenant, uint64_t *ids, uint32_t max);
/* present[k->count]: 1 where the key has a block in the layout, 0 else. Counts as no use; takes no lock. */
void cache_present(struct cache *c, uint32_t tenant, uint64_t layout_id, const struct cache_keys *k, uint8_t *present);

#endif
