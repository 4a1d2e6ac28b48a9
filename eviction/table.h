/* Tables that are read at random. They are on huge pages where the system gives these on request (transparent_hugepage:
 * madvise or always): then a read misses the cache, but not the address translation as well.
 */
#ifndef TERRACE_EVICTION_TABLE_H
#define TERRACE_EVICTION_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* Takes `count` elements of `bytes` each, zeroed; the system takes pages as they are written. NULL: no memory. */
void *table_take(uint64_t count, size_t bytes);
/* Frees a table; `count` and `bytes` as before. NULL allowed. */
void table_give(void *table, uint64_t count, size_t bytes);

#endif
