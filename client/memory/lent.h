/* What the daemon lends of its GPUs' memory, as it says at the opening of a session. */
#ifndef TERRACE_CLIENT_MEMORY_LENT_H
#define TERRACE_CLIENT_MEMORY_LENT_H

#include "store/device.h"

#include <stdint.h>

enum { LENT_UNFIT_MAX = 320 };

/* The daemon's description of its memory when the session was opened. Its packets are checked against it. */
struct client_lent {
	uint32_t gpu_count;
	struct {
		uint8_t uuid[DEVICE_UUID_BYTES];
		uint64_t bytes;
		char unfit[LENT_UNFIT_MAX]; /* why no block of the session can lie there; "": they can */
	} gpus[DEVICES_MAX];
};

#endif
