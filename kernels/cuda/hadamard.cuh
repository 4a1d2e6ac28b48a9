/* The randomized Hadamard rotation of kernels/hadamard.c on a vector in shared memory, by one warp. The
 * order of the additions is the same, and so are the results, bit for bit. */
#ifndef TERRACE_KERNELS_CUDA_HADAMARD_CUH
#define TERRACE_KERNELS_CUDA_HADAMARD_CUH

#include "kernels/cuda/device.cuh"

/* True where the sign of dim i is -1: the sequence of kernels/hadamard.c. */
DEVICE bool rotation_negative(uint32_t i)
{
	constexpr uint64_t negative[4] = {0x7f7fca4e9a8ca6f2, 0x9480abc759bbc293, 0x54503bbeb55b747e,
					  0x05dfbc5fcdf467b7};
	uint64_t word = i < 64    ? negative[0]
			: i < 128 ? negative[1]
			: i < 192 ? negative[2]
				  : negative[3];

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

/* x <- H x, or its transpose, by one warp. Begins and ends with the warp in step. */
template <int D, bool TRANSPOSED> DEVICE void hadamard(float *x, uint32_t lane)
{
	__syncwarp();
	if constexpr (D % 12 == 0)
		hadamard_twelve<D, TRANSPOSED>(x, lane);
#pragma unroll
	for (uint32_t h = 1; h < (D % 12 == 0 ? D / 12 : D);
	     h *= 2) /* unrolled for the sake of the divisions by h */
		hadamard_stage<D>(x, h, lane);
}

#endif
