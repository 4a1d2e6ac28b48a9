/* Numbers in the keys of the catalog's table of edges: big-endian, so that keys are in the order of their numbers. */
#ifndef TERRACE_DAEMON_ADVICE_CATALOG_KEY_H
#define TERRACE_DAEMON_ADVICE_CATALOG_KEY_H

#include <stdint.h>

/* The lowest `bytes` bytes of n. */
static inline void put_be(uint8_t *at, uint64_t n, int bytes)
{
	for (int i = 0; i < bytes; i++)
		at[i] = (uint8_t)(n >> 8 * (bytes - 1 - i));
}

#endif
