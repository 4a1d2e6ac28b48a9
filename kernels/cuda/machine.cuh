/* Machine instructions by name, and how a kernel is launched: with extend_mma.cuh all that only a GPU's compiler takes.
 * tests/cuda_cpu has these two files again for machines without a GPU; so nothing here but what stands for one
 * instruction, or a few.
 */
#ifndef TERRACE_KERNELS_CUDA_MACHINE_CUH
#define TERRACE_KERNELS_CUDA_MACHINE_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__

/* Without bulk copies, transaction barriers and dependent launch, and within 99 KiB of shared memory: before compute
 * capability 9.0, where there are no such instructions, and from 12.0 on, where there is no more memory.
 * code_is_portable says the same on the host. TERRACE_CUDA_PORTABLE asks for that on any device, for tests. */
#if defined(TERRACE_CUDA_PORTABLE) || (defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200))
#define TERRACE_CUDA_BULK 0
#else
#define TERRACE_CUDA_BULK 1
#endif

/* The launch's shared memory, as `type name[]`. */
#define DYNAMIC_SHARED(type, name, alignment) extern __shared__ __align__(alignment) type name[]

/* What went wrong is cudaGetLastError's to say. */
template <class... P, class... A>
static void launch_kernel(void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, cudaStream_t stream, const A &...args)
{
	kernel<<<grid, threads, shared, stream>>>(args...);
}

DEVICE uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* What stands there in shared memory has been read for the last time: nothing on a device; where the CPU runs the
 * kernels it is poisoned. */
DEVICE void forget_shared(uint32_t at, uint32_t bytes)
{
	(void)at;
	(void)bytes;
}

/* Bits of `ones` where the mask has one, else of `zeros`: one operation, of which the compiler makes two. */
DEVICE uint32_t choose_bits(uint32_t mask, uint32_t ones, uint32_t zeros)
{
	uint32_t r;

	asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(mask), "r"(ones), "r"(zeros));
	return r;
}

/* -1 as the assembler does not know it, and ~x by it: a product, where x ^ ~0 would be the work of the pipe that
 * everything else here wants. */
DEVICE uint32_t minus_one()
{
	uint32_t x;

	asm("{.reg .u32 lane; mov.u32 lane, %%laneid; shr.u32 lane, lane, 5; sub.u32 %0, lane, 1;}" : "=r"(x));
	return x;
}

DEVICE uint32_t complement(uint32_t x, uint32_t minus_one)
{
	uint32_t y;

	asm("mad.lo.u32 %0, %1, %2, %2;" : "=r"(y) : "r"(x), "r"(minus_one));
	return y;
}

/* The upper half of a word, or its complement, with anything above: dot products with one byte, which leave the pipe
 * of shifts alone as well. */
DEVICE uint32_t upper_half(uint32_t x)
{
	uint32_t y;

	asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0x0100), "r"(0));
	return y;
}

DEVICE uint32_t upper_half_complement(uint32_t x)
{
	uint32_t y;

	asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0xff00), "r"(-1));
	return y;
}

/* Loads that are not waited for before their value is used: of a 16-bit load the compiler makes a move too,
 * right behind it. */
DEVICE uint32_t load_global_2(const uint16_t *p)
{
	uint32_t v;

	asm volatile("ld.global.u16 %0, [%1];" : "=r"(v) : "l"(p));
	return v;
}

/* x, of which the compiler knows nothing: what is added to it is not sorted into the sum it came from. */
DEVICE uint32_t opaque(uint32_t x)
{
	asm("" : "+r"(x));
	return x;
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

DEVICE uint32_t load_shared_1(uint32_t at)
{
	uint32_t v;

	asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
	return v;
}

DEVICE void store_shared_16(uint32_t at, uint4 v)
{
	asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
		     "r"(v.w)
		     : "memory");
}

DEVICE void store_shared_8(uint32_t at, uint2 v)
{
	asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(v.x), "r"(v.y) : "memory");
}

