/* See driver.h. */
#include "kernels/cuda/driver.h"

#include <cuda_runtime.h>
#include <pthread.h>

static struct cuda_driver functions;
static bool complete;

static bool find(const char *name, unsigned int version, void **out)
{
	cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
	void *at = nullptr;

	if (cudaGetDriverEntryPointByVersion(name, &at, version, cudaEnableLegacyStream, &result) != cudaSuccess) {
		cudaGetLastError(); /* clears the error, so that no later call reports it */
		return false;
	}
	*out = result == cudaDriverEntryPointSuccess ? at : nullptr;
	return *out != nullptr;
}

static void load(void)
{
	bool all = true;

#define DRIVER_FIND(name, version) all = find(#name, version, (void **)&functions.name) && all;
	DRIVER_FUNCTIONS(DRIVER_FIND)
#undef DRIVER_FIND
	find("cuMemcpyBatchAsync", 13000, (void **)&functions.cuMemcpyBatchAsync);
	complete = all && functions.cuInit(0) == CUDA_SUCCESS;
}

const struct cuda_driver *cuda_driver(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	return complete ? &functions : nullptr;
}

bool cuda_error_sticks(CUresult r)
{
	switch (r) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_DEVICE_UNAVAILABLE:
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_TENSOR_MEMORY_LEAK:
	case CUDA_ERROR_SYSTEM_NOT_READY:
	case CUDA_ERROR_MPS_RPC_FAILURE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

enum status cuda_error_status(CUresult r)
{
	if (cuda_error_sticks(r))
		return STATUS_UNAVAILABLE;
	switch (r) {
	case CUDA_SUCCESS:
		return STATUS_OK;
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_OPERATING_SYSTEM: /* pages or descriptors that the kernel does not give */
	case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
	case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
		return STATUS_EXHAUSTED;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_DEVICE:
	case CUDA_ERROR_INVALID_HANDLE:
	case CUDA_ERROR_INVALID_CONTEXT: /* the caller's, of a stream */
	case CUDA_ERROR_ALREADY_MAPPED:
	case CUDA_ERROR_MAP_FAILED:
	case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
		return STATUS_INVALID;
	case CUDA_ERROR_NOT_SUPPORTED:
	case CUDA_ERROR_NOT_PERMITTED:
	case CUDA_ERROR_NO_BINARY_FOR_GPU:
		return STATUS_UNSUPPORTED;
	default:
		return STATUS_INTERNAL;
	}
}
