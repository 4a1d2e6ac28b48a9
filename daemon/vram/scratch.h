/* Some host memory of a GPU, zeroed unless said otherwise, and where on the GPU a part of it can be copied to for
 * fences. */
#ifndef TERRACE_DAEMON_VRAM_SCRATCH_H
#define TERRACE_DAEMON_VRAM_SCRATCH_H

#include <stdint.h>

#include "daemon/vram/zero.h"
#include "store/device.h"
#include "store/host/extent.h"

struct gpu_scratch {
	struct extent page;
	uint64_t from, range;          /* its address on the GPU, and that of the range that `to` lies in; 0: none */
	struct device_extent to;
	struct gpu_zero zero;          /* it has the page, too */
};

#endif
