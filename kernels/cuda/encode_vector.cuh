/* Encodes one vector with one warp, to the bit as kernels/codec.c: cleans, rotates, quantises, and gathers the token's
 * bytes from its codes in shared memory.
 */
#ifndef TERRACE_KERNELS_CUDA_ENCODE_VECTOR_CUH
#define TERRACE_KERNELS_CUDA_ENCODE_VECTOR_CUH

#include <cuda_fp8.h>

#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/codec_row.cuh"

constexpr float FINITE_MAX = KV_FINITE_MAX;

/* Dims of a vector that a lane has: lane, lane + 32, ...; of d = 80 and 112 the upper lanes lack the last one. */
template <int D> constexpr int LANE_DIMS = (D + 31) / 32;

template <int D> DEVICE bool has_dim(uint32_t dim)
{
	return D % 32 == 0 || dim < D;
}

/* NaN is 0, what is beyond `limit`, infinities too, is `limit`. */
DEVICE float clean(float v, float limit)
{
	v = v > limit ? limit : v;
	v = v < -limit ? -limit : v;
	return v == v ? v : 0;
}

/* `rounding`: of formats that round. */
__host__ __device__ constexpr float limit_of(int format, enum kv_rounding rounding = KV_ROUND_F16)
{
	return format == KV_BF16                                 ? KV_BF16_MAX
	       : format_codes(format) == KV_CODES_CODEBOOK || (format_rounds(format) && rounding == KV_ROUND_BF16)
		       ? FINITE_MAX * KV_HEAD_DIM_MAX
		       : FINITE_MAX;
}

DEVICE float warp_max(float x)
{
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, i));
	return x;
}

/* The length of x[D]: 16 partial sums, added up in order, as codebook.c does. */
template <int D> DEVICE float length_of(const float *x, uint32_t lane)
{
	float part = 0, sum = 0;

	for (uint32_t i = lane % 16; i < D; i += 16)
		part = __fadd_rn(part, __fmul_rn(x[i], x[i]));
	for (int j = 0; j < 16; j++)
		sum = __fadd_rn(sum, __shfl_sync(ALL_LANES, part, j));
	return sqrtf(sum);
}

template <int D, int FORMAT>
DEVICE uint32_t codebook_quantise(const float *x, uint32_t lane, uint32_t (&code)[LANE_DIMS<D>])
{
	constexpr uint32_t N = 1u << (format_bits(FORMAT) - 1);
	constexpr float PER_UNIT = FORMAT == KV_TQ4 ? 41.86f : FORMAT == KV_TQ3 ? 50.90f : 78.45f;
	const float length = length_of<D>(x, lane),
		    step = __fdiv_rn(__fdiv_rn(length, sqrtf((float)D)), PER_UNIT);
	uint32_t squares = 0;

#pragma unroll
	for (int i = 0; i < LANE_DIMS<D>; i++) {
		if (!has_dim<D>(lane + 32 * i))
			continue;
		const float v = x[lane + 32 * i];
		float m = codebook_magnitude<FORMAT>(0);
		uint32_t index = 0;

#pragma unroll
		for (uint32_t j = 1; j < N; j++) {
			const float below = codebook_magnitude<FORMAT>(j - 1),
				    above = codebook_magnitude<FORMAT>(j);
			const bool beyond = fabsf(v) > __fmul_rn((below + above) / 2, step);

			index += beyond;
			m = beyond ? above : m;
		}
		squares += (uint32_t)(4 * m * m);
		code[i] = index + (v < 0 ? N : 0);
	}
#pragma unroll
	for (int i = 1; i < 32; i *= 2)
		squares += __shfl_xor_sync(ALL_LANES, squares, i);
	const float scale = __fdiv_rn(length, sqrtf((float)squares) / 2);

	return __half_as_ushort(__float2half_rn(scale > FINITE_MAX ? FINITE_MAX : scale));
}

/* round(x * inverse + zero), halves up, within 0 .. 15. */
DEVICE uint32_t int4_rounded(float x, float inverse, float zero)
{
	float t = __fadd_rn(__fmaf_rn(x, inverse, zero), 0.5f);

	return (uint32_t)(t < 0 ? 0 : t > 15 ? 15 : t);
}

template <int D> DEVICE uint32_t int4_quantise(const float *x, uint32_t lane, uint32_t (&code)[LANE_DIMS<D>])
{
	float low = x[lane], high = low, inverse;

#pragma unroll
	for (int i = 1; i < LANE_DIMS<D>; i++) {
		if (!has_dim<D>(lane + 32 * i))
			continue;
		low = fminf(low, x[lane + 32 * i]);
		high = fmaxf(high, x[lane + 32 * i]);
	}
	high = warp_max(high);
	low = -warp_max(-low);
	const float scale = fmaxf(__fmul_rn(__fadd_rn(high, -low), 1.0f / 15.0f), 1e-6f);

	inverse = reciprocal_fast(scale); /* what kernels/reciprocal.c reproduces */
	const uint32_t zero = int4_rounded(-low, inverse, 0);

#pragma unroll
	for (int i = 0; i < LANE_DIMS<D>; i++)
		if (has_dim<D>(lane + 32 * i))
			code[i] = int4_rounded(x[lane + 32 * i], inverse, (float)zero);
	return (__float_as_uint(scale) & ~15u) | zero;
}

