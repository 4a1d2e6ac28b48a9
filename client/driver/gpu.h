/* The GPUs that this process has opened to use the daemon's memory on them. */
#ifndef TERRACE_CLIENT_DRIVER_GPU_H
#define TERRACE_CLIENT_DRIVER_GPU_H

#include "client/include/terrace.h"
#include "store/device.h"

#include <stdatomic.h>

/* An open GPU. It is opened once in a process and kept until the process ends, because many users share its mappings
 * and work. */
struct client_gpu {
	const struct device_ops *ops;
	struct device *device;
	uint64_t granularity;
	atomic_bool lost; /* it was seen to be lost */
	atomic_uint lasting; /* slow calls under way in the driver: while it maps, unmaps or pins memory, it may hold up
			      * other calls */
};

/* Opens the GPU with that uuid, if it is not open. TERRACE_UNSUPPORTED: there is no plugin, or this process does not
 * see that GPU. Takes as long as the driver needs to open one. */
enum terrace_status client_gpu_open(const uint8_t uuid[DEVICE_UUID_BYTES], struct client_gpu **out);

/* The uuid of the GPU that this process counts as `ordinal`, without opening it. TERRACE_UNSUPPORTED (no plugin),
 * TERRACE_INVALID (no such GPU), or the driver's status. */
enum terrace_status client_gpu_uuid(uint32_t ordinal, uint8_t uuid[DEVICE_UUID_BYTES]);

/* Reports a failure of the device table: `what` could not be done, because of `why`. */
enum terrace_status client_gpu_fail(enum status s, const char *what, const char *why);

/* True once the GPU is lost. Asks the driver, which may take long while another thread is in a slow call. */
bool client_gpu_lost(struct client_gpu *gpu);

/* As client_gpu_lost, but while the driver is in a slow call it is not asked: the answer is then what was seen
 * before. */
bool client_gpu_lost_at_once(struct client_gpu *gpu);

/* True once any thread has seen that the GPU is lost. Does not ask the driver. */
bool client_gpu_was_lost(const struct client_gpu *gpu);

/* Asks the driver about each of the process's GPUs. */
void client_gpus_ask(void);

#endif
