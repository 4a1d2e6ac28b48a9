/* The process's GPUs, found by uuid. An open GPU costs memory on it: so only GPUs that are used are opened. */
#include "client/driver/gpu.h"

#include "client/driver/plugin.h"
#include "client/value/status.h"

#include <pthread.h>
#include <string.h>

/* The process's GPUs, by the numbers that the process knows them by. */
static struct {
	pthread_mutex_t lock;
	struct {
		atomic_bool open; /* set once the rest is */
		struct client_gpu gpu;
	} seen[DEVICES_MAX];
} gpus = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum terrace_status client_gpu_fail(enum status s, const char *what, const char *why)
{
	switch (s) {
	case STATUS_INVALID:
	case STATUS_EXHAUSTED:
	case STATUS_UNAVAILABLE:
	case STATUS_UNSUPPORTED:
		return client_fail((enum terrace_status)s, "%s: %s", what, why);
	default:
		return client_fail(TERRACE_INTERNAL, "%s: %s", what, why);
	}
}

bool client_gpu_lost(struct client_gpu *gpu)
{
	if (!gpu->lost && gpu->ops->lost(gpu->device))
		gpu->lost = true;
	return gpu->lost;
}

bool client_gpu_lost_at_once(struct client_gpu *gpu)
{
	return gpu->lasting ? gpu->lost : client_gpu_lost(gpu);
}

bool client_gpu_was_lost(const struct client_gpu *gpu)
{
	return gpu->lost;
}

void client_gpus_ask(void)
{
	for (uint32_t i = 0; i < DEVICES_MAX; i++)
		if (gpus.seen[i].open)
			client_gpu_lost(&gpus.seen[i].gpu);
}

/* Opens a GPU, if it is not open. With the lock. */
static enum terrace_status open_at(const struct device_ops *ops, uint32_t ordinal)
{
	struct client_gpu *g = &gpus.seen[ordinal].gpu;
	struct device_info info;
	const char *why = "";
	enum status s;

	if (gpus.seen[ordinal].open)
		return TERRACE_OK;
	s = ops->open(ordinal, &g->device, &why);
	if (s != STATUS_OK)
		return client_gpu_fail(s, "cannot open a GPU", why);
	s = ops->info(g->device, &info, &why);
	if (s != STATUS_OK) {
		ops->close(g->device);
		return client_gpu_fail(s, "cannot open a GPU", why);
	}
	g->ops = ops;
	g->granularity = info.granularity;
	gpus.seen[ordinal].open = true;
	return TERRACE_OK;
}

static uint32_t count_of(const struct device_ops *ops)
{
	uint32_t count = ops->count();

	return count < DEVICES_MAX ? count : DEVICES_MAX;
}

enum terrace_status client_gpu_uuid(uint32_t ordinal, uint8_t uuid[DEVICE_UUID_BYTES])
{
	const struct device_ops *ops;
	enum terrace_status status = client_cuda_devices(&ops);
	const char *why = "";
	enum status s;

	if (status)
		return status;
	if (ordinal >= count_of(ops))
		return client_fail(TERRACE_INVALID, "this process has %u GPUs, and none of number %u: "
				   "CUDA_VISIBLE_DEVICES decides which", count_of(ops), ordinal);
	s = ops->uuid(ordinal, uuid, &why);
	return s == STATUS_OK ? TERRACE_OK : client_gpu_fail(s, "a GPU is not known", why);
}

/* Finds the GPU of that UUID, and opens it. With the lock. */
static enum terrace_status find(const struct device_ops *ops, const uint8_t uuid[DEVICE_UUID_BYTES], struct client_gpu **out)
{
	enum terrace_status status, failed = TERRACE_OK;
	uint8_t is[DEVICE_UUID_BYTES];

	for (uint32_t i = 0; i < count_of(ops); i++) {
		status = client_gpu_uuid(i, is);
		failed = status ? status : failed;
		if (status || memcmp(is, uuid, sizeof(is)) != 0)
			continue;
		status = open_at(ops, i);
		if (!status)
			*out = &gpus.seen[i].gpu;
		return status;
	}
	return failed ? failed : client_fail(TERRACE_UNSUPPORTED, "this process does not see the daemon's GPU: "
					     "see CUDA_VISIBLE_DEVICES, or lease in host memory");
}

enum terrace_status client_gpu_open(const uint8_t uuid[DEVICE_UUID_BYTES], struct client_gpu **out)
{
	const struct device_ops *ops;
	enum terrace_status status = client_cuda_devices(&ops);

	if (status)
		return status;
	pthread_mutex_lock(&gpus.lock);
	status = find(ops, uuid, out);
	pthread_mutex_unlock(&gpus.lock);
	return status;
}
