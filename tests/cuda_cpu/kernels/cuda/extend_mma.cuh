/* What kernels/cuda/extend_mma.cuh has, on a CPU. Products are done when they are waited for, with what shared memory holds then. */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_MMA_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_MMA_CUH

#include "kernels/cuda/device.cuh"

DEVICE uint32_t panel_descriptor(uint32_t at)
{
	if (at % 1024)
		cuda_cpu::fail("takes %u for the beginning of a panel", at);
	return at >> 4 & 0x3fff;
}

DEVICE void products_begin()
{
	cuda_cpu::meet("wgmma.fence", "", 0);
}

DEVICE void products_commit()
{
	cuda_cpu::meet("wgmma.commit_group", "", 0);
}

DEVICE void products_wait()
{
	cuda_cpu::meet("wgmma.wait_group", "", 0);
	for (const auto &product : cuda_cpu::now->products)
		product();
	cuda_cpu::now->products.clear();
	cuda_cpu::meet("wgmma.wait_group", "", 0);
}

template <int N> DEVICE void registers_pinned(float (&)[N])
{
}

template <int N> DEVICE void registers_settled(uint32_t (&)[N])
{
}

template <int N> DEVICE void registers_less()
{
}

template <int N> DEVICE void registers_more()
{
}

template <int N> struct product {
	static DEVICE void shared(float (&c)[N / 2], uint32_t a_at, uint32_t b_at, int add)
	{
		cuda_cpu::meet("wgmma", "", 0);
		cuda_cpu::now->products.push_back([&c, a_at, b_at, add] {
			const uint32_t first = threadIdx.x / 32 % 4 * 16 + cuda_cpu::lane() / 4;
			float a[2][16];

			cuda_cpu::panel_row(a_at, first, a[0]);
			cuda_cpu::panel_row(a_at, first + 8, a[1]);
			cuda_cpu::product_panel(c, N, a, b_at, add);
		});
	}

	static DEVICE void fragment(float (&c)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b_at)
	{
		const cuda_cpu::exchange<cuda_cpu::operands> all("wgmma of registers", {{a0, a1, a2, a3}, {0, 0}});
		struct rows {
			float a[2][16];
		} rows;

		for (uint32_t k = 0; k < 8; k++) {
			const cuda_cpu::operands of = all[cuda_cpu::lane() / 4 * 4 + k % 4];

			for (uint32_t r = 0; r < 2; r++)
				for (int e = 0; e < 2; e++)
					rows.a[r][2 * k + (uint32_t)e] = float_from_half((uint16_t)(of.a[k / 4 * 2 + r] >> (16 * e)));
		}
		cuda_cpu::now->products.push_back([&c, rows, b_at] { cuda_cpu::product_panel(c, N, rows.a, b_at, true); });
	}
};

DEVICE void barrier_init_count(uint32_t barrier, uint32_t count)
{
	cuda_cpu::barrier_begin(barrier, count);
}

DEVICE void barrier_arrive(uint32_t barrier)
{
	cuda_cpu::barrier_arrive(barrier, 0);
}

DEVICE void stores_to_async()
{
}

DEVICE void role_barrier(uint32_t id, uint32_t threads)
{
	cuda_cpu::block_barrier(id, threads, true);
}

DEVICE void role_barrier_arrive(uint32_t id, uint32_t threads)
{
	cuda_cpu::block_barrier(id, threads, false);
}

#endif
