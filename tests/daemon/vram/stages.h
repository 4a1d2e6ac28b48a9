/* How far a lease on a GPU is, from its call to the list of its copies at the device, by the calls of one file of the core to another: the linker
 * sends those through here (--wrap). */
#ifndef TERRACE_TESTS_DAEMON_VRAM_STAGES_H
#define TERRACE_TESTS_DAEMON_VRAM_STAGES_H

#include <stdint.h>

/* In this order, but for the submission thread's and the grant. */
#define STAGE_MAP(X)                                              \
	X(FOUND, "found")       /* its blocks, by their keys; the submission thread will be awake */ \
	X(ASKED, "asked")       /* the policies will be told */   \
	X(LOCKED, "locked")     /* the one admission step begins */ \
	X(ADMITTED, "admitted") /* the prefix is known, and pinned */ \
	X(ROOM, "room")         /* slots are free */              \
	X(PLACED, "placed")     /* all blocks have theirs */      \
	X(HELD, "held")         /* by the lease */                \
	X(RECORDED, "recorded")                                   \
	X(PUBLISHED, "published")                                 \
	X(GRANTED, "granted")                                     \
	X(TAKEN, "taken")       /* the submission thread has made the list */ \
	X(DEVICE, "device")     /* has it */

enum stage {
#define STAGE_ENUM(name, word) STAGE_##name,
	STAGE_MAP(STAGE_ENUM)
#undef STAGE_ENUM
	STAGE_COUNT
};

/* The calling thread's next lease, of so many blocks that are not on the GPU. */
void stages_begin(uint32_t blocks);
/* Now; the first time counts. */
void stage_reached(enum stage s);
/* Nanoseconds since the beginning; 0: it was not reached. */
uint64_t stage_ns(enum stage s);

#endif
