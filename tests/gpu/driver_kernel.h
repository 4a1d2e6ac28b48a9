/* A kernel of PTX text, in the primary context that CUDA's runtime and the plugin use, through CUDA's driver, which is looked for when the
 * program runs: tests want kernels that do harm, on machines that have CUDA and none of our libraries. Plain C, without CUDA's headers. */
#ifndef TERRACE_TESTS_GPU_DRIVER_KERNEL_H
#define TERRACE_TESTS_GPU_DRIVER_KERNEL_H

#include <stddef.h>
#include <stdint.h>

/* One GPU's; any thread, one at a time. */
struct driver_kernel {
	int device;
	void *context, *function, *stream;
};

/* Each returns NULL, or words that say what is wrong, good until the thread's next call. Nothing is left current. */

/* The kernel `name` of the text, on this process's GPU of that number. Lives until the process ends, as does what the others make. */
const char *driver_kernel_open(struct driver_kernel *k, int ordinal, const char *text, const char *name);
/* A copy of so many bytes on the GPU. */
const char *driver_kernel_copy(struct driver_kernel *k, const void *from, size_t bytes, uint64_t *address);
/* Makes host memory, whole pages of a memfd's mapping, the GPU's to read and write. */
const char *driver_kernel_see(struct driver_kernel *k, void *memory, size_t bytes, uint64_t *address);
/* Begins it, on a stream of its own; does not wait for it. arguments: pointers to them. */
const char *driver_kernel_launch(struct driver_kernel *k, uint32_t blocks, uint32_t threads, void **arguments);

#endif
