/* Which of this build's code the current device runs: that of its compute capability or of an older one of the same generation, or
 * what the driver makes of the PTX. All files but extend_FORMATS.cu are compiled for the same devices, so that one kernel tells of all. */
#include "kernels/cuda/arguments.cuh"

#include <atomic>
#include <cstdio>

namespace
{

__global__ void any_kernel()
{
}

thread_local char why[160];

const char *cuda_refuses(cudaError_t e)
{
	snprintf(why, sizeof why, "%s", cudaGetErrorString(e));
	cudaGetLastError();
	return why;
}

const char *device_problem(int device)
{
	int major = 0, minor = 0;
	bool portable;
	cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);

	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
	if (e != cudaSuccess)
		return cuda_refuses(e);
	if (major < 8)
		snprintf(why, sizeof why, "compute capability %d.%d: 8.0 is the least", major, minor);
	else if (code_is_portable(&portable) != STATUS_OK)
		snprintf(why, sizeof why, "compute capability %d.%d: this build has no code for it (CMAKE_CUDA_ARCHITECTURES)", major, minor);
	else
		return nullptr;
	return why;
}

} // namespace

enum status code_is_portable(bool *portable)
{
	cudaFuncAttributes attributes;

	if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess) {
		cudaGetLastError();
		return STATUS_UNSUPPORTED;
	}
#ifdef TERRACE_CUDA_PORTABLE
	*portable = true;
#else
	*portable = attributes.ptxVersion < 90;
#endif
	return STATUS_OK;
}

/* A device that will do is remembered, for every call through the plugin asks. */
extern "C" const char *kv_cuda_problem(void)
{
	static std::atomic<uint64_t> good;
	int device;
	const cudaError_t e = cudaGetDevice(&device);

	if (e != cudaSuccess)
		return cuda_refuses(e);
	const uint64_t bit = device < 64 ? UINT64_C(1) << device : 0;

	if (good & bit)
		return nullptr;
	const char *problem = device_problem(device);

	if (!problem)
		good |= bit;
	return problem;
}