DEVICE void store_shared_4(uint32_t at, uint32_t v)
{
	asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

/* Adds one to a word of shared memory, up to 2^31 - 1; returns what it was. An addition the assembler would prepare for
 * many lanes. */
DEVICE uint32_t count_shared(uint32_t at)
{
	uint32_t was;

	asm volatile("atom.shared.inc.u32 %0, [%1], %2;" : "=r"(was) : "r"(at), "r"(0x7fffffff) : "memory");
	return was;
}

/* a + b * TIMES in one instruction. */
template <uint32_t TIMES> DEVICE uint64_t add_times(uint64_t a, uint32_t b)
{
	uint64_t sum;

	asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(sum) : "r"(b), "n"(TIMES), "l"(a));
	return sum;
}

/* A value that is the same in all lanes, so that the compiler knows it, too. */
DEVICE uint32_t same_in_all(uint32_t x)
{
	return __shfl_sync(0xffffffff, x, 0);
}

/* 8 x 8 matrices of 16-bit elements from and to shared memory, four at a time; lane 8i + j names row j of matrix i. A
 * lane has the elements 2t and 2t + 1 of row g, or of column g where TRANSPOSED. */
template <bool TRANSPOSED> DEVICE uint4 load_four_matrices(uint32_t row)
{
	uint4 v;

	if (!TRANSPOSED)
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
			     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
			     : "r"(row)
			     : "memory");
	else
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
			     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
			     : "r"(row)
			     : "memory");
	return v;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
/* By rows from other lanes: element by element. */
template <bool TRANSPOSED> DEVICE void store_four_matrices(uint32_t row, uint4 v)
{
	const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, words[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
	for (uint32_t i = 0; i < 4; i++)
#pragma unroll
		for (uint32_t e = 0; e < 2; e++) {
			const uint32_t to = __shfl_sync(0xffffffff, row, 8 * i + (TRANSPOSED ? 2 * t + e : g)) +
					    2 * (TRANSPOSED ? g : 2 * t + e);

			asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"((uint16_t)(words[i] >> (16 * e))) : "memory");
		}
}
#else
template <bool TRANSPOSED> DEVICE void store_four_matrices(uint32_t row, uint4 v)
{
	if (!TRANSPOSED)
		asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
			     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
			     : "memory");
	else
		asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
			     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
			     : "memory");
}
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
/* Two E4M3 codes in the lower (h = 0) or upper half of a word, as fp16. */
DEVICE uint32_t halves_of_e4m3(uint32_t w, int h)
{
	uint32_t r;

	if (h == 0)
		asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo;}"
		    : "=r"(r)
		    : "r"(w));
	else
		asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, hi;}"
		    : "=r"(r)
		    : "r"(w));
	return r;
}

DEVICE uint32_t halves_of_e4m3(uint16_t two)
{
	uint32_t r;

	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
	return r;
}
#else
/* Moved to where a half has its bits they are 2^-8 of what they stand for; NaN becomes 480. */
DEVICE uint32_t halves_of_e4m3(uint16_t two)
{
	const uint32_t x = permute(two, 0, 0x1404), small = (x & 0x80008000) | (x >> 1 & 0x3f803f80);
	const __half2 h = __hmul2(*(const __half2 *)&small, __float2half2_rn(256));

	return *(const uint32_t *)&h;
}
#endif

DEVICE float root_fast(float x)
{
	float y;

	asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

DEVICE float root_inverse_fast(float x)
{
	float y;

	asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
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

/* True for one lane of a warp that is here together. The compiler knows what it is: what only that lane does in bulk is
 * not made a loop over lanes. */
DEVICE bool elected()
{
	uint32_t is;

	asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(is));
	return is;
}

DEVICE void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
		     "[%3];" ::"r"(to),
		     "l"(from), "r"(bytes), "r"(barrier)
		     : "memory");
}

/* The way back: stores that read shared memory, in groups of this thread. */
DEVICE void bulk_store(uint64_t to, uint32_t from, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
		     "r"(bytes)
		     : "memory");
}

DEVICE void bulk_close_group()
{
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most OPEN groups may still read shared memory; until all but OPEN have been written; until all
 * have. */
template <int OPEN> DEVICE void bulk_wait_read()
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(OPEN) : "memory");
}

template <int OPEN> DEVICE void bulk_wait_written()
{
	asm volatile("cp.async.bulk.wait_group %0;" ::"n"(OPEN) : "memory");
}

DEVICE void bulk_wait_all()
{
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
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

#endif
