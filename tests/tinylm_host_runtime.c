/* As much of CUDA's runtime as tinylm calls, over the host's memory; see tinylm_host_device.h. */
#include "tests/tinylm_host_device.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define RUNTIME __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };

int cudaStreamCreate(void **stream);
int cudaStreamSynchronize(void *stream);
int cudaStreamDestroy(void *stream);
int cudaMalloc(void **memory, size_t bytes);
int cudaFree(void *memory);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream);
const char *cudaGetErrorString(int error);

RUNTIME int cudaStreamCreate(void **stream)
{
	*stream = malloc(1);
	return 0;
}

RUNTIME int cudaStreamSynchronize(void *stream)
{
	return stream ? 0 : INVALID_VALUE;
}

RUNTIME int cudaStreamDestroy(void *stream)
{
	free(stream);
	return 0;
}

RUNTIME int cudaMalloc(void **memory, size_t bytes)
{
	*memory = host_device_mark(aligned_alloc(256, (bytes + 255) / 256 * 256));
	return 0;
}

RUNTIME int cudaFree(void *memory)
{
	free(host_device_memory(memory));
	return 0;
}

RUNTIME int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
	if (!stream || host_device_marked(kind == HOST_TO_DEVICE ? from : to))
		return INVALID_VALUE;
	if (kind == HOST_TO_DEVICE)
		memcpy(host_device_memory(to), from, bytes);
	else
		memcpy(to, host_device_memory(from), bytes);
	return 0;
}

RUNTIME int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream)
{
	memset(host_device_memory(memory), value, bytes);
	return stream ? 0 : INVALID_VALUE;
}

RUNTIME const char *cudaGetErrorString(int error)
{
	return error == INVALID_VALUE ? "invalid value" : "no error";
}
