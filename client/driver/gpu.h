/* The GPUs that this process has opened to use the daemon's memory on them. */
#ifndef TERRACE_CLIENT_DRIVER_GPU_H
#define TERRACE_CLIENT_DRIVER_GPU_H

#include "client/include/terrace.h"
#include "store/device.h"

#include <stdatomic.h>

/* Opened once a process and kept until it ends: what is mapped and under way on it belongs to many. */
struct client_gpu {
	const struct device_ops *ops;
	struct device *device;
	uint64_t granularity;
	atomic_bool lost; /* that it is has been seen */
	atomic_uint lasting; /* calls that last, under way in the driver: while it maps, unmaps or pins, it may keep others waiting */
};

/* The GPU with that uuid. TERRACE_UNSUPPORTED: there is no plugin, or this process does not see that GPU. Takes as long as the driver
 * needs to open one. */
enum terrace_status client_gpu_open(const uint8_t uuid[DEVICE_UUID_BYTES], struct client_gpu **out);

/* Which GPU this process counts as `ordinal`, without opening it. TERRACE_UNSUPPORTED (no plugin), TERRACE_INVALID (there is none), or
 * what the driver says. */
enum terrace_status client_gpu_uuid(uint32_t ordinal, uint8_t uuid[DEVICE_UUID_BYTES]);

/* A failure of the table's, in the library's words: `what` could not be done, because of `why`. */
enum terrace_status client_gpu_fail(enum status s, const char *what, const char *why);

/* True once the GPU is lost. Asks the driver, which may take its time while another thread is in a call that lasts. */
bool client_gpu_lost(struct client_gpu *gpu);

/* The same, but while the driver is in a call that lasts it is not asked: what has been seen. */
bool client_gpu_lost_at_once(struct client_gpu *gpu);

/* True once that has been seen, by whoever asked. Asks nobody. */
bool client_gpu_was_lost(const struct client_gpu *gpu);

/* Asks all of the process's. */
void client_gpus_ask(void);

#endif
