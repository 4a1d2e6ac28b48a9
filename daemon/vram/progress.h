/* The shared page by which streams wait for layers. */
#ifndef TERRACE_DAEMON_VRAM_PROGRESS_H
#define TERRACE_DAEMON_VRAM_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/device.h"
#include "store/host/extent.h"

enum { VRAM_LINE = 64 };

/* The page is an array of 32-bit words, three for each GPU: word g says how many layers have been copied to GPU g,
 * word BOARD_SUMMED + g how many of them have the right checksum, word BOARD_FAILED + g is 1 once GPU g's copies
 * cannot be trusted. Clients read the same page, so local/socket.c asserts that the protocol has the same numbers. */
enum { BOARD_SUMMED = 256, BOARD_FAILED = 512 };

/* What a lease's copies are watched by: a page of an attachment's, registered with the GPUs. */
struct board {
	struct extent page;
	uint64_t address[DEVICES_MAX]; /* on each GPU; 0: not registered */
	uint32_t next[DEVICES_MAX];    /* the word of GPU g has been promised this value */
	uint32_t marks;                /* in queues or under way */
	bool dead;                     /* its attachment is gone */
	struct board *dead_next;
};

#endif
