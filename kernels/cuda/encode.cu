/* Encodes K and V of new tokens into packed blocks: as kernels/codec.c, operation by operation, so that codes and
 * scales are the same to the bit. Many tokens of 16-bit elements go by tiles (encode_tile.cu), a lane for each vector;
 * other calls are served here, a warp for each vector.
 */
#include "kernels/cuda/encode_tile.cuh"
#include "kernels/cuda/encode_vector.cuh"

namespace
{

template <int D, int FORMAT>
__global__ void __launch_bounds__(32 * CODEC_WARPS)
	encode_kernel(const codec_args a, const codec_side k, const codec_side v, uint32_t first)
{
	__shared__ float vectors[CODEC_WARPS][D];
	__shared__ __align__(4) uint8_t images[CODEC_WARPS][D]; /* codes */
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32,
		       i = blockIdx.x * CODEC_WARPS + warp;

	begin_after_previous();
	if (first + blockIdx.y == KV_SIDE_K)
		encode_vector<D, FORMAT, KV_SIDE_K>(a, k, i, lane, vectors[warp], images[warp]);
	else
		encode_vector<D, FORMAT, KV_SIDE_V>(a, v, i, lane, vectors[warp], images[warp]);
}

#ifdef TERRACE_CUDA_CODEC_DIMS
/* A latent, and in the second row of the grid its rope part. */
template <int FORMAT>
__global__ void __launch_bounds__(32 * CODEC_WARPS)
	encode_latent_kernel(const codec_args a, const codec_side latent, const codec_side rope,
			     enum kv_format rope_format)
{
	__shared__ float vectors[CODEC_WARPS][KV_LATENT_DIM];
	__shared__ __align__(4) uint8_t images[CODEC_WARPS][KV_LATENT_DIM]; /* codes */
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = blockIdx.x * CODEC_WARPS + warp;

	begin_after_previous();
	if (blockIdx.y == 0)
		encode_vector<KV_LATENT_DIM, FORMAT, KV_SIDE_K>(a, latent, i, lane, vectors[warp], images[warp]);
	else if (rope_format == KV_F16)
		encode_vector<KV_ROPE_DIM, KV_F16, KV_SIDE_K>(a, rope, i, lane, vectors[warp], images[warp]);
	else if (rope_format == KV_BF16)
		encode_vector<KV_ROPE_DIM, KV_BF16, KV_SIDE_K>(a, rope, i, lane, vectors[warp], images[warp]);
	else
		encode_vector<KV_ROPE_DIM, KV_FP8, KV_SIDE_K>(a, rope, i, lane, vectors[warp], images[warp]);
}

struct encode_latent {
	template <int D, int FORMAT> static void launch(dim3 grid, const codec_work &w)
	{
		static_assert(D == KV_LATENT_DIM, "a latent");
		launch_early(encode_latent_kernel<FORMAT>, grid, 32 * CODEC_WARPS, 0, w.stream, w.args, w.sides[0],
			     w.sides[1], w.rope);
	}

	static bool tiles(uint32_t, enum kv_format, const codec_work &)
	{
		return false;
	}
};
#endif

struct encode {
#ifdef TERRACE_CUDA_CODEC_DIMS
	using latent = encode_latent;
#endif

	template <int D, int FORMAT> static void launch(dim3 grid, const codec_work &w)
	{
		launch_early(encode_kernel<D, FORMAT>, grid, 32 * CODEC_WARPS, 0, w.stream, w.args, w.sides[0], w.sides[1], w.first);
	}

	static bool tiles(uint32_t d, enum kv_format f, const codec_work &w)
	{
		return encode_tiles(d, f, w);
	}
};

} // namespace

extern "C" enum status kv_cuda_encode(const struct kv_cuda_codec *c, cudaStream_t stream)
{
	return c->rows ? STATUS_INVALID : codec_launch<encode>(c, stream);
}
