/* A GPU that is none, for tests: its memory is the host's (memfds, so that processes share it), its copies are made by threads, its
 * kernels (sim/kernels.c) are the CPU's, its streams (sim/stream.h) are threads with queues. sim/device.c has the table of store/device.h,
 * and all of it is one plugin, by the name of CUDA's, in a folder of its own.
 *
 * Addresses of device memory, and of host memory as a device sees it, carry a mark that makes them useless to the CPU, so that whoever
 * follows one himself, or copies the wrong way, stops there. A list of copies that goes where nothing is mapped, or the wrong way, or
 * overlaps itself, ends the process with a sentence: on a GPU it would cost the whole context.
 *
 * What the environment says; it is read when a device is opened:
 *   SIM_GPU_DEVICES     how many there are, 0 to 16; without it 1
 *   SIM_GPU_BYTES       memory of each; without it 1 GiB
 *   SIM_GPU_FREE        of that, what others have not taken; without it all. What this process makes is counted, not what others do
 *   SIM_GPU_US_PER_MIB  how slow copies are
 *   SIM_GPU_HOLD_FILE   P: while P.N exists, lists of device N stop before the part whose number it holds (0 if it is empty)
 *   SIM_GPU_SUMS_HOLD_FILE P: while P.N exists, lists of checksums of device N do not begin
 *   SIM_GPU_NO_SUMS     the table has no function for them: it is asked for when the table is
 *   SIM_GPU_LOST_FILE   P: once P.N exists, device N is lost
 *   SIM_GPU_LOST_AFTER  K: device 0 is lost in its list of copies number K + 1, half way, for this process, and, with LOST_FILE, for all
 *   SIM_GPU_SHUT        N: device N is not to be opened: that ends the process
 *   SIM_GPU_NO_EXPORT   device memory cannot be shared: extent_make is UNSUPPORTED
 *   SIM_GPU_NO_REGISTER host memory cannot be pinned: host_register is EXHAUSTED
 *   SIM_GPU_NO_KERNEL   lists go by copy engines alone, as the device says of itself: they are no slower
 *   SIM_GPU_NO_PEERS    no device reaches another: copies across are made all the same
 *   SIM_GPU_STUCK_FILE  P: while P.N exists, calls on device N that map, unmap or pin do not return; if it is not empty, nor do those that make
 *                       memory, ask whether the device is lost, or close it
 *   SIM_GPU_DROP_WAITS  extent_drop waits until no stream of the process waits for a word; those calls, and lost(), for extent_drop: as a
 *                       driver may
 *   SIM_GPU_PROBLEM     what the plugin's kernels say is wrong with the device
 */
#ifndef TERRACE_TESTS_SIM_DEVICE_H
#define TERRACE_TESTS_SIM_DEVICE_H

#include <stdint.h>

#include "store/device.h"

#define SIM_MARK ((uintptr_t)1 << 62)

enum { SIM_GRANULARITY = 2 << 20 };

static inline uintptr_t sim_marked(const void *p)
{
	return (uintptr_t)p & SIM_MARK;
}

static inline void *sim_mark(void *p)
{
	return (void *)((uintptr_t)p | SIM_MARK);
}

/* What a device sees at an address. An address without the mark becomes one that cannot be followed. */
static inline void *sim_memory(const void *p)
{
	return (void *)((uintptr_t)p ^ SIM_MARK);
}

/* The same of a number; tests look with it at what a GPU has. */
static inline void *sim_at(uint64_t address)
{
	return sim_memory((void *)(uintptr_t)address);
}

/* The table, for tests that link it; the plugin exports the same. */
const struct device_ops *terrace_device_ops(void);

#endif
