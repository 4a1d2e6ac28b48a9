/* Extents that are emptied to be given back. */
#ifndef TERRACE_DAEMON_MEMORY_DRAIN_H
#define TERRACE_DAEMON_MEMORY_DRAIN_H

#include <stdint.h>

enum { DRAINS_MAX = 8 };

struct drain {
	uint32_t extent;
	uint64_t since_us, told_us;
	uint32_t sweep;                /* next slot to empty */
};

struct retire {
	uint32_t attachment, extent;
};

#endif
