/* Thin names for the machine instructions that the kernels use. */
#ifndef TERRACE_KERNELS_CUDA_DEVICE_CUH
#define TERRACE_KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "kernels/cuda/cuda_kernels.h"

#define DEVICE __device__ __forceinline__

constexpr uint32_t ALL_LANES = 0xffffffffu;

/* Without bulk copies, transaction barriers and dependent launch, as before compute capability 9.0.
 * TERRACE_CUDA_PORTABLE asks for that on any device, for tests. */
#if defined(TERRACE_CUDA_PORTABLE) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
#define TERRACE_CUDA_BULK 0
#else
#define TERRACE_CUDA_BULK 1
#endif

DEVICE uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

DEVICE uint4 load_shared_16(uint32_t at)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(at));
	return v;
}

DEVICE uint2 load_shared_8(uint32_t at)
{
	uint2 v;

	asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
	return v;
}

DEVICE uint32_t load_shared_4(uint32_t at)
{
	uint32_t v;

	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
	return v;
}

/* Each nibble of the low half of `selector` picks a byte of {low, high}; its top bit replicates that
 * byte's sign. */
DEVICE uint32_t permute(uint32_t low, uint32_t high, uint32_t selector)
{
	uint32_t r;

	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
	return r;
}

DEVICE uint32_t load_shared_2(uint32_t at)
{
	uint16_t v;

	asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
	return v;
}

DEVICE float reciprocal_fast(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

DEVICE float exp2_fast(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* The transpose of an 8 x 8 matrix of 16-bit elements spread over the warp. */
DEVICE uint32_t transpose_8x8(uint32_t x)
{
	uint32_t y;

	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
	return y;
}

/* c[16 x 8] += a[16 x 32] b[32 x 8] in integers; the letters are the signs of a and b. */
#define MMA(name, types)                                                                                 \
	DEVICE void name(int32_t(&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,             \
			 uint32_t b0, uint32_t b1)                                                       \
	{                                                                                                \
		asm("mma.sync.aligned.m16n8k32.row.col.s32." types                                       \
		    ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "                                \
		    "{%0, %1, %2, %3};"                                                                  \
		    : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                     \
		    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                             \
	}
MMA(mma_us, "u8.s8")
MMA(mma_ss, "s8.s8")
MMA(mma_uu, "u8.u8")
MMA(mma_su, "s8.u8")
#undef MMA

/* c[16 x 8] += a[16 x 16] b[16 x 8] in 16-bit floats, summed in float32. */
#define MMA(name, type)                                                                                  \
	DEVICE void name(float(&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,  \
			 uint32_t b1)                                                                    \
	{                                                                                                \
		asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                               \
		    ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"               \
		    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                     \
		    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                             \
	}
MMA(mma_f16, "f16")
MMA(mma_bf16, "bf16")
#undef MMA

#if TERRACE_CUDA_BULK
/* Transaction barriers in shared memory, and bulk copies that complete on them. */
DEVICE void barrier_init(uint32_t barrier)
{
	asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

DEVICE void barrier_init_fence()
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
		     : "memory");
}

DEVICE void barrier_wait(uint32_t barrier, uint32_t parity)
{
	asm volatile("{\n"
		     ".reg .pred done;\n"
		     "again:\n"
		     "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
		     "@!done bra again;\n"
		     "}" ::"r"(barrier),
		     "r"(parity)
		     : "memory");
}

DEVICE void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
		     "[%3];" ::"r"(to),
		     "l"(from), "r"(bytes), "r"(barrier)
		     : "memory");
}

/* Programmatic dependent launch: waits until the kernel before this one has finished and its writes are
 * visible; lets the one after this start. Neither does anything in an ordinary launch. */
DEVICE void wait_for_previous_kernel()
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}

DEVICE void let_next_kernel_start()
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
DEVICE void wait_for_previous_kernel()
{
}

DEVICE void let_next_kernel_start()
{
}
#endif

/* Copies of 16 bytes that complete in groups, in the order in which the groups were closed. */
DEVICE void async_load_16(uint32_t to, uint64_t from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

DEVICE void async_close_group()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most OPEN of this thread's groups are under way. */
template <int OPEN> DEVICE void async_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}

/* Element i of unpacked vectors. */
DEVICE float load_element(enum kv_dtype dtype, const void *p, size_t i)
{
	if (dtype == KV_DTYPE_F16)
		return __half2float(((const __half *)p)[i]);
	if (dtype == KV_DTYPE_BF16)
		return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
	return ((const float *)p)[i];
}

DEVICE void store_element(enum kv_dtype dtype, void *p, size_t i, float x)
{
	if (dtype == KV_DTYPE_F16)
		((__half *)p)[i] = __float2half_rn(x);
	else if (dtype == KV_DTYPE_BF16)
		((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
	else if (dtype == KV_DTYPE_E4M3)
		((uint8_t *)p)[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
	else
		((float *)p)[i] = x;
}

#endif
