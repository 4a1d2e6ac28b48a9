/* A page of host memory of a GPU's, and where on the GPU it can be copied to: for marks alone. */
#ifndef TERRACE_DAEMON_VRAM_SCRATCH_H
#define TERRACE_DAEMON_VRAM_SCRATCH_H

#include <stdint.h>

#include "store/device.h"
#include "store/host/extent.h"

struct gpu_scratch {
	struct extent page;
	uint64_t from, range;          /* its address on the GPU, and that of the range that `to` lies in; 0: none */
	struct device_extent to;
};

#endif
