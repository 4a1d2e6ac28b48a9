/* One 64-bit finaliser (splitmix64's), for tables and for reproducible pseudo-random numbers. */
#ifndef TERRACE_EVICTION_HASH_H
#define TERRACE_EVICTION_HASH_H

#include <stdint.h>

static inline uint64_t hash_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

#endif
