/* Vectors of extend in registers: a warp holds one vector, and lane l the D / 32 elements from l * D / 32 on. */
#ifndef TERRACE_KERNELS_CUDA_EXTEND_ROTATE_CUH
#define TERRACE_KERNELS_CUDA_EXTEND_ROTATE_CUH

#include "kernels/cuda/extend_shape.cuh"

/* x <- H x or its transpose, without signs. `room`: D floats of the warp's. */
template <int D, bool TRANSPOSED>
DEVICE void rotate_registers(float (&x)[D / 32], float *room, uint32_t lane)
{
	constexpr int E = D / 32;

	if constexpr (D % 12 == 0) {
#pragma unroll
		for (int e = 0; e < E; e++)
			room[lane * E + e] = x[e];
		hadamard<D, TRANSPOSED>(room, lane);
#pragma unroll
		for (int e = 0; e < E; e++)
			x[e] = room[lane * E + e];
		__syncwarp();
	} else {
#pragma unroll
		for (int h = 1; h < E; h *= 2)
#pragma unroll
			for (int e = 0; e < E; e++) {
				if (e & h)
					continue;
				const float s = x[e] + x[e + h], d = x[e] - x[e + h];

				x[e] = s;
				x[e + h] = d;
			}
#pragma unroll
		for (uint32_t h = 1; h < 32; h *= 2) {
			const float sign = lane & h ? -1 : 1;

#pragma unroll
			for (int e = 0; e < E; e++)
				x[e] = fmaf(x[e], sign, __shfl_xor_sync(ALL_LANES, x[e], h));
		}
	}
}

/* A lane's elements of a 16-byte aligned vector as they are in memory, so that many can be on their way. */
template <int D> struct raw_elements {
	uint32_t words[D / 32];
};

/* N vectors, at at(i) each. */
template <int D, int N, class At>
DEVICE void load_raw(enum kv_dtype dtype, const void *p, uint32_t lane, raw_elements<D> (&raw)[N], At at)
{
	constexpr uint32_t E = D / 32;

	if (dtype == KV_DTYPE_F32) {
#pragma unroll
		for (uint32_t i = 0; i < N; i++)
#pragma unroll
			for (uint32_t e = 0; e < E; e++)
				raw[i].words[e] = ((const uint32_t *)p)[at(i) + lane * E + e];
	} else {
#pragma unroll
		for (uint32_t i = 0; i < N; i++) {
			const uint16_t *from = (const uint16_t *)p + at(i) + lane * E;

			if constexpr (E % 4 == 0) {
#pragma unroll
				for (uint32_t e = 0; e < E / 2; e += 2) {
					const uint2 two = ((const uint2 *)from)[e / 2];

					raw[i].words[e] = two.x;
					raw[i].words[e + 1] = two.y;
				}
			} else if constexpr (E % 2 == 0) {
#pragma unroll
				for (uint32_t e = 0; e < E / 2; e++)
					raw[i].words[e] = ((const uint32_t *)from)[e];
			} else {
#pragma unroll
				for (uint32_t e = 0; e < E; e++)
					raw[i].words[e] = from[e];
			}
		}
	}
}

DEVICE float float_of_bits(enum kv_dtype dtype, uint32_t bits)
{
	return dtype == KV_DTYPE_F16 ? __half2float(__ushort_as_half((uint16_t)bits)) : __uint_as_float(bits << 16);
}

template <int D> DEVICE void elements_of(enum kv_dtype dtype, const raw_elements<D> &raw, float (&x)[D / 32])
{
	constexpr int E = D / 32;

#pragma unroll
	for (int e = 0; e < E; e++)
		x[e] = dtype == KV_DTYPE_F32 ? __uint_as_float(raw.words[e])
		       : E % 2 == 0	     ? float_of_bits(dtype, raw.words[e / 2] >> (e % 2 * 16) & 0xffff)
					     : float_of_bits(dtype, raw.words[e]);
}

DEVICE float sum_of_warp(float x)
{
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		x += __shfl_xor_sync(ALL_LANES, x, i);
	return x;
}

DEVICE uint32_t max_of_warp(uint32_t x)
{
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		x = max(x, __shfl_xor_sync(ALL_LANES, x, i));
	return x;
}

DEVICE float max_of_warp(float x)
{
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, i));
	return x;
}

#endif
