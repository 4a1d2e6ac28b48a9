/* How many of the coldest blocks leave soon, by how many have left of late.
 *
 * An owner that tells others of its blocks takes back what is about to leave: what is told of too long is a wrong
 * answer, and what is taken back too early is a miss. The order in which blocks leave is the policy's (policy.h).
 *
 * Pure functions on the owner's struct, with the owner's lock. A zeroed struct is valid. */
#ifndef TERRACE_EVICTION_DEPARTURES_H
#define TERRACE_EVICTION_DEPARTURES_H

#include <stdint.h>

enum {
	DEPARTURES_MOST = 2048,      /* bounds the time that the owner looks for them */
	DEPARTURES_PART = 8,         /* 1/8 of the blocks at most: of a cache that turns over fast others hear, too */
};
#define DEPARTURES_WITHIN_US 2000000ull

struct departures {
	uint64_t since_us;           /* 0: not asked yet */
	uint64_t count;              /* that have left since then */
	uint64_t a_second;           /* of the time before: rises at once, and falls by a quarter a second */
};

/* So many blocks have left. */
void departures_note(struct departures *d, uint64_t count);
/* How many of so many blocks leave within DEPARTURES_WITHIN_US, within these bounds. Asked some times a second. */
uint32_t departures_soon(struct departures *d, uint64_t blocks, uint64_t now_us);

#endif
