/* Vectors of extend in registers: a warp holds one, lane l the D / 32 elements from l * D / 32 on. */
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
		for (uint32_t h = 1; h < 32; h *= 2)
#pragma unroll
			for (int e = 0; e < E; e++) {
				const float other = __shfl_xor_sync(ALL_LANES, x[e], h);

				x[e] = lane & h ? other - x[e] : x[e] + other;
			}
	}
}

/* Elements of a 16-byte aligned vector. */
template <int D>
DEVICE void load_vector(enum kv_dtype dtype, const void *p, size_t at, uint32_t lane, float (&x)[D / 32])
{
	constexpr int E = D / 32;

	if constexpr (E % 2 == 0) {
		if (dtype != KV_DTYPE_F32) {
			const uint32_t *words =
				(const uint32_t *)((const uint16_t *)p + at) + lane * E / 2;

#pragma unroll
			for (int e = 0; e < E; e += 2) {
				const uint32_t w = words[e / 2];
				const float2 two =
					dtype == KV_DTYPE_F16
						? __half22float2(*(const __half2 *)&w)
						: __bfloat1622float2(*(const __nv_bfloat162 *)&w);

				x[e] = two.x;
				x[e + 1] = two.y;
			}
			return;
		}
	}
#pragma unroll
	for (int e = 0; e < E; e++)
		x[e] = load_element(dtype, p, at + lane * E + e);
}

DEVICE float max_of_warp(float x)
{
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, i));
	return x;
}

#endif
