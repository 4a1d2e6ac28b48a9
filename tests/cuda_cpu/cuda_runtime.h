/* As much of CUDA's runtime and of its C++ as the kernels and their tests use, for a CPU. Launches are done at once, in the caller; a
 * stream that captures keeps them for its graph. */
#ifndef TERRACE_TESTS_CUDA_CPU_CUDA_RUNTIME_H
#define TERRACE_TESTS_CUDA_CPU_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#include "tests/cuda_cpu/block.h"

/* Which device this is: 900, or 800 for one without what came later. */
#ifdef TERRACE_CUDA_PORTABLE
#define __CUDA_ARCH__ 800
#else
#define __CUDA_ARCH__ 900
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) uint2 {
	uint32_t x, y;
};
struct alignas(16) uint4 {
	uint32_t x, y, z, w;
};
struct alignas(8) float2 {
	float x, y;
};
struct alignas(16) float4 {
	float x, y, z, w;
};

inline uint2 make_uint2(uint32_t x, uint32_t y)
{
	return {x, y};
}

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return {x, y, z, w};
}

inline float2 make_float2(float x, float y)
{
	return {x, y};
}

/* ---- the runtime ---- */

enum cudaError_t {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInvalidDeviceFunction = 98,
	cudaErrorNoKernelImageForDevice = 209
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaDeviceAttr {
	cudaDevAttrMultiProcessorCount = 16,
	cudaDevAttrComputeCapabilityMajor = 75,
	cudaDevAttrComputeCapabilityMinor = 76,
	cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
constexpr unsigned cudaStreamNonBlocking = 1, cudaHostAllocMapped = 2;

typedef struct CUstream_st *cudaStream_t;
typedef struct cuda_cpu_graph *cudaGraph_t, *cudaGraphExec_t;

struct cudaFuncAttributes {
	int ptxVersion;
};

struct cudaLaunchAttribute {
	cudaLaunchAttributeID id;
	struct {
		int programmaticStreamSerializationAllowed;
	} val;
};

struct cudaLaunchConfig_t {
	dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	cudaStream_t stream;
	cudaLaunchAttribute *attrs;
	unsigned numAttrs;
};

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();

cudaError_t cuda_cpu_malloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemset(void *p, int value, size_t bytes);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);

template <class T> cudaError_t cudaMalloc(T **p, size_t bytes)
{
	return cuda_cpu_malloc((void **)p, bytes);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* `kernel` names it; `body` calls it. */
void cuda_cpu_launch(const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream, std::function<void()> body);
cudaError_t cuda_cpu_allow_shared(const void *kernel, int bytes);

template <class Kernel> cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute, int bytes)
{
	return cuda_cpu_allow_shared((const void *)kernel, bytes);
}

/* An error if there is no code for the device, or no memory for it. */
cudaError_t cuda_cpu_find_code();
int cuda_cpu_arch();
int cuda_cpu_ptx();
#define __CUDA_ARCH_LIST__ cuda_cpu_arch()

template <class Kernel> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, Kernel *)
{
	a->ptxVersion = cuda_cpu_ptx();
	return cuda_cpu_find_code();
}

/* Arguments are the kernel's by then, as they are with a GPU. */
template <class... P, class... A>
void cuda_cpu_launch_with(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, const A &...args)
{
	std::tuple<std::remove_const_t<P>...> kept(args...);

	cuda_cpu_launch((const void *)kernel, grid, block, shared, stream, [kernel, kept] { std::apply(kernel, kept); });
}

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), const A &...args)
{
	cuda_cpu_launch_with(kernel, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream, args...);
	return cudaPeekAtLastError();
}

/* ---- what kernels call ---- */

constexpr unsigned CUDA_CPU_ALL = 0xffffffff;

inline void cuda_cpu_whole_warp(unsigned mask)
{
	if (mask != CUDA_CPU_ALL)
		cuda_cpu::fail("asks for lanes %x of its warp alone", mask);
}

inline void __syncthreads()
{
	cuda_cpu::block_barrier(0, 0, true);
}

inline void __syncwarp(unsigned mask = CUDA_CPU_ALL)
{
	cuda_cpu_whole_warp(mask);
	cuda_cpu::meet("__syncwarp", "", 0);
}

template <class T> T __shfl_sync(unsigned mask, T x, unsigned from)
{
	cuda_cpu_whole_warp(mask);
	return cuda_cpu::exchange<T>("__shfl", x)[from % 32];
}