template <int D> DEVICE uint32_t fp8_quantise(const float *x, uint32_t lane, uint32_t (&code)[LANE_DIMS<D>])
{
	float largest = 0;

#pragma unroll
	for (int i = 0; i < LANE_DIMS<D>; i++)
		if (has_dim<D>(lane + 32 * i))
			largest = fmaxf(largest, fabsf(x[lane + 32 * i]));
	const float wanted = __fdiv_rn(warp_max(largest), KV_FP8_TOP(D));
	__half scale = __float2half_rn(wanted);

	if (__half2float(scale) < wanted)
		scale = __ushort_as_half((uint16_t)(__half_as_ushort(scale) + 1));
	const float step = __half_as_ushort(scale) ? __half2float(scale) : 1;

#pragma unroll
	for (int i = 0; i < LANE_DIMS<D>; i++)
		if (has_dim<D>(lane + 32 * i))
			code[i] = __nv_cvt_float_to_fp8(__fdiv_rn(x[lane + 32 * i], step), __NV_SATFINITE, __NV_E4M3);
	return __half_as_ushort(scale);
}

/* Codes of dims lane, lane + 32, ..., and the scale's bits. */
template <int D, int FORMAT>
DEVICE uint32_t quantise(const float *x, uint32_t lane, uint32_t (&code)[LANE_DIMS<D>])
{
	if constexpr (FORMAT == KV_F16 || FORMAT == KV_BF16) {
#pragma unroll
		for (int i = 0; i < LANE_DIMS<D>; i++)
			if (has_dim<D>(lane + 32 * i))
				code[i] = FORMAT == KV_F16
						  ? __half_as_ushort(__float2half_rn(x[lane + 32 * i]))
						  : __bfloat16_as_ushort(__float2bfloat16_rn(x[lane + 32 * i]));
		return 0;
	} else if constexpr (FORMAT == KV_FP8) {
		return fp8_quantise<D>(x, lane, code);
	} else if constexpr (FORMAT == KV_INT4_PTH) {
		return int4_quantise<D>(x, lane, code);
	} else {
		return codebook_quantise<D, FORMAT>(x, lane, code);
	}
}

/* The rotation of a vector whose lanes hold D / 32 dims each, one after the other; as hadamard() (D a power of two). */
template <int D> DEVICE void hadamard_across(float (&x)[D / 32], uint32_t lane)
{
	constexpr uint32_t E = D / 32;

#pragma unroll
	for (uint32_t h = 1; h < E; h *= 2) {
#pragma unroll
		for (uint32_t i = 0; i < E / 2; i++) {
			const uint32_t at = i / h * 2 * h + i % h;
			const float s = x[at] + x[at + h], d = x[at] - x[at + h];

			x[at] = s;
			x[at + h] = d;
		}
	}
#pragma unroll
	for (uint32_t h = 1; h < 32; h *= 2) {
		const float sign = lane & h ? -1.0f : 1.0f;

#pragma unroll
		for (uint32_t i = 0; i < E; i++) /* low + high in the low lane, low - high in the high one */
			x[i] = __fmaf_rn(sign, x[i], __shfl_xor_sync(ALL_LANES, x[i], h));
	}
}

/* The vector as kv_quantise sees it, in shared memory: cleaned, rotated where the format wants it,
 * cleaned again. */
