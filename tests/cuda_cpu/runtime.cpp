#include <fenv.h>
#include <stdlib.h>

#include <map>
#include <mutex>

#include "tests/cuda_cpu/cuda_runtime.h"

struct cuda_cpu_graph {
	std::vector<std::function<void()>> launches;
};

struct CUstream_st {
	cuda_cpu_graph *capturing;
};

namespace
{

constexpr unsigned THREADS_MAX = 1024;
constexpr size_t SHARED_PLAIN = 48 * 1024; /* what a kernel has without asking */

thread_local cudaError_t last;
std::mutex one_launch; /* blocks have static memory */
std::map<const void *, size_t> allowed;

cudaError_t remember(cudaError_t e)
{
	if (e != cudaSuccess)
		last = e;
	return e;
}

unsigned number(const char *name, unsigned usual)
{
	const char *n = getenv(name);

	return n ? (unsigned)atoi(n) : usual;
}

/* What a block has at most. */
size_t shared_max()
{
	return (size_t)number("CUDA_CPU_SHARED_KIB", __CUDA_ARCH__ >= 900 ? 227 : 99) * 1024;
}

unsigned capability()
{
	return number("CUDA_CPU_CAPABILITY", __CUDA_ARCH__ / 10);
}

} // namespace

cudaError_t cudaGetLastError()
{
	const cudaError_t e = last;

	last = cudaSuccess;
	return e;
}

cudaError_t cudaPeekAtLastError()
{
	return last;
}

const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "no error";
	case cudaErrorInvalidValue:
		return "invalid argument";
	case cudaErrorMemoryAllocation:
		return "out of memory";
	case cudaErrorInvalidDeviceFunction:
		return "invalid device function";
	case cudaErrorNoKernelImageForDevice:
		return "no kernel image is available for execution on the device";
	}
	return "unrecognized error code";
}

cudaError_t cudaGetDevice(int *device)
{
	*device = (int)number("CUDA_CPU_DEVICE", 0);
	return cudaSuccess;
}

int cuda_cpu_arch()
{
	return getenv("CUDA_CPU_NO_CODE") ? 9990 : 800;
}

int cuda_cpu_ptx()
{
	return (int)number("CUDA_CPU_PTX", __CUDA_ARCH__ / 10);
}

cudaError_t cuda_cpu_find_code()
{
	return remember(getenv("CUDA_CPU_NO_CODE")    ? cudaErrorNoKernelImageForDevice
			: getenv("CUDA_CPU_FULL") ? cudaErrorMemoryAllocation
						  : cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
	switch (attribute) {
	case cudaDevAttrMultiProcessorCount:
		*value = (int)number("CUDA_CPU_MULTIPROCESSORS", 5);
		break;
	case cudaDevAttrComputeCapabilityMajor:
		*value = (int)capability() / 10;
		break;
	case cudaDevAttrComputeCapabilityMinor:
		*value = (int)capability() % 10;
		break;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin:
		*value = (int)shared_max();
		break;
	}
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
	return cudaSuccess;
}

cudaError_t cuda_cpu_malloc(void **p, size_t bytes)
{
	return remember(posix_memalign(p, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *p)
{
	free(p);
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
	return cuda_cpu_malloc(p, bytes);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
	*device = host;
	return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
	return cudaFree(p);
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
	memset(p, value, bytes);
	return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
	if (bytes)
		memcpy(to, from, bytes);
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
	*stream = new CUstream_st{nullptr};
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
	return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
	stream->capturing = new cuda_cpu_graph;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	*graph = stream->capturing;
	stream->capturing = nullptr;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
	*exec = new cuda_cpu_graph(*graph);
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
	for (const std::function<void()> &launch : exec->launches)
		launch();
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	delete exec;
	return cudaSuccess;
}

cudaError_t cuda_cpu_allow_shared(const void *kernel, int bytes)
{
	std::lock_guard<std::mutex> lock(one_launch);

	if (bytes < 0 || (size_t)bytes > shared_max())
		return remember(cudaErrorInvalidValue);
	allowed[kernel] = (size_t)bytes;
	return cudaSuccess;
}

void cuda_cpu_launch(const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> body)
{
	const auto run = [=] {
		std::lock_guard<std::mutex> lock(one_launch);

		cuda_cpu::run_grid(grid, block.x, shared, body);
	};
	size_t most = SHARED_PLAIN;

	if (cuda_cpu_find_code() != cudaSuccess)
		return;
	{
		std::lock_guard<std::mutex> lock(one_launch);
		const auto asked = allowed.find(kernel);

		if (asked != allowed.end() && asked->second > most)
			most = asked->second;
	}
	if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.x > THREADS_MAX || block.y != 1 || block.z != 1 ||
	    shared > most || getenv("CUDA_CPU_REFUSE")) {
		remember(cudaErrorInvalidValue);
		return;
	}
	if (stream && stream->capturing)
		stream->capturing->launches.push_back(run);
	else
		run();
}

/* Volatile, for the rounding is a thing that the compiler does not see. Products of floats are exact in a double, and rounding down
 * twice is rounding down. */
float __fmaf_rd(float a, float b, float c)
{
	const volatile float x = a, y = b, z = c;

	fesetround(FE_DOWNWARD);
	const volatile double sum = (double)x * (double)y + (double)z;
	const volatile float result = (float)sum;

	fesetround(FE_TONEAREST);
	return result;
}

static float added(float a, float b, int rounding)
{
	const volatile float x = a, y = b;

	fesetround(rounding);
	const volatile double sum = (double)x + (double)y;
	const volatile float result = (float)sum;

	fesetround(FE_TONEAREST);
	return result;
}

float __fadd_rd(float a, float b)
{
	return added(a, b, FE_DOWNWARD);
}

float __fadd_rz(float a, float b)
{
	return added(a, b, FE_TOWARDZERO);
}

float __frcp_rd(float a)
{
	const volatile float x = a;

	fesetround(FE_DOWNWARD);
	const volatile double quotient = 1.0 / (double)x;
	const volatile float result = (float)quotient;

	fesetround(FE_TONEAREST);
	return result;
}
