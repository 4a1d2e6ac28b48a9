/* Tells which code of this build the current device runs: that of its compute capability, or of an older one of the
 * same generation, or what the driver makes of the PTX. All files but extend_FORMATS.cu are compiled for the same
 * devices, so one kernel answers for all.
 *
 * kv_cuda_problem asks about the device without a context, since asking with one would make it: a process may load the
 * plugin before it has chosen its device.
 */
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

/* Whether the build has code that is not too new for it. Code without PTX, of an older generation, is found out by the
 * first call. */
bool may_have_code(int capability)
{
	const int built[] = {__CUDA_ARCH_LIST__};

	for (int arch : built)
		if (arch / 10 <= capability)
			return true;
	return false;
}

const char *device_problem(int device)
{
	int major = 0, minor = 0;
	cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);

	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
	if (e != cudaSuccess)
		return cuda_refuses(e);
	if (major < 8)
		snprintf(why, sizeof why, "compute capability %d.%d: 8.0 is the least", major, minor);
	else if (!may_have_code(10 * major + minor))
		snprintf(why, sizeof why, "compute capability %d.%d: this build has no code for it (CMAKE_CUDA_ARCHITECTURES)", major, minor);
	else
		return nullptr;
	return why;
}

} // namespace

/* By the architecture that the code was compiled for (machine.cuh), which is not the device's where the driver has made
 * it from PTX: such code for 9.0 stays what it is on a device of 12.0. A device's answer never changes, and is
 * remembered. */
enum status code_is_portable(bool *portable)
{
	static std::atomic<uint64_t> known, plain;
	cudaFuncAttributes attributes;
	int device;

	if (cudaGetDevice(&device) != cudaSuccess)
		return STATUS_INTERNAL;
	const uint64_t bit = device < 64 ? UINT64_C(1) << device : 0;

	if (known & bit) {
		*portable = (plain & bit) != 0;
		return STATUS_OK;
	}
	if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess)
		return launched();
#ifdef TERRACE_CUDA_PORTABLE
	*portable = true;
#else
	*portable = attributes.ptxVersion < 90 || attributes.ptxVersion >= 120;
#endif
	if (*portable)
		plain |= bit;
	known |= bit; /* after it */
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
