/* As much of CUDA's runtime as programs under test call, over the simulated device: see sim/device.h. */
#include "tests/sim/device.h"
#include "tests/sim/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RUNTIME __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, INVALID_DEVICE = 101, LAUNCH_FAILURE = 719, HOST_TO_DEVICE = 1, DEVICE_TO_DEVICE = 3, STREAMS_MAX = 64 };

int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaDeviceCanAccessPeer(int *can, int device, int peer);
int cudaDeviceEnablePeerAccess(int peer, unsigned int flags);
int cudaStreamCreate(void **stream);
int cudaStreamSynchronize(void *stream);
int cudaStreamDestroy(void *stream);
int cudaMalloc(void **memory, size_t bytes);
int cudaFree(void *memory);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream);
int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream);
const char *cudaGetErrorString(int error);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sim_stream *streams[STREAMS_MAX];

RUNTIME int cudaGetDeviceCount(int *count)
{
	const char *devices = getenv("SIM_GPU_DEVICES");

	*count = devices && *devices ? atoi(devices) : 1;
	return 0;
}

static bool is_device(int device)
{
	int count;

	cudaGetDeviceCount(&count);
	return device >= 0 && device < count;
}

/* Streams and memory are of no device here: that the number is one is all there is to it. */
RUNTIME int cudaSetDevice(int device)
{
	return is_device(device) ? 0 : INVALID_DEVICE;
}

RUNTIME int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	*can = device != peer && !getenv("SIM_GPU_NO_PEERS");
	return is_device(device) && is_device(peer) ? 0 : INVALID_DEVICE;
}

RUNTIME int cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
	return is_device(peer) && !flags ? 0 : INVALID_DEVICE;
}

RUNTIME int cudaStreamCreate(void **stream)
{
	struct sim_stream *s = sim_stream_create();
	uint32_t i = 0;

	pthread_mutex_lock(&mutex);
	while (i < STREAMS_MAX && streams[i])
		i++;
	if (s && i < STREAMS_MAX)
		*stream = streams[i] = s;
	pthread_mutex_unlock(&mutex);
	if (s && i < STREAMS_MAX)
		return 0;
	sim_stream_destroy(s);
	return INVALID_VALUE;
}

RUNTIME int cudaStreamSynchronize(void *stream)
{
	if (!stream)
		return INVALID_VALUE;
	return sim_stream_synchronize(stream) == STATUS_OK ? 0 : LAUNCH_FAILURE;
}

RUNTIME int cudaStreamDestroy(void *stream)
{
	pthread_mutex_lock(&mutex);
	for (uint32_t i = 0; i < STREAMS_MAX; i++)
		if (streams[i] == stream)
			streams[i] = NULL;
	pthread_mutex_unlock(&mutex);
	sim_stream_destroy(stream);
	return 0;
}

RUNTIME int cudaMalloc(void **memory, size_t bytes)
{
	*memory = sim_mark(aligned_alloc(256, (bytes + 255) / 256 * 256));
	return 0;
}

/* Waits for all streams, as CUDA does. */
RUNTIME int cudaFree(void *memory)
{
	pthread_mutex_lock(&mutex);
	for (uint32_t i = 0; i < STREAMS_MAX; i++)
		if (streams[i])
			sim_stream_synchronize(streams[i]);
	pthread_mutex_unlock(&mutex);
	free(sim_memory(memory));
	return 0;
}

struct transfer {
	void *to;
	const void *from;
	size_t bytes;
	int value;
	char staged[];
};

static enum status transfer_run(void *arg, bool failed)
{
	struct transfer *t = arg;

	if (!failed)
		memcpy(t->to, t->from, t->bytes);
	free(t);
	return STATUS_OK;
}

static enum status fill_run(void *arg, bool failed)
{
	struct transfer *t = arg;

	if (!failed)
		memset(t->to, t->value, t->bytes);
	free(t);
	return STATUS_OK;
}

static int put(void *stream, enum status (*run)(void *arg, bool failed), struct transfer *t)
{
	if (sim_stream_put(stream, run, t))
		return 0;
	free(t);
	return INVALID_VALUE;
}

/* Host memory as pageable memory is treated: what goes to the device may change after this, what comes from it is there. */
RUNTIME int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
	struct transfer *t;
	int error;

	if (!stream || !sim_marked(kind == HOST_TO_DEVICE ? to : from) ||
	    (kind != DEVICE_TO_DEVICE && sim_marked(kind == HOST_TO_DEVICE ? from : to)))
		return INVALID_VALUE;
	t = malloc(sizeof(*t) + (kind == HOST_TO_DEVICE ? bytes : 0));
	if (!t)
		return INVALID_VALUE;
	*t = (struct transfer){ .to = to, .from = sim_memory(from), .bytes = bytes };
	if (kind == HOST_TO_DEVICE) {
		memcpy(t->staged, from, bytes);
		t->from = t->staged;
	}
	if (kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE)
		t->to = sim_memory(to);
	error = put(stream, transfer_run, t);
	return error || kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE ? error : cudaStreamSynchronize(stream);
}

RUNTIME int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream)
{
	if (!is_device(to_device) || !is_device(from_device))
		return INVALID_DEVICE;
	return cudaMemcpyAsync(to, from, bytes, DEVICE_TO_DEVICE, stream);
}

RUNTIME int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream)
{
	struct transfer *t = malloc(sizeof(*t));

	if (!t)
		return INVALID_VALUE;
	*t = (struct transfer){ .to = sim_memory(memory), .value = value, .bytes = bytes };
	return put(stream, fill_run, t);
}

RUNTIME const char *cudaGetErrorString(int error)
{
	switch (error) {
	case 0:
		return "no error";
	case INVALID_VALUE:
		return "invalid value";
	case INVALID_DEVICE:
		return "invalid device ordinal";
	default:
		return "work in the stream failed";
	}
}
