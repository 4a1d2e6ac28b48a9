/* Tables that are read at random: on huge pages where the system gives them to who asks (transparent_hugepage: madvise or always), so that
 * a read misses the cache and not the address translation as well.
 */
#ifndef TERRACE_EVICTION_TABLE_H
#define TERRACE_EVICTION_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* `count` elements of `bytes` each, zeroed; memory is taken as they are written. NULL: no memory. */
void *table_take(uint64_t count, size_t bytes);
/* With the same numbers; NULL allowed. */
void table_give(void *table, uint64_t count, size_t bytes);

#endif