template <int D, int FORMAT>
DEVICE void prepare(const codec_args &a, const codec_side &s, size_t at, float *x, uint32_t lane)
{
	constexpr bool ACROSS = format_rotated(FORMAT) && paley_order<D>() == 1;
	constexpr uint32_t E = LANE_DIMS<D>;
	float own[E];

#pragma unroll
	for (uint32_t i = 0; i < E; i++) {
		const uint32_t dim = ACROSS ? lane * E + i : lane + 32 * i;

		own[i] = 0;
		if (!has_dim<D>(dim))
			continue;
		own[i] = load_element(a.dtype, s.vectors, at + dim);
		if (format_rotated(FORMAT)) {
			own[i] = clean(own[i], FINITE_MAX);
			own[i] = rotation_negative(dim) ? -own[i] : own[i];
		}
	}
	if constexpr (ACROSS) {
		hadamard_across<D>(own, lane);
	} else if constexpr (format_rotated(FORMAT)) {
#pragma unroll
		for (uint32_t i = 0; i < E; i++)
			if (has_dim<D>(lane + 32 * i))
				x[lane + 32 * i] = own[i];
		hadamard<D, false>(x, lane);
#pragma unroll
		for (uint32_t i = 0; i < E; i++)
			if (has_dim<D>(lane + 32 * i))
				own[i] = x[lane + 32 * i];
	}
#pragma unroll
	for (uint32_t i = 0; i < E; i++) {
		if (format_rounds(FORMAT))
			own[i] = a.rounding == KV_ROUND_BF16 ? __bfloat162float(__float2bfloat16_rn(own[i]))
							     : __half2float(__float2half_rn(own[i]));
		if (has_dim<D>(ACROSS ? lane * E + i : lane + 32 * i))
			x[ACROSS ? lane * E + i : lane + 32 * i] = clean(own[i], limit_of(FORMAT, a.rounding));
	}
	__syncwarp();
}

/* A token's bytes of one plane from its codes, a byte each: four at a time where they are neighbours in the atom. */
template <int D, int W, enum kv_side SIDE>
DEVICE void place_plane(const uint8_t *codes, uint32_t shift, uint32_t in_atom, uint32_t lane, uint8_t *plane)
{
	using P = plane_row<D, W, SIDE>;
	constexpr uint32_t MASK = ((1u << W) - 1) * 0x01010101;

	if constexpr (SIDE == KV_SIDE_K && P::PART == 0) {
#pragma unroll
		for (uint32_t i = 0; i < P::BYTES / 4; i += 32) {
			const uint32_t j = 4 * (i + lane);
			uint32_t w = 0;

			if (j >= P::BYTES)
				continue;
#pragma unroll
			for (uint32_t q = 0; q < P::FIELDS; q++)
				w |= (*(const uint32_t *)(codes + P::dim_of(j, q)) >> shift & MASK) << (q * W);
			*(uint32_t *)(plane + P::at(in_atom, j)) = w;
		}
	} else {
#pragma unroll
		for (uint32_t i = 0; i < P::BYTES; i += 32) {
			const uint32_t j = i + lane;
			uint32_t b = 0;

			if (j >= P::BYTES)
				continue;
#pragma unroll
			for (uint32_t q = 0; q < P::FIELDS; q++)
				b |= (codes[P::dim_of(j, q)] >> shift & MASK & 255) << (q * W);
			plane[P::at(in_atom, j)] = (uint8_t)b;
		}
	}
}

/* The token's codes to their bytes of the atom. */
template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void place_codes(const uint32_t (&code)[LANE_DIMS<D>], uint32_t in_atom, uint32_t lane, uint8_t *image,
	uint8_t *codes)
{
	constexpr uint32_t BITS = format_bits(FORMAT);

	if constexpr (BITS == 16) {
#pragma unroll
		for (int i = 0; i < LANE_DIMS<D>; i++)
			if (has_dim<D>(lane + 32 * i))
				*(uint16_t *)(codes + raw_place(SIDE, D, in_atom, lane + 32 * i)) = (uint16_t)code[i];
	} else {
#pragma unroll
		for (int i = 0; i < LANE_DIMS<D>; i++)
			if (has_dim<D>(lane + 32 * i))
				image[lane + 32 * i] = (uint8_t)code[i];
		__syncwarp();
		place_plane<D, BITS == 3 ? 2 : BITS, SIDE>(image, 0, in_atom, lane, codes);
		if constexpr (BITS == 3)
			place_plane<D, 1, SIDE>(image, 2, in_atom, lane, codes + KV_ATOM_TOKENS * D * 2 / 8);
		__syncwarp();
	}
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void encode_vector(const codec_args &a, const codec_side &s, uint32_t i, uint32_t lane,
			  float *vector, uint8_t *image)
{
	const uint32_t token = i / a.heads, head = i % a.heads;
	uint32_t in_atom = 0, code[LANE_DIMS<D>];

	if (token >= a.tokens)
		return;
	uint8_t *atom = atom_of(a, token, head, &in_atom);

	if (!atom)
		return;
	prepare<D, FORMAT>(a, s, token * s.stride + head * D, vector, lane);
	const uint32_t scale = quantise<D, FORMAT>(vector, lane, code);

	place_codes<D, FORMAT, SIDE>(code, in_atom, lane, image, atom + s.codes_at);
	if (lane == 0 && format_scale_bytes(FORMAT) == 2)
		((uint16_t *)(atom + s.scales_at))[scale_entry(in_atom)] = (uint16_t)scale;
	if (lane == 0 && format_scale_bytes(FORMAT) == 4)
		((uint32_t *)(atom + s.scales_at))[scale_entry(in_atom)] = scale;
}

#endif
