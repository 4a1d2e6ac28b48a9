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

/* Sixteen halves of row `row` of the matrix at a descriptor: rows of 128 bytes, whose 16-byte chunks are permuted by the row. */
CUDA_CPU_UNCHECKED DEVICE void cuda_cpu_panel_row(uint32_t descriptor, uint32_t row, float (&x)[16])
{
	for (uint32_t chunk = 0; chunk < 2; chunk++) {
		const uint32_t at = (descriptor << 4) + row / 8 * 1024 + row % 8 * 128 + chunk * 16;
		const uint16_t *from = (const uint16_t *)cuda_cpu::memory_at(at ^ (at >> 7 & 7) << 4, 16, 16);

		for (int i = 0; i < 8; i++)
			x[chunk * 8 + i] = float_from_half(from[i]);
	}
}

/* A warp has 16 of the 64 rows; of them the lane has two, and of b's rows two of every eight. */
template <int N> struct product {
	CUDA_CPU_UNCHECKED static DEVICE void multiply(float (&c)[N / 2], const float (&a)[2][16], uint32_t b_at, bool add)
	{
		const uint32_t t = cuda_cpu::lane() % 4;

		for (uint32_t n = 0; n < N / 8; n++)
			for (uint32_t j = 0; j < 2; j++) {
				float b[16];

				cuda_cpu_panel_row(b_at, 8 * n + 2 * t + j, b);
				for (uint32_t r = 0; r < 2; r++) {
					float &to = c[4 * n + 2 * r + j];
					double sum = add ? to : 0;

					for (int k = 0; k < 16; k++)
						sum += (double)a[r][k] * b[k];
					to = (float)sum;
				}
			}
	}

	static DEVICE void shared(float (&c)[N / 2], uint32_t a_at, uint32_t b_at, int add)
	{
		cuda_cpu::meet("wgmma", "", 0);
		cuda_cpu::now->products.push_back([&c, a_at, b_at, add] {
			const uint32_t first = threadIdx.x / 32 % 4 * 16 + cuda_cpu::lane() / 4;
			float a[2][16];

			cuda_cpu_panel_row(a_at, first, a[0]);
			cuda_cpu_panel_row(a_at, first + 8, a[1]);
			multiply(c, a, b_at, add);
		});
	}

	static DEVICE void fragment(float (&c)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b_at)
	{
		const cuda_cpu::exchange<cuda_cpu_operands> all("wgmma of registers", {{a0, a1, a2, a3}, {0, 0}});
		struct rows {
			float a[2][16];
		} rows;

		for (uint32_t k = 0; k < 8; k++) {
			const cuda_cpu_operands of = all[cuda_cpu::lane() / 4 * 4 + k % 4];

			for (uint32_t r = 0; r < 2; r++)
				for (int e = 0; e < 2; e++)
					rows.a[r][2 * k + (uint32_t)e] = cuda_cpu_f16()(of.a[k / 4 * 2 + r], e);
		}
		cuda_cpu::now->products.push_back([&c, rows, b_at] { multiply(c, rows.a, b_at, true); });
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
