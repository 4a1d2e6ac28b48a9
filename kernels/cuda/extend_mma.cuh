/* What the extend kernel adds to device.cuh: warpgroup matrix products (sm_90a), their operands'
 * descriptors, and barriers between roles.
 *
 * Operands in shared memory are rows of 64 halves, 128 bytes, whose 16-byte chunks are permuted: chunk c
 * of row r stands at place c ^ (r % 8). A matrix of more columns is a sequence of such panels. Both B
 * operands here are stored with the contracted index along the row.
 */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_MMA_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_MMA_CUH

#include "kernels/cuda/device.cuh"

/* Low half of the descriptor of a panel whose rows begin at a multiple of 1024 bytes; `at` / 16 more is
 * the same further on. The high half is DESCRIPTOR_HIGH: 128-byte swizzle, 8 rows every 1024 bytes. Not
 * to be kept: it is one addition, and registers are short. */
DEVICE uint32_t panel_descriptor(uint32_t at)
{
	uint32_t low = (at >> 4 & 0x3fff) | 1 << 16;

	asm volatile("" : "+r"(low));
	return low;
}
#define DESCRIPTOR_HIGH "0x40000040"

DEVICE void products_begin()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void products_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

DEVICE void products_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* Keeps the compiler from moving what reads or writes these registers over a wait. */
template <int N> DEVICE void registers_pinned(float (&x)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(x[i])::"memory");
}

/* Computes these here, not where they are used. */
template <int N> DEVICE void registers_settled(uint32_t (&x)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(x[i])::"memory");
}

/* Registers of each thread of this warpgroup from here on, less or more than the launch's. */
template <int N> DEVICE void registers_less()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> DEVICE void registers_more()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#define C4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define C16(x, i) C4(x, i), C4(x, i + 4), C4(x, i + 8), C4(x, i + 12)
#define R32                                                                                             \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "    \
	"%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R48 R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define R64 R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* c[64 x n] = (add ? c : 0) + a[64 x 16] b[n x 16]^T; a in shared memory, or the lane's fragment of it.
 */
template <int N> struct product;

#define PRODUCT(n, registers, outputs, p, a, b, q0, q1, q2, q3, q4)                                     \
	template <> struct product<n> {                                                                 \
		static DEVICE void shared(float (&c)[n / 2], uint32_t a_at, uint32_t b_at, int add)     \
		{                                                                                       \
			asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %" p ", 0;\n"       \
				     "mov.b64 a, {%" a ", " DESCRIPTOR_HIGH "};\n"                      \
				     "mov.b64 b, {%" b ", " DESCRIPTOR_HIGH "};\n"                      \
				     "wgmma.mma_async.sync.aligned.m64n" #n                             \
				     "k16.f32.f16.f16 {" registers "}, a, b, p, 1, 1, 0, 0;}"           \
				     : outputs                                                          \
				     : "r"(a_at), "r"(b_at), "r"(add));                                 \
		}                                                                                       \
		static DEVICE void fragment(float (&c)[n / 2], uint32_t a0, uint32_t a1, uint32_t a2,   \
					    uint32_t a3, uint32_t b_at)                                 \
		{                                                                                       \
			asm volatile("{.reg .b64 b; mov.b64 b, {%" q4 ", " DESCRIPTOR_HIGH "};\n"       \
				     "wgmma.mma_async.sync.aligned.m64n" #n                             \
				     "k16.f32.f16.f16 {" registers "}, {%" q0 ", %" q1 ", %" q2         \
				     ", %" q3 "}, b, 1, 1, 1, 0;}"                                      \
				     : outputs                                                          \
				     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b_at));                  \
		}                                                                                       \
	};
#define C32(x, i) C16(x, i), C16(x, i + 16)
#define C48(x) C32(x, 0), C16(x, 32)
#define C64(x) C32(x, 0), C32(x, 32)
PRODUCT(64, R32, C32(c, 0), "34", "32", "33", "32", "33", "34", "35", "36")
PRODUCT(96, R48, C48(c), "50", "48", "49", "48", "49", "50", "51", "52")
PRODUCT(128, R64, C64(c), "66", "64", "65", "64", "65", "66", "67", "68")
#undef PRODUCT
#undef C4
#undef C16
#undef C32
#undef C48
#undef C64
#undef R32
#undef R48
#undef R64
#undef DESCRIPTOR_HIGH

DEVICE void barrier_init_count(uint32_t barrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE void barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* What this thread has stored to shared memory will be seen by products and bulk copies that a barrier
 * orders after it. */
DEVICE void stores_to_async()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Barrier `id` between `threads` threads; `arrive` does not wait. */
DEVICE void role_barrier(uint32_t id, uint32_t threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void role_barrier_arrive(uint32_t id, uint32_t threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif
