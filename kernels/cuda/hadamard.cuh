/* The randomized Hadamard rotation of kernels/hadamard.c on a vector in shared memory, by one warp. The
 * order of the additions is the same, and so are the results, bit for bit. */
#ifndef TERRACE_KERNELS_CUDA_HADAMARD_CUH
#define TERRACE_KERNELS_CUDA_HADAMARD_CUH

#include "kernels/cuda/device.cuh"

/* True where the sign of dim i is -1: the sequence of kernels/hadamard.c. */
DEVICE bool rotation_negative(uint32_t i)
{
	constexpr uint64_t negative[8] = {0x7f7fca4e9a8ca6f2, 0x9480abc759bbc293, 0x54503bbeb55b747e,
		0x05dfbc5fcdf467b7,
					  0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f,
					  	0xf88bb8a8724c81ec};
	uint64_t word = i < 64    ? negative[0]
			: i < 128 ? negative[1]
			: i < 192 ? negative[2]
			: i < 256 ? negative[3]
			: i < 320 ? negative[4]
			: i < 384 ? negative[5]
			: i < 448 ? negative[6]
				  : negative[7];

	return word >> (i % 64) & 1;
}

/* Bit 12 i + j of H12's signs: 1 where H12[i][j] is -1. */
DEVICE bool h12_negative(uint32_t i, uint32_t j)
{
	constexpr uint16_t rows[12] = {0x000, 0x475, 0x8e9, 0x1d3, 0x3a5, 0x749,
				       0xe91, 0xd23, 0xa47, 0x48f, 0x91d, 0x23b};
	uint16_t row = rows[0];

#pragma unroll
	for (uint32_t r = 1; r < 12; r++)
		row = i == r ? rows[r] : row;
	return row >> j & 1;
}

/* The order of the factor of H that is not Sylvester's: 1 where there is none. */
template <int D> __host__ __device__ constexpr uint32_t paley_order()
{
	return D % 12 == 0 ? 12 : D == 80 ? 20 : D == 112 ? 28 : 1;
}

/* True where entry (i, j) of the Hadamard matrix of order 20 or 28 is -1 (kernels/hadamard.c). */
template <uint32_t N> DEVICE bool paley_negative(uint32_t i, uint32_t j)
{
	constexpr uint32_t rows[28] = {
		N == 20 ? 0x00000 : 0x0000002, N == 20 ? 0x9ea19 : 0xaaaaaab, N == 20 ? 0x3d433 : 0x30ff0c8,
		N == 20 ? 0x7a865 : 0x9a55a6e, N == 20 ? 0xf50c9 : 0xc3fc320, N == 20 ? 0xea193 : 0x69569ba,
		N == 20 ? 0xd4327 : 0x0ff0c8c, N == 20 ? 0xa864f : 0xa55a6e6, N == 20 ? 0x50c9f : 0x3fc3230,
		N == 20 ? 0xa193d : 0x9569b9a, N == 20 ? 0x4327b : 0xff0c8c0, N == 20 ? 0x864f5 : 0x55a6e6a,
		N == 20 ? 0x0c9eb : 0xfc3230c, N == 20 ? 0x193d5 : 0x569b9a6, N == 20 ? 0x327a9 : 0xf0c8c3c,
		N == 20 ? 0x64f51 : 0x5a6e696, N == 20 ? 0xc9ea1 : 0xc3230fc, N == 20 ? 0x93d43 : 0x69b9a56,
		N == 20 ? 0x27a87 : 0x0c8c3fc, N == 20 ? 0x4f50d : 0xa6e6956, 0x3230ff0, 0x9b9a55a, 0xc8c3fc0,
			0x6e6956a,
		0x230ff0c, 0xb9a55a6, 0x8c3fc30, 0xe69569a};
	uint32_t row = rows[0];

#pragma unroll
	for (uint32_t r = 1; r < N; r++)
		row = i == r ? rows[r] : row;
	return row >> j & 1;
}

/* Butterflies `h` apart in a vector of D. */
template <int D> DEVICE void hadamard_stage(float *x, uint32_t h, uint32_t lane)
{
#pragma unroll
	for (uint32_t i = 0; i < D / 2; i += 32) {
		uint32_t b = i + lane;
		float *lo = x + b / h * 2 * h + b % h, *hi = lo + h;

		if (D / 2 % 32 == 0 || b < D / 2) {
			float s = *lo + *hi, t = *lo - *hi;

			*lo = s;
			*hi = t;
		}
	}
	__syncwarp();
}

/* The factor H12 of 96 and 192: a lane takes a column of 12 elements D / 12 apart. */
template <int D, bool TRANSPOSED> DEVICE void hadamard_twelve(float *x, uint32_t lane)
{
	constexpr uint32_t M = D / 12;

	if (lane < M) {
		float in[12];

#pragma unroll
		for (uint32_t j = 0; j < 12; j++)
			in[j] = x[lane + j * M];
#pragma unroll
		for (uint32_t r = 0; r < 12; r++) {
			float sum = 0;

#pragma unroll
			for (uint32_t j = 0; j < 12; j++)
				sum += (TRANSPOSED ? h12_negative(j, r) : h12_negative(r, j)) ? -in[j]
											      : in[j];
			x[lane + r * M] = sum;
		}
	}
	__syncwarp();
}

/* The factors of 80 and 112: a lane makes every 32nd element, each the sum of a column of N, D / N apart. */
template <int D, bool TRANSPOSED> DEVICE void hadamard_paley(float *x, uint32_t lane)
{
	constexpr uint32_t N = paley_order<D>(), M = D / N, E = (D + 31) / 32;
	float made[E];

#pragma unroll
	for (uint32_t e = 0; e < E; e++) {
		const uint32_t dim = lane + 32 * e, r = dim / M, k = dim % M;
		float sum = 0;

		if (dim < D)
#pragma unroll
			for (uint32_t j = 0; j < N; j++)
				sum += (TRANSPOSED ? paley_negative<N>(j, r) : paley_negative<N>(r, j)) ? -x[k + j * M]
													: x[k + j * M];
		made[e] = sum;
	}
	__syncwarp();
#pragma unroll
	for (uint32_t e = 0; e < E; e++)
		if (lane + 32 * e < D)
			x[lane + 32 * e] = made[e];
	__syncwarp();
}

/* x <- H x, or its transpose, by one warp. Begins and ends with the warp in step. */
template <int D, bool TRANSPOSED> DEVICE void hadamard(float *x, uint32_t lane)
{
	__syncwarp();
	if constexpr (D % 12 == 0)
		hadamard_twelve<D, TRANSPOSED>(x, lane);
	else if constexpr (paley_order<D>() > 1)
		hadamard_paley<D, TRANSPOSED>(x, lane);
#pragma unroll
	for (uint32_t h = 1; h < D / paley_order<D>();
	     h *= 2) /* unrolled for the sake of the divisions by h */
		hadamard_stage<D>(x, h, lane);
}

#endif
