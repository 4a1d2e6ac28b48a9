/* K and V of new tokens to packed blocks: what kernels/codec.c does, operation by operation, so that
 * codes and scales are the same to the bit. Whole atoms of many tokens go by tiles (codec_tile.cuh), a
 * lane a vector. Otherwise a warp takes one vector: cleans, rotates, quantises, gathers its codes in an
 * image of the atom in shared memory and stores the token's bytes from there.
 */
#include <cuda_fp8.h>

#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/codec_tile.cuh"

namespace
{

constexpr float FINITE_MAX = 65504.0f; /* KV_FINITE_MAX */
constexpr float BF16_MAX = 0x1.fep127f;

/* NaN is 0, infinities are the largest fp16, what is beyond `limit` is `limit`. */
DEVICE float clean(float v, float limit)
{
	v = isinf(v) ? copysignf(FINITE_MAX, v) : v;
	v = v > limit ? limit : v;
	v = v < -limit ? -limit : v;
	return v == v ? v : 0;
}

__host__ __device__ constexpr float limit_of(int format)
{
	return format == KV_BF16                                 ? BF16_MAX
	       : format_rotated(format) && format != KV_INT4_PTH ? FINITE_MAX * KV_HEAD_DIM_MAX
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
DEVICE uint32_t codebook_quantise(const float *x, uint32_t lane, uint32_t (&code)[D / 32])
{
	constexpr uint32_t N = 1u << (format_bits(FORMAT) - 1);
	constexpr float PER_UNIT = FORMAT == KV_TQ4 ? 41.86f : FORMAT == KV_TQ3 ? 50.90f : 78.45f;
	const float length = length_of<D>(x, lane),
		    step = __fdiv_rn(__fdiv_rn(length, sqrtf((float)D)), PER_UNIT);
	uint32_t squares = 0;

#pragma unroll
	for (int i = 0; i < D / 32; i++) {
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

template <int D> DEVICE uint32_t int4_quantise(const float *x, uint32_t lane, uint32_t (&code)[D / 32])
{
	float low = x[lane], high = low, inverse;

#pragma unroll
	for (int i = 1; i < D / 32; i++) {
		low = fminf(low, x[lane + 32 * i]);
		high = fmaxf(high, x[lane + 32 * i]);
	}
	high = warp_max(high);
	low = -warp_max(-low);
	const float scale = fmaxf(__fmul_rn(__fadd_rn(high, -low), 1.0f / 15.0f), 1e-6f);

	asm("rcp.approx.ftz.f32 %0, %1;"
	    : "=f"(inverse)
	    : "f"(scale)); /* what kernels/reciprocal.c reproduces */
	const uint32_t zero = int4_rounded(-low, inverse, 0);

#pragma unroll
	for (int i = 0; i < D / 32; i++)
		code[i] = int4_rounded(x[lane + 32 * i], inverse, (float)zero);
	return (__float_as_uint(scale) & ~15u) | zero;
}

template <int D> DEVICE uint32_t fp8_quantise(const float *x, uint32_t lane, uint32_t (&code)[D / 32])
{
	float largest = 0;

#pragma unroll
	for (int i = 0; i < D / 32; i++)
		largest = fmaxf(largest, fabsf(x[lane + 32 * i]));
	const float wanted = __fdiv_rn(warp_max(largest), 448.0f);
	__half scale = __float2half_rn(wanted);

	if (__half2float(scale) < wanted)
		scale = __ushort_as_half((uint16_t)(__half_as_ushort(scale) + 1));
	const float step = __half_as_ushort(scale) ? __half2float(scale) : 1;

#pragma unroll
	for (int i = 0; i < D / 32; i++)
		code[i] = __nv_cvt_float_to_fp8(__fdiv_rn(x[lane + 32 * i], step), __NV_SATFINITE,
						__NV_E4M3);
	return __half_as_ushort(scale);
}

/* Codes of dims lane, lane + 32, ..., and the scale's bits. */
template <int D, int FORMAT>
DEVICE uint32_t quantise(const float *x, uint32_t lane, uint32_t (&code)[D / 32])
{
	if constexpr (FORMAT == KV_F16 || FORMAT == KV_BF16) {
#pragma unroll
		for (int i = 0; i < D / 32; i++)
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

/* The vector as kv_quantise sees it, in shared memory: cleaned, rotated where the format wants it,
 * cleaned again. */
template <int D, int FORMAT>
DEVICE void prepare(const codec_args &a, const codec_side &s, size_t at, float *x, uint32_t lane)
{
#pragma unroll
	for (uint32_t dim = lane; dim < D; dim += 32) {
		float v = load_element(a.dtype, s.vectors, at + dim);

		if (format_rotated(FORMAT)) {
			v = clean(v, FINITE_MAX);
			v = rotation_negative(dim) ? -v : v;
		}
		x[dim] = v;
	}
	if (format_rotated(FORMAT))
		hadamard<D, false>(x, lane);
#pragma unroll
	for (uint32_t dim = lane; dim < D; dim += 32) {
		float v = x[dim];

		if (FORMAT == KV_INT4_PTH)
			v = __half2float(__float2half_rn(v));
		x[dim] = clean(v, limit_of(FORMAT));
	}
	__syncwarp();
}

/* The token's codes to their bytes of the atom, by way of an image of the atom's codes. */
template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void place_codes(const uint32_t (&code)[D / 32], uint32_t in_atom, uint32_t lane, uint32_t *image,
			uint8_t *codes)
{
	constexpr uint32_t BITS = format_bits(FORMAT);
	constexpr unsigned PLACES = BITS == 16 || BITS == 3 ? 2 : 1;
	struct kv_place p[D / 32][2];

#pragma unroll
	for (int j = 0; j < D / 32; j++) {
		places_of(BITS, SIDE, D, in_atom, lane + 32 * j, p[j]);
		for (unsigned k = 0; k < PLACES; k++)
			image[p[j][k].byte / 4] = 0;
	}
	__syncwarp();
#pragma unroll
	for (int j = 0; j < D / 32; j++) {
#pragma unroll
		for (unsigned k = 0; k < PLACES; k++)
			atomicOr(&image[p[j][k].byte / 4],
				 (code[j] >> p[j][k].code_shift & ((1u << p[j][k].bits) - 1))
					 << (p[j][k].shift + p[j][k].byte % 4 * 8));
	}
	__syncwarp();
#pragma unroll
	for (int j = 0; j < D / 32; j++) {
#pragma unroll
		for (unsigned k = 0; k < PLACES; k++)
			if (p[j][k].shift == 0) /* one of those that share the byte */
				codes[p[j][k].byte] = ((const uint8_t *)image)[p[j][k].byte];
	}
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void encode_vector(const codec_args &a, const codec_side &s, uint32_t i, uint32_t lane,
			  float *vector, uint32_t *image)
{
	const uint32_t token = i / a.heads, head = i % a.heads;
	uint32_t in_atom = 0, code[D / 32];

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

template <int D, int FORMAT>
__global__ void __launch_bounds__(32 * CODEC_WARPS)
	encode_kernel(const codec_args a, const codec_side k, const codec_side v, uint32_t first)
{
	__shared__ float vectors[CODEC_WARPS][D];
	__shared__ uint32_t images[CODEC_WARPS][KV_ATOM_TOKENS * D * format_bits(FORMAT) / 32];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32,
		       i = blockIdx.x * CODEC_WARPS + warp;

	if (first + blockIdx.y == KV_SIDE_K)
		encode_vector<D, FORMAT, KV_SIDE_K>(a, k, i, lane, vectors[warp], images[warp]);
	else
		encode_vector<D, FORMAT, KV_SIDE_V>(a, v, i, lane, vectors[warp], images[warp]);
}

/* --- tiles: a lane a vector ------------------------------------------------------------------- */

template <int D> DEVICE uint32_t int4_quantise_lane(float (&x)[D], uint32_t (&code)[D])
{
	float lows[4] = {x[0], x[1], x[2], x[3]}, highs[4] = {x[0], x[1], x[2], x[3]}, inverse;

#pragma unroll
	for (int i = 4; i < D; i++) { /* four at a time, for one would wait for the last */
		lows[i % 4] = fminf(lows[i % 4], x[i]);
		highs[i % 4] = fmaxf(highs[i % 4], x[i]);
	}
	const float low = fminf(fminf(lows[0], lows[1]), fminf(lows[2], lows[3])),
		    high = fmaxf(fmaxf(highs[0], highs[1]), fmaxf(highs[2], highs[3]));
	const float scale = fmaxf(__fmul_rn(__fadd_rn(high, -low), 1.0f / 15.0f), 1e-6f);

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
	const uint32_t zero = int4_rounded(-low, inverse, 0);

#pragma unroll
	for (int i = 0; i < D; i++) {
		const float t = __fadd_rn(__fmaf_rn(x[i], inverse, (float)zero), 0.5f);

		/* rounding down to whole numbers puts them in the low bits */
		code[i] = __float_as_uint(__fadd_rz(fminf(fmaxf(t, 0.0f), 15.0f), 0x1p23f)) & 15;
	}
	return (__float_as_uint(scale) & ~15u) | zero;
}

template <int D> DEVICE uint32_t fp8_quantise_lane(const float (&x)[D], uint32_t (&code)[D])
{
	float largest = 0;

#pragma unroll
	for (int i = 0; i < D; i++)
		largest = fmaxf(largest, fabsf(x[i]));
	const float wanted = __fdiv_rn(largest, 448.0f);
	__half scale = __float2half_rn(wanted);

	if (__half2float(scale) < wanted)
		scale = __ushort_as_half((uint16_t)(__half_as_ushort(scale) + 1));
	const float step = __half_as_ushort(scale) ? __half2float(scale) : 1,
		    inverse = __frcp_rn(step);

#pragma unroll
	for (int i = 0; i < D; i++) { /* x / step, correctly rounded: step has 11 bits */
		const float q = __fmul_rn(x[i], inverse);

		const float exact = __fmaf_rn(__fmaf_rn(-q, step, x[i]), inverse, q);

		/* the sum loses the sign of -0 */
		code[i] = __nv_cvt_float_to_fp8(copysignf(exact, x[i]), __NV_SATFINITE, __NV_E4M3);
	}
	return __half_as_ushort(scale);
}

/* Finds codes by halving: the thresholds of the next step are chosen by the last. */
template <int D, int FORMAT> DEVICE uint32_t codebook_quantise_lane(const float (&x)[D], uint32_t (&code)[D])
{
	constexpr uint32_t N = 1u << (format_bits(FORMAT) - 1);
	constexpr float PER_UNIT = FORMAT == KV_TQ4 ? 41.86f : FORMAT == KV_TQ3 ? 50.90f : 78.45f;
	float part[16], sum = 0, threshold[N];
	uint32_t squares[4] = {}, doubled[2] = {}; /* twice the magnitudes, a byte each */

#pragma unroll
	for (uint32_t j = 0; j < N; j++)
		doubled[j / 4] |= (uint32_t)(2 * codebook_magnitude<FORMAT>(j)) << j % 4 * 8;
#pragma unroll
	for (int j = 0; j < 16; j++)
		part[j] = 0;
#pragma unroll
	for (int i = 0; i < D; i++)
		part[i % 16] = __fadd_rn(part[i % 16], __fmul_rn(x[i], x[i]));
#pragma unroll
	for (int j = 0; j < 16; j++)
		sum = __fadd_rn(sum, part[j]);
	const float length = sqrtf(sum), step = __fdiv_rn(__fdiv_rn(length, sqrtf((float)D)), PER_UNIT);

#pragma unroll
	for (uint32_t j = 1; j < N; j++)
		threshold[j] = __fmul_rn(
			(codebook_magnitude<FORMAT>(j - 1) + codebook_magnitude<FORMAT>(j)) / 2, step);
#pragma unroll
	for (int i = 0; i < D; i++) {
		const float v = fabsf(x[i]);
		float next[N];
		uint32_t index = 0;

#pragma unroll
		for (uint32_t j = 0; j < N; j++)
			next[j] = j ? threshold[j] : 0;
#pragma unroll
		for (uint32_t half = N / 2; half > 0; half /= 2) {
			const bool beyond = v > next[half];

			index |= beyond ? half : 0;
#pragma unroll
			for (uint32_t j = 0; j < half; j++)
				next[j] = beyond ? next[j + half] : next[j];
		}
		const uint32_t twice = permute(doubled[0], doubled[1], index) & 255;

		squares[i % 4] += twice * twice;
		code[i] = index + (x[i] < 0 ? N : 0);
	}
	const float scale = __fdiv_rn(length, sqrtf((float)(squares[0] + squares[1] + squares[2] + squares[3])) / 2);

	return __half_as_ushort(__float2half_rn(scale > FINITE_MAX ? FINITE_MAX : scale));
}

template <int D, int FORMAT> DEVICE uint32_t quantise_lane(float (&x)[D], uint32_t (&code)[D])
{
	if constexpr (FORMAT == KV_F16 || FORMAT == KV_BF16) {
#pragma unroll
		for (int i = 0; i < D; i++)
			code[i] = FORMAT == KV_F16 ? __half_as_ushort(__float2half_rn(x[i]))
						   : __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
		return 0;
	} else if constexpr (FORMAT == KV_FP8) {
		return fp8_quantise_lane(x, code);
	} else if constexpr (FORMAT == KV_INT4_PTH) {
		return int4_quantise_lane(x, code);
	} else {
		return codebook_quantise_lane<D, FORMAT>(x, code);
	}
}

/* clean() of a whole vector; nearly all need none. */
template <int D> DEVICE void clean_lane(float (&x)[D], float limit)
{
	float largest[4] = {};

#pragma unroll
	for (int i = 0; i < D; i++)
		asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest[i % 4]) : "f"(fabsf(x[i])));
	if (largest[0] <= limit && largest[1] <= limit && largest[2] <= limit && largest[3] <= limit)
		return;
#pragma unroll
	for (int i = 0; i < D; i++)
		x[i] = clean(x[i], limit);
}

template <int D, int FORMAT> DEVICE void prepare_lane(enum kv_dtype dtype, const uint8_t *row, float (&x)[D])
{
#pragma unroll
	for (int i = 0; i < D / 8; i++) {
		const uint4 piece = ((const uint4 *)row)[i];
		const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};

#pragma unroll
		for (int j = 0; j < 4; j++) {
			const __half2 h = *(const __half2 *)&words[j];

			x[8 * i + 2 * j] = dtype == KV_DTYPE_F16 ? __low2float(h)
								 : __uint_as_float(words[j] << 16);
			x[8 * i + 2 * j + 1] = dtype == KV_DTYPE_F16
						       ? __high2float(h)
						       : __uint_as_float(words[j] & 0xffff0000);
		}
	}
	if constexpr (format_rotated(FORMAT)) {
		clean_lane(x, FINITE_MAX);
#pragma unroll
		for (int i = 0; i < D; i++)
			x[i] = rotation_negative(i) ? -x[i] : x[i];
		hadamard_lane<D, false>(x);
	}
	if (FORMAT == KV_INT4_PTH) {
#pragma unroll
		for (int i = 0; i < D; i++)
			x[i] = __half2float(__float2half_rn(x[i]));
	}
	if (FORMAT == KV_INT4_PTH || !format_rotated(FORMAT)) /* the sum of D numbers stays within the others' */
		clean_lane(x, limit_of(FORMAT));
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void encode_tile(const codec_args &a, const codec_side &s, const tile_lane &t, uint32_t lane,
			uint8_t *shared)
{
	constexpr uint32_t PIECES = D / 8, CODES = KV_ATOM_TOKENS * D * format_bits(FORMAT) / 8;
	const uint64_t row = (uint64_t)((const uint16_t *)s.vectors + t.token * s.stride + t.head * D);
	const uint64_t row_of[2] = {__shfl_sync(ALL_LANES, row, 0), __shfl_sync(ALL_LANES, row, 16)};
	const uint64_t atom_of[2] = {__shfl_sync(ALL_LANES, (uint64_t)t.atom, 0),
				     __shfl_sync(ALL_LANES, (uint64_t)t.atom, 16)};
	uint32_t code[D];
	float x[D];

#pragma unroll
	for (uint32_t i = 0; i < PIECES; i++) {
		const uint32_t piece = i * 32 + lane, r = piece / PIECES, column = piece % PIECES * 16;

		asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
				     shared_address(shared + r * TILE_PITCH<D> + column)),
			     "l"((r < 16 ? row_of[0] : row_of[1]) + r % 16 * s.stride * 2 + column)
			     : "memory");
	}
	asm volatile("cp.async.wait_all;" ::: "memory");
	__syncwarp();
	prepare_lane<D, FORMAT>(a.dtype, shared + lane * TILE_PITCH<D>, x);
	const uint32_t scale = quantise_lane<D, FORMAT>(x, code);

	__syncwarp();
	tile_codes<D, format_bits(FORMAT), SIDE>::store(code, t.in_atom, shared + lane / 16 * CODES);
	if (format_scale_bytes(FORMAT) == 2)
		((uint16_t *)(t.atom + s.scales_at))[scale_entry(t.in_atom)] = (uint16_t)scale;
	if (format_scale_bytes(FORMAT) == 4)
		((uint32_t *)(t.atom + s.scales_at))[scale_entry(t.in_atom)] = scale;
	__syncwarp();
#pragma unroll
	for (uint32_t at = lane * 16; at < 2 * CODES; at += 512)
		*(uint4 *)((at < CODES ? atom_of[0] : atom_of[1]) + s.codes_at + at % CODES) =
			*(const uint4 *)(shared + at);
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void encode_side(const codec_args &a, const codec_side &s, uint32_t lane, uint8_t *shared)
{
	const tile_lane t = tile_of(a, blockIdx.x * TILE_WARPS + threadIdx.x / 32, lane);

	if (t.whole) {
		encode_tile<D, FORMAT, SIDE>(a, s, t, lane, shared);
		return;
	}
	for (uint32_t i = 0; i < 32; i++) {
		const uint32_t token = __shfl_sync(ALL_LANES, t.token, i),
			       head = __shfl_sync(ALL_LANES, t.head, i);

		if (token < a.tokens)
			encode_vector<D, FORMAT, SIDE>(a, s, token * a.heads + head, lane, (float *)shared,
						       (uint32_t *)(shared + D * sizeof(float)));
		__syncwarp();
	}
}

template <int D, int FORMAT>
__global__ void __launch_bounds__(32 * TILE_WARPS)
	encode_tiles_kernel(const codec_args a, const codec_side k, const codec_side v, uint32_t first)
{
	constexpr uint32_t IMAGE = D * sizeof(float) + KV_ATOM_TOKENS * D * format_bits(FORMAT) / 8;
	static_assert(IMAGE <= TILE_BYTES<D>, "the vector path works in the tile's memory");
	__shared__ __align__(16) uint8_t shared[TILE_WARPS][TILE_BYTES<D>];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	if (first + blockIdx.y == KV_SIDE_K)
		encode_side<D, FORMAT, KV_SIDE_K>(a, k, lane, shared[warp]);
	else
		encode_side<D, FORMAT, KV_SIDE_V>(a, v, lane, shared[warp]);
}

struct encode {
	template <int D, int FORMAT> static void launch(dim3 grid, const codec_work &w)
	{
		if constexpr (tile_dim<D>) {
			if (tile_suits(w)) {
				encode_tiles_kernel<D, FORMAT><<<tile_grid(w), 32 * TILE_WARPS, 0, w.stream>>>(
					w.args, w.sides[0], w.sides[1], w.first);
				return;
			}
		}
		encode_kernel<D, FORMAT><<<grid, 32 * CODEC_WARPS, 0, w.stream>>>(w.args, w.sides[0],
										  w.sides[1], w.first);
	}
};

} // namespace

extern "C" enum status kv_cuda_encode(const struct kv_cuda_codec *c, cudaStream_t stream)
{
	return codec_launch<encode>(c, stream);
}
