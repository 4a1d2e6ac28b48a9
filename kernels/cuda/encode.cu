/* K and V of new tokens to packed blocks: what kernels/codec.c does, operation by operation, so that
 * codes and scales are the same to the bit. Many tokens of 16-bit elements go by tiles (encode_tile.cu), a lane a
 * vector; others here, a warp a vector. */
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

struct encode {
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
