/* Decodes packed blocks to unpacked vectors, for engines that bring their own attention (see cuda_kernels.h). Many
 * tokens of 16-bit elements go by tiles (decode_tile.cu); other calls are served here, a warp for each vector.
 */
#include <cuda_fp8.h>

#include "kernels/cuda/codec.cuh"
#include "kernels/cuda/decode_tile.cuh"

namespace
{

/* A codebook's magnitude (kernels/codebook.c), by look-up of its double. */
template <int FORMAT> DEVICE float magnitude_of(uint32_t i)
{
	constexpr uint32_t FEW = FORMAT == KV_TQ4   ? 11 | 33 << 8 | 55 << 16 | 79 << 24
				 : FORMAT == KV_TQ3 ? 25 | 77 << 8 | 137 << 16 | 219u << 24
						    : 71 | 237 << 8,
			   MANY = 105 | 135 << 8 | 173 << 16 | 229u << 24; /* tq4's others */

	return (float)(permute(FEW, MANY, i) & 255) * 0.5f;
}

template <int FORMAT> DEVICE float value_of(uint32_t code, uint32_t scale_bits)
{
	const float scale = __half2float(__ushort_as_half((uint16_t)scale_bits));
	constexpr uint32_t SIGN = 1u << (format_bits(FORMAT) - 1);

	switch (FORMAT) {
	case KV_F16:
		return __half2float(__ushort_as_half((uint16_t)code));
	case KV_BF16:
		return __bfloat162float(__ushort_as_bfloat16((uint16_t)code));
	case KV_FP8:
		return __half2float(
			       __half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3))) *
		       scale;
	case KV_INT4_PTH:
		return (float)((int32_t)code - (int32_t)(scale_bits & 15)) *
		       __uint_as_float(scale_bits & ~15u);
	default:
		return (code & SIGN ? -scale : scale) * magnitude_of<FORMAT>(code & (SIGN - 1));
	}
}

template <int FORMAT> DEVICE uint32_t load_scale(const uint8_t *scales, uint32_t in_atom)
{
	if (format_scale_bytes(FORMAT) == 2)
		return ((const uint16_t *)scales)[scale_entry(in_atom)];
	if (format_scale_bytes(FORMAT) == 4)
		return ((const uint32_t *)scales)[scale_entry(in_atom)];
	return 0;
}

template <int D, int FORMAT, enum kv_side SIDE>
DEVICE void decode_vector(const codec_args &a, const codec_side &s, uint32_t i, uint32_t lane, float *x)
{
	constexpr uint32_t BITS = format_bits(FORMAT);
	constexpr unsigned PLACES = BITS == 16 || BITS == 3 ? 2 : 1;
	const uint32_t token = i / a.heads, head = i % a.heads;
	uint32_t in_atom = 0;

	if (token >= a.tokens)
		return;
	const int64_t row = row_of(a, token);
	const uint8_t *atom = atom_of(a, token, head, &in_atom);

	if (!atom || row < 0)
		return;
	const size_t at = (size_t)row * s.stride + head * D;
	const uint32_t scale = load_scale<FORMAT>(atom + s.scales_at, in_atom);

#pragma unroll
	for (uint32_t dim = lane; dim < D; dim += 32) {
		struct kv_place p[2];
		uint32_t code = 0;

		places_of(BITS, SIDE, D, in_atom, dim, p);
#pragma unroll
		for (unsigned j = 0; j < PLACES; j++)
			code |= (atom[s.codes_at + p[j].byte] >> p[j].shift & ((1u << p[j].bits) - 1))
				<< p[j].code_shift;
		x[dim] = value_of<FORMAT>(code, scale);
	}
	if (format_rotated(FORMAT))
		hadamard<D, true>(x, lane);
#pragma unroll
	for (uint32_t dim = lane; dim < D; dim += 32) {
		float v = x[dim];

		if (format_rotated(FORMAT))
			v = (rotation_negative(dim) ? -v : v) * (1.0f / D);
		store_element(a.dtype, s.vectors, at + dim, v);
	}
}

template <int D, int FORMAT>
__global__ void __launch_bounds__(32 * CODEC_WARPS)
	decode_kernel(const codec_args a, const codec_side k, const codec_side v, uint32_t first)
{
	__shared__ float vectors[CODEC_WARPS][D];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32,
		       i = blockIdx.x * CODEC_WARPS + warp;

	begin_after_previous();
	if (first + blockIdx.y == KV_SIDE_K)
		decode_vector<D, FORMAT, KV_SIDE_K>(a, k, i, lane, vectors[warp]);
	else
		decode_vector<D, FORMAT, KV_SIDE_V>(a, v, i, lane, vectors[warp]);
}

#ifdef TERRACE_CUDA_CODEC_DIMS
/* A latent, and in the second row of the grid its rope part. */
template <int FORMAT>
__global__ void __launch_bounds__(32 * CODEC_WARPS)
	decode_latent_kernel(const codec_args a, const codec_side latent, const codec_side rope,
			     enum kv_format rope_format)
{
	__shared__ float vectors[CODEC_WARPS][KV_LATENT_DIM];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = blockIdx.x * CODEC_WARPS + warp;

	begin_after_previous();
	if (blockIdx.y == 0)
		decode_vector<KV_LATENT_DIM, FORMAT, KV_SIDE_K>(a, latent, i, lane, vectors[warp]);
	else if (rope_format == KV_F16)
		decode_vector<KV_ROPE_DIM, KV_F16, KV_SIDE_K>(a, rope, i, lane, vectors[warp]);
	else if (rope_format == KV_BF16)
		decode_vector<KV_ROPE_DIM, KV_BF16, KV_SIDE_K>(a, rope, i, lane, vectors[warp]);
	else
		decode_vector<KV_ROPE_DIM, KV_FP8, KV_SIDE_K>(a, rope, i, lane, vectors[warp]);
}

struct decode_latent {
	template <int D, int FORMAT> static void launch(dim3 grid, const codec_work &w)
	{
		static_assert(D == KV_LATENT_DIM, "a latent");
		launch_early(decode_latent_kernel<FORMAT>, grid, 32 * CODEC_WARPS, 0, w.stream, w.args, w.sides[0],
			     w.sides[1], w.rope);
	}

	static bool tiles(uint32_t, enum kv_format, const codec_work &)
	{
		return false;
	}
};
#endif

struct decode {
#ifdef TERRACE_CUDA_CODEC_DIMS
	using latent = decode_latent;
#endif

	template <int D, int FORMAT> static void launch(dim3 grid, const codec_work &w)
	{
		launch_early(decode_kernel<D, FORMAT>, grid, 32 * CODEC_WARPS, 0, w.stream, w.args, w.sides[0], w.sides[1], w.first);
	}

	static bool tiles(uint32_t d, enum kv_format f, const codec_work &w)
	{
		return decode_tiles(d, f, w);
	}
};

} // namespace

extern "C" enum status kv_cuda_decode(const struct kv_cuda_codec *c, cudaStream_t stream)
{
	return codec_launch<decode>(c, stream);
}
