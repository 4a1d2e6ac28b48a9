/* Segments of a chain: runs of positions that have the same owners. They begin at the positions 0, 64, 128, 256, 512
 * and 1,024, then at every 512th. A chain of 4,096 keys has 11. Short chains touch few owners, and no owner gets all
 * of a long one.
 *
 * Pure functions: any thread. */
#ifndef TERRACE_DAEMON_DIRECTORY_SEGMENT_H
#define TERRACE_DAEMON_DIRECTORY_SEGMENT_H

#include <stdint.h>

enum { SEGMENT_LONGEST = 512 };      /* positions */

/* The index of the segment in which a position lies, counted from 0. */
uint32_t segment_of(uint64_t position);
/* The first position of a segment. The segment ends where the next one begins. */
uint64_t segment_first(uint32_t segment);

#endif