template <class T> T __shfl_xor_sync(unsigned mask, T x, unsigned bits)
{
	cuda_cpu_whole_warp(mask);
	return cuda_cpu::exchange<T>("__shfl_xor", x)[(cuda_cpu::lane() ^ bits) % 32];
}

template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned by)
{
	const unsigned lane = cuda_cpu::lane();

	cuda_cpu_whole_warp(mask);
	return cuda_cpu::exchange<T>("__shfl_up", x)[lane < by ? lane : lane - by];
}

inline unsigned __ballot_sync(unsigned mask, int vote)
{
	cuda_cpu_whole_warp(mask);
	const cuda_cpu::exchange<bool> votes("__ballot", vote != 0);
	unsigned all = 0;

	for (unsigned i = 0; i < 32; i++)
		all |= (unsigned)votes[i] << i;
	return all;
}

inline int __any_sync(unsigned mask, int vote)
{
	return __ballot_sync(mask, vote) != 0;
}

inline int __all_sync(unsigned mask, int vote)
{
	return (__ballot_sync(mask, vote) & mask) == mask;
}

/* One thread runs at a time. */
template <class T, class U> T atomicAdd(T *p, U x)
{
	const T was = *p;

	*p = was + (T)x;
	return was;
}

template <class T, class U> T atomicXor(T *p, U x)
{
	const T was = *p;

	*p = was ^ (T)x;
	return was;
}

template <class T, class U> T atomicMin(T *p, U x)
{
	const T was = *p;

	*p = (T)x < was ? (T)x : was;
	return was;
}

template <class T, class U> T atomicMax(T *p, U x)
{
	const T was = *p;

	*p = (T)x > was ? (T)x : was;
	return was;
}

inline void __threadfence()
{
}

inline void __threadfence_system()
{
}

template <class T> T __ldg(const T *p)
{
	return *p;
}

template <class T> T __ldcg(const T *p)
{
	return *p;
}

template <class T> void __stcs(T *p, T x)
{
	*p = x;
}

template <class A, class B> std::common_type_t<A, B> min(A a, B b)
{
	const std::common_type_t<A, B> x = a, y = b;

	return y < x ? y : x;
}

template <class A, class B> std::common_type_t<A, B> max(A a, B b)
{
	const std::common_type_t<A, B> x = a, y = b;

	return x < y ? y : x;
}

template <class To, class From> To cuda_cpu_bits(From x)
{
	To y;

	static_assert(sizeof(To) == sizeof(From), "bits of one size");
	memcpy(&y, &x, sizeof(y));
	return y;
}

inline uint32_t __float_as_uint(float x)
{
	return cuda_cpu_bits<uint32_t>(x);
}

inline float __uint_as_float(uint32_t x)
{
	return cuda_cpu_bits<float>(x);
}

inline float __int_as_float(int32_t x)
{
	return cuda_cpu_bits<float>(x);
}

inline int __popc(uint32_t x)
{
	return __builtin_popcount(x);
}

inline int __ffs(int x)
{
	return __builtin_ffs(x);
}

inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
	return (uint32_t)((uint64_t)a * b >> 32);
}

inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by)
{
	return (uint32_t)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}

inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c)
{
	for (int i = 0; i < 32; i += 8)
		c += (a >> i & 255) * (b >> i & 255);
	return c;
}

inline uint32_t __vcmpeq2(uint32_t a, uint32_t b)
{
	const uint32_t x = a ^ b;

	return (x & 0xffff ? 0 : 0xffff) | (x >> 16 ? 0 : 0xffff0000);
}

inline int __float2int_rn(float x)
{
	return (int)nearbyintf(x);
}

/* Rounded to nearest, never fused. */
inline float __fadd_rn(float a, float b)
{
	const volatile float sum = a + b;

	return sum;
}

inline float __fmul_rn(float a, float b)
{
	const volatile float product = a * b;

	return product;
}

inline float __fdiv_rn(float a, float b)
{
	return a / b;
}

inline float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}

/* Rounded down, or towards zero. */
float __fmaf_rd(float a, float b, float c);
float __fadd_rd(float a, float b);
float __fadd_rz(float a, float b);
float __frcp_rd(float x);

inline float __log2f(float x)
{
	return log2f(x);
}

inline float __fdividef(float a, float b)
{
	return a / b;
}

#endif
