/* A GPU's memory and a stream of work on it, through CUDA's runtime, which is looked for when the program runs: the
 * program is built without CUDA and runs where there is none. Addresses of the device's memory are pointers that the
 * CPU never follows. */
#ifndef TINYLM_DEVICE_H
#define TINYLM_DEVICE_H

#include "fault.h"

#include <stddef.h>

/* A stream of the device. One thread at a time uses it; any number of them may exist. */
struct device {
	void *stream; /* a cudaStream_t; NULL when closed */
};

/* Loads Terrace's CUDA kernels and CUDA's runtime and looks for a device that can run them. Called once, before
 * device_open and before there are threads. */
bool device_load(struct fault *fault);

/* Has the calling thread open from now on on the device of this number, instead of 0. */
bool device_use(int ordinal, struct fault *fault);

bool device_open(struct device *d, struct fault *fault);

/* Waits for what is under way, and closes the stream. Zeroed memory is fine. */
void device_close(struct device *d);

/* Allocates zeroed memory of the device, 256-byte aligned; NULL on failure. The caller frees it when the stream does
 * not work on it. */
void *device_alloc(struct device *d, size_t bytes, struct fault *fault);
void device_free(void *memory);

/* Queue a copy on the stream, to the device and from it. `from` of device_put may change, and `to` of device_get has
 * its bytes, only after device_wait. */
bool device_put(struct device *d, void *to_device, const void *from, size_t bytes, struct fault *fault);
bool device_get(struct device *d, void *to, const void *from_device, size_t bytes, struct fault *fault);

/* Waits until all that was queued on the stream is done. */
bool device_wait(struct device *d, struct fault *fault);

#endif
